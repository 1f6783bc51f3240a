use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cocoonbox_boxes::{CallUse, EngineError, Limits};
use cocoonbox_core::backend::{Fault, HibernateTo, Memory, Method};
use cocoonbox_core::machine::BoxState;

use crate::setup::{FREE, World, config, user};

const IDLE: Duration = Duration::from_mins(10);

async fn idle() -> World {
    World::with(config().with_user_idle_hibernate(IDLE)).await
}

#[tokio::test]
async fn an_unused_box_falls_asleep_and_keeps_its_memory() {
    let (world, ana) = (idle().await, user());
    world.running(&ana).await;
    world.minutes(9).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    world.minutes(1).await;
    let record = world.first(&ana).await;
    assert_eq!((record.state, record.memory), (BoxState::Hibernated, Some(Memory::Kept)));
}

#[tokio::test]
async fn without_a_rule_no_box_falls_asleep() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    world.minutes(100).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
}

#[tokio::test]
async fn an_open_call_holds_and_its_end_restarts_the_clock() {
    let (world, ana) = (idle().await, user());
    world.running(&ana).await;
    let call = world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    world.minutes(30).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    drop(call);
    world.minutes(9).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    world.minutes(1).await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
}

#[tokio::test]
async fn watching_neither_holds_nor_wakes() {
    let (world, ana) = (idle().await, user());
    let record = world.running(&ana).await;
    let _watch = world.engine.open_call(&ana, FREE, Some("main"), CallUse::Watch).await.unwrap();
    world.minutes(10).await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
    assert_eq!(world.first(&ana).await.last_used_at, record.last_used_at);
    let mut watch = Box::pin(world.engine.open_call(&ana, FREE, None, CallUse::Watch));
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut watch).await.is_err());
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
    let woken = world.running(&ana).await;
    assert_eq!(Some(watch.await.unwrap().wake_id), woken.wake_id);
}

#[tokio::test]
async fn the_clock_starts_at_each_wake() {
    let (world, ana) = (idle().await, user());
    world.running(&ana).await;
    world.minutes(10).await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
    world.minutes(60).await;
    world.running(&ana).await;
    world.minutes(9).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
}

#[tokio::test]
async fn memory_that_was_kept_too_long_goes_to_disk() {
    let after = Duration::from_hours(1);
    let world = World::with(config().with_freeze_to_disk_after(after)).await;
    let ana = user();
    world.running(&ana).await;
    let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    world.last(&ana, &started).await;
    world.minutes(59).await;
    assert_eq!(world.first(&ana).await.memory, Some(Memory::Kept));
    world.minutes(1).await;
    assert_eq!(world.first(&ana).await.memory, Some(Memory::Lost));
    assert_eq!(world.node.store().held(), 0);
}

async fn asleep_with_schedule(world: &World, ana: &cocoonbox_core::UserId, cron: &str, stay: u64) {
    world.running(ana).await;
    let set = world.engine.set_schedule(ana, "", cron, "Europe/Berlin", Duration::from_mins(stay)).await;
    assert!(set.unwrap().schedule.unwrap().next_at.is_some());
    let started = world.engine.hibernate(ana, "", HibernateTo::Memory, None).await.unwrap();
    world.last(ana, &started).await;
}

#[tokio::test]
async fn a_schedule_wakes_stays_up_and_sleeps() {
    let (world, ana) = (World::with(config().with_user_idle_hibernate(Duration::from_mins(2))).await, user());
    // it is 14:00 in Berlin
    asleep_with_schedule(&world, &ana, "10 14 * * *", 20).await;
    world.minutes(9).await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
    world.minutes(1).await;
    let record = world.first(&ana).await;
    assert_eq!(record.state, BoxState::Running);
    assert_eq!(record.sleep_at, Some(world.clock_now().plus(Duration::from_mins(20))));
    world.minutes(19).await;
    assert_eq!(world.state(&ana).await, BoxState::Running, "the idle clock does not count before sleep_at");
    world.minutes(1).await;
    let record = world.first(&ana).await;
    assert_eq!((record.state, record.sleep_at), (BoxState::Hibernated, None));
    let next = record.schedule.unwrap().next_at.unwrap();
    assert_eq!(next.since(world.clock_now()), Duration::from_mins(1420), "tomorrow");
}

#[tokio::test]
async fn a_call_keeps_a_scheduled_box_up_until_it_ends() {
    let (world, ana) = (World::new().await, user());
    asleep_with_schedule(&world, &ana, "1 14 * * *", 5).await;
    world.minutes(1).await;
    let call = world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    world.minutes(30).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    drop(call);
    world.minutes(1).await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
}

#[tokio::test]
async fn a_scheduled_wake_without_a_place_is_left_out() {
    let (world, ana) = (World::new().await, user());
    let limits = Limits { max_boxes: None, max_running: Some(1), max_agent_boxes: None };
    asleep_with_schedule(&world, &ana, "1 14 * * *", 5).await;
    // the limits that a call brings along are those that the schedule keeps to
    let one = world.engine.ensure(&ana, limits, "main", None).await.unwrap();
    world.last(&ana, &one).await;
    let slept = world.engine.hibernate(&ana, "main", HibernateTo::Memory, None).await.unwrap();
    world.last(&ana, &slept).await;
    world.clock.advance(Duration::from_secs(1));
    world.engine.create(&ana, limits, Some("other".parse().unwrap()), None, None).await.unwrap();
    world.minutes(2).await;
    let record = world.first(&ana).await;
    assert_eq!(record.state, BoxState::Hibernated);
    assert!(record.schedule.unwrap().next_at.unwrap() > world.clock_now());
}

#[tokio::test]
async fn a_cleared_schedule_no_longer_wakes() {
    let (world, ana) = (World::new().await, user());
    asleep_with_schedule(&world, &ana, "* * * * *", 5).await;
    assert_eq!(world.engine.set_schedule(&ana, "", " ", "", Duration::ZERO).await.unwrap().schedule, None);
    world.minutes(3).await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
    let bad = world.engine.set_schedule(&ana, "", "nonsense", "", Duration::from_mins(1)).await;
    assert!(matches!(bad, Err(EngineError::Invalid { field: "cron", .. })));
}

#[tokio::test]
async fn an_idle_sleep_that_fails_is_tried_again() {
    let (world, ana) = (idle().await, user());
    world.running(&ana).await;
    world.backend.fail_next(Method::Hibernate, Fault::Before);
    world.minutes(10).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    world.minutes(1).await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_meets_a_box_that_falls_asleep_by_itself() {
    let world = Arc::new(World::with(config().with_user_idle_hibernate(Duration::from_mins(1))).await);
    let ana = user();
    world.running(&ana).await;
    let slept = AtomicU32::new(0);
    for round in 0..200_u32 {
        world.clock.advance(Duration::from_mins(1));
        let ticking = world.clone();
        let tick = tokio::spawn(async move { ticking.engine.tick().await.unwrap() });
        for _ in 0..(round % 7) {
            tokio::task::yield_now().await;
        }
        let call = world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
        // while the call is open the sandbox stays the one that it was given, awake
        for _ in 0..20 {
            let record = world.first(&ana).await;
            assert_eq!(record.wake_id.as_ref(), Some(&call.wake_id), "{record:?}");
            assert_eq!(world.sandbox(&record).processes(), (1, 0));
            tokio::task::yield_now().await;
        }
        tick.await.unwrap();
        if call.wake_id != world.identity(&world.first(&ana).await).wake_id {
            slept.fetch_add(1, Ordering::Relaxed);
        }
        drop(call);
        if round % 3 == 0 {
            world.minutes(2).await;
        }
    }
    assert_eq!(slept.into_inner(), 0);
    world.engine.drained().await;
    world.nothing_is_under_way().await;
}
