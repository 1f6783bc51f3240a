//! A file or tree as a tar stream.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use bytes::Bytes;
use tar::{Builder, EntryType, Header};

/// How much of the stream is handed on at a time.
const CHUNK: usize = 1024 * 1024;

/// Gathers a stream into chunks.
struct Chunks<S> {
    chunk: Vec<u8>,
    sink: S,
}

impl<S: FnMut(Bytes) -> io::Result<()>> Write for Chunks<S> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = data.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&data[..count]);
        if self.chunk.len() == CHUNK {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() { Ok(()) } else { (self.sink)(std::mem::take(&mut self.chunk).into()) }
    }
}

/// A file's content at exactly the size its header promised: files change while they are read.
struct Exact {
    file: File,
    left: u64,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = match self.file.read(&mut buffer[..want])? {
            0 => {
                buffer[..want].fill(0);
                want
            }
            count => count,
        };
        self.left -= count as u64;
        Ok(count)
    }
}

/// Packs what `path` names: a tree's entries relative to it, or one file under its own name. Sockets, pipes and
/// devices are left out, and what vanishes meanwhile.
pub(crate) fn pack(path: &Path, sink: impl FnMut(Bytes) -> io::Result<()>) -> io::Result<()> {
    let mut builder = Builder::new(Chunks { chunk: Vec::new(), sink });
    let found = fs::metadata(path)?;
    if found.is_dir() {
        tree(&mut builder, path, Path::new(""))?;
    } else {
        let name =
            path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no file name"))?;
        entry(&mut builder, path, Path::new(name), &found)?;
    }
    builder.into_inner()?.flush()
}

fn tree<W: Write>(builder: &mut Builder<W>, directory: &Path, name: &Path) -> io::Result<()> {
    let mut names =
        fs::read_dir(directory)?.map(|found| Ok(found?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    for file in names {
        let path = directory.join(&file);
        let name = name.join(&file);
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        entry(builder, &path, &name, &found)?;
        if found.is_dir() {
            tree(builder, &path, &name)?;
        }
    }
    Ok(())
}

fn entry<W: Write>(builder: &mut Builder<W>, path: &Path, name: &Path, found: &Metadata) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(found.mode() & 0o7777);
    header.set_uid(found.uid().into());
    header.set_gid(found.gid().into());
    header.set_mtime(u64::try_from(found.mtime()).unwrap_or(0));
    header.set_size(0);
    if found.is_dir() {
        header.set_entry_type(EntryType::Directory);
        builder.append_data(&mut header, name, io::empty())
    } else if found.is_symlink() {
        header.set_entry_type(EntryType::Symlink);
        builder.append_link(&mut header, name, fs::read_link(path)?)
    } else if found.is_file() {
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        header.set_entry_type(EntryType::Regular);
        header.set_size(found.len());
        builder.append_data(&mut header, name, Exact { file, left: found.len() })
    } else {
        Ok(())
    }
}
