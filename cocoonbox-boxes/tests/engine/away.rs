//! A node that does not answer for a while.

use cocoonbox_boxes::{CallUse, Confirm, EngineError};
use cocoonbox_core::backend::{HibernateTo, SandboxBackend as _, Target};
use cocoonbox_core::machine::BoxState;

use super::setup::{FREE, World, user};

const REASON: &str = "node a:1 has not answered since noon";

fn is_away<T: std::fmt::Debug>(result: Result<T, EngineError>) {
    match result {
        Err(EngineError::Away { reason }) => assert_eq!(reason, REASON),
        other => panic!("the box is away, not {other:?}"),
    }
}

#[tokio::test]
async fn a_box_on_a_node_that_is_away_is_failed_and_then_again_what_it_was() {
    let world = World::new().await;
    let (ana, ben) = (user(), user());
    let running = world.running(&ana).await;
    world.running(&ben).await;
    let slept = world.engine.hibernate(&ben, "main", HibernateTo::Memory, None).await.unwrap();
    world.last(&ben, &slept).await;
    let sleeping = world.first(&ben).await;

    world.node.store().set_away(Some(REASON));
    for _ in 0..3 {
        world.minutes(1).await;
        for owner in [&ana, &ben] {
            let record = world.first(owner).await;
            assert_eq!((record.state, record.failure.as_deref()), (BoxState::Failed, Some(REASON)));
            is_away(world.engine.ensure(owner, FREE, "", None).await);
            is_away(world.engine.hibernate(owner, "main", HibernateTo::Disk, None).await);
            is_away(world.engine.open_call(owner, FREE, None, CallUse::Use).await);
        }
    }
    assert_eq!((world.node.store().live(), world.node.store().held()), (1, 1), "nothing was done to them");

    world.node.store().set_away(None);
    world.minutes(1).await;
    assert_eq!(world.first(&ana).await, running, "it runs, in the same wake");
    assert_eq!(world.first(&ben).await, sleeping);
    let call = world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    assert_eq!(Some(&call.wake_id), running.wake_id.as_ref());
    call.connect(Target::Channel).await.unwrap();
    world.nothing_is_under_way().await;
}

#[tokio::test]
async fn a_call_finds_out_at_once_that_the_node_is_away_and_that_it_is_back() {
    let world = World::new().await;
    let ana = user();
    let running = world.running(&ana).await;
    let call = world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    world.node.store().set_away(Some(REASON));
    assert!(matches!(call.connect(Target::Channel).await, Err(EngineError::Backend(_))));
    drop(call);
    assert_eq!(world.state(&ana).await, BoxState::Failed);
    world.node.store().set_away(None);
    let call = world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    call.connect(Target::Channel).await.unwrap();
    let mut now = world.first(&ana).await;
    now.last_used_at = running.last_used_at;
    assert_eq!(now, running, "without a wake");
}

#[tokio::test]
async fn a_start_while_a_node_is_away_claims_nothing_and_a_delete_is_told_so() {
    let world = World::new().await;
    let ana = user();
    world.running(&ana).await;
    world.node.store().set_away(Some(REASON));
    let world = world.restarted();
    let reconciled = world.engine.start().await.unwrap();
    assert_eq!((reconciled.boxes, reconciled.released), (1, 0));
    assert_eq!(world.state(&ana).await, BoxState::Failed);
    let deleted = world.engine.delete(&ana, "main", Confirm::Yes, None).await.unwrap();
    assert!(world.last(&ana, &deleted).await.message.contains(REASON));
    assert_eq!(world.state(&ana).await, BoxState::Failed);
    world.node.store().set_away(None);
    assert_eq!(world.node.find(&cocoonbox_core::backend::ClaimFilter::all()).await.unwrap().len(), 1);
    world.minutes(1).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    let deleted = world.engine.delete(&ana, "main", Confirm::Yes, None).await.unwrap();
    world.last(&ana, &deleted).await;
    assert_eq!(world.node.store().live(), 0);
}
