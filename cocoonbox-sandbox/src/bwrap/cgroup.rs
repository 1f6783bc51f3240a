//! A cgroup of version 2 per box, where the machine lets us make one: the kernel's freezer and a kill that misses
//! nothing. No controller is needed for either.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The file that lists a cgroup's processes, and that a process joins by.
const MEMBERS: &str = "cgroup.procs";

/// The directory that holds the cgroups of this node's boxes.
#[derive(Debug)]
pub(super) struct Cgroups {
    parent: PathBuf,
}

/// One box's cgroup.
#[derive(Clone, Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroups {
    /// Finds a place for cgroups; nothing when this process may not make any.
    pub(super) fn find(node: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mut places = mounts_of(&mounts).flat_map(|mount| {
            // at the mount itself, as root does; else below the own cgroup, where one was delegated
            let own = own_path(&own).and_then(|own| mount.place(own));
            std::iter::once(mount.point.to_owned()).chain(own)
        });
        places.find_map(|place| Self::at(&place, node))
    }

    fn at(place: &Path, node: &str) -> Option<Self> {
        // whoever moves a process must be able to write where both cgroups meet
        drop(OpenOptions::new().write(true).open(place.join(MEMBERS)).ok()?);
        let parent = place.join(parent_name(node));
        let probe = Cgroup { path: parent.join("probe") };
        // seen by doing: a mount may be read-only or lack the freezer
        let works = probe.make().is_ok() && probe.path.join("cgroup.freeze").exists() && probe.door().is_ok();
        probe.remove();
        // drops what was made when it does not work
        Some(Self { parent }).filter(|_| works)
    }

    /// Ends and removes what is there without a claim.
    pub(super) fn sweep(&self, is_claim: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(&self.parent).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if entry.path().is_dir() && !name.to_str().is_some_and(&is_claim) {
                let cgroup = Cgroup { path: entry.path() };
                cgroup.kill();
                cgroup.remove();
            }
        }
    }

    /// Names a box's cgroup.
    pub(super) fn of(&self, id: &str) -> Cgroup {
        Cgroup { path: self.parent.join(id) }
    }
}

/// The cgroup of the box `id` that the process `pid` is in; nothing when a node of another name made it, or nobody.
pub(super) fn of_process(node: &str, id: &str, pid: i32) -> Option<Cgroup> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let own = own_path(&text).filter(|path| path.ends_with(&format!("/{}/{id}", parent_name(node))))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let path = mounts_of(&mounts).filter_map(|mount| mount.place(own)).find(|path| path.is_dir())?;
    Some(Cgroup { path })
}

fn parent_name(node: &str) -> String {
    format!("cocoonbox-{node}")
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // goes only when no box is in it
        let _ = fs::remove_dir(&self.parent);
    }
}

impl Cgroup {
    /// Makes the cgroup; it may exist.
    pub(super) fn make(&self) -> io::Result<()> {
        if let Some(parent) = self.path.parent() {
            match fs::create_dir(parent) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Opens the file that a process joins by.
    pub(super) fn door(&self) -> io::Result<OwnedFd> {
        Ok(OpenOptions::new().write(true).open(self.path.join(MEMBERS))?.into())
    }

    /// Asks the kernel to hold everything still or to let it go.
    pub(super) fn freeze(&self, frozen: bool) -> io::Result<()> {
        fs::write(self.path.join("cgroup.freeze"), if frozen { "1" } else { "0" })
    }

    /// Opens the file that tells of changes; it is readable with priority when there is one.
    pub(super) fn events(&self) -> io::Result<File> {
        File::open(self.path.join("cgroup.events"))
    }

    /// Ends everything in it; one that is not there holds nothing.
    pub(super) fn kill(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        let _ = self.freeze(false);
    }

    /// Removes it; true when it is gone.
    pub(super) fn remove(&self) -> bool {
        match fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// Returns whether everything stands still, by the file of [`Cgroup::events`].
pub(super) fn is_frozen(events: &mut File) -> io::Result<bool> {
    let mut text = String::new();
    events.rewind()?;
    events.read_to_string(&mut text)?;
    Ok(text.lines().any(|line| line == "frozen 1"))
}

/// A file system of type cgroup2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mount<'a> {
    /// What of the hierarchy is mounted.
    root: &'a str,
    /// Where.
    point: &'a Path,
}

impl Mount<'_> {
    /// Returns where this mount shows the cgroup `path`; nothing for its root itself and for what lies outside.
    fn place(&self, path: &str) -> Option<PathBuf> {
        let below = path.strip_prefix(self.root.trim_end_matches('/'))?.strip_prefix('/')?;
        let inside = !below.is_empty() && !below.split('/').any(|part| part == "..");
        inside.then(|| self.point.join(below))
    }
}

/// Returns the mounts of version 2.
fn mounts_of(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, Path::new(fields.next()?));
        (source.split(' ').next()? == "cgroup2").then_some(Mount { root, point })
    })
}

/// Returns the path in the version 2 hierarchy, of a process's file `cgroup`.
fn own_path(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_version_two_counts() {
        let text = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                    32 31 0:29 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu\n\
                    41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n\
                    nonsense\n";
        let point = Path::new("/sys/fs/cgroup/unified");
        assert_eq!(mounts_of(text).collect::<Vec<_>>(), [Mount { root: "/", point }]);
    }

    #[test]
    fn a_cgroup_is_found_where_its_mount_shows_it() {
        let mount = |root| Mount { root, point: Path::new("/m") };
        assert_eq!(own_path("4:memory:/a\n0::/user.slice/b\n"), Some("/user.slice/b"));
        assert_eq!(own_path("4:memory:/a\n"), None);
        assert_eq!(mount("/").place("/user.slice/b"), Some("/m/user.slice/b".into()));
        assert_eq!(mount("/user.slice").place("/user.slice/b"), Some("/m/b".into()));
        for (root, path) in [("/", "/"), ("/a", "/a"), ("/a", "/ab"), ("/", "/../a"), ("/a", "/b"), ("/", "")]
        {
            assert_eq!(mount(root).place(path), None, "{root} {path}");
        }
    }
}
