//! Which calls hold a box awake, and what a sleep does to calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_boxes::Caller;
use cocoonbox_core::backend::HibernateTo;
use cocoonbox_core::machine::BoxState;
use http::{HeaderValue, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::agent::{Seen, echo, guest};
use crate::setup::{IDLE, World, until};

const EXEC: &str = "/cocoonbox.agent.v1.Session/Exec";
const EVENTS: &str = "/cocoonbox.agent.v1.Session/Events";
const ANNA: &[(&str, &str)] = &[("authorization", "Bearer anna")];

/// Waits for a call's end and returns its status.
async fn end(response: Response<Incoming>) -> HeaderValue {
    let body = response.into_body().collect().await.unwrap();
    body.trailers().unwrap()["grpc-status"].clone()
}

impl World {
    async fn state(&self, caller: &Caller) -> BoxState {
        self.engine.get(&caller.user, "").await.unwrap().unwrap().state
    }

    /// Lets time go by and the engine look at it.
    async fn pass(&self, span: Duration) {
        self.clock.advance(span);
        self.engine.tick().await.unwrap();
        self.engine.drained().await;
    }
}

#[tokio::test]
async fn an_open_call_holds_a_box_and_its_end_starts_the_clock() {
    let world = World::new(guest(Arc::default(), echo)).await;
    let anna = world.owner("anna").await;
    let (input, response) = world.call(EXEC, ANNA).await;
    world.pass(IDLE * 3).await;
    assert_eq!(world.state(&anna).await, BoxState::Running);
    drop(input);
    response.into_body().collect().await.unwrap();
    world.pass(IDLE / 2).await;
    assert_eq!(world.state(&anna).await, BoxState::Running, "the clock did not start again");
    until("it falls asleep", async || {
        // the edge lets go of the call a moment after the caller saw its end
        world.pass(IDLE).await;
        world.state(&anna).await == BoxState::Hibernated
    })
    .await;
}

#[tokio::test]
async fn a_watcher_neither_holds_nor_wakes_a_box_and_is_served_at_its_next_wake() {
    let seen = Arc::new(Seen::default());
    let world = World::new(guest(Arc::clone(&seen), echo)).await;
    let anna = world.owner("anna").await;
    let (input, watcher) = world.call(EVENTS, ANNA).await;
    input.send(Bytes::from_static(b"x")).await.unwrap();
    world.pass(IDLE).await;
    assert_eq!(world.state(&anna).await, BoxState::Hibernated);
    assert_eq!(end(watcher).await, "9", "the watch outlived its wake");
    assert_eq!(seen.connections.load(Ordering::SeqCst), 1);

    let second = world.call(EVENTS, ANNA);
    tokio::pin!(second);
    assert!(tokio::time::timeout(Duration::from_millis(200), second.as_mut()).await.is_err());
    assert_eq!(world.state(&anna).await, BoxState::Hibernated);
    world.engine.ensure(&anna.user, anna.limits, "", None).await.unwrap();
    let served =
        tokio::time::timeout(Duration::from_secs(5), second).await.expect("not served after the wake");
    assert_eq!(served.1.status(), 200);
    assert_eq!(seen.connections.load(Ordering::SeqCst), 2, "a pooled connection went over a sleep");
}

#[tokio::test]
async fn a_call_wakes_a_sleeping_box_and_a_sleep_that_was_asked_for_cuts_calls() {
    let world = World::new(guest(Arc::default(), echo)).await;
    let anna = world.owner("anna").await;
    for to in [HibernateTo::Memory, HibernateTo::Disk] {
        let (_input, response) = world.call(EXEC, ANNA).await;
        assert_eq!(world.state(&anna).await, BoxState::Running);
        world.engine.hibernate(&anna.user, "", to, None).await.unwrap();
        world.engine.drained().await;
        assert_eq!(world.state(&anna).await, BoxState::Hibernated);
        assert_eq!(
            end(response).await,
            "9",
            "a client takes this for a lost connection, and wakes the box by coming back"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_race_with_sleeps_are_served_or_cut_and_never_hang() {
    let world = Arc::new(World::new(guest(Arc::default(), echo)).await);
    let anna = world.owner("anna").await;
    let served = Arc::new(AtomicU64::new(0));
    let mut callers = Vec::new();
    for _ in 0..4 {
        let (world, served) = (Arc::clone(&world), Arc::clone(&served));
        callers.push(tokio::spawn(async move {
            for _ in 0..40 {
                let call = async {
                    let call = World::call_over(world.client().await, EXEC, ANNA).await;
                    let Ok((input, response)) = call else { return false };
                    drop(input);
                    let whole = response.into_body().collect().await;
                    whole.is_ok_and(|body| {
                        body.trailers().is_some_and(|map| map.contains_key("x-odd-trailer"))
                    })
                };
                let whole = tokio::time::timeout(Duration::from_mins(1), call).await.expect("a call hangs");
                served.fetch_add(u64::from(whole), Ordering::SeqCst);
            }
        }));
    }
    let mut sleeps = 0;
    while callers.iter().any(|caller| !caller.is_finished()) {
        sleeps += u32::from(world.engine.hibernate(&anna.user, "", HibernateTo::Memory, None).await.is_ok());
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(sleeps > 5 && served.load(Ordering::SeqCst) > 40, "{sleeps} sleeps, {served:?} calls served");
}
