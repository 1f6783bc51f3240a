//! The contract of the port, held against real boxes, as root and as an ordinary user.

mod common;

use std::error::Error;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cocoonbox_core::ImageName;
use cocoonbox_core::backend::testkit::{GuestProbe, Harness, Processes};
use cocoonbox_core::backend::{HostFileName, SandboxBackend, SandboxId, Target};
use cocoonbox_sandbox::BwrapBackend;
use common::{Data, Outcome, is_root, kill, open, processes_of};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const NODE_CAP: u32 = 8;

struct Bwrap {
    data: Data,
    backend: Mutex<Option<Arc<BwrapBackend>>>,
}

impl Bwrap {
    async fn fresh() -> Self {
        let data = Data::new().expect("a data directory");
        let harness = Self { data, backend: Mutex::new(None) };
        harness.reopen().await;
        harness
    }

    /// The processes in one box; the launcher outside, which waits for them, is none of them.
    fn inside(&self, id: &SandboxId) -> Vec<i32> {
        let home = format!("/claims/{id}/files/home ");
        let sees = |pid: &i32| {
            // the launcher may see it, too, where it brought it along
            let name = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            !name.starts_with("cocoonbox-box ")
                && std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))
                    .is_ok_and(|mounts| mounts.contains(&home))
        };
        processes_of(&self.data.path()).into_iter().filter(sees).collect()
    }
}

#[async_trait]
impl Harness for Bwrap {
    fn backend(&self) -> Arc<dyn SandboxBackend> {
        self.backend.lock().expect("whole").clone().expect("is open")
    }
    async fn reopen(&self) -> Arc<dyn SandboxBackend> {
        drop(self.backend.lock().expect("whole").take());
        let backend = open(self.data.config().with_max_claims(NODE_CAP)).await.expect("it opens");
        *self.backend.lock().expect("whole") = Some(Arc::clone(&backend));
        backend
    }
    fn image(&self) -> ImageName {
        ImageName::host()
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
    fn node_cap(&self) -> Option<u32> {
        Some(NODE_CAP)
    }
    async fn kill(&self, id: &SandboxId) -> bool {
        self.inside(id).into_iter().for_each(kill);
        true
    }
    async fn processes(&self, id: &SandboxId) -> Option<Processes> {
        let mut count = Processes::default();
        for pid in self.inside(id) {
            let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let stopped = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
            let frozen = common::cgroup_of(pid).is_some_and(|cgroup| {
                std::fs::read_to_string(cgroup.join("cgroup.events"))
                    .is_ok_and(|text| text.contains("frozen 1"))
            });
            *if stopped || frozen { &mut count.held } else { &mut count.running } += 1;
        }
        Some(count)
    }
    fn guest(&self) -> Option<&dyn GuestProbe> {
        Some(self)
    }
}

impl Bwrap {
    async fn sh(&self, backend: &dyn SandboxBackend, id: &SandboxId, command: &str) -> Option<String> {
        let ran = common::sh(backend, id, command).await.expect("the guest runs it");
        (ran.code == 0).then_some(ran.out)
    }
}

#[async_trait]
impl GuestProbe for Bwrap {
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
    async fn hostname(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> Option<String> {
        let said = "cat /proc/sys/kernel/hostname; cat /etc/hostname; grep ^127 /etc/hosts | cut -d' ' -f3";
        let said = self.sh(backend, id, said).await.expect("it is said");
        let names: std::collections::BTreeSet<_> = said.lines().collect();
        assert_eq!(names.len(), 1, "one name everywhere: {said}");
        names.first().map(|name| (*name).to_owned())
    }
}

mod suite {
    cocoonbox_core::sandbox_backend_conformance!(super::Bwrap::fresh().await);
}

#[test]
fn the_suite_passes_as_an_ordinary_user() -> Outcome {
    if is_root() { common::as_an_ordinary_user(&["suite::"]) } else { Ok(()) }
}

#[test]
fn the_suite_passes_as_an_ordinary_user_with_ids_to_give() -> Outcome {
    if is_root() { common::as_a_user_with_ids(&["suite::"]) } else { Ok(()) }
}
