use cocoonbox_boxes::{CallUse, Confirm, Limits};
use cocoonbox_core::backend::{ClaimFilter, HibernateTo, SandboxBackend as _};
use cocoonbox_core::machine::{BoxState, Phase};

use crate::setup::{FREE, World, config, user};

/// Two engines on one store and one node, as two servers would be.
async fn two() -> (World, World) {
    let one = World::new().await;
    let two = World::on(one.tables.clone(), one.node.clone(), one.clock.clone(), config());
    two.engine.start().await.unwrap();
    (one, two)
}

#[tokio::test]
async fn an_operation_of_one_engine_is_watched_at_the_other() {
    let (one, two) = two().await;
    let ana = user();
    let started = one.engine.ensure(&ana, FREE, "", None).await.unwrap();
    assert_eq!(two.last(&ana, &started).await.phase, Phase::Done);
    let started = two.engine.hibernate(&ana, "main", HibernateTo::Memory, None).await.unwrap();
    assert_eq!(one.last(&ana, &started).await.phase, Phase::Done);
    let call = one.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    assert_eq!(Some(call.wake_id), two.first(&ana).await.wake_id);
}

#[tokio::test]
async fn limits_hold_over_both() {
    let (one, two) = two().await;
    let ana = user();
    let limits = Limits { max_boxes: Some(4), max_running: Some(2), max_agent_boxes: None };
    let create = |n: u32| {
        let engine = if n.is_multiple_of(2) { &one.engine } else { &two.engine };
        engine.create(&ana, limits, Some(format!("b{n}").parse().unwrap()), None, None)
    };
    let made = futures::future::join_all((0..10).map(create)).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 2);
    one.engine.drained().await;
    two.engine.drained().await;
    assert_eq!(one.node.store().live(), 2);
}

#[tokio::test]
async fn verbs_at_both_take_turns() {
    let (one, two) = two().await;
    let ana = user();
    one.running(&ana).await;
    for _ in 0..20 {
        let (slept, woke) = tokio::join!(
            one.engine.hibernate(&ana, "", HibernateTo::Memory, None),
            two.engine.ensure(&ana, FREE, "", None)
        );
        slept.unwrap();
        woke.unwrap();
    }
    one.engine.drained().await;
    two.engine.drained().await;
    one.nothing_is_under_way().await;
    assert_eq!(one.node.find(&ClaimFilter::all()).await.unwrap().len(), 1);
    let (a, b) = tokio::join!(
        one.engine.delete(&ana, "main", Confirm::Yes, None),
        two.engine.delete(&ana, "main", Confirm::Yes, None)
    );
    assert!(a.is_ok() || b.is_ok());
    one.engine.drained().await;
    two.engine.drained().await;
    assert!(one.node.find(&ClaimFilter::all()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_second_start_may_cut_off_and_still_loses_nothing() {
    let one = World::new().await;
    let ana = user();
    for round in 0..12 {
        let started = if round % 2 == 0 {
            one.engine.ensure(&ana, FREE, "", None).await.unwrap()
        } else {
            one.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap()
        };
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        let two = World::on(one.tables.clone(), one.node.clone(), one.clock.clone(), config());
        two.engine.start().await.unwrap();
        if started.operation.is_some() {
            one.last(&ana, &started).await;
        }
        one.engine.drained().await;
        two.engine.drained().await;
        one.nothing_is_under_way().await;
        let record = one.running(&ana).await;
        assert_eq!(record.state, BoxState::Running);
        assert_eq!(Some(one.identity(&record).wake_id), record.wake_id);
        assert_eq!(one.node.find(&ClaimFilter::all()).await.unwrap().len(), 1);
        if round % 2 != 0 {
            let slept = one.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
            one.last(&ana, &slept).await;
        }
    }
}
