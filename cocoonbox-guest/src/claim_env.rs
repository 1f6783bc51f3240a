//! The claim's variables: written by the host into a file, read anew when it changed.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cocoonbox_wire::env_file;

/// The file, and what it held when it was last looked at.
#[derive(Debug)]
pub(crate) struct ClaimEnv {
    path: PathBuf,
    known: Mutex<Option<Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    stamp: (u64, u64, u64, i64, i64),
    variables: Vec<(OsString, OsString)>,
}

impl ClaimEnv {
    /// Reads the file of that purpose in the directory of the host's files.
    pub(crate) fn new(directory: &Path) -> Self {
        Self { path: directory.join(env_file::FILE), known: Mutex::default() }
    }

    /// Returns the variables as they are now; none where the host wrote none.
    pub(crate) fn variables(&self) -> Vec<(OsString, OsString)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(found) = std::fs::symlink_metadata(&self.path) else {
            *known = None;
            return Vec::new();
        };
        if !found.is_file() {
            return Vec::new();
        }
        // the host replaces the file, so that another one has another number
        let stamp = (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec());
        if let Some(known) = known.as_ref().filter(|known| known.stamp == stamp) {
            return known.variables.clone();
        }
        let mut bytes = Vec::new();
        let read = File::open(&self.path)
            .and_then(|file| file.take(env_file::MAX_BYTES as u64).read_to_end(&mut bytes));
        if read.is_err() {
            return Vec::new();
        }
        let variables: Vec<_> =
            env_file::parse(&bytes).into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        *known = Some(Known { stamp, variables: variables.clone() });
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_read_anew() -> Result<(), Box<dyn std::error::Error>> {
        let directory = tempfile::tempdir()?;
        let env = ClaimEnv::new(directory.path());
        assert_eq!(env.variables(), []);
        for value in ["one", "two"] {
            let new = directory.path().join("new");
            std::fs::write(&new, env_file::render([("A", value)]))?;
            std::fs::rename(&new, directory.path().join(env_file::FILE))?;
            for _ in 0..2 {
                assert_eq!(env.variables(), [("A".into(), value.into())]);
            }
        }
        std::fs::remove_file(directory.path().join(env_file::FILE))?;
        assert_eq!(env.variables(), []);
        Ok(())
    }
}
