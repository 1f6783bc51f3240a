//! The node's own directory: small files, each replaced as one step that survives power loss, none for other eyes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cocoonbox_core::{Entropy, random_secret};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::record::{self, Record};
use super::refusal::{Code, Refusal};
use super::serve;
use crate::bwrap::disk;

/// The node cannot open its directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A file or directory cannot be used.
    #[error("{}: {what} failed", path.display())]
    Unusable {
        /// Which one.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What was left half done cannot be settled.
    #[error("what an earlier start left half done cannot be settled")]
    Settle(#[source] Refusal),
}

impl NodeError {
    /// Tells what a caller may do.
    pub const fn retry(&self) -> cocoonbox_core::Retry {
        match self {
            Self::Unusable { .. } | Self::Settle(_) => cocoonbox_core::Retry::Later,
            Self::Damaged { .. } => cocoonbox_core::Retry::Never,
        }
    }
}

/// The directory.
#[derive(Clone, Debug)]
pub(super) struct Store {
    directory: PathBuf,
    claims: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Served {
    version: u32,
    served_millis: u64,
}

const SERVED: &str = "served.json";

#[derive(Serialize, Deserialize)]
struct Name {
    version: u32,
    node: String,
}

const NAME: &str = "node.json";

impl Store {
    /// Opens the directory; makes it where it is missing.
    pub(super) fn open(directory: &Path) -> Result<Self, NodeError> {
        let unusable = |path: &Path, what| {
            let path = path.to_owned();
            move |source| NodeError::Unusable { path, what, source }
        };
        let claims = directory.join("claims");
        for path in [directory, &claims] {
            disk::directory(path, 0o700).map_err(unusable(path, "making it"))?;
        }
        Ok(Self { directory: directory.to_owned(), claims })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Reads every claim's record.
    pub(super) fn records(&self) -> Result<Vec<Record>, NodeError> {
        let listing = |source| NodeError::Unusable { path: self.claims.clone(), what: "listing it", source };
        let mut records = Vec::new();
        for found in fs::read_dir(&self.claims).map_err(listing)? {
            let path = found.map_err(listing)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(mark) = name.strip_suffix(".json").filter(|mark| record::is_mark(mark)) else {
                // a replacement that was cut off
                let _ = fs::remove_file(&path);
                continue;
            };
            let bytes = disk::read(&path, record::MAX_BYTES).map_err(|source| NodeError::Unusable {
                path: path.clone(),
                what: "reading it",
                source,
            })?;
            let record =
                Record::parse(&bytes).map_err(|source| NodeError::Damaged { path: path.clone(), source })?;
            if record.mark != mark {
                return Err(NodeError::Damaged { path, source: "it is another claim's record".into() });
            }
            records.push(record);
        }
        Ok(records)
    }

    /// Writes a claim's record.
    pub(super) async fn put(&self, record: &Record) -> Result<(), Refusal> {
        let bytes = serde_json::to_vec(record).map_err(internal)?;
        self.write(self.claims.clone(), format!("{}.json", record.mark), bytes).await
    }

    /// Removes a claim's record; one that is not there is removed.
    pub(super) async fn remove(&self, mark: &str) -> Result<(), Refusal> {
        let (claims, path) = (self.claims.clone(), self.claims.join(format!("{mark}.json")));
        serve::blocking(move || match fs::remove_file(path) {
            Ok(()) => disk::sync(&claims),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        })
        .await
        .map_err(internal)
    }

    /// Writes one of the node's own files.
    pub(super) async fn put_file(&self, name: &str, value: &impl Serialize) -> Result<(), Refusal> {
        let bytes = serde_json::to_vec(value).map_err(internal)?;
        self.write(self.directory.clone(), name.to_owned(), bytes).await
    }

    /// Reads one of the node's own files; none when it is not there.
    pub(super) fn file<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, NodeError> {
        let path = self.path(name);
        let bytes = match disk::read(&path, 64 * 1024 * 1024) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(NodeError::Unusable { path, what: "reading it", source }),
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| NodeError::Damaged { path, source: Box::new(error) })
    }

    async fn write(&self, directory: PathBuf, name: String, bytes: Vec<u8>) -> Result<(), Refusal> {
        serve::blocking(move || disk::replace(&directory, &name, &bytes, 0o600)).await.map_err(internal)
    }

    /// Returns the node's name; the first time it is drawn.
    pub(super) async fn name(&self, entropy: &dyn Entropy) -> Result<String, Refusal> {
        match self.file::<Name>(NAME) {
            Ok(Some(name)) => Ok(name.node),
            Ok(None) => {
                let mut node = random_secret(entropy, "").map_err(internal)?;
                node.truncate(12);
                let name = Name { version: 1, node };
                self.put_file(NAME, &name).await?;
                Ok(name.node)
            }
            Err(error) => Err(internal(error)),
        }
    }

    /// Returns how long the node had served when it last said so.
    pub(super) fn served(&self) -> Result<Duration, NodeError> {
        Ok(self
            .file::<Served>(SERVED)?
            .map_or(Duration::ZERO, |served| Duration::from_millis(served.served_millis)))
    }

    /// Writes down how long the node has served.
    pub(super) async fn put_served(&self, served: Duration) -> Result<(), Refusal> {
        let served_millis = u64::try_from(served.as_millis()).unwrap_or(u64::MAX);
        self.put_file(SERVED, &Served { version: 1, served_millis }).await
    }
}

fn internal(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Refusal {
    Refusal {
        code: Code::Internal,
        text: "the node's records cannot be written".to_owned(),
        source: Some(error.into()),
    }
}
