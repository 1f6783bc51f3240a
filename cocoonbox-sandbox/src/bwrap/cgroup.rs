//! A cgroup of version 2 per box, where the machine lets us make one: the kernel's freezer and a kill that misses
//! nothing. No controller is needed for either.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

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
        let parent =
            mount_points(&mounts).map(|mount| mount.join(format!("cocoonbox-{node}"))).find(|parent| {
                fs::create_dir(parent).is_ok() || fs::metadata(parent).is_ok_and(|found| found.is_dir())
            })?;
        // seen by doing: a mount may be read-only or lack the freezer
        let probe = Cgroup { path: parent.join("probe") };
        let works =
            probe.make().is_ok() && probe.path.join("cgroup.freeze").exists() && probe.processes().is_ok();
        probe.remove();
        if works { Some(Self { parent }) } else { None }
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
        Ok(OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))?.into())
    }

    /// Returns its processes.
    pub(super) fn processes(&self) -> io::Result<Vec<i32>> {
        let text = fs::read_to_string(self.path.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
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

/// Returns where file systems of type cgroup2 are mounted.
fn mount_points(mountinfo: &str) -> impl Iterator<Item = &Path> {
    mountinfo.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        (source.split(' ').next()? == "cgroup2").then(|| mount.split(' ').nth(4).map(Path::new))?
    })
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
        assert_eq!(mount_points(text).collect::<Vec<_>>(), [Path::new("/sys/fs/cgroup/unified")]);
    }
}
