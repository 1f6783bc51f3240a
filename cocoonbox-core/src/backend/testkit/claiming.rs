//! Claims come, are found, last and go.

use std::collections::BTreeMap;

use super::Harness;
use super::support::{all, answers, claimed, label, nobody, not_found, quota, request, state, tenant};
use crate::ImageName;
use crate::backend::{
    BackendError, Claim, ClaimFilter, ClaimRequest, ClaimState, HibernateTo, HostFile, HostFileName, Memory,
    Metadata, Nesting, NetworkMode, Size, Target,
};

fn labels(pairs: &[(&str, &str)]) -> Metadata {
    let pairs: BTreeMap<_, _> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Metadata::new(pairs).expect("the suite's labels are good")
}

/// The answer and `find` carry what the request said.
pub async fn a_claim_is_answered_with_what_was_asked_for(harness: &dyn Harness) {
    let backend = harness.backend();
    let capabilities = backend.capabilities();
    for (nth, network) in capabilities.network_modes.iter().enumerate() {
        let mut request = request(harness, &format!("box {nth}"))
            .with_network(*network)
            .with_size(Size::Small)
            .with_hostname("a-box")
            .with_metadata(labels(&[("team", "ü & co"), ("empty", "")]));
        if capabilities.tenants {
            request = request.with_tenant(tenant("us_one"));
        }
        let claim = backend.claim(request.clone()).await.expect("the claim is granted");
        let expected = Claim::new(claim.id.clone(), &request, claim.claimed_at, ClaimState::Running);
        assert_eq!(claim, expected);
        let found = backend.find(&ClaimFilter::by_id(claim.id.clone())).await.expect("claims are found");
        assert_eq!(found, [claim]);
    }
    assert_eq!(backend.capabilities(), capabilities, "capabilities are fixed for a backend's life");
}

/// `claim` answers when the guest does.
pub async fn a_claimed_sandbox_answers_at_once(harness: &dyn Harness) {
    let claim = claimed(harness, "a").await;
    harness.ping(&*harness.backend(), &claim.id).await.expect("the guest answers at once");
}

/// An image that is not here.
pub async fn an_unknown_image_is_refused_and_leaves_nothing(harness: &dyn Harness) {
    let backend = harness.backend();
    let image: ImageName = "no-such-image:0".parse().expect("the suite's image names are good");
    let mut request = request(harness, "a");
    request.image = image.clone();
    let refusal = backend.claim(request).await;
    match refusal {
        Err(BackendError::UnknownImage { image: named }) => assert_eq!(named, image.as_str()),
        other => panic!("an unknown image is expected, not {other:?}"),
    }
    assert_eq!(all(&*backend).await, []);
}

/// What breaks a rule of the request itself.
pub async fn an_invalid_request_is_refused_and_leaves_nothing(harness: &dyn Harness) {
    let backend = harness.backend();
    let file = |size| HostFile::new(HostFileName::identity(), vec![b'x'; size]);
    let bad = [
        request(harness, "a").with_hostname(""),
        request(harness, "a").with_hostname("Upper"),
        request(harness, "a").with_hostname("under_score"),
        request(harness, "a").with_hostname("-dash"),
        request(harness, "a").with_hostname("a".repeat(64)),
        request(harness, "a").with_host_file(file(HostFile::MAX_BYTES + 1)),
        request(harness, "a").with_host_file(file(1)).with_host_file(file(2)),
        (0..=ClaimRequest::MAX_HOST_FILES).fold(request(harness, "a"), |request, nth| {
            let name = format!("file-{nth}").parse().expect("the suite's file names are good");
            request.with_host_file(HostFile::new(name, Vec::new()))
        }),
    ];
    for request in bad {
        let shown = format!("{request:?}");
        let refusal = backend.claim(request).await;
        assert!(matches!(refusal, Err(BackendError::Invalid { .. })), "{shown} is invalid, not {refusal:?}");
    }
    assert_eq!(all(&*backend).await, []);
}

/// What capabilities say is not there is refused, never left out in silence.
pub async fn what_capabilities_exclude_is_refused(harness: &dyn Harness) {
    let backend = harness.backend();
    let capabilities = backend.capabilities();
    let mut bad = Vec::new();
    for network in [NetworkMode::None, NetworkMode::Egress, NetworkMode::Open] {
        if !capabilities.network_modes.contains(&network) {
            bad.push(request(harness, "a").with_network(network));
        }
    }
    if !capabilities.nesting {
        let network = *capabilities.network_modes.first().expect("a backend has a network mode");
        bad.push(request(harness, "a").with_network(network).with_nesting(Nesting::Allowed));
    }
    for request in bad {
        let shown = format!("{request:?}");
        let refusal = backend.claim(request).await;
        assert!(
            matches!(refusal, Err(BackendError::Unsupported { .. })),
            "{shown} is unsupported, not {refusal:?}"
        );
    }
    assert_eq!(all(&*backend).await, []);
    assert_eq!(
        capabilities.tenants,
        backend.tenants().is_some(),
        "tenants are handed out if and only if there are any"
    );
}

/// `claim_ref` is a label, not a key.
pub async fn one_claim_ref_may_name_two_claims(harness: &dyn Harness) {
    let (one, two) = (claimed(harness, "same").await, claimed(harness, "same").await);
    assert_ne!(one.id, two.id);
    let backend = harness.backend();
    let found = backend.find(&ClaimFilter::by_ref(label("same"))).await.expect("claims are found");
    assert_eq!(found, [one.clone(), two.clone()]);
    backend.release(&one.id).await.expect("one is released");
    answers(harness, &two.id).await;
    assert_eq!(all(&*backend).await, [two]);
}

/// The node's own cap, where the harness has one within reach.
pub async fn a_full_node_refuses_and_counts_hibernated_claims(harness: &dyn Harness) {
    let Some(cap) = harness.node_cap() else { return };
    let backend = harness.backend();
    let mut ids = Vec::new();
    for nth in 0..cap {
        ids.push(claimed(harness, &format!("box {nth}")).await.id);
    }
    let first = ids.first().expect("the cap is not 0");
    backend.hibernate(first, HibernateTo::Disk).await.expect("it hibernates");
    quota(backend.claim(request(harness, "one more")).await);
    assert_eq!(all(&*backend).await.len(), ids.len());
    backend.release(first).await.expect("one is released");
    claimed(harness, "one more").await;
}

/// Oldest first, whatever became of them in between.
pub async fn claims_are_found_oldest_first(harness: &dyn Harness) {
    let backend = harness.backend();
    let mut ids = Vec::new();
    for nth in 0..4 {
        ids.push(claimed(harness, &format!("box {nth}")).await.id);
    }
    backend.hibernate(&ids[0], HibernateTo::Disk).await.expect("it hibernates");
    backend.wake(&ids[0]).await.expect("it wakes");
    backend.release(&ids.remove(2)).await.expect("one is released");
    ids.push(claimed(harness, "box 9").await.id);
    let order = async |backend: &dyn crate::backend::SandboxBackend| {
        all(backend).await.into_iter().map(|claim| claim.id).collect::<Vec<_>>()
    };
    assert_eq!(order(&*backend).await, ids);
    drop(backend);
    assert_eq!(order(&*harness.reopen().await).await, ids, "the order lasts across a reopen");
}

/// Each part of a filter holds, and all of them together.
pub async fn a_filter_finds_exactly_what_matches(harness: &dyn Harness) {
    let backend = harness.backend();
    let tenants = backend.capabilities().tenants;
    let mut claims = Vec::new();
    for (claim_ref, owner, pairs) in [
        ("a", "us_one", [("team", "x"), ("tier", "1")]),
        ("a", "us_two", [("team", "x"), ("tier", "2")]),
        ("b", "us_two", [("team", "y"), ("tier", "1")]),
    ] {
        let mut request = request(harness, claim_ref).with_metadata(labels(&pairs));
        if tenants {
            request = request.with_tenant(tenant(owner));
        }
        claims.push(backend.claim(request).await.expect("the claim is granted"));
    }
    let with = |pairs: &[(&str, &str)]| {
        let mut filter = ClaimFilter::all();
        filter.metadata = labels(pairs).pairs().clone();
        filter
    };
    let mut both = ClaimFilter::by_ref(label("a"));
    both.metadata = labels(&[("tier", "2")]).pairs().clone();
    let mut cases = vec![
        (ClaimFilter::all(), vec![0, 1, 2]),
        (ClaimFilter::by_id(claims[1].id.clone()), vec![1]),
        (ClaimFilter::by_id(nobody()), vec![]),
        (ClaimFilter::by_ref(label("a")), vec![0, 1]),
        (ClaimFilter::by_ref(label("A")), vec![]),
        (with(&[("team", "x")]), vec![0, 1]),
        (with(&[("team", "x"), ("tier", "1")]), vec![0]),
        (with(&[("team", "z")]), vec![]),
        (with(&[("other", "x")]), vec![]),
        (both, vec![1]),
    ];
    if tenants {
        cases.push((ClaimFilter::by_tenant(tenant("us_two")), vec![1, 2]));
        cases.push((ClaimFilter::by_tenant(tenant("us_three")), vec![]));
    }
    for (filter, expected) in cases {
        let found = backend.find(&filter).await.expect("claims are found");
        let expected: Vec<_> = expected.into_iter().map(|nth: usize| claims[nth].clone()).collect();
        assert_eq!(found, expected, "{filter:?}");
    }
}

/// After a release there is no process, no claim and nothing to call.
pub async fn a_released_claim_is_gone(harness: &dyn Harness) {
    let backend = harness.backend();
    let (gone, stays) = (claimed(harness, "gone").await, claimed(harness, "stays").await);
    backend.release(&gone.id).await.expect("it is released");
    if let Some(processes) = harness.processes(&gone.id).await {
        assert_eq!(processes.running + processes.held, 0, "a release ends every process");
    }
    assert_eq!(all(&*backend).await, std::slice::from_ref(&stays));
    not_found(backend.release(&gone.id).await);
    not_found(backend.wake(&gone.id).await);
    answers(harness, &stays.id).await;
    drop(backend);
    let backend = harness.reopen().await;
    not_found(backend.release(&gone.id).await);
    let left: Vec<_> = all(&*backend).await.into_iter().map(|claim| claim.id).collect();
    assert_eq!(left, [stays.id], "what was released does not come back");
}

/// A release needs no wake before.
pub async fn a_hibernated_claim_can_be_released(harness: &dyn Harness) {
    let backend = harness.backend();
    for to in [HibernateTo::Memory, HibernateTo::Disk] {
        let id = claimed(harness, "a").await.id;
        backend.hibernate(&id, to).await.expect("it hibernates");
        backend.release(&id).await.expect("it is released");
        if let Some(processes) = harness.processes(&id).await {
            assert_eq!(processes.running + processes.held, 0, "a release ends processes that were held, too");
        }
        not_found(backend.release(&id).await);
    }
    assert_eq!(all(&*backend).await, []);
}

/// Each call on an unknown id.
pub async fn nothing_can_be_done_with_what_is_not_there(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = nobody();
    not_found(backend.release(&id).await);
    not_found(backend.hibernate(&id, HibernateTo::Memory).await);
    not_found(backend.hibernate(&id, HibernateTo::Disk).await);
    not_found(backend.wake(&id).await);
    not_found(backend.connect(&id, Target::Channel).await.map(|_| ()));
    not_found(backend.put_host_file(&id, HostFile::new(HostFileName::identity(), Vec::new())).await);
    assert_eq!(all(&*backend).await, []);
}

/// Every claim is there after the process died, as it was.
pub async fn claims_last_across_a_reopen(harness: &dyn Harness) {
    let backend = harness.backend();
    let survives = backend.capabilities().survives_restart;
    let asleep = {
        let request = request(harness, "asleep").with_metadata(labels(&[("team", "x")]));
        backend.claim(request).await.expect("the claim is granted")
    };
    backend.hibernate(&asleep.id, HibernateTo::Disk).await.expect("it hibernates");
    let awake = claimed(harness, "awake").await;
    let before = all(&*backend).await;
    drop(backend);
    for round in 1..=2 {
        let after = all(&*harness.reopen().await).await;
        assert_eq!(after.len(), before.len(), "after reopen {round}");
        assert_eq!(after[0], before[0], "what slept is as it was after reopen {round}");
        if survives {
            assert_eq!(after[1], before[1], "what ran runs after reopen {round}");
        } else {
            let state = &after[1].state;
            assert!(
                matches!(state, ClaimState::Failed { .. }),
                "what ran is failed after reopen {round}, not {state:?}"
            );
            assert_eq!((&after[1].id, &after[1].claim_ref), (&awake.id, &awake.claim_ref));
        }
    }
}

/// A claim of the process before is as good as a new one.
pub async fn a_reopened_claim_can_be_used_and_released(harness: &dyn Harness) {
    let backend = harness.backend();
    let survives = backend.capabilities().survives_restart;
    let id = claimed(harness, "a").await.id;
    let before = match harness.guest() {
        Some(guest) => Some(guest.incarnation(&*backend, &id).await),
        None => None,
    };
    drop(backend);
    let backend = harness.reopen().await;
    let memory = backend.wake(&id).await.expect("it wakes");
    assert_eq!(memory, if survives { Memory::Kept } else { Memory::Lost });
    answers(harness, &id).await;
    if let (Some(guest), Some(before)) = (harness.guest(), before) {
        assert_eq!(
            guest.incarnation(&*backend, &id).await == before,
            survives,
            "processes outlive a reopen or do not"
        );
    }
    assert_eq!(state(&*backend, &id).await, ClaimState::Running);
    backend.release(&id).await.expect("it is released");
    assert_eq!(all(&*backend).await, []);
}
