//! The harness of the port's contract over real containers.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::backend::testkit::{GuestProbe, Harness, Processes};
use cocoonbox_core::backend::{HostFileName, SandboxBackend, SandboxId, Target};
use cocoonbox_core::{ImageName, SystemClock, SystemEntropy};
use cocoonbox_sandbox::ContainerBackend;
use cocoonbox_sandbox::testkit::{EngineForTests, image};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::kill;

const NODE_CAP: u32 = 8;

/// A backend of an engine of the tests' own, and the directory of its data.
pub struct Containers {
    engine: &'static dyn EngineForTests,
    directory: tempfile::TempDir,
    backend: Mutex<Option<Arc<ContainerBackend>>>,
}

impl Containers {
    pub async fn fresh(engine: Result<&'static dyn EngineForTests, String>) -> Self {
        let engine = engine.unwrap_or_else(|error| panic!("{error}"));
        let directory = tempfile::tempdir().expect("a directory");
        let harness = Self { engine, directory, backend: Mutex::new(None) };
        harness.reopen().await;
        harness
    }

    /// The processes in one box: those that see its home.
    fn inside(id: &SandboxId) -> Vec<i32> {
        let home = format!("/claims/{id}/files/home ");
        let sees = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))
                .is_ok_and(|mounts| mounts.contains(&home))
        };
        let entries = std::fs::read_dir("/proc").expect("it is mounted").flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(sees).collect()
    }
}

/// Whether a process is held by a freezer of either version.
fn is_held(pid: i32) -> bool {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    cgroups.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return false };
        let (file, held) = match controllers {
            "freezer" => (format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN"),
            "" => (format!("/sys/fs/cgroup{path}/cgroup.events"), "frozen 1"),
            _ => return false,
        };
        std::fs::read_to_string(file).is_ok_and(|text| text.contains(held))
    })
}

#[async_trait]
impl Harness for Containers {
    fn backend(&self) -> Arc<dyn SandboxBackend> {
        self.backend.lock().expect("whole").clone().expect("is open")
    }
    async fn reopen(&self) -> Arc<dyn SandboxBackend> {
        drop(self.backend.lock().expect("whole").take());
        let config = self.engine.config(&self.directory.path().join("data"), &super::agent());
        let config = config.with_max_claims(NODE_CAP);
        let backend = ContainerBackend::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await;
        let backend = backend.expect("it opens");
        *self.backend.lock().expect("whole") = Some(Arc::clone(&backend));
        backend
    }
    fn image(&self) -> ImageName {
        image()
    }
    async fn ping(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> Result<(), String> {
        let ask = async {
            let mut stream = backend.connect(id, Target::Channel).await?;
            stream.write_all(b"{\"v\":1,\"op\":\"info\"}\n").await?;
            let mut start = [0; 8];
            stream.read_exact(&mut start).await?;
            Ok::<_, Box<dyn Error>>(start)
        };
        let start = ask.await.map_err(|error| error.to_string())?;
        if start[0] == b'{' { Ok(()) } else { Err(format!("{start:?}")) }
    }
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }
    fn node_cap(&self) -> Option<u32> {
        Some(NODE_CAP)
    }
    async fn kill(&self, id: &SandboxId) -> bool {
        Self::inside(id).into_iter().for_each(kill);
        true
    }
    async fn processes(&self, id: &SandboxId) -> Option<Processes> {
        let mut count = Processes::default();
        for pid in Self::inside(id) {
            *if is_held(pid) { &mut count.held } else { &mut count.running } += 1;
        }
        Some(count)
    }
    fn guest(&self) -> Option<&dyn GuestProbe> {
        Some(self)
    }
}

impl Containers {
    async fn sh(&self, backend: &dyn SandboxBackend, id: &SandboxId, command: &str) -> Option<String> {
        let ran = super::sh(backend, id, command).await.expect("the guest runs it");
        (ran.code == 0).then_some(ran.out)
    }
}

#[async_trait]
impl GuestProbe for Containers {
    async fn incarnation(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> String {
        self.sh(backend, id, "readlink /proc/self/ns/net; cut -d' ' -f22 /proc/1/stat")
            .await
            .expect("it is said")
    }
    async fn write(&self, backend: &dyn SandboxBackend, id: &SandboxId, text: &str) {
        self.sh(backend, id, &format!("printf %s '{text}' >/workspace/written"))
            .await
            .expect("it is written");
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
