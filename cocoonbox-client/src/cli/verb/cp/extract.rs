//! From a tar stream that a box wrote into the file system here. The box is not trusted: nothing is written outside the
//! destination, no link is followed, no mode above `0777` is set, and every name and record has a limit.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use tar::{Archive, EntryType};

use super::Copied;

/// The most bytes of a record that lengthens a name.
const MAX_RECORD: u64 = 256 * 1024;
/// The most folders above a file.
const MAX_DEPTH: usize = 256;

/// Where a copy goes: a folder that is there, and the name in it that is made; without a name, the folder itself.
#[derive(Debug)]
pub(super) struct Destination {
    folder: OwnedFd,
    name: Option<OsString>,
}

impl Destination {
    /// Chooses as cp does: into `to` when it is a folder, else `to` is the new name.
    pub(super) fn choose(to: &Path, base: Option<&OsStr>) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let open = |path: &Path| rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from);
        if to.is_dir() {
            return Ok(Self { folder: open(to)?, name: base.map(OsStr::to_owned) });
        }
        if to.as_os_str().as_bytes().ends_with(b"/") {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such folder"));
        }
        let Some(name) = to.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no name for a file"));
        };
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self { folder: open(parent)?, name: Some(name.to_owned()) })
    }
}

/// Writes what a tar stream holds.
pub(super) struct Extractor {
    into: Destination,
    base: Option<OsString>,
    copied: Copied,
    /// Folders get their modes and times last: writing into them would change both.
    folders: Vec<(Vec<OsString>, Mode, Timestamps)>,
}

/// What records before an entry say about it.
#[derive(Default)]
struct Long {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    time: Option<Timespec>,
}

impl Extractor {
    /// Makes an extractor for a stream whose names all begin with `base`, or with `.` where there is none.
    pub(super) fn new(into: Destination, base: Option<OsString>) -> Self {
        Self { into, base, copied: Copied::default(), folders: Vec::new() }
    }

    /// Reads the stream to its end.
    ///
    /// # Errors
    /// The stream is malformed, leads outside, or something cannot be written; what was written before stays.
    pub(super) fn extract(mut self, stream: impl Read) -> io::Result<Copied> {
        let mut archive = Archive::new(io::BufReader::with_capacity(64 * 1024, stream));
        let mut long = Long::default();
        // raw: the crate would read records that lengthen names without a limit
        for entry in archive.entries()?.raw(true) {
            let mut entry = entry?;
            match entry.header().entry_type() {
                EntryType::GNULongName => long.path = Some(name_record(&mut entry)?),
                EntryType::GNULongLink => long.link = Some(name_record(&mut entry)?),
                EntryType::XHeader => long.read_pax(&record(&mut entry)?, entry.header().entry_type())?,
                EntryType::XGlobalHeader => drop(record(&mut entry)?),
                _ => self.entry(&mut entry, std::mem::take(&mut long))?,
            }
        }
        for (path, mode, times) in self.folders.iter().rev() {
            let folder = open_folder(self.into.folder.as_fd(), path)?;
            rustix::fs::fchmod(&folder, *mode)?;
            rustix::fs::futimens(&folder, times)?;
        }
        Ok(self.copied)
    }

    fn entry(&mut self, entry: &mut tar::Entry<'_, impl Read>, long: Long) -> io::Result<()> {
        let path = long.path.unwrap_or_else(|| entry.path_bytes().into_owned());
        let path = self.place(&path)?;
        let header = entry.header();
        let kind = header.entry_type();
        let mode = Mode::from_raw_mode(header.mode()? & 0o777);
        let time = match long.time {
            Some(time) => time,
            None => Timespec { tv_sec: i64::try_from(header.mtime()?).unwrap_or(i64::MAX), tv_nsec: 0 },
        };
        let times = Timestamps { last_access: time, last_modification: time };
        let Some((name, parents)) = path.split_last() else {
            // the folder that the copy goes into, which is the person's own
            return Ok(());
        };
        let parent = make_folders(self.into.folder.as_fd(), parents)?;
        match kind {
            EntryType::Directory => {
                make_folder(&parent, name)?;
                open_folder(parent.as_fd(), std::slice::from_ref(name))?;
                self.folders.push((path, mode, times));
            }
            EntryType::Regular | EntryType::Continuous => {
                clear(&parent, name)?;
                let flags =
                    OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = File::from(rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR)?);
                self.copied.bytes += io::copy(entry, &mut file)?;
                rustix::fs::fchmod(&file, mode)?;
                rustix::fs::futimens(&file, &times)?;
                self.copied.files += 1;
            }
            EntryType::Symlink => {
                let target = long
                    .link
                    .or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned))
                    .unwrap_or_default();
                clear(&parent, name)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), &parent, name)?;
                rustix::fs::utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            EntryType::Link => {
                let target = long
                    .link
                    .or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned))
                    .unwrap_or_default();
                let target = self.place(&target)?;
                let Some((target, above)) = target.split_last() else {
                    return Err(malformed("a hard link to a folder"));
                };
                let above = open_folder(self.into.folder.as_fd(), above)?;
                clear(&parent, name)?;
                // without AT_SYMLINK_FOLLOW: the link itself, never what it leads to
                rustix::fs::linkat(&above, target, &parent, name, AtFlags::empty())?;
                self.copied.files += 1;
            }
            _ => self.copied.skipped += 1,
        }
        Ok(())
    }

    /// Returns where a name of the stream goes, below the destination's folder.
    fn place(&self, name: &[u8]) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for part in Path::new(OsStr::from_bytes(name)).components() {
            match part {
                Component::CurDir => {}
                Component::Normal(name) => names.push(name.to_owned()),
                Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                    return Err(malformed("a name leads outside"));
                }
            }
        }
        if names.len() > MAX_DEPTH {
            return Err(malformed("a name is too deep"));
        }
        if let Some(base) = &self.base {
            if names.first() != Some(base) {
                return Err(malformed("a name is none that was asked for"));
            }
            names.remove(0);
        }
        if let Some(name) = &self.into.name {
            names.insert(0, name.clone());
        }
        Ok(names)
    }
}

impl Long {
    /// Reads the parts of a pax record that say where and when.
    fn read_pax(&mut self, record: &[u8], _: EntryType) -> io::Result<()> {
        for part in tar::PaxExtensions::new(record) {
            let part = part?;
            match part.key_bytes() {
                b"path" => self.path = Some(part.value_bytes().to_vec()),
                b"linkpath" => self.link = Some(part.value_bytes().to_vec()),
                b"mtime" => self.time = part.value().ok().and_then(pax_time),
                b"size" => return Err(malformed("a size only a pax record holds")),
                key if key.starts_with(b"GNU.sparse") => return Err(malformed("a sparse file")),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads `seconds[.fraction]`.
fn pax_time(text: &str) -> Option<Timespec> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.get(..fraction.len().min(9))?;
    let nanos: i64 = if digits.is_empty() { 0 } else { digits.parse::<u32>().ok()?.into() };
    let scale = 10_i64.pow(9 - u32::try_from(digits.len()).ok()?);
    // a fraction before the epoch counts the other way; whole seconds do there
    let seconds: i64 = seconds.parse().ok()?;
    Some(Timespec { tv_sec: seconds, tv_nsec: if seconds < 0 { 0 } else { nanos * scale } })
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the box sent {what}"))
}

fn record(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    entry.take(MAX_RECORD + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_RECORD { Err(malformed("a record that is too long")) } else { Ok(bytes) }
}

fn name_record(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = record(entry)?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

/// Opens a folder below `root`, following no link.
fn open_folder(root: impl AsFd, path: &[OsString]) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let mut folder = rustix::fs::openat(root, ".", flags, Mode::empty())?;
    for name in path {
        folder = rustix::fs::openat(&folder, name, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => {
                let name: PathBuf = name.into();
                io::Error::other(format!(
                    "{} is a link or a file where the copy needs a folder",
                    name.display()
                ))
            }
            errno => errno.into(),
        })?;
    }
    Ok(folder)
}

fn make_folders(root: impl AsFd, path: &[OsString]) -> io::Result<OwnedFd> {
    let mut folder = open_folder(root, &[])?;
    for name in path {
        make_folder(&folder, name)?;
        folder = open_folder(&folder, std::slice::from_ref(name))?;
    }
    Ok(folder)
}

fn make_folder(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes away what stands in a name's place, unless it is a folder.
fn clear(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
