//! The directory that boxes live in: room, and the length of its path.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::Check;

pub(super) const DATA: &str = "data directory";
pub(super) const SPACE: &str = "disk space";
pub(super) const PATHS: &str = "socket paths";

const GIB: u64 = 1024 * 1024 * 1024;
/// Below it no box is worth starting.
const LEAST: u64 = GIB / 4;
/// Below it work fills the disk soon.
const COMFORT: u64 = 5 * GIB;

/// The most bytes of a socket's path; the kernel's field is 108 with its end.
const SOCKET_PATH: usize = 107;
/// What a box adds to the data directory's path, generously.
const OWN_PART: usize = 64;

/// Returns the directory, or the nearest one above it that is there.
fn nearest(data: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(data).ok()?;
    absolute.ancestors().find(|path| path.is_dir()).map(Path::to_path_buf)
}

/// Looks whether the directory is ours, or can be made.
pub(super) fn data(data: &Path) -> Check {
    let Some(place) = nearest(data) else {
        let detail = format!("{} cannot be looked at", data.display());
        return Check::no(
            DATA,
            detail,
            "it or what is above it is out of reach",
            "choose another with --data",
        );
    };
    let writes = rustix::fs::access(&place, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    let owner = place.metadata().map(|found| found.uid()).ok();
    judge_data(data, &place, owner, rustix::process::geteuid().as_raw(), writes.is_ok())
}

fn judge_data(data: &Path, place: &Path, owner: Option<u32>, user: u32, writes: bool) -> Check {
    let there = std::path::absolute(data).is_ok_and(|absolute| absolute == place);
    let chown = format!("chown -R {user} {}, or choose another with --data", data.display());
    match owner {
        Some(owner) if there && owner != user => {
            let reason = format!("it belongs to uid {owner}, and this is uid {user}");
            Check::no(
                DATA,
                format!("{} is somebody else's", data.display()),
                reason,
                format!("as root: {chown}"),
            )
        }
        _ if !writes => {
            let reason = format!("uid {user} cannot write in {}", place.display());
            let detail = format!("{} cannot be used", data.display());
            let remedy = format!(
                "as root: mkdir -p {0} && chown {user} {0}, or choose another with --data",
                data.display()
            );
            Check::no(DATA, detail, reason, remedy)
        }
        _ if there => Check::yes(DATA, data.display().to_string()),
        _ => Check::yes(DATA, format!("{} can be made", data.display())),
    }
}

/// Looks how much room there is.
pub(super) fn space(data: &Path) -> Check {
    let place = nearest(data);
    let Some((place, found)) =
        place.and_then(|place| rustix::fs::statvfs(&place).ok().map(|found| (place, found)))
    else {
        let detail = format!("{} cannot be looked at", data.display());
        return Check::no(
            SPACE,
            detail,
            "it or what is above it is out of reach",
            "choose another with --data",
        );
    };
    judge_space(&place, found.f_bavail.saturating_mul(found.f_frsize), found.f_favail)
}

fn judge_space(place: &Path, free: u64, files: u64) -> Check {
    let tenths = free.saturating_mul(10) / GIB;
    let detail = format!("{}.{} GiB free at {}", tenths / 10, tenths % 10, place.display());
    let remedy = "free some space, or choose a directory on another disk with --data";
    // a file system without a table of files says 0 of them are free
    if free < LEAST || (1..1000).contains(&files) {
        return Check::no(SPACE, detail, "a box needs room for its files", remedy);
    }
    if free < COMFORT {
        return Check::no(SPACE, detail, "a build or two will fill it", remedy).degraded();
    }
    Check::yes(SPACE, detail)
}

/// Tries the way round the limit on a socket's path, where the directory's path needs it.
pub(super) fn paths(data: &Path) -> Check {
    let absolute = std::path::absolute(data).unwrap_or_else(|_| data.to_path_buf());
    let length = absolute.as_os_str().as_bytes().len() + OWN_PART;
    judge_paths(length, through_a_descriptor())
}

fn judge_paths(length: usize, way_round: io::Result<()>) -> Check {
    let detail = format!("at most {length} bytes, {SOCKET_PATH} fit");
    match way_round {
        Ok(()) if length <= SOCKET_PATH => Check::yes(PATHS, detail),
        Ok(()) => {
            Check::yes(PATHS, format!("{detail}; longer ones go through /proc/self/fd, which works here"))
        }
        Err(error) => {
            let reason = format!("a socket cannot be reached through /proc/self/fd: {error}");
            let check = Check::no(
                PATHS,
                detail,
                reason,
                "mount /proc, or choose a directory with a short path: --data",
            );
            if length <= SOCKET_PATH { check.degraded() } else { check }
        }
    }
}

/// Binds and dials a socket by the descriptor of its directory.
fn through_a_descriptor() -> io::Result<()> {
    let folder = std::env::temp_dir();
    let directory =
        rustix::fs::open(&folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let name = format!("cocoonbox-probe-{}-{:?}", std::process::id(), std::thread::current().id());
    let short = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    let listener = UnixListener::bind(&short)?;
    let dialled = UnixStream::connect(&short);
    drop(listener);
    std::fs::remove_file(folder.join(name))?;
    dialled.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Status;

    #[test]
    fn room_is_judged_by_what_a_box_needs() {
        for (free, files, status) in [
            (LEAST - 1, 10_000, Status::No),
            (COMFORT, 10, Status::No),
            (COMFORT - 1, 10_000, Status::Degraded),
            (COMFORT, 0, Status::Yes),
            (u64::MAX, 10_000, Status::Yes),
        ] {
            assert_eq!(judge_space(Path::new("/"), free, files).status, status, "{free} {files}");
        }
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused() {
        let (data, root) = (Path::new("/srv/data"), Path::new("/srv"));
        for (place, owner, writes, status, word) in [
            (data, 1000, true, Status::Yes, "/srv/data"),
            (data, 0, true, Status::No, "somebody else's"),
            (data, 1000, false, Status::No, "cannot be used"),
            (root, 0, true, Status::Yes, "can be made"),
            (root, 0, false, Status::No, "cannot be used"),
        ] {
            let check = judge_data(data, place, Some(owner), 1000, writes);
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.detail.contains(word), "{check:?}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_judged_by_what_is_above() {
        assert_eq!(nearest(Path::new("/no/such/place")), Some("/".into()));
    }

    #[test]
    fn long_paths_need_the_way_round() {
        let broken = || Err(io::ErrorKind::NotFound.into());
        assert_eq!(judge_paths(50, Ok(())).status, Status::Yes);
        assert_eq!(judge_paths(500, Ok(())).status, Status::Yes);
        assert_eq!(judge_paths(50, broken()).status, Status::Degraded);
        assert_eq!(judge_paths(500, broken()).status, Status::No);
    }
}
