//! The backends that the suite runs on.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_core::backend::{Claim, SandboxBackend};
use cocoonbox_core::{SystemClock, SystemEntropy};
use cocoonbox_sandbox::{BwrapBackend, BwrapConfig, Defence};
use cocoonbox_stories::agent;

use crate::Error;

/// Opens a backend for the suite. A further backend is one more of these and one more test in `main.rs`.
#[async_trait]
pub(crate) trait Opener: fmt::Debug + Send + Sync {
    /// Opens the backend on the empty directory `data`, with `without` switched off; none: as everybody gets it.
    async fn open(&self, data: &Path, without: &[Defence]) -> Result<Arc<dyn SandboxBackend>, Error>;

    /// Whether defences can be switched off. Where they cannot, the proof that each attack works comes from the host
    /// and from the backend where they can.
    fn can_weaken(&self) -> bool;

    /// Returns the uid that the programs of a box have on the host.
    fn host_uid(&self, data: &Path, claim: &Claim) -> Result<u32, Error>;

    /// Returns the files on the host that belong to a box and that only the node may touch: sockets first.
    fn host_places(&self, data: &Path, claim: &Claim) -> Vec<PathBuf>;
}

/// Bubblewrap.
#[derive(Clone, Debug)]
pub(crate) struct Bwrap;

/// As root: the host uids of the suite's boxes, the same in every data directory, so that what belongs to one box's
/// user on the host is a fair target for the box of another directory too.
const UIDS: std::ops::Range<u32> = 1_912_000_000..1_912_000_008;

#[async_trait]
impl Opener for Bwrap {
    async fn open(&self, data: &Path, without: &[Defence]) -> Result<Arc<dyn SandboxBackend>, Error> {
        let mut config = BwrapConfig::new(data, agent()).with_uids(UIDS);
        for defence in without {
            config = config.with_weakened(*defence);
        }
        let backend = BwrapBackend::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await?;
        Ok(backend)
    }

    fn can_weaken(&self) -> bool {
        true
    }

    fn host_uid(&self, data: &Path, claim: &Claim) -> Result<u32, Error> {
        Ok(std::fs::metadata(data.join("claims").join(claim.id.as_str()).join("files/home"))?.uid())
    }

    fn host_places(&self, data: &Path, claim: &Claim) -> Vec<PathBuf> {
        let claim = data.join("claims").join(claim.id.as_str());
        ["channel/guest.sock", "doors/door.sock", "lock", "claim.json", "files/home/.profile"]
            .iter()
            .map(|name| claim.join(name))
            .collect()
    }
}
