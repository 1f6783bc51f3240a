use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::doors::{DoorHandler, NoPolicy};

/// How a [`ContainerBackend`](crate::ContainerBackend) is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContainerConfig {
    /// The directory that holds everything the backend keeps; made when it is not there.
    pub data: PathBuf,
    /// The guest's binary, `cocoonbox-agent`, linked so that it runs in any root file system.
    pub agent: PathBuf,
    /// Which engine makes the containers.
    pub engine: EngineChoice,
    /// The engine's runtime for boxes, by the name it is registered under; absent: the engine's own choice.
    pub runtime: Option<String>,
    /// Where images come from that are neither in the data directory nor in the engine: `REGISTRY/PATH`, to which
    /// `/name:version` is added; absent: nowhere.
    pub registry: Option<String>,
    /// How many claims the node holds, hibernated ones included.
    pub max_claims: u32,
    /// The host ids that boxes get, 1,024 each, where the engine can map them; absent: a range for 4,096 boxes that
    /// follows from the data directory's path.
    pub ids: Option<Range<u32>>,
    /// Who answers what a guest sends through its doors.
    pub doors: Arc<dyn DoorHandler>,
}

/// Which container engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineChoice {
    /// The one that answers on this unix socket, podman or Docker.
    Socket(PathBuf),
    /// A podman service of the backend's own, that ends with it and keeps its images in the data directory.
    Podman {
        /// The program `podman`.
        program: PathBuf,
    },
}

impl EngineChoice {
    /// Returns a podman service of the backend's own.
    pub fn podman() -> Self {
        Self::Podman { program: "podman".into() }
    }
}

impl ContainerConfig {
    /// Makes a configuration with the engine's own runtime, no registry, 1,000 claims at most, and doors that lead
    /// nowhere.
    pub fn new(data: impl Into<PathBuf>, agent: impl Into<PathBuf>, engine: EngineChoice) -> Self {
        Self {
            data: data.into(),
            agent: agent.into(),
            engine,
            runtime: None,
            registry: None,
            max_claims: 1000,
            ids: None,
            doors: Arc::new(NoPolicy),
        }
    }
    /// Sets the engine's runtime for boxes.
    pub fn with_runtime(mut self, runtime: impl Into<String>) -> Self {
        self.runtime = Some(runtime.into());
        self
    }
    /// Sets where images are pulled from.
    pub fn with_registry(mut self, registry: impl Into<String>) -> Self {
        self.registry = Some(registry.into());
        self
    }
    /// Sets how many claims the node holds.
    pub const fn with_max_claims(mut self, max_claims: u32) -> Self {
        self.max_claims = max_claims;
        self
    }
    /// Sets the host ids that boxes get.
    pub fn with_ids(mut self, ids: Range<u32>) -> Self {
        self.ids = Some(ids);
        self
    }
    /// Sets who answers the doors.
    pub fn with_doors(mut self, doors: Arc<dyn DoorHandler>) -> Self {
        self.doors = doors;
        self
    }
}
