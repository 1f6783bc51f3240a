//! From the file system here into a tar stream.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use tar::{Builder, EntryType, Header, HeaderMode};

use super::Copied;

/// Writes `source` and all in it under `name`. A link named as the source is followed; links inside are kept as links.
pub(super) fn pack(out: impl Write, source: &Path, name: &Path) -> io::Result<Copied> {
    let mut builder = Builder::new(io::BufWriter::with_capacity(64 * 1024, out));
    let mut copied = Copied::default();
    add(&mut builder, source, name, &fs::metadata(source)?, &mut copied)?;
    builder.into_inner()?.into_inner().map_err(io::IntoInnerError::into_error)?.flush()?;
    Ok(copied)
}

fn add(
    builder: &mut Builder<impl Write>,
    path: &Path,
    name: &Path,
    metadata: &fs::Metadata,
    copied: &mut Copied,
) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_metadata_in_mode(metadata, HeaderMode::Complete);
    if metadata.is_dir() {
        builder.append_data(&mut header, name, io::empty())?;
        let mut entries = fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            add(builder, &entry.path(), &name.join(entry.file_name()), &entry.metadata()?, copied)?;
        }
    } else if metadata.is_symlink() {
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, name, fs::read_link(path)?)?;
    } else if metadata.is_file() {
        let size = metadata.len();
        // a file that shrinks meanwhile must not shift what follows it in the stream
        let mut content = Exact { file: File::open(path)?, left: size, short: false };
        builder.append_data(&mut header, name, &mut content)?;
        if content.short {
            return Err(io::Error::other(format!("{} shrank while it was read", path.display())));
        }
        copied.files += 1;
        copied.bytes += size;
    } else {
        copied.skipped += 1;
    }
    Ok(())
}

/// As many bytes as were promised, whatever becomes of the file.
struct Exact {
    file: File,
    left: u64,
    short: bool,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let mut count = if self.short { 0 } else { self.file.read(&mut buffer[..most])? };
        if count == 0 {
            self.short = true;
            buffer[..most].fill(0);
            count = most;
        }
        self.left -= count as u64;
        Ok(count)
    }
}
