//! Which nodes there are.

use std::path::PathBuf;

use cocoonbox_core::backend::BackendError;

use crate::node::NodeToken;
use crate::remote::NodeAddress;

/// One node: where it is, and what opens it.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "an address and its token")]
pub struct NodeConfig {
    /// Where it is reached.
    pub address: NodeAddress,
    /// Its root token; none for an open node.
    pub token: Option<NodeToken>,
}

/// Which nodes there are.
#[derive(Debug)]
#[non_exhaustive]
pub struct FleetConfig {
    pub(super) nodes: Vec<NodeConfig>,
    pub(super) memory: PathBuf,
}

impl FleetConfig {
    /// Names the file in which it is remembered which node is where, so that a start finds its way while one is away.
    pub fn new(memory: impl Into<PathBuf>) -> Self {
        Self { nodes: Vec::new(), memory: memory.into() }
    }

    /// Adds a node.
    pub fn with_node(mut self, address: NodeAddress, token: Option<NodeToken>) -> Self {
        self.nodes.push(NodeConfig { address, token });
        self
    }
}

/// Why a fleet does not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No node is configured.
    #[error("no node is configured")]
    NoNode,
    /// No node answers, and none ever did.
    #[error("no node answers, and none ever answered here: start one, or correct its address or token")]
    NoAnswer {
        /// What the first one did.
        #[source]
        source: BackendError,
    },
    /// What is remembered cannot be read.
    #[error("{} cannot be read: remove it while all nodes answer", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
