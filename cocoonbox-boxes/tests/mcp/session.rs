//! Whose sessions are, and how many.

use std::time::Duration;

use cocoonbox_boxes::mcp::SessionLimits;
use http::{Method, StatusCode};
use http_body_util::Full;
use serde_json::json;

use crate::setup::{Client, Stream, World, text};

const FEW: SessionLimits =
    SessionLimits { of_user: 2, in_all: 3, exchanges: 4, idle: Duration::from_hours(1) };

/// Sends a ping into the session of `client`, as `token`.
async fn ping(world: &World, client: &Client<'_>, token: &str) -> StatusCode {
    let message = json!({ "jsonrpc": "2.0", "id": 3, "method": "ping" });
    let request = world
        .request(Method::POST, token)
        .header("mcp-session-id", &client.session)
        .body(Full::new(message.to_string().into()))
        .unwrap();
    world.send(request).await.status()
}

#[tokio::test]
async fn a_session_is_nobody_elses() {
    let world = World::new().await;
    let ana = world.user("ana");
    world.user("bert");
    let agent = world.agent("agent", &ana.user, 1, 1);
    world.agent("other", &ana.user, 1, 1);
    // a newer token of the same grant, as a refresh makes one
    world.caller("refreshed", ana.user.clone(), agent.agent.clone());
    let (users, agents) = (world.open("ana").await, world.open("agent").await);
    for (client, expected) in [
        (&users, [("ana", true), ("bert", false), ("agent", false), ("other", false), ("refreshed", false)]),
        (&agents, [("ana", false), ("bert", false), ("agent", true), ("other", false), ("refreshed", true)]),
    ] {
        for (token, expected) in expected {
            let status = if expected { StatusCode::OK } else { StatusCode::NOT_FOUND };
            assert_eq!(ping(&world, client, token).await, status, "{token}");
        }
    }
    for method in [Method::GET, Method::DELETE] {
        let request = world.request(method, "bert").header("mcp-session-id", &users.session);
        let response = world.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
    }
    assert_eq!(ping(&world, &users, "ana").await, StatusCode::OK, "nobody else ended it");
    assert_eq!(users.end().await, StatusCode::NO_CONTENT);
    assert_eq!(ping(&world, &users, "ana").await, StatusCode::NOT_FOUND);
    assert_eq!(users.end().await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn of_one_user_and_in_all_there_are_no_more_sessions_than_allowed() {
    let world = World::with(|door| door.with_sessions(FEW)).await;
    for token in ["ana", "bert", "cleo"] {
        world.user(token);
    }
    let first = world.open("ana").await;
    world.open("ana").await;
    assert_eq!(world.try_open("ana").await.err(), Some(StatusCode::TOO_MANY_REQUESTS));
    let bert = world.open("bert").await;
    assert_eq!(world.try_open("cleo").await.err(), Some(StatusCode::TOO_MANY_REQUESTS), "the server is full");
    assert!(bert.end().await.is_success());
    world.open("cleo").await;
    assert!(first.end().await.is_success());
    world.open("ana").await;
    assert_eq!(world.try_open("bert").await.err(), Some(StatusCode::TOO_MANY_REQUESTS));
}

#[tokio::test]
async fn a_user_has_no_more_open_at_once_than_allowed() {
    let world = World::with(|door| door.with_sessions(FEW)).await;
    world.user("ana");
    world.user("bert");
    let ana = world.open("ana").await;
    let mut streams = Vec::new();
    let full = loop {
        let response = ana.listen().await;
        if response.status() != StatusCode::OK {
            break response;
        }
        streams.push(Stream::new(response));
    };
    assert_eq!(full.status(), StatusCode::TOO_MANY_REQUESTS);
    // those that were asked just before may still be about to end
    assert!((1..=FEW.exchanges as usize).contains(&streams.len()), "{}", streams.len());
    assert!(text(full).await.contains("as many requests and streams open"));
    world.open("bert").await;
    streams.clear();
    // a stream's end is seen by the server a moment later
    for _ in 0..1000 {
        if ping(&world, &ana, "ana").await == StatusCode::OK {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the places of streams that ended stay taken");
}

#[tokio::test]
async fn a_session_that_nobody_uses_is_forgotten_and_its_place_is_free() {
    let idle = Duration::from_millis(200);
    let world = World::with(|door| door.with_sessions(SessionLimits { of_user: 1, idle, ..FEW })).await;
    world.user("ana");
    let first = world.open("ana").await;
    assert_eq!(ping(&world, &first, "ana").await, StatusCode::OK);
    for _ in 0..1000 {
        if let Ok(second) = world.try_open("ana").await {
            assert_eq!(ping(&world, &first, "ana").await, StatusCode::NOT_FOUND);
            assert_ne!(first.session, second.session);
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("an idle session stays");
}
