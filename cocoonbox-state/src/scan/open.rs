use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, Stat, fstat, openat2};

use crate::tree::components;

/// What `openat2` takes at once.
const PATH_PIECE: usize = 3000;

/// Opens a path beneath a folder; no link on the way or at the end is followed.
pub(crate) fn open_beneath(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let open = |from: BorrowedFd<'_>, piece: &[u8], flags: OFlags| -> io::Result<OwnedFd> {
        let piece = if piece.is_empty() { b"." } else { piece };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(from, piece, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty(), resolve)?)
    };
    if path.len() <= PATH_PIECE {
        return open(root, path, flags);
    }
    let mut at: Option<OwnedFd> = None;
    let mut piece = Vec::new();
    for name in components(path) {
        if piece.len() + name.len() > PATH_PIECE {
            let from = at.as_ref().map_or(root, AsFd::as_fd);
            at = Some(open(from, &piece, OFlags::PATH | OFlags::DIRECTORY)?);
            piece.clear();
        }
        if !piece.is_empty() {
            piece.push(b'/');
        }
        piece.extend_from_slice(name);
    }
    open(at.as_ref().map_or(root, AsFd::as_fd), &piece, flags)
}

/// By what a file is recognised as unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStat {
    pub(crate) size: u64,
    pub(crate) modified: (i64, u32),
    pub(crate) changed: (i64, u32),
    pub(crate) inode: u64,
}

impl From<&Stat> for FileStat {
    fn from(stat: &Stat) -> Self {
        Self {
            size: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
            changed: (stat.st_ctime, stat.st_ctime_nsec as u32),
            inode: stat.st_ino,
        }
    }
}

pub(crate) fn stat_of(file: &OwnedFd) -> io::Result<Stat> {
    Ok(fstat(file)?)
}
