//! What keeps the boxes: this process, or nodes elsewhere.

use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use cocoonbox_boxes::Engine;
use cocoonbox_client::cli::NodeSetting;
use cocoonbox_core::backend::SandboxBackend;
use cocoonbox_core::{Clock, Entropy, SystemEntropy};
use cocoonbox_sandbox::doors::EdgeDoor;
use cocoonbox_sandbox::http::{router, serve as http};
use cocoonbox_sandbox::node::serve::tend;
use cocoonbox_sandbox::node::{Node, NodeOptions, NodeToken};
use cocoonbox_sandbox::probe::Check;
use cocoonbox_sandbox::remote::{Fleet, FleetConfig, NodeAddress, NodeState};
use cocoonbox_sandbox::{BwrapConfig, EngineOptions, open_backend};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::{DataDir, ServerConfig};

/// The socket in the data directory on which others on this machine reach the node's API. Who may enter the directory
/// may use it.
const SOCKET: &str = "node.sock";

/// The longest token of a node.
const MAX_TOKEN: u64 = 512;

/// What keeps the boxes.
pub(crate) enum Nodes {
    /// This process, and the node's API for others on a socket in the data directory.
    Here { backend: Arc<dyn SandboxBackend>, node: Node, socket: UnixListener },
    /// Nodes elsewhere.
    Elsewhere(Fleet),
}

impl Nodes {
    pub(crate) async fn open(
        config: &ServerConfig,
        data: &DataDir,
        clock: &Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
        edge: SocketAddr,
    ) -> anyhow::Result<Self> {
        if config.nodes.is_empty() {
            let agent = config.agent.as_ref().context("no agent to run in boxes: give --agent FILE")?;
            let folder = data.join("node");
            let doors = Arc::new(EdgeDoor::here(edge));
            let bwrap = BwrapConfig::new(&folder, agent).with_doors(doors);
            let engines = EngineOptions::default()
                .with_socket(config.docker_socket.clone())
                .with_runtime(config.box_runtime.clone())
                .with_registry(config.image_registry.clone())
                .with_image(Some(config.default_image.clone()));
            let choice = config.backend.parse()?;
            let backend =
                open_backend(choice, bwrap, engines, Arc::clone(clock), Arc::clone(entropy)).await?;
            let key = data.node_key(entropy.as_ref())?;
            let options = NodeOptions::new(folder.join("node"), key, SOCKET).with_clock(Arc::clone(clock));
            let node = Node::open(options, Arc::clone(&backend)).await?;
            let socket = http::bind_unix(&data.join(""), SOCKET)
                .with_context(|| format!("{} cannot be made", data.join(SOCKET).display()))?;
            return Ok(Self::Here { backend, node, socket });
        }
        let mut fleet = FleetConfig::new(data.join("nodes.json"));
        for node in &config.nodes {
            let address: NodeAddress = node.address.parse().context("--node")?;
            let token = node.token_file.as_deref().map(token).transpose()?;
            fleet = fleet.with_node(address, token);
        }
        let fleet = Fleet::open(fleet, Arc::clone(clock), Arc::clone(entropy)).await?;
        for node in fleet.nodes() {
            if let NodeState::Away { reason } = node.state {
                tracing::warn!("{reason}: its boxes are failed until it answers");
            }
        }
        Ok(Self::Elsewhere(fleet))
    }

    pub(crate) fn backend(&self) -> Arc<dyn SandboxBackend> {
        match self {
            Self::Here { backend, .. } => Arc::clone(backend),
            Self::Elsewhere(fleet) => Arc::new(fleet.clone()),
        }
    }

    /// Looks after the nodes, and lets the engine look at its boxes when one of them goes or is back.
    pub(crate) async fn serve(self, engine: &Engine, shutdown: CancellationToken) {
        let fleet = match self {
            Self::Elsewhere(fleet) => fleet,
            Self::Here { node, socket, .. } => {
                let served = http::run_unix(socket, router(node.clone()), shutdown.clone());
                let (served, ()) = tokio::join!(served, tend(node, shutdown));
                if let Err(error) = served {
                    tracing::warn!(%error, "the node's socket is no longer served");
                }
                return;
            }
        };
        let mut changes = fleet.changes();
        let look = async {
            while changes.changed().await.is_ok() {
                if let Err(error) = engine.tick().await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "a node came or went, and the look at the boxes was cut short");
                }
            }
        };
        tokio::select! {
            () = fleet.serve(shutdown) => {}
            () = look => {}
        }
    }
}

/// Asks each node whether boxes can be kept there; an address or a token file that is none is a no, too.
pub async fn check_nodes(nodes: &[NodeSetting]) -> Vec<Check> {
    let asked = nodes.iter().map(|node| async {
        let read = || -> anyhow::Result<_> {
            let token = node.token_file.as_deref().map(token).transpose()?;
            Ok((node.address.parse::<NodeAddress>()?, token))
        };
        match read() {
            Ok((address, token)) => {
                cocoonbox_sandbox::remote::diagnose(address, token, Arc::new(SystemEntropy)).await
            }
            Err(error) => {
                let remedy = "give --node http://HOST:PORT, and the node's token in a file of mode 0600";
                Check::no("node", node.address.clone(), format!("{error:#}"), remedy)
            }
        }
    });
    futures::future::join_all(asked).await
}

/// Reads a node's token out of a file that its owner alone may read.
fn token(path: &Path) -> anyhow::Result<NodeToken> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("{shown} cannot be read"))?;
    let metadata = file.metadata().with_context(|| format!("{shown} cannot be read"))?;
    if metadata.mode() & 0o077 != 0 {
        bail!("{shown} can be read by others: chmod 600 {shown}");
    }
    let mut text = zeroize::Zeroizing::new(String::new());
    file.take(MAX_TOKEN + 2).read_to_string(&mut text).with_context(|| format!("{shown} cannot be read"))?;
    let word = text.trim();
    if !(16..=512).contains(&word.len()) || !word.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("{shown} holds no node's token: 16 to {MAX_TOKEN} printable characters without spaces");
    }
    Ok(NodeToken::new(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_comes_from_a_file_of_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(token(&path).is_err());
        for (text, good) in [
            ("canary-canary-canary\n", true),
            ("short", false),
            ("canary canary canary canary", false),
            (&"c".repeat(512), true),
            (&"c".repeat(513), false),
            (&"c".repeat(100_000), false),
            ("", false),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let read = token(&path);
            assert_eq!(read.is_ok(), good, "{text:.20}");
            assert!(!format!("{read:?}").contains("canary"), "{read:?}");
        }
        fs::write(&path, "canary-canary-canary").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let refusal = token(&path).unwrap_err().to_string();
        assert!(refusal.contains("chmod 600") && !refusal.contains("canary"), "{refusal}");
    }
}
