//! The example is held to the contract.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cocoonbox_core::backend::testkit::{GuestProbe, Harness};
use cocoonbox_core::backend::{HostFileName, SandboxBackend, SandboxId, Target};
use cocoonbox_core::{ImageName, SystemClock};
use example_custom_backend::PlainBackend;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

struct PlainHarness {
    root: tempfile::TempDir,
    open: Mutex<Arc<PlainBackend>>,
}

fn open(root: PathBuf) -> Arc<PlainBackend> {
    let guest = env!("CARGO_BIN_EXE_plain-guest").into();
    Arc::new(PlainBackend::open(root, guest, Arc::new(SystemClock)).expect("it opens"))
}

impl PlainHarness {
    fn fresh() -> Self {
        let root = tempfile::tempdir().expect("there is room");
        let open = Mutex::new(open(root.path().to_owned()));
        Self { root, open }
    }

    async fn info(backend: &dyn SandboxBackend, id: &SandboxId) -> Result<String, String> {
        let stream = backend.connect(id, Target::Channel).await.map_err(|error| error.to_string())?;
        let mut stream = BufReader::new(stream);
        stream.write_all(b"{\"v\":1,\"op\":\"info\"}\n").await.map_err(|error| error.to_string())?;
        let mut line = String::new();
        stream.read_line(&mut line).await.map_err(|error| error.to_string())?;
        let info: serde_json::Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        info["version"].as_str().map(str::to_owned).ok_or(line)
    }
}

#[async_trait]
impl Harness for PlainHarness {
    fn backend(&self) -> Arc<dyn SandboxBackend> {
        self.open.lock().expect("not poisoned").clone()
    }
    async fn reopen(&self) -> Arc<dyn SandboxBackend> {
        let new = open(self.root.path().to_owned());
        *self.open.lock().expect("not poisoned") = new;
        self.backend()
    }
    fn image(&self) -> ImageName {
        "plain".parse().expect("the name is good")
    }
    async fn ping(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> Result<(), String> {
        Self::info(backend, id).await.map(|_| ())
    }
    async fn kill(&self, id: &SandboxId) -> bool {
        let info = Self::info(&*self.backend(), id).await.expect("the guest tells its pid");
        let pid = info.rsplit(' ').next().unwrap_or_default();
        std::process::Command::new("kill").args(["-9", pid]).status().is_ok_and(|status| status.success())
    }
    fn guest(&self) -> Option<&dyn GuestProbe> {
        Some(self)
    }
}

#[async_trait]
impl GuestProbe for PlainHarness {
    async fn incarnation(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> String {
        Self::info(backend, id).await.expect("the guest answers")
    }
    async fn write(&self, _: &dyn SandboxBackend, id: &SandboxId, text: &str) {
        std::fs::write(self.root.path().join(id.as_str()).join("home/note"), text).expect("there is room");
    }
    async fn read(&self, _: &dyn SandboxBackend, id: &SandboxId) -> Option<String> {
        std::fs::read_to_string(self.root.path().join(id.as_str()).join("home/note")).ok()
    }
    async fn host_file(
        &self,
        _: &dyn SandboxBackend,
        id: &SandboxId,
        name: &HostFileName,
    ) -> Option<Vec<u8>> {
        std::fs::read(self.root.path().join(id.as_str()).join("run").join(name.as_str())).ok()
    }
}

cocoonbox_core::sandbox_backend_conformance!(PlainHarness::fresh());

#[test]
fn the_backend_stays_under_two_hundred_lines_of_code() {
    let code = include_str!("../src/lib.rs").lines().map(str::trim);
    let count = code.filter(|line| !line.is_empty() && !line.starts_with("//")).count();
    assert!(count < 200, "{count} lines");
}
