//! A data directory whose boxes end with the test, however it ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A directory for a backend's data.
#[derive(Debug)]
pub(crate) struct Data(Option<tempfile::TempDir>);

impl Data {
    pub(crate) fn new() -> std::io::Result<Self> {
        tempfile::Builder::new().prefix("cocoonbox-escape-").tempdir().map(|directory| Self(Some(directory)))
    }

    /// Returns where the data is.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.as_ref().map(|directory| directory.path().join("data")).unwrap_or_default()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        for _ in 0..200 {
            let left = processes_of(&self.path());
            if left.is_empty() {
                break;
            }
            for pid in left {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.0 = None;
    }
}

/// The processes of a data directory's boxes: those that see a home of theirs, and those that launched them.
fn processes_of(data: &Path) -> Vec<i32> {
    let ids: Vec<String> = std::fs::read_dir(data.join("claims"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| format!("cocoonbox-box {}", entry.file_name().to_string_lossy()))
        .collect();
    let inside = ["claims", "trash"].map(|part| format!("{}/{part}/sb_", data.display()));
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let mounts = std::fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        let name = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        // what is mounted, not where: all of the host sees where a node mounts file systems
        let mut mounted = mounts.lines().filter_map(|line| line.split(' ').nth(3));
        let sees = mounted.any(|root| inside.iter().any(|inside| root.starts_with(inside)));
        if sees || ids.iter().any(|id| name.starts_with(id)) {
            found.push(pid);
        }
    }
    found
}
