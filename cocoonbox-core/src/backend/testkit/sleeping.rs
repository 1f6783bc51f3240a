//! Sandboxes sleep, wake and die.

use super::Harness;
use super::support::{answers, claimed, hibernated, stands_still, state, until};
use crate::backend::{ClaimState, Freeze, HibernateTo, Memory, SandboxBackend, SandboxId};

async fn sleeps(harness: &dyn Harness, id: &SandboxId, to: HibernateTo) -> Memory {
    let backend = harness.backend();
    let memory = backend.hibernate(id, to).await.expect("it hibernates");
    assert_eq!(state(&*backend, id).await, hibernated(memory), "find tells what the answer told");
    stands_still(harness, id, memory).await;
    memory
}

/// What a hibernate with memory keeps, by the backend's own word.
fn promised(backend: &dyn SandboxBackend) -> Memory {
    if backend.capabilities().freeze == Freeze::Absent { Memory::Lost } else { Memory::Kept }
}

/// Kept where the backend can, and said so where it cannot.
pub async fn a_hibernate_to_memory_keeps_what_capabilities_say(harness: &dyn Harness) {
    let id = claimed(harness, "a").await.id;
    assert_eq!(sleeps(harness, &id, HibernateTo::Memory).await, promised(&*harness.backend()));
}

/// Disk means that no process is left, not even a still one.
pub async fn a_hibernate_to_disk_leaves_no_process(harness: &dyn Harness) {
    let id = claimed(harness, "a").await.id;
    assert_eq!(sleeps(harness, &id, HibernateTo::Disk).await, Memory::Lost);
}

/// The second answer is the first one.
pub async fn hibernating_twice_answers_again_what_was_kept(harness: &dyn Harness) {
    for to in [HibernateTo::Memory, HibernateTo::Disk] {
        let id = claimed(harness, "a").await.id;
        let first = sleeps(harness, &id, to).await;
        assert_eq!(sleeps(harness, &id, to).await, first);
        harness.backend().wake(&id).await.expect("it wakes");
        answers(harness, &id).await;
    }
}

/// Memory first, then disk: the processes end now.
pub async fn kept_memory_can_be_given_up_for_disk(harness: &dyn Harness) {
    let id = claimed(harness, "a").await.id;
    sleeps(harness, &id, HibernateTo::Memory).await;
    assert_eq!(sleeps(harness, &id, HibernateTo::Disk).await, Memory::Lost);
    assert_eq!(harness.backend().wake(&id).await.expect("it wakes"), Memory::Lost);
    answers(harness, &id).await;
}

/// Disk first, then memory: there is none any more.
pub async fn lost_memory_does_not_come_back(harness: &dyn Harness) {
    let id = claimed(harness, "a").await.id;
    sleeps(harness, &id, HibernateTo::Disk).await;
    assert_eq!(sleeps(harness, &id, HibernateTo::Memory).await, Memory::Lost);
    assert_eq!(harness.backend().wake(&id).await.expect("it wakes"), Memory::Lost);
}

/// The wake's answer is what became of the processes.
pub async fn a_wake_says_what_it_found(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    for to in [HibernateTo::Memory, HibernateTo::Disk, HibernateTo::Memory] {
        let before = match harness.guest() {
            Some(guest) => Some(guest.incarnation(&*backend, &id).await),
            None => None,
        };
        let kept = sleeps(harness, &id, to).await;
        assert_eq!(backend.wake(&id).await.expect("it wakes"), kept, "after {to:?}");
        harness.ping(&*backend, &id).await.expect("the guest answers at once after a wake");
        assert_eq!(state(&*backend, &id).await, ClaimState::Running);
        if let (Some(guest), Some(before)) = (harness.guest(), before) {
            let same = guest.incarnation(&*backend, &id).await == before;
            assert_eq!(
                same,
                kept == Memory::Kept,
                "processes went on if and only if memory was kept ({to:?})"
            );
        }
    }
}

/// A second wake changes nothing.
pub async fn waking_what_runs_answers_kept_and_starts_nothing(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    let incarnation = async || match harness.guest() {
        Some(guest) => Some(guest.incarnation(&*backend, &id).await),
        None => None,
    };
    let before = incarnation().await;
    assert_eq!(backend.wake(&id).await.expect("it wakes"), Memory::Kept);
    assert_eq!(incarnation().await, before);
    sleeps(harness, &id, HibernateTo::Disk).await;
    assert_eq!(backend.wake(&id).await.expect("it wakes"), Memory::Lost);
    let before = incarnation().await;
    assert_eq!(backend.wake(&id).await.expect("it wakes"), Memory::Kept, "the second wake found it running");
    assert_eq!(incarnation().await, before);
}

/// Files last, whatever a hibernate keeps besides.
pub async fn files_are_kept_through_every_sleep(harness: &dyn Harness) {
    let Some(guest) = harness.guest() else { return };
    let id = claimed(harness, "a").await.id;
    for (nth, to) in [HibernateTo::Disk, HibernateTo::Memory, HibernateTo::Disk].into_iter().enumerate() {
        let backend = harness.backend();
        let text = format!("written before sleep {nth}");
        guest.write(&*backend, &id, &text).await;
        sleeps(harness, &id, to).await;
        drop(backend);
        let backend = harness.reopen().await;
        backend.wake(&id).await.expect("it wakes");
        assert_eq!(guest.read(&*backend, &id).await, Some(text), "after {to:?}");
    }
}

/// Sleep outlasts the process that brought it about.
pub async fn a_hibernated_claim_wakes_after_a_reopen(harness: &dyn Harness) {
    let survives = harness.backend().capabilities().survives_restart;
    for to in [HibernateTo::Memory, HibernateTo::Disk] {
        let id = claimed(harness, "a").await.id;
        let kept = sleeps(harness, &id, to).await;
        let backend = harness.reopen().await;
        let expected = if survives { kept } else { Memory::Lost };
        assert_eq!(state(&*backend, &id).await, hibernated(expected), "after {to:?}");
        assert_eq!(backend.wake(&id).await.expect("it wakes"), expected, "after {to:?}");
        answers(harness, &id).await;
    }
}

/// Where the harness can kill: the death is seen, and a wake mends it.
pub async fn a_dead_sandbox_is_failed_and_starts_anew(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    if let Some(guest) = harness.guest() {
        guest.write(&*backend, &id, "written before death").await;
    }
    if !harness.kill(&id).await {
        return;
    }
    until(harness, "the death is seen", async || {
        matches!(state(&*backend, &id).await, ClaimState::Failed { .. }).then_some(())
    })
    .await;
    super::support::conflict(backend.connect(&id, crate::backend::Target::Channel).await);
    assert_eq!(backend.wake(&id).await.expect("it wakes"), Memory::Lost);
    answers(harness, &id).await;
    assert_eq!(state(&*backend, &id).await, ClaimState::Running);
    if let Some(guest) = harness.guest() {
        assert_eq!(
            guest.read(&*backend, &id).await.as_deref(),
            Some("written before death"),
            "files outlast a death"
        );
    }
}

/// A death that nobody watched is found out by opening.
pub async fn a_sandbox_that_died_is_failed_after_a_reopen(harness: &dyn Harness) {
    let id = claimed(harness, "a").await.id;
    if !harness.kill(&id).await {
        return;
    }
    let backend = harness.reopen().await;
    let found = state(&*backend, &id).await;
    let ClaimState::Failed { reason } = found else { panic!("it is failed, not {found:?}") };
    assert!(!reason.is_empty(), "a failure has its reason in words");
    assert_eq!(backend.wake(&id).await.expect("it wakes"), Memory::Lost);
    answers(harness, &id).await;
}

/// Hibernating what died leaves a claim that sleeps on its files.
pub async fn a_failed_claim_has_nothing_to_keep(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    if !harness.kill(&id).await {
        return;
    }
    until(harness, "the death is seen", async || {
        matches!(state(&*backend, &id).await, ClaimState::Failed { .. }).then_some(())
    })
    .await;
    assert_eq!(sleeps(harness, &id, HibernateTo::Memory).await, Memory::Lost);
    assert_eq!(backend.wake(&id).await.expect("it wakes"), Memory::Lost);
    answers(harness, &id).await;
}
