//! The memory backend passes the suite, and broken backends do not.

mod flaw;

use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::flaw::{Flaw, Flawed};
use super::*;
use crate::backend::{FaultyBackend, Freeze, MemoryBackend, MemoryOptions, Target};
use crate::{ManualClock, SeededEntropy};

/// How a backend is wrapped each time it is opened.
type Wrap = fn(Arc<MemoryBackend>) -> Arc<dyn SandboxBackend>;

struct MemoryHarness {
    wrap: Wrap,
    open: Mutex<(Arc<MemoryBackend>, Arc<dyn SandboxBackend>)>,
}

impl MemoryHarness {
    fn new(options: MemoryOptions, wrap: Wrap) -> Self {
        let backend = MemoryBackend::new(Arc::new(ManualClock::default()), Arc::new(SeededEntropy::new(1)));
        let backend = Arc::new(backend.with_options(options));
        Self { wrap, open: Mutex::new((Arc::clone(&backend), wrap(backend))) }
    }

    fn plain(options: MemoryOptions) -> Self {
        Self::new(options.with_max_claims(8), |backend| backend)
    }

    fn memory(&self) -> Arc<MemoryBackend> {
        Arc::clone(&self.open.lock().expect("not poisoned").0)
    }
}

#[async_trait]
impl Harness for MemoryHarness {
    fn backend(&self) -> Arc<dyn SandboxBackend> {
        Arc::clone(&self.open.lock().expect("not poisoned").1)
    }
    async fn reopen(&self) -> Arc<dyn SandboxBackend> {
        let backend = Arc::new(self.memory().reopen());
        *self.open.lock().expect("not poisoned") = (Arc::clone(&backend), (self.wrap)(backend));
        self.backend()
    }
    fn image(&self) -> ImageName {
        ImageName::host()
    }
    async fn ping(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> Result<(), String> {
        let mut stream = backend.connect(id, Target::Channel).await.map_err(|error| error.to_string())?;
        stream.write_all(b"?").await.map_err(|error| error.to_string())?;
        stream.read_u8().await.map(|_| ()).map_err(|error| error.to_string())
    }
    fn patience(&self) -> Duration {
        Duration::from_millis(500)
    }
    fn node_cap(&self) -> Option<u32> {
        Some(8)
    }
    async fn kill(&self, id: &SandboxId) -> bool {
        self.memory().store().kill(id, "killed from outside")
    }
    async fn processes(&self, id: &SandboxId) -> Option<Processes> {
        let (running, held) = self.memory().store().sandbox(id).map_or((0, 0), |sandbox| sandbox.processes());
        Some(Processes { running, held })
    }
    fn guest(&self) -> Option<&dyn GuestProbe> {
        Some(self)
    }
}

#[async_trait]
impl GuestProbe for MemoryHarness {
    async fn incarnation(&self, _: &dyn SandboxBackend, id: &SandboxId) -> String {
        self.memory().store().sandbox(id).expect("the sandbox is there").starts().to_string()
    }
    async fn write(&self, _: &dyn SandboxBackend, id: &SandboxId, text: &str) {
        assert!(
            self.memory().store().sandbox(id).expect("the sandbox is there").write("note", text.as_bytes())
        );
    }
    async fn read(&self, _: &dyn SandboxBackend, id: &SandboxId) -> Option<String> {
        String::from_utf8(self.memory().store().sandbox(id)?.read("note")?).ok()
    }
    async fn host_file(
        &self,
        backend: &dyn SandboxBackend,
        id: &SandboxId,
        name: &HostFileName,
    ) -> Option<Vec<u8>> {
        // goes through the guest once, so that writers get their turn in between
        self.ping(backend, id).await.expect("the guest answers");
        self.memory().store().sandbox(id)?.host_file(name)
    }
}

mod memory {
    crate::sandbox_backend_conformance!(super::MemoryHarness::plain(super::MemoryOptions::default()));
}

mod memory_that_keeps_nothing {
    use super::{Freeze, MemoryHarness, MemoryOptions};
    crate::sandbox_backend_conformance!(MemoryHarness::plain(
        MemoryOptions::default().with_freeze(Freeze::Absent).with_survives_restart(false)
    ));
}

mod memory_behind_a_wrapper_without_faults {
    use super::{Arc, FaultyBackend, MemoryHarness, MemoryOptions};
    crate::sandbox_backend_conformance!(MemoryHarness::new(
        MemoryOptions::default().with_max_claims(8),
        |backend| Arc::new(FaultyBackend::new(backend))
    ));
}

mod memory_behind_the_wrapper_of_flaws_without_one {
    use super::{Arc, Flaw, Flawed, MemoryHarness, MemoryOptions};
    crate::sandbox_backend_conformance!(MemoryHarness::new(
        MemoryOptions::default().with_max_claims(8),
        |backend| Arc::new(Flawed::new(backend, Flaw::Absent))
    ));
}

/// Each flaw and the tests that catch it.
macro_rules! caught {
    ($($flaw:ident by $($test:ident)+;)*) => {
        #[tokio::test]
        async fn each_flaw_is_caught() {
            let mut missed = Vec::new();
            $($({
                let options = MemoryOptions::default().with_max_claims(8);
                let harness = MemoryHarness::new(options, |inner| Arc::new(Flawed::new(inner, Flaw::$flaw)));
                let test = async move { run(&harness, $test(&harness)).await };
                let spawned = async { tokio::task::spawn_local(test).await };
                let outcome = tokio::task::LocalSet::new().run_until(spawned).await;
                if !outcome.is_err_and(|error| error.is_panic()) {
                    missed.push((Flaw::$flaw, stringify!($test)));
                }
            })*)*
            assert!(missed.is_empty(), "{missed:?} should have been caught");
        }
    };
}

caught! {
    AnswersBeforeTheClaimIsThere by a_claim_is_answered_with_what_was_asked_for;
    TakesRefsForKeys by one_claim_ref_may_name_two_claims;
    FindsNewestFirst by claims_are_found_oldest_first;
    FiltersByOneThing by a_filter_finds_exactly_what_matches;
    ForgetsLabels by a_claim_is_answered_with_what_was_asked_for;
    LetsUnknownImagesIn by an_unknown_image_is_refused_and_leaves_nothing;
    ChecksNothing by an_invalid_request_is_refused_and_leaves_nothing what_capabilities_exclude_is_refused;
    ReleasesTwice by a_released_claim_is_gone nothing_can_be_done_with_what_is_not_there concurrent_releases_succeed_once;
    OnlyHibernatesForRelease by a_released_claim_is_gone;
    ClaimsToKeepWhatItLost by a_wake_says_what_it_found a_hibernate_to_disk_leaves_no_process;
    KeepsMemoryForEver by kept_memory_can_be_given_up_for_disk;
    LosesMemory by a_hibernate_to_memory_keeps_what_capabilities_say;
    RestartsWhatRuns by waking_what_runs_answers_kept_and_starts_nothing;
    WakesOnConnect by connecting_to_what_does_not_run_is_a_conflict_and_wakes_nothing;
    RefusesFilesAsleep by a_host_file_is_replaced_in_every_state;
    ForgetsFilesAsleep by a_host_file_is_replaced_in_every_state;
    CutsFiles by a_host_file_over_the_limit_is_refused_and_changes_nothing;
    TearsFiles by a_reader_sees_a_host_file_whole a_dropped_put_host_file_is_done_or_undone;
    CountsRunningOnly by a_tenants_cap_counts_hibernated_claims;
    ChecksThenClaims by concurrent_claims_never_exceed_a_cap;
    CapsStrangers by a_tenant_that_was_not_put_is_not_capped;
    ForgetsCaps by caps_last_across_a_reopen;
    TakesZeroLiterally by a_cap_of_zero_is_no_cap;
    LeaksPlaces by a_dropped_claim_is_done_or_undone;
    HasOneLock by a_call_left_waiting_blocks_no_other_claim;
    NeverConnects by a_claimed_sandbox_answers_at_once;
    SaysConflictForClosedPorts by a_port_that_nobody_listens_on_is_unreachable;
    HoldsDeadStreams by a_release_ends_open_streams a_hibernate_to_disk_ends_open_streams;
    SeesNoDeath by a_dead_sandbox_is_failed_and_starts_anew a_sandbox_that_died_is_failed_after_a_reopen;
    SleepsHalf by a_dropped_hibernate_is_done_or_undone;
    ForgetsPools by pools_last_across_a_reopen;
    ShowsWarmOnes by a_pool_fills_up_and_is_nobodys;
    ForgetsFilesOfWarmOnes by a_warm_sandbox_is_claimed_like_any_other;
    HandsWarmOnesOutTwice by concurrent_claims_never_share_a_warm_sandbox;
    LosesClaims by claims_last_across_a_reopen a_reopened_claim_can_be_used_and_released;
}

#[test]
fn the_macro_lists_every_test_of_the_suite() {
    let list = include_str!("mod.rs");
    let files = [
        include_str!("claiming.rs"),
        include_str!("sleeping.rs"),
        include_str!("reach.rs"),
        include_str!("tenant.rs"),
        include_str!("crowd.rs"),
        include_str!("dropping.rs"),
        include_str!("pool.rs"),
    ];
    let mut count = 0;
    for line in files.iter().flat_map(|text| text.lines()) {
        let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
        let name = rest.split('(').next().unwrap_or(rest);
        assert!(list.lines().any(|line| line.trim() == name), "{name} is in the list");
        count += 1;
    }
    let plain = |line: &&str| {
        line.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') && line.contains('_')
    };
    let listed = list.lines().filter(|line| line.starts_with("            ")).map(str::trim).filter(plain);
    assert_eq!(listed.count(), count, "the list names no test that is not there");
}
