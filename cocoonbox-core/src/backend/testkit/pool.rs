//! Warm pools.

use std::collections::BTreeSet;

use super::Harness;
use super::support::{all, answers, join_all, quota, request, state, until};
use crate::ImageName;
use crate::backend::{
    BackendError, Claim, ClaimRequest, ClaimState, HibernateTo, HostFile, HostFileName, PoolKey, PoolStatus,
    PoolTarget, Pools, SandboxBackend, Size,
};

fn target(harness: &dyn Harness, warm: u32) -> PoolTarget {
    let asked = request(harness, "pool");
    PoolTarget { key: PoolKey { image: asked.image, network: asked.network, size: asked.size }, warm }
}

async fn put(pools: &dyn Pools, targets: Vec<PoolTarget>) {
    pools.put_pools(targets).await.expect("the pools are put");
}

async fn status(pools: &dyn Pools) -> Vec<PoolStatus> {
    pools.pools().await.expect("the pools are told")
}

async fn full(harness: &dyn Harness, pools: &dyn Pools) {
    until(harness, "the pools are full", async || {
        let status = status(pools).await;
        status.iter().all(|pool| pool.warm == pool.target.warm && pool.refilling == 0).then_some(())
    })
    .await;
}

/// Makes the pool hold what the suite's claims ask for: what a box is from its start on, a pool may have to learn.
async fn filled(harness: &dyn Harness, backend: &dyn SandboxBackend, pools: &dyn Pools, warm: u32) {
    put(pools, vec![target(harness, warm)]).await;
    full(harness, pools).await;
    let first = backend.claim(request(harness, "first")).await.expect("the claim is granted");
    backend.release(&first.id).await.expect("it is released");
    full(harness, pools).await;
}

/// It fills by itself, and what waits in it is no claim.
pub async fn a_pool_fills_up_and_is_nobodys(harness: &dyn Harness) {
    let backend = harness.backend();
    let Some(pools) = backend.pools() else { return };
    assert_eq!(status(pools).await, []);
    filled(harness, &*backend, pools, 2).await;
    assert_eq!(status(pools).await, [PoolStatus::new(target(harness, 2), 2, 0)]);
    assert_eq!(all(&*backend).await, []);
}

/// What was asked for is there before the answer, and nothing of anybody else.
pub async fn a_warm_sandbox_is_claimed_like_any_other(harness: &dyn Harness) {
    let backend = harness.backend();
    let Some(pools) = backend.pools() else { return };
    filled(harness, &*backend, pools, 1).await;
    for round in ["one", "two"] {
        full(harness, pools).await;
        let file = HostFile::new(HostFileName::identity(), round.as_bytes().to_vec());
        let asked = request(harness, round).with_hostname(format!("box-{round}")).with_host_file(file);
        let claim = backend.claim(asked.clone()).await.expect("the claim is granted");
        assert_eq!(
            claim,
            Claim::new(claim.id.clone(), &asked, claim.claimed_at, ClaimState::Running),
            "it is what was asked for"
        );
        answers(harness, &claim.id).await;
        let Some(guest) = harness.guest() else { continue };
        let seen = guest.host_file(&*backend, &claim.id, &HostFileName::identity()).await;
        assert_eq!(seen.as_deref(), Some(round.as_bytes()));
        if let Some(name) = guest.hostname(&*backend, &claim.id).await {
            assert_eq!(name, format!("box-{round}"));
        }
        assert_eq!(guest.read(&*backend, &claim.id).await, None, "nothing of an earlier claim is in it");
        guest.write(&*backend, &claim.id, round).await;
        // and stays what it is through a start of its own
        backend.hibernate(&claim.id, HibernateTo::Disk).await.expect("it hibernates");
        backend.wake(&claim.id).await.expect("it wakes");
        if let Some(name) = guest.hostname(&*backend, &claim.id).await {
            assert_eq!(name, format!("box-{round}"));
        }
        assert_eq!(guest.read(&*backend, &claim.id).await.as_deref(), Some(round));
    }
    assert_eq!(all(&*backend).await.len(), 2);
}

/// Caps count claims.
pub async fn warm_sandboxes_count_for_no_cap(harness: &dyn Harness) {
    let backend = harness.backend();
    let (Some(pools), Some(cap)) = (backend.pools(), harness.node_cap()) else { return };
    filled(harness, &*backend, pools, 1).await;
    for nth in 0..cap {
        let claim = backend.claim(request(harness, &format!("{nth}"))).await;
        claim.expect("the cap is not reached");
    }
    quota(backend.claim(request(harness, "over")).await);
    full(harness, pools).await;
    quota(backend.claim(request(harness, "over, with a warm one there")).await);
    assert_eq!(all(&*backend).await.len(), cap as usize);
}

/// Each is handed out once, and when none is left, others are started.
pub async fn concurrent_claims_never_share_a_warm_sandbox(harness: &dyn Harness) {
    let backend = harness.backend();
    let Some(pools) = backend.pools() else { return };
    filled(harness, &*backend, pools, 2).await;
    let claims: Vec<Result<Claim, BackendError>> = join_all(
        (0..4).map(|nth| Box::pin(backend.claim(request(harness, &format!("{nth}")))) as _).collect(),
    )
    .await;
    let claims: Vec<Claim> = claims.into_iter().map(|claim| claim.expect("it is granted")).collect();
    let ids: BTreeSet<_> = claims.iter().map(|claim| claim.id.clone()).collect();
    assert_eq!(ids.len(), 4);
    let Some(guest) = harness.guest() else { return };
    for claim in &claims {
        assert_eq!(guest.read(&*backend, &claim.id).await, None);
        guest.write(&*backend, &claim.id, claim.claim_ref.as_str()).await;
    }
    for claim in &claims {
        let read = guest.read(&*backend, &claim.id).await;
        assert_eq!(read.as_deref(), Some(claim.claim_ref.as_str()));
    }
}

/// Targets last as claims do, and so do claims that came out of a pool.
pub async fn pools_last_across_a_reopen(harness: &dyn Harness) {
    let backend = harness.backend();
    let Some(pools) = backend.pools() else { return };
    filled(harness, &*backend, pools, 1).await;
    let claim = backend.claim(request(harness, "kept")).await.expect("the claim is granted");
    let lasts = backend.capabilities().survives_restart;
    drop(backend);
    let backend = harness.reopen().await;
    let pools = backend.pools().expect("it has pools");
    let targets: Vec<_> = status(pools).await.into_iter().map(|pool| pool.target).collect();
    assert_eq!(targets, [target(harness, 1)]);
    full(harness, pools).await;
    assert_eq!(all(&*backend).await.len(), 1);
    if lasts {
        assert_eq!(state(&*backend, &claim.id).await, ClaimState::Running);
        answers(harness, &claim.id).await;
    }
    backend.release(&claim.id).await.expect("it is released");
}

/// All targets are replaced; what is asked for wrongly changes none.
pub async fn put_pools_replaces_every_target(harness: &dyn Harness) {
    let backend = harness.backend();
    let Some(pools) = backend.pools() else { return };
    let other = |warm| {
        let mut other = target(harness, warm);
        other.key.size = Size::Medium;
        other
    };
    put(pools, vec![other(1), target(harness, 1)]).await;
    full(harness, pools).await;
    let one = [PoolStatus::new(other(1), 1, 0), PoolStatus::new(target(harness, 1), 1, 0)];
    assert_eq!(status(pools).await, one);
    let mut unknown = target(harness, 1);
    unknown.key.image = "no-such-image:0".parse::<ImageName>().expect("the suite's image names are good");
    match pools.put_pools(vec![unknown]).await {
        Err(BackendError::UnknownImage { .. }) => {}
        answer => panic!("an unknown image is expected, not {answer:?}"),
    }
    for wrong in [vec![target(harness, 1), target(harness, 2)], vec![target(harness, u32::MAX)]] {
        match pools.put_pools(wrong).await {
            Err(BackendError::Invalid { .. }) => {}
            answer => panic!("a refusal is expected, not {answer:?}"),
        }
    }
    assert_eq!(status(pools).await, one);
    put(pools, vec![target(harness, 0)]).await;
    full(harness, pools).await;
    assert_eq!(status(pools).await, [PoolStatus::new(target(harness, 0), 0, 0)]);
    let claim: ClaimRequest = request(harness, "cold");
    answers(harness, &backend.claim(claim).await.expect("the claim is granted").id).await;
    put(pools, Vec::new()).await;
    assert_eq!(status(pools).await, []);
}
