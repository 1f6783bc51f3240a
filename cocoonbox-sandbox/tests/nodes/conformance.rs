//! The contract of the port, held against the client: over one node, over a fleet of one, and over real boxes.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cocoonbox_core::backend::testkit::{GuestProbe, Harness, Processes};
use cocoonbox_core::backend::{HostFileName, MemoryOptions, SandboxBackend, SandboxId, Target};
use cocoonbox_core::{ImageName, SystemClock, SystemEntropy};
use cocoonbox_sandbox::remote::{Fleet, FleetConfig, RemoteBackend};
use tokio::io::AsyncReadExt as _;

use super::node::{InProcess, echoes, port, token};

const NODE_CAP: u32 = 8;

/// What stands between the suite and the nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Client,
    Fleet,
}

struct Over {
    by: By,
    nodes: tokio::sync::Mutex<Vec<InProcess>>,
    stores: Vec<cocoonbox_core::backend::MemoryStore>,
    folder: tempfile::TempDir,
    backend: Mutex<Option<Arc<dyn SandboxBackend>>>,
    cap: u32,
}

impl Over {
    async fn fresh(by: By, count: u32, options: MemoryOptions) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(InProcess::start(options.clone().with_max_claims(NODE_CAP / count)).await);
        }
        let stores = nodes.iter().map(InProcess::store).collect();
        let folder = tempfile::tempdir().unwrap();
        let nodes = tokio::sync::Mutex::new(nodes);
        let over = Self { by, nodes, stores, folder, backend: Mutex::default(), cap: NODE_CAP };
        over.open().await;
        over
    }

    async fn open(&self) {
        let nodes = self.nodes.lock().await;
        let backend: Arc<dyn SandboxBackend> = match self.by {
            By::Client => {
                let address = nodes[0].address();
                Arc::new(RemoteBackend::open(address, Some(token()), Arc::new(SystemEntropy)).await.unwrap())
            }
            By::Fleet => {
                let config = FleetConfig::new(self.folder.path().join("nodes.json"));
                let config =
                    nodes.iter().fold(config, |config, node| config.with_node(node.address(), Some(token())));
                Arc::new(Fleet::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await.unwrap())
            }
        };
        *self.backend.lock().unwrap() = Some(backend);
    }

    /// Returns the sandbox as its node has it.
    fn sandbox(&self, id: &SandboxId) -> Option<cocoonbox_core::backend::MemorySandbox> {
        let own = match self.by {
            By::Client => id.clone(),
            By::Fleet => id.as_str().split_once('-')?.1.parse().ok()?,
        };
        self.stores.iter().find_map(|store| store.sandbox(&own))
    }
}

#[async_trait]
impl Harness for Over {
    fn backend(&self) -> Arc<dyn SandboxBackend> {
        self.backend.lock().unwrap().clone().unwrap()
    }
    async fn reopen(&self) -> Arc<dyn SandboxBackend> {
        for node in self.nodes.lock().await.iter_mut() {
            node.start_again().await;
        }
        self.open().await;
        self.backend()
    }
    fn image(&self) -> ImageName {
        ImageName::host()
    }
    async fn ping(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> Result<(), String> {
        echoes(backend, id, Target::Channel).await
    }
    fn node_cap(&self) -> Option<u32> {
        Some(self.cap)
    }
    async fn kill(&self, id: &SandboxId) -> bool {
        let own = self.sandbox(id).unwrap().id().clone();
        self.stores.iter().any(|store| store.kill(&own, "killed by the test"))
    }
    async fn processes(&self, id: &SandboxId) -> Option<Processes> {
        let (running, held) = self.sandbox(id).map_or((0, 0), |sandbox| sandbox.processes());
        Some(Processes { running, held })
    }
    fn guest(&self) -> Option<&dyn GuestProbe> {
        Some(self)
    }
}

#[async_trait]
impl GuestProbe for Over {
    async fn incarnation(&self, _: &dyn SandboxBackend, id: &SandboxId) -> String {
        self.sandbox(id).unwrap().starts().to_string()
    }
    async fn write(&self, _: &dyn SandboxBackend, id: &SandboxId, text: &str) {
        assert!(self.sandbox(id).unwrap().write("written", text.as_bytes()));
    }
    async fn read(&self, _: &dyn SandboxBackend, id: &SandboxId) -> Option<String> {
        self.sandbox(id)?.read("written").map(|bytes| String::from_utf8(bytes).unwrap())
    }
    async fn host_file(
        &self,
        backend: &dyn SandboxBackend,
        id: &SandboxId,
        name: &HostFileName,
    ) -> Option<Vec<u8>> {
        if *name != HostFileName::identity() {
            return self.sandbox(id)?.host_file(name);
        }
        // through the wire and out again
        let mut bytes = Vec::new();
        let mut stream = backend.connect(id, port(8)).await.unwrap();
        stream.read_to_end(&mut bytes).await.unwrap();
        Some(bytes)
    }
}

mod over_one_node {
    use super::*;
    cocoonbox_core::sandbox_backend_conformance!(Over::fresh(By::Client, 1, MemoryOptions::default()).await);
}

mod over_a_node_whose_sandboxes_end_with_it {
    use super::*;
    cocoonbox_core::sandbox_backend_conformance!(
        Over::fresh(By::Client, 1, MemoryOptions::default().with_survives_restart(false)).await
    );
}

mod over_a_fleet_of_one {
    use super::*;
    cocoonbox_core::sandbox_backend_conformance!(Over::fresh(By::Fleet, 1, MemoryOptions::default()).await);
}

/// A tenant's cap holds on each node by itself, so the promises on caps are not held against two.
mod over_a_fleet_of_two {
    use super::*;
    cocoonbox_core::sandbox_backend_conformance! { @each Over::fresh(By::Fleet, 2, MemoryOptions::default()).await;
        a_claim_is_answered_with_what_was_asked_for
        a_claimed_sandbox_answers_at_once
        an_unknown_image_is_refused_and_leaves_nothing
        an_invalid_request_is_refused_and_leaves_nothing
        what_capabilities_exclude_is_refused
        one_claim_ref_may_name_two_claims
        a_full_node_refuses_and_counts_hibernated_claims
        claims_are_found_oldest_first
        a_filter_finds_exactly_what_matches
        a_released_claim_is_gone
        a_hibernated_claim_can_be_released
        nothing_can_be_done_with_what_is_not_there
        claims_last_across_a_reopen
        a_reopened_claim_can_be_used_and_released
        a_wake_says_what_it_found
        files_are_kept_through_every_sleep
        a_hibernated_claim_wakes_after_a_reopen
        a_dead_sandbox_is_failed_and_starts_anew
        connecting_to_what_does_not_run_is_a_conflict_and_wakes_nothing
        a_port_that_nobody_listens_on_is_unreachable
        a_release_ends_open_streams
        host_files_of_the_claim_are_there
        a_host_file_is_replaced_in_every_state
        host_files_last_across_a_reopen
        concurrent_claims_all_succeed_and_differ
        concurrent_releases_succeed_once
        calls_on_one_claim_take_turns
        a_call_left_waiting_blocks_no_other_claim
        a_dropped_release_is_done_or_undone
        a_dropped_hibernate_is_done_or_undone
        a_dropped_wake_is_done_or_undone
        a_dropped_put_host_file_is_done_or_undone
    }
}
