//! The contract of the port, held against the client over a node with real boxes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::backend::testkit::{GuestProbe, Harness, Processes};
use cocoonbox_core::backend::{HostFileName, SandboxBackend, SandboxId, Target};
use cocoonbox_core::{ImageName, SystemEntropy};
use cocoonbox_sandbox::remote::RemoteBackend;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::common::{self, Data, kill, processes_of};
use super::node::{Serving, serve, token};

const NODE_CAP: u32 = 8;

struct Real {
    data: Data,
    address: Mutex<Option<SocketAddr>>,
    serving: tokio::sync::Mutex<Option<Serving>>,
    backend: Mutex<Option<Arc<RemoteBackend>>>,
}

impl Real {
    async fn fresh() -> Self {
        let data = Data::new().unwrap();
        let real = Self {
            data,
            address: Mutex::default(),
            serving: tokio::sync::Mutex::default(),
            backend: Mutex::default(),
        };
        real.reopen().await;
        real
    }

    /// The processes in one box; the launcher outside, which waits for them, is none of them.
    fn inside(&self, id: &SandboxId) -> Vec<i32> {
        let home = format!("/claims/{id}/files/home ");
        let sees = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))
                .is_ok_and(|mounts| mounts.contains(&home))
        };
        processes_of(&self.data.path()).into_iter().filter(sees).collect()
    }
}

#[async_trait]
impl Harness for Real {
    fn backend(&self) -> Arc<dyn SandboxBackend> {
        self.backend.lock().unwrap().clone().unwrap()
    }
    async fn reopen(&self) -> Arc<dyn SandboxBackend> {
        let mut serving = self.serving.lock().await;
        if let Some(before) = serving.take() {
            before.end().await;
        }
        let open = async {
            loop {
                // the node before may still be closing its last connection
                match common::open(self.data.config().with_max_claims(NODE_CAP)).await {
                    Ok(backend) => return backend,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let backend = tokio::time::timeout(Duration::from_secs(20), open).await.unwrap();
        let before = *self.address.lock().unwrap();
        let address = before.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        *self.address.lock().unwrap() = Some(address);
        *serving = Some(serve(backend, &self.data.path().join("node"), NODE_CAP, listener).await);
        let address = format!("http://{address}").parse().unwrap();
        let client = RemoteBackend::open(address, Some(token()), Arc::new(SystemEntropy)).await.unwrap();
        let client = Arc::new(client);
        *self.backend.lock().unwrap() = Some(Arc::clone(&client));
        client
    }
    fn image(&self) -> ImageName {
        ImageName::host()
    }
    async fn ping(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> Result<(), String> {
        let mut stream = backend.connect(id, Target::Channel).await.map_err(|error| error.to_string())?;
        stream.write_all(b"{\"v\":1,\"op\":\"info\"}\n").await.map_err(|error| error.to_string())?;
        let start = stream.read_u8().await.map_err(|error| error.to_string())?;
        if start == b'{' { Ok(()) } else { Err(format!("{start}")) }
    }
    fn node_cap(&self) -> Option<u32> {
        Some(NODE_CAP)
    }
    async fn kill(&self, id: &SandboxId) -> bool {
        self.inside(id).into_iter().for_each(kill);
        true
    }
    async fn processes(&self, id: &SandboxId) -> Option<Processes> {
        // which of them are held still is told by the suite over the backend itself
        let running = self.inside(id).len();
        (running == 0).then(Processes::default)
    }
    fn guest(&self) -> Option<&dyn GuestProbe> {
        Some(self)
    }
}

impl Real {
    async fn sh(&self, backend: &dyn SandboxBackend, id: &SandboxId, command: &str) -> Option<String> {
        let ran = common::sh(backend, id, command).await.unwrap();
        (ran.code == 0).then_some(ran.out)
    }
}

#[async_trait]
impl GuestProbe for Real {
    async fn incarnation(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> String {
        self.sh(backend, id, "readlink /proc/self/ns/net; cut -d' ' -f22 /proc/1/stat").await.unwrap()
    }
    async fn write(&self, backend: &dyn SandboxBackend, id: &SandboxId, text: &str) {
        self.sh(backend, id, &format!("printf %s '{text}' >/workspace/written")).await.unwrap();
    }
    async fn read(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> Option<String> {
        self.sh(backend, id, "cat /workspace/written").await
    }
    async fn host_file(
        &self,
        backend: &dyn SandboxBackend,
        id: &SandboxId,
        name: &HostFileName,
    ) -> Option<Vec<u8>> {
        let path = format!("cat /run/cocoonbox-identity/{}", name.as_str());
        self.sh(backend, id, &path).await.map(String::into_bytes)
    }
}

cocoonbox_core::sandbox_backend_conformance!(Real::fresh().await);
