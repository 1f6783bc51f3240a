//! Which calls hold a box awake, and what a sleep does to calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_boxes::Caller;
use cocoonbox_core::backend::HibernateTo;
use cocoonbox_core::machine::BoxState;
use http_body_util::BodyExt as _;

use crate::agent::{Seen, echo, guest};
use crate::setup::{IDLE, World, until};

const EXEC: &str = "/cocoonbox.agent.v1.Session/Exec";
const EVENTS: &str = "/cocoonbox.agent.v1.Session/Events";
const ANNA: &[(&str, &str)] = &[("authorization", "Bearer anna")];

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
    assert!(watcher.into_body().collect().await.is_err(), "the watch outlived its wake");
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
        assert!(response.into_body().collect().await.is_err(), "the call outlived the sleep");
    }
}
