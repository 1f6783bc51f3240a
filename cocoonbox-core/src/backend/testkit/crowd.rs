//! Many calls at once.

use std::collections::BTreeSet;
use std::pin::Pin;

use super::Harness;
use super::support::{all, answers, claimed, join_all, not_found, poll_some, request, state};
use crate::backend::{BackendError, ClaimState, HibernateTo, HostFile, HostFileName};

type Call<'a> = Pin<Box<dyn Future<Output = Result<(), BackendError>> + Send + 'a>>;

/// Claims side by side are all granted, and no two are one.
pub async fn concurrent_claims_all_succeed_and_differ(harness: &dyn Harness) {
    let backend = harness.backend();
    let count = harness.node_cap().unwrap_or(4).min(4) as usize;
    let granted = join_all((0..count).map(|_| backend.claim(request(harness, "same"))).collect()).await;
    let ids: BTreeSet<_> =
        granted.into_iter().map(|answer| answer.expect("the claim is granted").id).collect();
    assert_eq!(ids.len(), count);
    let found: BTreeSet<_> = all(&*backend).await.into_iter().map(|claim| claim.id).collect();
    assert_eq!(found, ids);
    for id in &ids {
        answers(harness, id).await;
    }
}

/// Of releases of one claim one succeeds.
pub async fn concurrent_releases_succeed_once(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    let answers = join_all((0..4).map(|_| backend.release(&id)).collect()).await;
    let (done, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(done.len(), 1, "one release succeeds");
    refused.into_iter().for_each(not_found);
    assert_eq!(all(&*backend).await, []);
}

/// Whatever order they take, each call finds a whole state and leaves one.
pub async fn calls_on_one_claim_take_turns(harness: &dyn Harness) {
    let backend = &*harness.backend();
    let id = &claimed(harness, "a").await.id;
    for round in 0..3 {
        let calls: Vec<Call<'_>> = vec![
            Box::pin(async { backend.hibernate(id, HibernateTo::Memory).await.map(|_| ()) }),
            Box::pin(async { backend.wake(id).await.map(|_| ()) }),
            Box::pin(async {
                backend.put_host_file(id, HostFile::new(HostFileName::identity(), vec![1])).await
            }),
            Box::pin(async { backend.hibernate(id, HibernateTo::Disk).await.map(|_| ()) }),
            Box::pin(async { backend.wake(id).await.map(|_| ()) }),
        ];
        for answer in join_all(calls).await {
            answer.unwrap_or_else(|error| panic!("each call succeeds in its turn (round {round}): {error}"));
        }
        let found = state(backend, id).await;
        assert!(matches!(found, ClaimState::Running | ClaimState::Hibernated { .. }), "{found:?} is whole");
        backend.wake(id).await.expect("it wakes");
        answers(harness, id).await;
    }
}

/// A caller that is slow to ask again holds up its own claim alone.
pub async fn a_call_left_waiting_blocks_no_other_claim(harness: &dyn Harness) {
    let backend = &*harness.backend();
    let (slow, quick) = (claimed(harness, "slow").await.id, claimed(harness, "quick").await.id);
    for polls in 1..=4 {
        let mut left =
            Box::pin(async { backend.hibernate(&slow, HibernateTo::Disk).await.map(|_| ()) }) as Call<'_>;
        // polled a little, then left alone while the other claim is used
        let waiting =
            tokio::time::timeout(std::time::Duration::from_millis(100), poll_some(left.as_mut(), polls));
        let answer = waiting.await.ok().flatten();
        let other = async {
            backend.hibernate(&quick, HibernateTo::Disk).await.expect("the other hibernates");
            backend.wake(&quick).await.expect("the other wakes");
            answers(harness, &quick).await;
        };
        let done = tokio::time::timeout(harness.patience(), other).await;
        assert!(done.is_ok(), "a call left after {polls} polls blocks no call on another claim");
        match answer {
            Some(answer) => answer.expect("it hibernates"),
            None => left.await.expect("it hibernates"),
        }
        backend.wake(&slow).await.expect("it wakes");
    }
}
