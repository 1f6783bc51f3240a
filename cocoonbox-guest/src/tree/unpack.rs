//! A tar stream into a directory.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use cocoonbox_wire::silkd::ErrorKind;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use tar::{Archive, EntryType, PaxExtensions};

use crate::file::temporary_name;
use crate::limit::MAX_PATH_BYTES;

/// The most entries of an archive.
const MAX_ENTRIES: u64 = 4_000_000;

/// The most bytes of an extended header.
const MAX_EXTENSION_BYTES: u64 = 64 * 1024;

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An archive that was not unpacked; the destination's content is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UnpackError {
    #[error("entry {name:?} would lead out of the destination")]
    Escape { name: String },
    #[error("entry {name:?}: {what} cannot be unpacked")]
    Unsupported { name: String, what: &'static str },
    #[error("the archive has more than {MAX_ENTRIES} entries")]
    TooMany,
    #[error("an extended header has more than {MAX_EXTENSION_BYTES} bytes")]
    ExtensionTooLong,
    #[error("the archive ends before its end mark")]
    Truncated,
    #[error("the archive is malformed: {0}")]
    Malformed(#[source] io::Error),
    #[error("the destination: {0}")]
    Destination(#[source] io::Error),
    #[error("entry {name:?} cannot be written: {source}")]
    Write { name: String, source: io::Error },
}

impl UnpackError {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Destination(error) if error.kind() == io::ErrorKind::NotFound => ErrorKind::NotFound,
            Self::Destination(_) | Self::Write { .. } => ErrorKind::Internal,
            _ => ErrorKind::BadRequest,
        }
    }
}

/// Passes a stream on and remembers whether the last whole block was zeros, as an archive's end mark is.
struct EndMark<R> {
    inner: R,
    position: u64,
    zero: bool,
    last_zero: bool,
}

impl<R: Read> Read for EndMark<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let mut data = &buffer[..count];
        while !data.is_empty() {
            let within = (self.position % 512) as usize;
            let part = data.len().min(512 - within);
            self.zero = (within == 0 || self.zero) && data[..part].iter().all(|byte| *byte == 0);
            self.position += part as u64;
            if self.position.is_multiple_of(512) {
                self.last_zero = self.zero;
            }
            data = &data[part..];
        }
        Ok(count)
    }
}

/// Removes the staging directory, whatever became of it.
struct Staging {
    path: PathBuf,
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Unpacks `stream` into `destination`, which is made when it is missing.
pub(crate) fn unpack(stream: impl Read, destination: &Path) -> Result<(), UnpackError> {
    fs::create_dir_all(destination).map_err(UnpackError::Destination)?;
    // where the caller says is followed; what lies below is not
    let target = open_directory(destination).map_err(UnpackError::Destination)?;
    let name = temporary_name().map_err(UnpackError::Destination)?;
    rustix::fs::mkdirat(&target, &name, Mode::RWXU)
        .map_err(|error| UnpackError::Destination(error.into()))?;
    let staging = Staging { path: destination.join(&name) };
    let root = enter(target.as_fd(), &name, None).map_err(UnpackError::Destination)?;

    let mut stream = EndMark { inner: stream, position: 0, zero: false, last_zero: false };
    let mut directories = stage(&mut stream, &root)?;
    io::copy(&mut stream, &mut io::sink()).map_err(UnpackError::Malformed)?;
    if !stream.last_zero {
        return Err(UnpackError::Truncated);
    }
    merge(root.as_fd(), target.as_fd(), Path::new(""))?;
    // deepest first: a directory that is not writable must be filled by then, and times settle
    directories.reverse();
    for (path, mode, mtime) in directories {
        finish(target.as_fd(), &path, mode, mtime).map_err(|source| write_error(&path, source))?;
    }
    drop(staging);
    Ok(())
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a directory by one name, never through a symbolic link; made with `make` when it is missing.
fn enter(parent: BorrowedFd<'_>, name: &OsStr, make: Option<Mode>) -> io::Result<OwnedFd> {
    if let Some(mode) = make {
        match rustix::fs::mkdirat(parent, name, mode) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?)
}

type Directories = Vec<(PathBuf, u32, i64)>;

fn stage(stream: impl Read, root: &OwnedFd) -> Result<Directories, UnpackError> {
    let mut archive = Archive::new(stream);
    let mut directories = Vec::new();
    let (mut long_name, mut long_link) = (None::<OsString>, None::<OsString>);
    let (mut count, mut parent) = (0_u64, None::<(PathBuf, OwnedFd)>);
    // raw: long names and extended headers come as entries, so that their size is ours to limit
    for entry in archive.entries().map_err(UnpackError::Malformed)?.raw(true) {
        let mut entry = entry.map_err(UnpackError::Malformed)?;
        count += 1;
        if count > MAX_ENTRIES {
            return Err(UnpackError::TooMany);
        }
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => {
                long_name = Some(gnu_text(&mut entry)?);
                continue;
            }
            EntryType::GNULongLink => {
                long_link = Some(gnu_text(&mut entry)?);
                continue;
            }
            EntryType::XHeader => {
                let bytes = extension(&mut entry)?;
                for record in PaxExtensions::new(&bytes) {
                    let record = record.map_err(UnpackError::Malformed)?;
                    match record.key_bytes() {
                        b"path" => long_name = Some(OsString::from_vec(record.value_bytes().to_vec())),
                        b"linkpath" => long_link = Some(OsString::from_vec(record.value_bytes().to_vec())),
                        key if key == b"size" || key.starts_with(b"GNU.sparse.") => {
                            let name = String::from_utf8_lossy(key).into_owned();
                            return Err(UnpackError::Unsupported {
                                name,
                                what: "a sparse or very large file",
                            });
                        }
                        _ => {}
                    }
                }
                continue;
            }
            EntryType::XGlobalHeader => {
                extension(&mut entry)?;
                continue;
            }
            _ => {}
        }
        let header_name = OsString::from_vec(entry.path_bytes().into_owned());
        let name = long_name.take().unwrap_or(header_name);
        let link = long_link
            .take()
            .or_else(|| entry.link_name_bytes().map(|link| OsString::from_vec(link.into_owned())));
        let Some(path) = inside(&name)? else { continue };
        let mode = entry.header().mode().map_err(UnpackError::Malformed)? & 0o777;
        let mtime = entry.header().mtime().map_or(0, |time| i64::try_from(time).unwrap_or(0));
        let (directory, file) =
            (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
        let result = (|| -> io::Result<Result<(), UnpackError>> {
            if parent.as_ref().is_none_or(|(known, _)| known != directory) {
                parent = Some((directory.to_owned(), walk(root.as_fd(), directory, Some(Mode::RWXU))?));
            }
            let parent = match &parent {
                Some((_, fd)) => fd.as_fd(),
                None => root.as_fd(),
            };
            match kind {
                EntryType::Directory => {
                    enter(parent, file, Some(Mode::RWXU))?;
                    directories.push((path.clone(), mode, mtime));
                }
                EntryType::Regular | EntryType::Continuous => {
                    clear(parent, file)?;
                    let flags =
                        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let mut open =
                        File::from(rustix::fs::openat(parent, file, flags, Mode::RUSR | Mode::WUSR)?);
                    if io::copy(&mut entry, &mut open)? != entry.size() {
                        return Ok(Err(UnpackError::Truncated));
                    }
                    rustix::fs::fchmod(&open, Mode::from_raw_mode(mode))?;
                    rustix::fs::futimens(&open, &times(mtime))?;
                }
                EntryType::Symlink => {
                    let link = link.filter(|link| link.len() <= MAX_PATH_BYTES).unwrap_or_default();
                    clear(parent, file)?;
                    rustix::fs::symlinkat(&link, parent, file)?;
                    let _ = rustix::fs::utimensat(parent, file, &times(mtime), AtFlags::SYMLINK_NOFOLLOW);
                }
                EntryType::Link => {
                    let Some(link) = inside(&link.unwrap_or_default()).transpose() else {
                        return Ok(Err(UnpackError::Escape { name: name.to_string_lossy().into_owned() }));
                    };
                    let link = match link {
                        Ok(link) => link,
                        Err(error) => return Ok(Err(error)),
                    };
                    let from = walk(root.as_fd(), link.parent().unwrap_or(Path::new("")), None)?;
                    clear(parent, file)?;
                    let old = link.file_name().unwrap_or_default();
                    rustix::fs::linkat(&from, old, parent, file, AtFlags::empty())?;
                }
                _ => {
                    let name = name.to_string_lossy().into_owned();
                    return Ok(Err(UnpackError::Unsupported { name, what: "a device, pipe or sparse file" }));
                }
            }
            Ok(Ok(()))
        })();
        match result {
            Ok(result) => result?,
            // reading failed, not writing
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionAborted
                ) =>
            {
                return Err(UnpackError::Truncated);
            }
            Err(error) if matches!(error.raw_os_error(), Some(20 | 40)) => {
                return Err(UnpackError::Escape { name: name.to_string_lossy().into_owned() });
            }
            Err(error) => return Err(write_error(&path, error)),
        }
    }
    Ok(directories)
}

fn extension(entry: &mut impl Read) -> Result<Vec<u8>, UnpackError> {
    let mut bytes = Vec::new();
    entry.take(MAX_EXTENSION_BYTES + 1).read_to_end(&mut bytes).map_err(UnpackError::Malformed)?;
    if bytes.len() as u64 > MAX_EXTENSION_BYTES { Err(UnpackError::ExtensionTooLong) } else { Ok(bytes) }
}

fn gnu_text(entry: &mut impl Read) -> Result<OsString, UnpackError> {
    let mut bytes = extension(entry)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(OsString::from_vec(bytes))
}

/// Returns a name as a path below the root; none for the root itself.
fn inside(name: &OsStr) -> Result<Option<PathBuf>, UnpackError> {
    let escape = || UnpackError::Escape { name: name.to_string_lossy().into_owned() };
    if name.is_empty() || name.len() > MAX_PATH_BYTES || name.as_bytes().contains(&0) {
        return Err(escape());
    }
    let mut path = PathBuf::new();
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => return Err(escape()),
        }
    }
    Ok(Some(path).filter(|path| !path.as_os_str().is_empty()))
}

/// Opens the directory at `path` below `root`, one name at a time.
fn walk(root: BorrowedFd<'_>, path: &Path, make: Option<Mode>) -> io::Result<OwnedFd> {
    let mut at = root.try_clone_to_owned()?;
    for part in path {
        at = enter(at.as_fd(), part, make)?;
    }
    Ok(at)
}

/// Makes way for an entry whose name an earlier one has.
fn clear(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Moves what lies in `from` into `to`: files replace, directories join.
fn merge(from: BorrowedFd<'_>, to: BorrowedFd<'_>, path: &Path) -> Result<(), UnpackError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: rustix::io::Errno| write_error(&path, error.into())
    };
    let readable =
        rustix::fs::openat(from, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let listing = rustix::fs::Dir::new(readable.map_err(failed(path))?).map_err(failed(path))?;
    let names =
        listing.map(|entry| entry.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec())));
    for name in names.collect::<Result<Vec<_>, _>>().map_err(failed(path))? {
        if name == "." || name == ".." {
            continue;
        }
        let path = path.join(&name);
        match rustix::fs::renameat_with(from, &name, to, &name, RenameFlags::NOREPLACE) {
            Ok(()) => continue,
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(failed(&path)(error)),
        }
        let is_directory = enter(from, &name, None);
        match is_directory {
            Ok(from) => {
                let to = enter(to, &name, None).map_err(|source| write_error(&path, source))?;
                merge(from.as_fd(), to.as_fd(), &path)?;
            }
            Err(_) => rustix::fs::renameat(from, &name, to, &name).map_err(failed(&path))?,
        }
    }
    Ok(())
}

fn finish(root: BorrowedFd<'_>, path: &Path, mode: u32, mtime: i64) -> io::Result<()> {
    let parent = walk(root, path.parent().unwrap_or(Path::new("")), None)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(&parent, path.file_name().unwrap_or_default(), flags, Mode::empty())?;
    rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode))?;
    Ok(rustix::fs::futimens(&directory, &times(mtime))?)
}

fn times(mtime: i64) -> Timestamps {
    let time = Timespec { tv_sec: mtime, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

fn write_error(path: &Path, source: io::Error) -> UnpackError {
    UnpackError::Write { name: path.to_string_lossy().into_owned(), source }
}
