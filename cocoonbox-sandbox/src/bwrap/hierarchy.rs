//! Where cgroups are, by the mount table and by what `/proc/<pid>/cgroup` says.

use std::path::{Path, PathBuf};

/// Which hierarchy of cgroups: the one of version 2, or the one of version 1 that has a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hierarchy<'a> {
    Unified,
    Of(&'a str),
}

/// A hierarchy, mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mount<'a> {
    /// What of the hierarchy is mounted.
    root: &'a str,
    /// Where.
    pub(super) point: &'a Path,
}

impl Mount<'_> {
    /// Returns where this mount shows the cgroup `path`; nothing for its root itself and for what lies outside.
    pub(super) fn place(&self, path: &str) -> Option<PathBuf> {
        let below = path.strip_prefix(self.root.trim_end_matches('/'))?.strip_prefix('/')?;
        let inside = !below.is_empty() && !below.split('/').any(|part| part == "..");
        inside.then(|| self.point.join(below))
    }
    /// Returns where this mount shows the cgroup `path`, be it its root.
    pub(super) fn shows(&self, path: &str) -> Option<PathBuf> {
        if self.root == path { Some(self.point.to_owned()) } else { self.place(path) }
    }
}

/// Returns the mounts of a hierarchy.
pub(super) fn mounts_of<'a>(mountinfo: &'a str, hierarchy: Hierarchy<'a>) -> impl Iterator<Item = Mount<'a>> {
    mountinfo.lines().filter_map(move |line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, Path::new(fields.next()?));
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1));
        let is_it = match hierarchy {
            Hierarchy::Unified => kind == "cgroup2",
            Hierarchy::Of(controller) => {
                kind == "cgroup" && options?.split(',').any(|option| option == controller)
            }
        };
        is_it.then_some(Mount { root, point })
    })
}

/// Returns the path in a hierarchy, of a process's file `cgroup`.
pub(super) fn own_path<'a>(text: &'a str, hierarchy: Hierarchy<'_>) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_it = match hierarchy {
            Hierarchy::Unified => line.starts_with("0::"),
            Hierarchy::Of(controller) => controllers.split(',').any(|other| other == controller),
        };
        is_it.then_some(path)
    })
}

/// Returns where a process whose file `cgroup` is `own` may make cgroups: at a mount itself, as root does; else below
/// the process's own cgroup, where one was delegated.
pub(super) fn candidates(mountinfo: &str, own: &str, hierarchy: Hierarchy<'_>) -> Vec<PathBuf> {
    let own = own_path(own, hierarchy);
    let mounts = mounts_of(mountinfo, hierarchy);
    let places = mounts.flat_map(|mount| {
        std::iter::once(mount.point.to_owned()).chain(own.and_then(|own| mount.place(own)))
    });
    places.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                          32 31 0:29 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n\
                          33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                          41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n\
                          nonsense\n - cgroup\n";

    #[test]
    fn a_hierarchy_is_found_by_its_controller() {
        let points =
            |hierarchy| mounts_of(HYBRID, hierarchy).map(|mount| mount.point.to_owned()).collect::<Vec<_>>();
        assert_eq!(points(Hierarchy::Unified), [Path::new("/sys/fs/cgroup/unified")]);
        assert_eq!(points(Hierarchy::Of("cpuacct")), [Path::new("/sys/fs/cgroup/cpu")]);
        assert_eq!(points(Hierarchy::Of("memory")), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_cgroup_is_found_where_its_mount_shows_it() {
        let mount = |root| Mount { root, point: Path::new("/m") };
        let own = "4:memory:/a\n3:cpu,cpuacct:/b:c\n0::/user.slice/b\nnonsense\n";
        assert_eq!(own_path(own, Hierarchy::Unified), Some("/user.slice/b"));
        assert_eq!(own_path(own, Hierarchy::Of("memory")), Some("/a"));
        assert_eq!(own_path(own, Hierarchy::Of("cpu")), Some("/b:c"));
        assert_eq!(own_path("4:memory:/a\n", Hierarchy::Unified), None);
        assert_eq!(mount("/").place("/user.slice/b"), Some("/m/user.slice/b".into()));
        assert_eq!(mount("/user.slice").place("/user.slice/b"), Some("/m/b".into()));
        assert_eq!(mount("/").shows("/"), Some("/m".into()));
        assert_eq!(mount("/user.slice").shows("/user.slice"), Some("/m".into()));
        assert_eq!(mount("/user.slice").shows("/user.slice/b"), Some("/m/b".into()));
        for (root, path) in [("/", "/"), ("/a", "/a"), ("/a", "/ab"), ("/", "/../a"), ("/a", "/b"), ("/", "")]
        {
            assert_eq!(mount(root).place(path), None, "{root} {path}");
        }
        assert_eq!(
            candidates(HYBRID, own, Hierarchy::Of("cpu")),
            [Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup/cpu/b:c")]
        );
    }
}
