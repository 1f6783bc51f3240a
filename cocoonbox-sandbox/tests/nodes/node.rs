//! A node in this process: the HTTP API over sandboxes in memory, which can be stopped and started again.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;

use cocoonbox_core::backend::{
    HostFileName, MemoryBackend, MemoryOptions, MemoryStore, SandboxBackend, SandboxId, Target, guest_fn,
};
use cocoonbox_core::{SystemClock, SystemEntropy};
use cocoonbox_sandbox::http::{router, serve as http_serve};
use cocoonbox_sandbox::node::{Node, NodeOptions, NodeToken, SandboxKey};
use cocoonbox_sandbox::remote::NodeAddress;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, SimplexStream};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const TOKEN: &str = "root-token-of-the-test";

pub(crate) fn token() -> NodeToken {
    NodeToken::new(TOKEN.to_owned())
}

/// A guest that echoes on the channel and on port 7, and hands out its host files on port 8.
fn memory(options: MemoryOptions) -> MemoryBackend {
    let guest = guest_fn(|sandbox, target| match target {
        Target::Port(port) if port.get() == 8 => {
            let (ours, theirs) = tokio::io::duplex(256 * 1024);
            let file = sandbox.host_file(&HostFileName::identity()).unwrap_or_default();
            tokio::spawn(async move {
                let mut ours = ours;
                let _ = ours.write_all(&file).await;
            });
            Some(Box::new(theirs))
        }
        Target::Port(port) if port.get() != 7 => None,
        _ => Some(Box::new(SimplexStream::new_unsplit(64 * 1024))),
    });
    MemoryBackend::new(Arc::new(SystemClock), Arc::new(SystemEntropy)).with_guest(guest).with_options(options)
}

/// A node that is being served.
pub(crate) struct Serving(CancellationToken, JoinHandle<()>);

impl Serving {
    pub(crate) async fn end(self) {
        self.0.cancel();
        self.1.await.unwrap();
    }
}

/// Serves a node over `backend` that keeps its own records in `folder`.
pub(crate) async fn serve(
    backend: Arc<dyn SandboxBackend>,
    folder: &Path,
    max_claims: u32,
    listener: TcpListener,
) -> Serving {
    let key = SandboxKey::new("k".repeat(64));
    let address = listener.local_addr().unwrap().to_string();
    let options = NodeOptions::new(folder, key, address).with_max_claims(max_claims).with_token(token());
    let node = Node::open(options, backend).await.unwrap();
    let stop = CancellationToken::new();
    let run = http_serve::run(listener, router(node), stop.clone());
    Serving(stop, tokio::spawn(async move { run.await.unwrap() }))
}

/// What a node keeps when it is stopped, and what serves it while it is not.
pub(crate) struct InProcess {
    pub(crate) address: SocketAddr,
    memory: MemoryBackend,
    folder: tempfile::TempDir,
    max_claims: u32,
    serving: Option<Serving>,
}

impl InProcess {
    pub(crate) async fn start(options: MemoryOptions) -> Self {
        let max_claims = options.max_claims;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let memory = memory(options);
        let folder = tempfile::tempdir().unwrap();
        let mut node = Self { address, memory, folder, max_claims, serving: None };
        node.serve(listener).await;
        node
    }

    async fn serve(&mut self, listener: TcpListener) {
        let folder = self.folder.path().join("node");
        self.serving = Some(serve(Arc::new(self.memory.reopen()), &folder, self.max_claims, listener).await);
    }

    /// Stops the node as its process's end would; its sandboxes stay as they are.
    pub(crate) async fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.end().await;
        }
    }

    /// Starts the node again where it was.
    pub(crate) async fn start_again(&mut self) {
        self.stop().await;
        let listener = loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        };
        self.serve(listener).await;
    }

    pub(crate) fn address(&self) -> NodeAddress {
        format!("http://{}", self.address).parse().unwrap()
    }

    pub(crate) fn store(&self) -> MemoryStore {
        self.memory.store()
    }
}

/// Sends a word into a guest that echoes, and waits for it.
pub(crate) async fn echoes(
    backend: &dyn SandboxBackend,
    id: &SandboxId,
    target: Target,
) -> Result<(), String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let mut stream = backend.connect(id, target).await.map_err(|error| words(&error))?;
    stream.write_all(b"hello").await.map_err(|error| words(&error))?;
    let mut back = [0; 5];
    stream.read_exact(&mut back).await.map_err(|error| words(&error))?;
    if &back == b"hello" { Ok(()) } else { Err(format!("{back:?} came back")) }
}

pub(crate) fn port(number: u16) -> Target {
    Target::Port(NonZeroU16::new(number).unwrap())
}
