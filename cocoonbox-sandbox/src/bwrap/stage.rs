//! Where a box's sources are seen from the launch.
//!
//! The data directory is root's alone, and bwrap runs as the box's uid, which cannot reach into it. As root the
//! sources are therefore bound into a small tmpfs first, in a mount namespace of the launch's own. As an ordinary
//! user they are reached where they are.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Directories to bring along, and where they are seen then.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    point: PathBuf,
    point_text: CString,
    data: CString,
    binds: Vec<(CString, CString)>,
}

impl Stage {
    /// Chooses a directory that every machine has and no source lies in.
    pub(super) fn new(data: &Path) -> io::Result<Self> {
        let point = ["/mnt", "/media", "/srv", "/opt", "/var"]
            .iter()
            .map(Path::new)
            .find(|point| point.is_dir() && !data.starts_with(point))
            .ok_or_else(|| {
                io::Error::other("none of /mnt, /media, /srv, /opt and /var can be mounted over")
            })?;
        Ok(Self { point: point.to_owned(), point_text: text(point)?, data: text(data)?, binds: Vec::new() })
    }

    /// Brings the directory `source` along and returns where it is seen.
    pub(super) fn bring(&mut self, source: &Path) -> io::Result<PathBuf> {
        let target = self.point.join(self.binds.len().to_string());
        self.binds.push((text(source)?, text(&target)?));
        Ok(target)
    }

    pub(super) fn point(&self) -> &CStr {
        &self.point_text
    }

    /// What no launch sees once its sources are brought along.
    pub(super) fn data(&self) -> &CStr {
        &self.data
    }

    pub(super) fn binds(&self) -> impl Iterator<Item = (&CStr, &CStr)> {
        self.binds.iter().map(|(source, target)| (source.as_c_str(), target.as_c_str()))
    }
}

/// Returns paths as the system takes them.
pub(super) fn texts(paths: &[PathBuf]) -> io::Result<Vec<CString>> {
    paths.iter().map(|path| text(path)).collect()
}

fn text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::other("a path holds a zero byte"))
}
