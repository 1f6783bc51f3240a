//! Which node was where, and what it could do: kept over restarts.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::OpenError;
use crate::message::{About, CapabilityBody};
use crate::remote::NodeAddress;

/// The most bytes of the file.
const MAX_BYTES: u64 = 1024 * 1024;

/// What is remembered of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Met {
    pub(super) node: String,
    pub(super) capabilities: CapabilityBody,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    nodes: BTreeMap<String, Met>,
}

/// The file, and what it holds, by address.
#[derive(Debug)]
pub(super) struct Known {
    path: PathBuf,
    nodes: Mutex<BTreeMap<String, Met>>,
}

impl Known {
    pub(super) fn open(path: PathBuf) -> Result<Self, OpenError> {
        let nodes = match read(&path) {
            Ok(nodes) => nodes,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(OpenError::Memory { path, source }),
        };
        Ok(Self { path, nodes: Mutex::new(nodes) })
    }

    pub(super) fn of(&self, address: &NodeAddress) -> Option<Met> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).get(&address.to_string()).cloned()
    }

    /// Remembers who answers at an address; one that was elsewhere is there no more.
    pub(super) fn put(&self, address: &NodeAddress, about: &About) -> std::io::Result<()> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (address, met) =
            (address.to_string(), Met { node: about.node.clone(), capabilities: about.capabilities.clone() });
        let same =
            |known: &Met| known.node == met.node && known.capabilities.read("") == met.capabilities.read("");
        if nodes.get(&address).is_some_and(same) {
            return Ok(());
        }
        nodes.retain(|_, known| known.node != met.node);
        nodes.insert(address, met);
        let stored = Stored { version: 1, nodes: nodes.clone() };
        let new = self.path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(&stored)?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

fn read(path: &PathBuf) -> std::io::Result<BTreeMap<String, Met>> {
    let wrong = |what: &str| std::io::Error::new(ErrorKind::InvalidData, what.to_owned());
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(wrong("it is too large"));
    }
    let stored: Stored = serde_json::from_slice(&bytes).map_err(|_| wrong("it is damaged"))?;
    if stored.version != 1 {
        return Err(wrong("a later version wrote it"));
    }
    Ok(stored.nodes)
}
