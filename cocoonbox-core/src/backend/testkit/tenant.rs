//! Caps by tenant.

use super::Harness;
use super::support::{answers, join_all, quota, request, tenant};
use crate::TenantName;
use crate::backend::{BackendError, Claim, ClaimFilter, HibernateTo, QuotaScope, SandboxBackend, Tenants};

async fn claim(harness: &dyn Harness, owner: &TenantName) -> Result<Claim, BackendError> {
    harness.backend().claim(request(harness, "a").with_tenant(owner.clone())).await
}

async fn granted(harness: &dyn Harness, owner: &TenantName) -> Claim {
    claim(harness, owner).await.expect("the claim is granted")
}

async fn put(backend: &dyn SandboxBackend, owner: &TenantName, max_claims: u32) {
    tenants(backend)
        .expect("tenants are there")
        .put_tenant(owner, max_claims)
        .await
        .expect("the tenant is put");
}

fn tenants(backend: &dyn SandboxBackend) -> Option<&dyn Tenants> {
    if backend.capabilities().tenants { backend.tenants() } else { None }
}

async fn held(backend: &dyn SandboxBackend, owner: &TenantName) -> Vec<Claim> {
    backend.find(&ClaimFilter::by_tenant(owner.clone())).await.expect("claims are found")
}

/// Counted and not capped.
pub async fn a_tenant_that_was_not_put_is_not_capped(harness: &dyn Harness) {
    let backend = harness.backend();
    if tenants(&*backend).is_none() {
        return;
    }
    let (one, other) = (tenant("us_one"), tenant("us_two"));
    put(&*backend, &other, 1).await;
    let claims = [granted(harness, &one).await, granted(harness, &one).await, granted(harness, &one).await];
    assert_eq!(held(&*backend, &one).await, claims);
    // claims from before a cap count for it
    put(&*backend, &one, 3).await;
    quota(claim(harness, &one).await);
}

/// A sleeping claim is a claim.
pub async fn a_tenants_cap_counts_hibernated_claims(harness: &dyn Harness) {
    let backend = harness.backend();
    if tenants(&*backend).is_none() {
        return;
    }
    let owner = tenant("us_one");
    put(&*backend, &owner, 2).await;
    let (one, two) = (granted(harness, &owner).await, granted(harness, &owner).await);
    for to in [HibernateTo::Memory, HibernateTo::Disk] {
        backend.hibernate(&one.id, to).await.expect("it hibernates");
        match claim(harness, &owner).await {
            Err(BackendError::Quota { scope: QuotaScope::Tenant, limit: 2 }) => {}
            other => panic!("the tenant's cap of 2 is expected, not {other:?}"),
        }
    }
    assert_eq!(held(&*backend, &owner).await.len(), 2, "a refusal leaves nothing");
    backend.release(&one.id).await.expect("it is released");
    granted(harness, &owner).await;
    quota(claim(harness, &owner).await);
    answers(harness, &two.id).await;
}

/// One tenant's claims use up nobody else's cap.
pub async fn a_tenants_cap_is_its_own(harness: &dyn Harness) {
    let backend = harness.backend();
    if tenants(&*backend).is_none() {
        return;
    }
    let (one, other) = (tenant("us_one"), tenant("us_two"));
    put(&*backend, &one, 1).await;
    put(&*backend, &other, 1).await;
    granted(harness, &one).await;
    quota(claim(harness, &one).await);
    granted(harness, &other).await;
    backend.claim(request(harness, "nobody's")).await.expect("a claim without a tenant counts for none");
}

/// It refuses the next claim and ends none.
pub async fn lowering_a_cap_ends_no_claim(harness: &dyn Harness) {
    let backend = harness.backend();
    if tenants(&*backend).is_none() {
        return;
    }
    let owner = tenant("us_one");
    put(&*backend, &owner, 3).await;
    let claims = [granted(harness, &owner).await, granted(harness, &owner).await];
    put(&*backend, &owner, 1).await;
    assert_eq!(held(&*backend, &owner).await, claims);
    quota(claim(harness, &owner).await);
    backend.hibernate(&claims[0].id, HibernateTo::Disk).await.expect("it hibernates");
    backend.wake(&claims[0].id).await.expect("a wake is no claim");
    backend.release(&claims[0].id).await.expect("it is released");
    quota(claim(harness, &owner).await);
    backend.release(&claims[1].id).await.expect("it is released");
    granted(harness, &owner).await;
}

/// 0 lifts a cap.
pub async fn a_cap_of_zero_is_no_cap(harness: &dyn Harness) {
    let backend = harness.backend();
    if tenants(&*backend).is_none() {
        return;
    }
    let owner = tenant("us_one");
    put(&*backend, &owner, 1).await;
    granted(harness, &owner).await;
    put(&*backend, &owner, 0).await;
    granted(harness, &owner).await;
}

/// Caps last as claims do.
pub async fn caps_last_across_a_reopen(harness: &dyn Harness) {
    let backend = harness.backend();
    if tenants(&*backend).is_none() {
        return;
    }
    let owner = tenant("us_one");
    put(&*backend, &owner, 1).await;
    granted(harness, &owner).await;
    drop(backend);
    harness.reopen().await;
    quota(claim(harness, &owner).await);
}

/// Many at once get what one after the other would.
pub async fn concurrent_claims_never_exceed_a_cap(harness: &dyn Harness) {
    let backend = harness.backend();
    if tenants(&*backend).is_none() {
        return;
    }
    let owner = &tenant("us_one");
    put(&*backend, owner, 2).await;
    for round in 0..3 {
        let answers = join_all((0..6).map(|_| Box::pin(claim(harness, owner)) as _).collect()).await;
        let (granted, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert!(granted.len() <= 2, "{} of 2 claims granted in round {round}", granted.len());
        refused.into_iter().for_each(quota);
        let mut granted: Vec<_> = granted.into_iter().flatten().collect();
        // a claim that fails may have refused another for a while; alone, the next one fits
        while granted.len() < 2 {
            granted.push(claim(harness, owner).await.expect("what the cap leaves is granted"));
        }
        let mut found: Vec<_> = held(&*backend, owner).await.into_iter().map(|claim| claim.id).collect();
        let mut ids: Vec<_> = granted.into_iter().map(|claim| claim.id).collect();
        found.sort();
        ids.sort();
        assert_eq!(found, ids, "in round {round}");
        let released = join_all(ids.iter().map(|id| Box::pin(backend.release(id)) as _).collect()).await;
        for answer in released {
            let answer: Result<(), BackendError> = answer;
            answer.expect("it is released");
        }
    }
}
