//! A file system of a box's own, in an image that takes no more room than what is in it.
//!
//! ```text
//!  <data>/disk/<bytes>.ext4            a new file system of each size, made once
//!  <data>/claims/<id>/disk.img         its copy, holes and all
//!  <data>/claims/<id>/files            where it is mounted while anything of the box runs
//! ```
//!
//! The data directory is a mount of its own then, so that a launch, which has its own table of mounts, lets go of all
//! file systems of other boxes at once. Whether a claim has one is told by its image alone. A loop device goes with its mount (the kernel's autoclear), so that
//! there is one thing to undo, which ending a box does.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};

use super::usage::Usage;
use super::{disk, launch};

/// A claim's image.
const IMAGE: &str = "disk.img";
/// The directory of new file systems in the data directory.
const NEW: &str = "disk";
/// The claim that sees whether it works.
const PROBE: &str = "probe";

/// Sees by doing whether boxes can have file systems of their own.
pub(super) fn check(data: &Path) -> io::Result<()> {
    const BYTES: u64 = 16 * 1024 * 1024;
    let probe = data.join(NEW).join(PROBE);
    disk::directory(&data.join(NEW), 0o700)?;
    disk::directory(&probe, 0o700)?;
    let works = own_mount(data).and_then(|()| make(data, &probe, BYTES));
    sweep(data)?;
    works
}

/// Makes the data directory a mount of its own, where it is none.
fn own_mount(data: &Path) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    if mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == data)) {
        return Ok(());
    }
    mount_bind(data, data)?;
    mount_change(data, MountPropagationFlags::PRIVATE)?;
    Ok(())
}

/// Removes what a server that was ended in the middle of its work left.
pub(super) fn sweep(data: &Path) -> io::Result<()> {
    let new = data.join(NEW);
    let probe = new.join(PROBE);
    if probe.exists() {
        detach(&probe)?;
        super::tree::remove(&probe)?;
    }
    for entry in fs::read_dir(&new).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Gives the claim of `directory` a file system of `bytes` and mounts it.
pub(super) fn make(data: &Path, directory: &Path, bytes: u64) -> io::Result<()> {
    let template = template(data, bytes)?;
    let image = directory.join(IMAGE);
    copy(&File::open(template)?, &private(&image)?)?;
    attach(directory)
}

/// Mounts a claim's file system, where it has one and it is not mounted.
pub(super) fn attach(directory: &Path) -> io::Result<()> {
    let (image, files) = (directory.join(IMAGE), directory.join("files"));
    if !image.exists() || is_mounted(directory)? {
        return Ok(());
    }
    disk::directory(&files, 0o700)?;
    let mut mount = program("mount")?;
    mount.args(["-t", "ext4", "-o", "loop,nosuid,nodev,noatime,discard"]).arg(&image).arg(&files);
    run(mount)?;
    fs::set_permissions(&files, fs::Permissions::from_mode(0o700))
}

/// Takes a claim's file system off, where it is mounted.
pub(super) fn detach(directory: &Path) -> io::Result<()> {
    if !directory.join(IMAGE).exists() || !is_mounted(directory)? {
        return Ok(());
    }
    let files = directory.join("files");
    match unmount(&files, UnmountFlags::empty()) {
        // somebody adds up what is in it
        Err(Errno::BUSY) => unmount(&files, UnmountFlags::DETACH)?,
        other => other?,
    }
    Ok(())
}

/// Returns what a claim's file system holds, and what its image takes on the machine's disk; nothing where it has none.
pub(super) fn usage(directory: &Path) -> io::Result<Option<(Usage, u64)>> {
    let Ok(image) = fs::metadata(directory.join(IMAGE)) else { return Ok(None) };
    let found = rustix::fs::statvfs(directory.join("files"))?;
    let bytes = found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize);
    let files = found.f_files.saturating_sub(found.f_ffree);
    Ok(Some((Usage { bytes, files }, image.blocks() * 512)))
}

fn is_mounted(directory: &Path) -> io::Result<bool> {
    match fs::metadata(directory.join("files")) {
        Ok(files) => Ok(files.dev() != fs::metadata(directory)?.dev()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns a new file system of a size, which is made the first time.
fn template(data: &Path, bytes: u64) -> io::Result<PathBuf> {
    let new = data.join(NEW);
    let path = new.join(format!("{bytes}.ext4"));
    if path.exists() {
        return Ok(path);
    }
    disk::directory(&new, 0o700)?;
    // two claims may make it at once; the later one replaces an equal one
    let mut draw = [0_u8; 8];
    File::open("/dev/urandom")?.read_exact(&mut draw)?;
    let made = new.join(format!(".{bytes}-{:016x}", u64::from_ne_bytes(draw)));
    let work = || {
        private(&made)?.set_len(bytes)?;
        let mut mkfs = program("mkfs.ext4")?;
        mkfs.args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"])
            .arg(&made);
        run(mkfs)?;
        File::open(&made)?.sync_all()?;
        fs::rename(&made, &path)
    };
    if let Err(error) = work() {
        let _ = fs::remove_file(&made);
        return Err(error);
    }
    Ok(path)
}

fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Copies what a file holds and leaves its holes out.
fn copy(from: &File, to: &File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut at = 0;
    while at < length {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // nothing but a hole is left
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(from, SeekFrom::Hole(start))?;
        let (mut source, mut target) = (start, start);
        while source < end {
            let most = usize::try_from(end - source).unwrap_or(usize::MAX);
            if rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), most)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    to.sync_all()
}

fn program(name: &str) -> io::Result<Command> {
    let path = launch::find_program(Path::new(name))
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no {name} here")))?;
    let mut command = Command::new(path);
    command.env_clear().current_dir("/").stdin(Stdio::null());
    Ok(command)
}

fn run(mut command: Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: String = said.trim().chars().take(300).collect();
    Err(io::Error::other(format!("{}: {said}", command.get_program().display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    #[test]
    fn a_copy_has_the_same_bytes_and_the_same_holes() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let from = private(&directory.path().join("from"))?;
        from.set_len(1 << 30)?;
        from.write_all_at(b"start", 0)?;
        from.write_all_at(&vec![7; 100_000], 300 << 20)?;
        let path = directory.path().join("to");
        let to = private(&path)?;
        copy(&from, &to)?;
        let found = fs::metadata(&path)?;
        assert_eq!(found.len(), 1 << 30);
        assert!(found.blocks() * 512 < 4 << 20, "{} blocks", found.blocks());
        let mut bytes = vec![0; 100_002];
        to.read_exact_at(&mut bytes, (300 << 20) - 1)?;
        assert!(bytes[0] == 0 && bytes[1..=100_000].iter().all(|byte| *byte == 7) && bytes[100_001] == 0);
        let mut start = [0; 6];
        to.read_exact_at(&mut start, 0)?;
        assert_eq!(&start, b"start\0");
        Ok(())
    }

    #[test]
    fn a_claim_without_an_image_is_left_alone() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        fs::create_dir(directory.path().join("files"))?;
        attach(directory.path())?;
        detach(directory.path())?;
        assert_eq!(usage(directory.path())?, None);
        sweep(directory.path())
    }
}
