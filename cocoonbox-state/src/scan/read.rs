use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FileType, OFlags, SeekFrom, fstat, openat, seek};
use rustix::io::{Errno, pread};

use super::{FileStat, OwnerMap, attributes_of};
use crate::chunk::{BLOCK, CHUNK_MAX, SMALL_FILE, first_cut};
use crate::tree::{Attribute, Content, ManyChunks};

/// How often a file that changes is read.
const TRIES: u32 = 3;
const READ: usize = 1 << 20;

/// Takes chunks in; returns their numbers.
pub(crate) trait ChunkSink {
    /// Why it stopped taking them.
    type Error: From<io::Error>;
    fn chunk(&mut self, bytes: &[u8]) -> Result<u32, Self::Error>;
}

/// A file that was read.
#[derive(Debug)]
pub(crate) struct FileRead {
    pub(crate) stat: rustix::fs::Stat,
    pub(crate) size: u64,
    pub(crate) attributes: Box<[Attribute]>,
    pub(crate) content: Content,
    /// It changed each time it was read.
    pub(crate) inconsistent: bool,
}

/// Reads a file of an open folder, again when it changed meanwhile. A file that is another kind of thing by now is
/// refused, and a link is not followed.
pub(crate) fn read_file<S: ChunkSink>(
    folder: BorrowedFd<'_>,
    name: &[u8],
    owners: &OwnerMap,
    left_out: &mut u64,
    buffer: &mut Vec<u8>,
    sink: &mut S,
) -> Result<FileRead, S::Error> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = openat(folder, name, flags, rustix::fs::Mode::empty()).map_err(io::Error::from)?;
    let mut before = fstat(&file).map_err(io::Error::from)?;
    if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
        return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
    }
    let mut tries = 1;
    loop {
        let (content, size) = read_content(&file, before.st_size as u64, buffer, sink)?;
        let after = fstat(&file).map_err(io::Error::from)?;
        let same = FileStat::from(&before) == FileStat::from(&after) && size == before.st_size as u64;
        if same || tries == TRIES {
            let mut counted = 0;
            let attributes = attributes_of(&file, owners, &mut counted)?;
            *left_out += counted;
            return Ok(FileRead { stat: after, size, attributes, content, inconsistent: !same });
        }
        tries += 1;
        before = after;
    }
}

fn read_content<S: ChunkSink>(
    file: &OwnedFd,
    size: u64,
    buffer: &mut Vec<u8>,
    sink: &mut S,
) -> Result<(Content, u64), S::Error> {
    if size == 0 {
        return Ok((Content::Empty, 0));
    }
    if size <= SMALL_FILE {
        buffer.resize(size as usize, 0);
        let read = read_at(file, buffer, 0)?;
        buffer.truncate(read);
        return Ok(if read == 0 {
            (Content::Empty, 0)
        } else {
            (Content::One(sink.chunk(buffer)?), read as u64)
        });
    }
    read_large(file, size, buffer, sink)
}

fn read_at(file: &OwnedFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match pread(file, &mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(read)
}

/// Extents in the making: blocks that are all zeros lie between them, whether they are holes or were written.
struct Extents<'a, S> {
    sink: &'a mut S,
    found: ManyChunks,
    /// Where the open extent starts, and what of it is not cut yet: `buffer[cut..]`.
    start: u64,
    length: u64,
    cut: usize,
}

impl<S: ChunkSink> Extents<'_, S> {
    fn block(&mut self, buffer: &mut Vec<u8>, offset: u64, block: &[u8]) -> Result<(), S::Error> {
        if is_zero(block) {
            return self.close(buffer);
        }
        if self.length == 0 {
            self.start = offset;
        }
        buffer.extend_from_slice(block);
        self.length += block.len() as u64;
        while buffer.len() - self.cut >= CHUNK_MAX {
            self.take(buffer)?;
        }
        if self.cut >= CHUNK_MAX {
            buffer.drain(..self.cut);
            self.cut = 0;
        }
        Ok(())
    }

    fn take(&mut self, buffer: &[u8]) -> Result<(), S::Error> {
        let rest = &buffer[self.cut..];
        let length = first_cut(&rest[..rest.len().min(CHUNK_MAX)]);
        let chunk = self.sink.chunk(&rest[..length])?;
        self.found.chunks.push(chunk);
        self.cut += length;
        Ok(())
    }

    fn close(&mut self, buffer: &mut Vec<u8>) -> Result<(), S::Error> {
        if self.length > 0 {
            while self.cut < buffer.len() {
                self.take(buffer)?;
            }
            self.found.extents.push((self.start, self.length));
            self.length = 0;
        }
        buffer.clear();
        self.cut = 0;
        Ok(())
    }
}

fn is_zero(block: &[u8]) -> bool {
    let (head, rest) = block.split_at(block.len().min(16));
    head.iter().all(|byte| *byte == 0) && rest.iter().fold(0, |all, byte| all | byte) == 0
}

fn read_large<S: ChunkSink>(
    file: &OwnedFd,
    size: u64,
    buffer: &mut Vec<u8>,
    sink: &mut S,
) -> Result<(Content, u64), S::Error> {
    buffer.clear();
    let mut piece = vec![0; READ];
    let mut extents = Extents { sink, found: ManyChunks::default(), start: 0, length: 0, cut: 0 };
    let mut offset = 0;
    let mut read_to = size;
    while offset < size {
        // a hole is skipped to the block in which data starts again
        let data = match seek(file, SeekFrom::Data(offset)) {
            Ok(data) => (data / BLOCK * BLOCK).max(offset),
            Err(Errno::NXIO) => size,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => offset,
            Err(error) => return Err(io::Error::from(error).into()),
        };
        if data > offset {
            extents.close(buffer)?;
        }
        offset = data;
        let hole = if offset < size { seek(file, SeekFrom::Hole(offset)).unwrap_or(size) } else { size };
        let end = hole.max(offset + 1).next_multiple_of(BLOCK).min(size);
        while offset < end {
            let want = (end - offset).min(READ as u64) as usize;
            let read = read_at(file, &mut piece[..want], offset)?;
            for (index, block) in piece[..read].chunks(BLOCK as usize).enumerate() {
                extents.block(buffer, offset + index as u64 * BLOCK, block)?;
            }
            offset += read as u64;
            if read < want {
                // it was cut short: what was read is what it is
                extents.close(buffer)?;
                read_to = offset;
                return Ok(finish(extents, read_to));
            }
        }
    }
    extents.close(buffer)?;
    Ok(finish(extents, read_to))
}

fn finish<S>(extents: Extents<'_, S>, size: u64) -> (Content, u64) {
    if size == 0 {
        return (Content::Empty, 0);
    }
    (Content::Many(Box::new(extents.found)), size)
}
