//! What the tests of the suite share.

use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use super::Harness;
use crate::TenantName;
use crate::backend::{
    BackendError, Claim, ClaimFilter, ClaimRef, ClaimRequest, ClaimState, Memory, SandboxBackend, SandboxId,
};

/// A request that any backend grants.
pub(super) fn request(harness: &dyn Harness, claim_ref: &str) -> ClaimRequest {
    let modes = harness.backend().capabilities().network_modes;
    let network = *modes.first().expect("a backend has a network mode");
    ClaimRequest::new(label(claim_ref), harness.image()).with_network(network)
}

pub(super) fn label(claim_ref: &str) -> ClaimRef {
    claim_ref.parse().expect("the suite's labels are good")
}

pub(super) fn tenant(name: &str) -> TenantName {
    name.parse().expect("the suite's tenants are good")
}

/// An id that no backend gave.
pub(super) fn nobody() -> SandboxId {
    "sb_nobody-has-this-one".parse().expect("the suite's ids are good")
}

/// Claims what any backend grants.
pub(super) async fn claimed(harness: &dyn Harness, claim_ref: &str) -> Claim {
    harness.backend().claim(request(harness, claim_ref)).await.expect("the claim is granted")
}

pub(super) async fn all(backend: &dyn SandboxBackend) -> Vec<Claim> {
    backend.find(&ClaimFilter::all()).await.expect("claims are found")
}

/// The state of a claim, as `find` tells it.
pub(super) async fn state(backend: &dyn SandboxBackend, id: &SandboxId) -> ClaimState {
    let mut found = backend.find(&ClaimFilter::by_id(id.clone())).await.expect("claims are found");
    assert_eq!(found.len(), 1, "claim {id} is found by its id, once");
    found.remove(0).state
}

pub(super) const fn hibernated(memory: Memory) -> ClaimState {
    ClaimState::Hibernated { memory }
}

pub(super) async fn answers(harness: &dyn Harness, id: &SandboxId) {
    let backend = harness.backend();
    let reply = tokio::time::timeout(harness.patience(), harness.ping(&*backend, id)).await;
    reply.expect("the guest answers in time").expect("the guest answers");
}

/// Asserts that nothing of the sandbox runs, and whether something is held still, where the harness can count.
pub(super) async fn stands_still(harness: &dyn Harness, id: &SandboxId, memory: Memory) {
    let Some(processes) = harness.processes(id).await else { return };
    assert_eq!(processes.running, 0, "nothing of a hibernated sandbox runs");
    assert_eq!(
        processes.held > 0,
        memory == Memory::Kept,
        "processes are held if and only if memory is kept"
    );
}

pub(super) fn not_found<T: Debug>(answer: Result<T, BackendError>) {
    assert!(matches!(answer, Err(BackendError::NotFound { .. })), "not found is expected, not {answer:?}");
}

pub(super) fn conflict<T>(answer: Result<T, BackendError>) {
    match answer {
        Ok(_) => panic!("a conflict is expected, not success"),
        Err(error) => {
            assert!(matches!(error, BackendError::Conflict { .. }), "a conflict is expected, not {error:?}");
        }
    }
}

pub(super) fn quota<T: Debug>(answer: Result<T, BackendError>) {
    assert!(matches!(answer, Err(BackendError::Quota { .. })), "a quota is expected, not {answer:?}");
}

/// Asks again and again until the answer is `Some`.
pub(super) async fn until<T>(
    harness: &dyn Harness,
    what: &str,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(harness.patience(), asking).await.unwrap_or_else(|_| panic!("{what}, in time"))
}

/// Polls `future` at most `polls` times, as its wakers ask for it; `None`: it did not end.
pub(super) async fn poll_some<T>(
    mut future: Pin<&mut (dyn Future<Output = T> + Send)>,
    polls: u32,
) -> Option<T> {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Starts a call, polls it at most `polls` times and drops it. A real backend waits for the machine between polls, so
/// the last wait ends after a moment.
pub(super) async fn dropped<T>(call: impl Future<Output = T> + Send, polls: u32) -> Option<T> {
    let call = pin!(call);
    tokio::time::timeout(Duration::from_millis(100), poll_some(call, polls)).await.ok().flatten()
}

/// Runs all futures side by side.
pub(super) async fn join_all<T>(mut futures: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, answer) in futures.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *answer = Some(ready);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}
