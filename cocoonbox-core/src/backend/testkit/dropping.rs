//! Callers that stop waiting: the effect is done or undone, never half.

use super::Harness;
use super::support::{
    all, answers, claimed, dropped, hibernated, label, not_found, request, stands_still, state, tenant, until,
};
use crate::backend::{
    BackendError, ClaimFilter, ClaimState, HibernateTo, HostFile, HostFileName, Memory, SandboxBackend,
    SandboxId,
};

/// How often a call is polled before it is dropped; later steps of longer calls are reached by other tests' faults.
const POLLS: std::ops::RangeInclusive<u32> = 0..=7;

/// A state that a claim may be found in.
fn whole(state: &ClaimState) -> bool {
    matches!(state, ClaimState::Running | ClaimState::Hibernated { .. })
}

/// Whatever was left is used as if nothing had happened.
async fn is_usable(harness: &dyn Harness, backend: &dyn SandboxBackend, id: &SandboxId, when: &str) {
    backend.wake(id).await.unwrap_or_else(|error| panic!("it wakes {when}: {error}"));
    assert_eq!(state(backend, id).await, ClaimState::Running, "{when}");
    answers(harness, id).await;
}

/// A claim nobody waited for is found and good, or is not there and counts for nothing.
pub async fn a_dropped_claim_is_done_or_undone(harness: &dyn Harness) {
    let backend = harness.backend();
    let owner = tenant("us_one");
    let capped = backend.capabilities().tenants.then(|| backend.tenants()).flatten();
    if let Some(tenants) = capped {
        tenants.put_tenant(&owner, 1).await.expect("the tenant is put");
    }
    let request = |claim_ref: &str| {
        let request = request(harness, claim_ref);
        if capped.is_some() { request.with_tenant(owner.clone()) } else { request }
    };
    for polls in POLLS {
        let answer = dropped(backend.claim(request("dropped")), polls).await;
        for claim in backend.find(&ClaimFilter::by_ref(label("dropped"))).await.expect("claims are found") {
            if claim.state == ClaimState::Running {
                answers(harness, &claim.id).await;
            }
        }
        // the call may go on by itself for a while; what it makes is found, and what is released frees its place
        let next = until(harness, "a dropped claim leaves nothing that counts", async || {
            for claim in backend.find(&ClaimFilter::by_ref(label("dropped"))).await.expect("claims are found")
            {
                match backend.release(&claim.id).await {
                    Ok(()) | Err(BackendError::NotFound { .. }) => {}
                    Err(error) => panic!("what a dropped claim made is released: {error}"),
                }
                if let Some(processes) = harness.processes(&claim.id).await {
                    assert_eq!(processes.running + processes.held, 0, "a release ends every process");
                }
            }
            match backend.claim(request("next")).await {
                Ok(claim) => Some(claim),
                Err(BackendError::Quota { .. }) => None,
                Err(error) => panic!("the next claim is granted: {error}"),
            }
        })
        .await;
        if let Some(Ok(claim)) = answer {
            not_found(backend.release(&claim.id).await);
        }
        answers(harness, &next.id).await;
        backend.release(&next.id).await.expect("it is released");
    }
}

/// A release nobody waited for can be asked for again until it is done.
pub async fn a_dropped_release_is_done_or_undone(harness: &dyn Harness) {
    let backend = harness.backend();
    for polls in POLLS {
        let id = claimed(harness, "a").await.id;
        dropped(backend.release(&id), polls).await;
        match backend.release(&id).await {
            Ok(()) | Err(BackendError::NotFound { .. }) => {}
            Err(error) => panic!("it is released after {polls} polls: {error}"),
        }
        assert_eq!(all(&*backend).await, [], "after {polls} polls");
        if let Some(processes) = harness.processes(&id).await {
            assert_eq!(processes.running + processes.held, 0, "a release ends every process");
        }
    }
}

/// `find` tells whether it sleeps, and it wakes either way.
pub async fn a_dropped_hibernate_is_done_or_undone(harness: &dyn Harness) {
    let backend = harness.backend();
    for to in [HibernateTo::Memory, HibernateTo::Disk] {
        let id = claimed(harness, "a").await.id;
        for polls in POLLS {
            dropped(backend.hibernate(&id, to), polls).await;
            let found = state(&*backend, &id).await;
            assert!(whole(&found), "{found:?} is done or undone after {polls} polls");
            is_usable(harness, &*backend, &id, &format!("after a hibernate dropped after {polls} polls"))
                .await;
        }
    }
}

/// `find` tells whether it runs, and it can be hibernated either way.
pub async fn a_dropped_wake_is_done_or_undone(harness: &dyn Harness) {
    let backend = harness.backend();
    for to in [HibernateTo::Memory, HibernateTo::Disk] {
        let id = claimed(harness, "a").await.id;
        for polls in POLLS {
            let kept = backend.hibernate(&id, to).await.expect("it hibernates");
            dropped(backend.wake(&id), polls).await;
            let found = state(&*backend, &id).await;
            assert!(whole(&found), "{found:?} is done or undone after {polls} polls");
            let again = backend.hibernate(&id, to).await.expect("it hibernates after a dropped wake");
            assert_eq!(again, kept, "after {polls} polls");
            assert_eq!(state(&*backend, &id).await, hibernated(again));
            stands_still(harness, &id, again).await;
            is_usable(harness, &*backend, &id, &format!("after a wake dropped after {polls} polls")).await;
        }
    }
}

/// The old bytes or the new ones, awake or asleep.
pub async fn a_dropped_put_host_file_is_done_or_undone(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    for polls in POLLS {
        let file = |byte| HostFile::new(HostFileName::identity(), vec![byte; 10_000]);
        backend.put_host_file(&id, file(b'a')).await.expect("it is put");
        dropped(backend.put_host_file(&id, file(b'b')), polls).await;
        if let Some(guest) = harness.guest() {
            let bytes =
                guest.host_file(&*backend, &id, &HostFileName::identity()).await.expect("it is there");
            let same = [b'a', b'b'].into_iter().any(|byte| bytes == file(byte).bytes);
            assert!(same, "{} bytes are old or new after {polls} polls", bytes.len());
        }
    }
    assert_eq!(state(&*backend, &id).await, ClaimState::Running);
    let memory = backend.hibernate(&id, HibernateTo::Disk).await.expect("it hibernates");
    assert_eq!(memory, Memory::Lost);
}
