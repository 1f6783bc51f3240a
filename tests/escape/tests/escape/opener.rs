//! The backends that the suite runs on.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_core::backend::SandboxBackend;
use cocoonbox_core::{ImageName, SystemClock, SystemEntropy};
use cocoonbox_sandbox::testkit::{EngineForTests as _, PodmanForTests, image};
use cocoonbox_sandbox::{BwrapBackend, BwrapConfig, ContainerBackend, Defence};
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

    /// Returns the image that boxes are made of.
    fn image(&self) -> ImageName {
        ImageName::host()
    }
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
}

/// Containers by podman, on an engine of the tests' own.
#[derive(Clone, Debug)]
pub(crate) struct Podman;

#[async_trait]
impl Opener for Podman {
    async fn open(&self, data: &Path, _: &[Defence]) -> Result<Arc<dyn SandboxBackend>, Error> {
        let config = PodmanForTests::shared()?.config(data, &agent());
        let backend = ContainerBackend::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await?;
        Ok(backend)
    }

    fn can_weaken(&self) -> bool {
        false
    }

    fn image(&self) -> ImageName {
        image()
    }
}
