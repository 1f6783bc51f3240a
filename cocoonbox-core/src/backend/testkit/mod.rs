//! The contract of [`SandboxBackend`] as tests: a backend is done when all of them pass.
//!
//! Each function is one promise and panics when it is broken. [`sandbox_backend_conformance!`] makes a `#[tokio::test]`
//! of each (the calling crate needs tokio with `macros` and `rt`). What the backend's capabilities exclude, and what
//! the [`Harness`] has no hand for, is skipped, so a harness with all its hands is the stricter one.
//!
//! [`sandbox_backend_conformance!`]: crate::sandbox_backend_conformance

mod claiming;
mod crowd;
mod dropping;
mod pool;
mod reach;
mod sleeping;
mod support;
mod tenant;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use self::claiming::*;
pub use self::crowd::*;
pub use self::dropping::*;
pub use self::pool::*;
pub use self::reach::*;
pub use self::sleeping::*;
pub use self::tenant::*;
use super::{ClaimFilter, HostFileName, SandboxBackend, SandboxId};
use crate::ImageName;

/// What the suite needs around a backend. One harness serves one test: it begins with no claims and no tenants.
///
/// What a failed test leaves behind is the harness's to clean up when it is dropped.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Returns the backend as it is open now.
    fn backend(&self) -> Arc<dyn SandboxBackend>;

    /// Opens the backend anew on the same data, as a process does that starts after the other one died. The suite uses
    /// no older backend afterwards.
    async fn reopen(&self) -> Arc<dyn SandboxBackend>;

    /// Returns an image that can be claimed.
    fn image(&self) -> ImageName;

    /// Makes a round trip to the guest's first process over the guest channel.
    async fn ping(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> Result<(), String>;

    /// Returns how long anything may take; a test may take six times as long.
    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Returns the node's cap on claims, where it is low enough to reach.
    fn node_cap(&self) -> Option<u32> {
        None
    }

    /// Ends the processes of a sandbox from outside, behind the backend's back; returns whether it can.
    async fn kill(&self, _id: &SandboxId) -> bool {
        false
    }

    /// Counts the processes of a sandbox on this machine; `None`: it cannot.
    async fn processes(&self, _id: &SandboxId) -> Option<Processes> {
        None
    }

    /// Returns a hand inside the guests; `None`: it has none.
    fn guest(&self) -> Option<&dyn GuestProbe> {
        None
    }
}

/// The processes of one sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "harnesses make it")]
pub struct Processes {
    /// Those that may run.
    pub running: usize,
    /// Those that are held still.
    pub held: usize,
}

/// A hand inside running guests.
#[async_trait]
pub trait GuestProbe: Send + Sync {
    /// Returns a text that is the same as long as the guest's processes live, and another when they start anew.
    async fn incarnation(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> String;

    /// Writes a text into a file of the guest's user.
    async fn write(&self, backend: &dyn SandboxBackend, id: &SandboxId, text: &str);

    /// Reads that file.
    async fn read(&self, backend: &dyn SandboxBackend, id: &SandboxId) -> Option<String>;

    /// Reads a host-owned file as the guest sees it.
    async fn host_file(
        &self,
        backend: &dyn SandboxBackend,
        id: &SandboxId,
        name: &HostFileName,
    ) -> Option<Vec<u8>>;

    /// Returns the host name as the guest sees it; `None`: that cannot be told.
    async fn hostname(&self, _backend: &dyn SandboxBackend, _id: &SandboxId) -> Option<String> {
        None
    }
}

/// Runs one test of the suite within its time, and releases what is left.
pub async fn run(harness: &dyn Harness, test: impl Future<Output = ()>) {
    let limit = harness.patience() * 6;
    tokio::time::timeout(limit, test).await.expect("the test ends in time");
    let backend = harness.backend();
    for claim in backend.find(&ClaimFilter::all()).await.expect("what is left is found") {
        backend.release(&claim.id).await.expect("what is left is released");
    }
}

/// Makes a `#[tokio::test]` of each promise of [`SandboxBackend`](crate::backend::SandboxBackend), given an expression
/// that makes a fresh [`Harness`](crate::backend::testkit::Harness); it may `.await`.
///
/// ```ignore
/// mod conformance {
///     cocoonbox_core::sandbox_backend_conformance!(super::MyHarness::fresh().await);
/// }
/// ```
#[macro_export]
macro_rules! sandbox_backend_conformance {
    ($harness:expr) => {
        $crate::sandbox_backend_conformance! { @each $harness;
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

            a_hibernate_to_memory_keeps_what_capabilities_say
            a_hibernate_to_disk_leaves_no_process
            hibernating_twice_answers_again_what_was_kept
            kept_memory_can_be_given_up_for_disk
            lost_memory_does_not_come_back
            a_wake_says_what_it_found
            waking_what_runs_answers_kept_and_starts_nothing
            files_are_kept_through_every_sleep
            a_hibernated_claim_wakes_after_a_reopen
            a_dead_sandbox_is_failed_and_starts_anew
            a_sandbox_that_died_is_failed_after_a_reopen
            a_failed_claim_has_nothing_to_keep

            connecting_to_what_does_not_run_is_a_conflict_and_wakes_nothing
            a_port_that_nobody_listens_on_is_unreachable
            a_release_ends_open_streams
            a_hibernate_to_disk_ends_open_streams
            host_files_of_the_claim_are_there
            a_host_file_is_replaced_in_every_state
            a_host_file_over_the_limit_is_refused_and_changes_nothing
            a_reader_sees_a_host_file_whole
            host_files_last_across_a_reopen

            a_tenant_that_was_not_put_is_not_capped
            a_tenants_cap_counts_hibernated_claims
            a_tenants_cap_is_its_own
            lowering_a_cap_ends_no_claim
            a_cap_of_zero_is_no_cap
            caps_last_across_a_reopen
            concurrent_claims_never_exceed_a_cap

            a_pool_fills_up_and_is_nobodys
            a_warm_sandbox_is_claimed_like_any_other
            warm_sandboxes_count_for_no_cap
            concurrent_claims_never_share_a_warm_sandbox
            pools_last_across_a_reopen
            put_pools_replaces_every_target

            concurrent_claims_all_succeed_and_differ
            concurrent_releases_succeed_once
            calls_on_one_claim_take_turns
            a_call_left_waiting_blocks_no_other_claim

            a_dropped_claim_is_done_or_undone
            a_dropped_release_is_done_or_undone
            a_dropped_hibernate_is_done_or_undone
            a_dropped_wake_is_done_or_undone
            a_dropped_put_host_file_is_done_or_undone
        }
    };
    (@each $harness:expr; $($test:ident)*) => {$(
        #[tokio::test]
        async fn $test() {
            let harness = $harness;
            $crate::backend::testkit::run(&harness, $crate::backend::testkit::$test(&harness)).await;
        }
    )*};
}
