use std::sync::Mutex;
use std::time::Duration;

use cocoonbox_boxes::store::{BoxStore as _, StoreCall, StoreFault};
use cocoonbox_boxes::{Confirm, Reconciled, Started};
use cocoonbox_core::backend::{
    ClaimFilter, ClaimRef, ClaimRequest, Fault, HibernateTo, Method, SandboxBackend as _,
};
use cocoonbox_core::machine::{BoxState, FailureKind, Phase};
use cocoonbox_core::{BoxId, ImageName, SystemEntropy, TenantName, UserId};

use crate::setup::{FREE, World, user};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Create,
    Wake,
    Freeze,
    ToDisk,
    DiskLater,
    Delete,
}

#[derive(Clone, Copy, Debug)]
enum Cut {
    Store(u32, StoreFault),
    Backend(Method, Fault),
}

fn cuts() -> Vec<Cut> {
    let mut cuts = Vec::new();
    for nth in 1..=2 {
        cuts.extend([StoreFault::Hang, StoreFault::HangAfter].map(|fault| Cut::Store(nth, fault)));
    }
    for method in [
        Method::Claim,
        Method::PutTenant,
        Method::PutHostFile,
        Method::Wake,
        Method::Hibernate,
        Method::Release,
        Method::Find,
    ] {
        cuts.extend([Fault::Hang, Fault::HangAfter].map(|fault| Cut::Backend(method, fault)));
    }
    cuts
}

async fn ask(world: &World, ana: &UserId, verb: Verb) -> Started {
    let engine = &world.engine;
    match verb {
        Verb::Create => engine.create(ana, FREE, None, None, None).await,
        Verb::Wake => engine.ensure(ana, FREE, "", None).await,
        Verb::Freeze => engine.hibernate(ana, "", HibernateTo::Memory, None).await,
        Verb::ToDisk | Verb::DiskLater => engine.hibernate(ana, "", HibernateTo::Disk, None).await,
        Verb::Delete => engine.delete(ana, "main", Confirm::Yes, None).await,
    }
    .unwrap()
}

/// A server that dies anywhere in any verb starts again with every box whole, and no box between two states.
#[tokio::test]
async fn a_restart_at_every_point_leaves_no_box_between_states_and_loses_none() {
    let mut cut_off = 0;
    for verb in [Verb::Create, Verb::Wake, Verb::Freeze, Verb::ToDisk, Verb::DiskLater, Verb::Delete] {
        for cut in cuts() {
            let what = format!("{verb:?} {cut:?}");
            let (world, ana) = (World::new().await, user());
            if verb != Verb::Create {
                let record = world.running(&ana).await;
                assert!(world.sandbox(&record).write("/f", b"files"));
            }
            if matches!(verb, Verb::Wake | Verb::DiskLater) {
                let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
                world.last(&ana, &started).await;
            }
            match cut {
                Cut::Store(nth, fault) => world.store.fail(StoreCall::Commit, nth, fault),
                Cut::Backend(method, fault) => world.backend.fail_next(method, fault),
            }
            let begun = Mutex::new(None);
            let asked = async {
                let started = ask(&world, &ana, verb).await;
                begun.lock().unwrap().clone_from(&started.operation);
                world.last(&ana, &started).await;
            };
            cut_off += u32::from(tokio::time::timeout(Duration::from_millis(25), asked).await.is_err());

            let again = world.restarted();
            again.engine.start().await.unwrap();
            again.nothing_is_under_way().await;
            if let Some(operation) = begun.into_inner().unwrap() {
                let last = again.engine.last_event(&ana, &operation).await.unwrap();
                assert!(last.phase.is_last(), "{what}");
            }
            let boxes = again.tables.page(None, 10).await.unwrap();
            let claims = again.node.find(&ClaimFilter::all()).await.unwrap();
            if let Some(stored) = boxes.first() {
                assert_eq!(claims.len(), usize::from(stored.record.sandbox.is_some()), "{what}");
                assert_eq!(claims.first().map(|claim| &claim.id), stored.record.sandbox.as_ref(), "{what}");
                let second = again.engine.start().await.unwrap();
                assert_eq!(second.repaired, 0, "{what}: a second start finds nothing to do");
                let record = again.running(&ana).await;
                assert_eq!(record.state, BoxState::Running, "{what}: {record:?}");
                assert_eq!(Some(again.identity(&record).wake_id), record.wake_id, "{what}");
                if verb != Verb::Create {
                    assert_eq!(again.sandbox(&record).read("/f").as_deref(), Some(&b"files"[..]), "{what}");
                }
            } else {
                assert!(claims.is_empty(), "{what}");
                assert!(matches!(verb, Verb::Delete | Verb::Create), "{what}: the box is gone");
            }
        }
    }
    assert!(cut_off > 30, "only {cut_off} verbs were cut off: the test is not cutting");
}

#[tokio::test]
async fn a_cut_operation_says_so_and_a_done_one_is_completed() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    world.backend.fail_next(Method::Hibernate, Fault::Hang);
    let cut = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let world = world.restarted();
    world.engine.start().await.unwrap();
    let last = world.last(&ana, &cut).await;
    assert_eq!((last.phase, last.failure), (Phase::Failed, Some(FailureKind::Interrupted)));
    assert_eq!(last.message, "interrupted by a restart");
    assert_eq!(world.state(&ana).await, BoxState::Running);

    world.backend.fail_next(Method::Hibernate, Fault::HangAfter);
    let done = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let world = world.restarted();
    world.engine.start().await.unwrap();
    assert_eq!(world.last(&ana, &done).await.phase, Phase::Done);
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
}

#[tokio::test]
async fn a_box_whose_sandbox_died_or_is_gone_fails_and_can_be_ensured() {
    let (world, ana, bob) = (World::new().await, user(), user());
    let died = world.running(&ana).await;
    let gone = world.running(&bob).await;
    world.node.store().kill(died.sandbox.as_ref().unwrap(), "killed");
    world.node.release(gone.sandbox.as_ref().unwrap()).await.unwrap();
    let world = world.restarted();
    let found = world.engine.start().await.unwrap();
    assert_eq!((found.boxes, found.repaired), (2, 2));
    assert_eq!(world.first(&ana).await.failure.as_deref(), Some("killed"));
    assert_eq!(world.first(&bob).await.failure.as_deref(), Some("its sandbox is gone"));
    for owner in [ana, bob] {
        assert_eq!(world.state(&owner).await, BoxState::Failed);
        assert_eq!(world.running(&owner).await.state, BoxState::Running);
    }
}

#[tokio::test]
async fn only_our_own_orphans_are_released() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    let claim = async |claim_ref: ClaimRef, tenant: Option<TenantName>| {
        let mut request = ClaimRequest::new(claim_ref, ImageName::host());
        request.tenant = tenant;
        world.node.claim(request).await.unwrap()
    };
    let id = || ClaimRef::from(&BoxId::random(&SystemEntropy).unwrap());
    claim(id(), Some(TenantName::from(&ana))).await;
    claim(id(), Some(TenantName::from(&user()))).await;
    claim(id(), Some("somebody".parse().unwrap())).await;
    claim(id(), None).await;
    claim("theirs".parse().unwrap(), Some(TenantName::from(&ana))).await;
    let found = world.restarted().engine.start().await.unwrap();
    assert_eq!((found.boxes, found.repaired, found.released), (1, 0, 1));
    let empty = World::new().await;
    assert_eq!(empty.engine.start().await.unwrap(), Reconciled::default());
}

#[tokio::test]
async fn without_the_backend_nothing_starts() {
    let world = World::new().await;
    world.running(&user()).await;
    world.backend.fail_next(Method::Find, Fault::Before);
    assert!(world.engine.start().await.is_err());
    world.engine.start().await.unwrap();
}

#[tokio::test]
async fn a_box_of_which_a_silent_node_may_know_holds_up_no_start() {
    let (world, ana, bob) = (World::new().await, user(), user());
    world.running(&bob).await;
    world.backend.fail_next(Method::Claim, Fault::HangAfter);
    let started = world.engine.create(&ana, FREE, None, None, None).await.unwrap();
    while world.backend.calls(Method::Claim) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let world = world.restarted();
    // what there is in all can be told, and of this box nothing
    world.backend.fail_later(Method::Find, 2, Fault::Before);
    let found = world.engine.start().await.unwrap();
    assert_eq!((found.boxes, found.repaired, found.released), (2, 1, 0));
    let last = world.last(&ana, &started).await;
    assert!(last.phase == Phase::Failed && last.message.contains("interrupted by a restart"), "{last:?}");
    assert_eq!(world.state(&ana).await, BoxState::Failed);
    assert_eq!(world.state(&bob).await, BoxState::Running);
    // once it can be told, the sandbox that was made is the box's
    assert_eq!(world.running(&ana).await.state, BoxState::Running);
    world.nothing_is_under_way().await;
    assert_eq!(world.node.find(&ClaimFilter::all()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn an_outcome_is_written_even_if_the_store_fails_meanwhile() {
    let (world, ana) = (World::new().await, user());
    for fault in [StoreFault::Before, StoreFault::After] {
        world.store.fail(StoreCall::Commit, 2, fault);
        world.running(&ana).await;
        let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
        world.last(&ana, &started).await;
        world.nothing_is_under_way().await;
        // a first write of which nobody knows is worked on all the same
        world.store.fail(StoreCall::Commit, 1, StoreFault::After);
        assert_eq!(world.running(&ana).await.state, BoxState::Running);
        let started = world.engine.hibernate(&ana, "", HibernateTo::Disk, None).await.unwrap();
        assert_eq!(world.last(&ana, &started).await.phase, Phase::Done);
    }
}
