use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use cocoonbox_core::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{ByteRange, Fetch, Fetched, Listed, ObjectError, Objects, Upload};
use crate::serve::blocking;
use crate::{ObjectKey, Prefix};

/// A store in a folder: each object a file of its name, written beside and moved into place.
#[derive(Clone, Debug)]
pub struct FolderObjects {
    root: Arc<PathBuf>,
    next: Arc<AtomicU64>,
}

impl FolderObjects {
    /// Opens a folder, which is made if need be; what a process that died left half written is removed.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub fn open(root: &Path) -> io::Result<Self> {
        let unfinished = root.join("unfinished");
        fs::create_dir_all(&unfinished)?;
        for entry in fs::read_dir(&unfinished)? {
            let path = entry?.path();
            // another process may be writing: only what was left long ago
            let old = path
                .metadata()
                .and_then(|meta| meta.modified())
                .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > std::time::Duration::from_hours(24)));
            if old {
                let _ = fs::remove_file(path);
            }
        }
        Ok(Self { root: Arc::new(root.to_owned()), next: Arc::default() })
    }

    fn path(&self, key: &ObjectKey) -> PathBuf {
        self.root.join(key.as_str())
    }
}

fn put(root: &Path, path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(root);
    if path.exists() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    let mut made = Vec::new();
    let mut missing = folder;
    while !missing.exists() {
        made.push(missing);
        missing = missing.parent().unwrap_or(root);
    }
    fs::create_dir_all(folder)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    let done = file.write_all(bytes).and_then(|()| file.sync_data()).and_then(|()| {
        renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE).map_err(io::Error::from)
    });
    if let Err(error) = done {
        let _ = fs::remove_file(temporary);
        return Err(error);
    }
    File::open(folder)?.sync_all()?;
    for folder in made {
        File::open(folder.parent().unwrap_or(root))?.sync_all()?;
    }
    Ok(())
}

fn get(path: &Path, range: &ByteRange) -> io::Result<Fetched> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let span = match range {
        ByteRange::Whole => 0..length,
        ByteRange::Span(span) if span.start <= span.end && span.end <= length => span.clone(),
        ByteRange::Span(_) => return Err(ErrorKind::UnexpectedEof.into()),
        ByteRange::Tail(most) => length.saturating_sub(*most)..length,
    };
    let mut bytes = Vec::with_capacity((span.end - span.start) as usize);
    file.seek(SeekFrom::Start(span.start))?;
    file.take(span.end - span.start).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != span.end - span.start {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Fetched::new(bytes.into(), length))
}

fn error(source: io::Error) -> ObjectError {
    match source.kind() {
        ErrorKind::NotFound => ObjectError::NotFound,
        ErrorKind::AlreadyExists => ObjectError::AlreadyExists,
        ErrorKind::UnexpectedEof => ObjectError::OutOfRange,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ObjectError::Full,
        ErrorKind::PermissionDenied => ObjectError::Denied,
        _ => ObjectError::unavailable(source),
    }
}

fn modified(meta: &fs::Metadata) -> Timestamp {
    meta.modified().map_or(Timestamp::default(), Timestamp::from)
}

fn walk(folder: &Path, name: &str, found: &mut Vec<Listed>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Ok(last) = entry.file_name().into_string() else { continue };
        let name = format!("{name}{last}");
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), &format!("{name}/"), found)?;
        } else if let Ok(key) = name.parse() {
            match entry.metadata() {
                Ok(meta) => found.push(Listed::new(key, meta.len(), modified(&meta))),
                // deleted meanwhile
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Fetch for FolderObjects {
    async fn get(&self, key: &ObjectKey, range: ByteRange) -> Result<Fetched, ObjectError> {
        let path = self.path(key);
        blocking(move || get(&path, &range)).await.map_err(error)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for FolderObjects {
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), ObjectError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let temporary = self.root.join(format!("unfinished/{}-{}-{number}", key.last(), std::process::id()));
        let (root, path) = (Arc::clone(&self.root), self.path(key));
        blocking(move || put(&root, &path, &temporary, &bytes)).await.map_err(error)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Objects for FolderObjects {
    async fn head(&self, key: &ObjectKey) -> Result<Option<Listed>, ObjectError> {
        let (path, key) = (self.path(key), key.clone());
        let listed = blocking(move || {
            let meta = fs::metadata(path)?;
            Ok(Listed::new(key, meta.len(), modified(&meta)))
        });
        match listed.await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            listed => listed.map(Some).map_err(error),
        }
    }

    async fn list(&self, prefix: &Prefix) -> Result<Vec<Listed>, ObjectError> {
        let (folder, name) = (self.root.join(prefix.as_str()), prefix.as_str().to_owned());
        let mut found = blocking(move || {
            let mut found = Vec::new();
            walk(&folder, &name, &mut found)?;
            Ok(found)
        })
        .await
        .map_err(error)?;
        found.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(found)
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), ObjectError> {
        let path = self.path(key);
        match blocking(move || fs::remove_file(path)).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done.map_err(error),
        }
    }
}
