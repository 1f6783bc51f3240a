//! Who comes in.

use std::sync::{Arc, Mutex};

use cocoonbox_boxes::Caller;
use cocoonbox_boxes::edge::{Authenticate, Edge, Pool};
use cocoonbox_boxes::mcp::{CONTROL_PATH, McpDoor, testkit};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::json;

use crate::setup::{METADATA, Stream, World, initialize, text};

#[tokio::test]
async fn who_shows_no_good_token_is_told_where_to_sign_in() {
    let world = World::new().await;
    world.user("ana");
    let challenge = format!("Bearer resource_metadata=\"{METADATA}\"");
    for (shown, expected) in [
        (None, challenge.clone()),
        (Some("Bearer none"), format!("{challenge}, error=\"invalid_token\"")),
        (Some("Basic YW5hOg=="), format!("{challenge}, error=\"invalid_token\"")),
        (Some("ana"), format!("{challenge}, error=\"invalid_token\"")),
    ] {
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let mut request = Request::builder()
                .method(method)
                .uri(CONTROL_PATH)
                .header("host", world.address.to_string())
                .header("accept", "application/json, text/event-stream")
                .header("content-type", "application/json");
            if let Some(shown) = shown {
                request = request.header("authorization", shown);
            }
            let response = world.send(request.body(initialize()).unwrap()).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
            assert_eq!(response.headers()["www-authenticate"], expected.as_str(), "{shown:?}");
        }
    }
    world.open("ana").await;
}

#[tokio::test]
async fn where_nobody_signs_in_nobody_is_sent() {
    let world = World::with(|door| {
        let mut door = door;
        door.metadata_url = None;
        door
    })
    .await;
    let request = world.request(Method::POST, "none").body(initialize()).unwrap();
    let response = world.send(request).await;
    assert_eq!(response.headers()["www-authenticate"], "Bearer error=\"invalid_token\"");
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused() {
    let world =
        World::with(|door| door.with_host("box.example").with_origin("https://box.example:443")).await;
    world.user("ana");
    let port = world.address.port();
    for (host, origin, expected) in [
        (format!("127.0.0.1:{port}"), None, StatusCode::OK),
        (format!("localhost:{port}"), Some("http://localhost:3000"), StatusCode::OK),
        ("box.example".to_owned(), Some("https://box.example"), StatusCode::OK),
        ("evil.example".to_owned(), None, StatusCode::FORBIDDEN),
        (format!("evil.example:{port}"), Some("http://localhost:3000"), StatusCode::FORBIDDEN),
        (format!("127.0.0.1:{port}"), Some("https://evil.example"), StatusCode::FORBIDDEN),
        (format!("127.0.0.1:{port}"), Some("http://box.example"), StatusCode::FORBIDDEN),
        (format!("127.0.0.1:{port}"), Some("null"), StatusCode::FORBIDDEN),
    ] {
        let mut request = Request::post(CONTROL_PATH)
            .header("host", &host)
            .header("authorization", "Bearer ana")
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let response = world.send(request.body(initialize()).unwrap()).await;
        assert_eq!(response.status(), expected, "{host} {origin:?}");
    }
}

#[tokio::test]
async fn a_token_that_ends_takes_open_streams_and_calls_with_it() {
    use cocoonbox_core::backend::{Fault, Method as Call};
    let world = World::new().await;
    let caller = world.user("ana");
    let ana = world.open("ana").await;
    let mut stream = Stream::new(ana.listen().await);
    world.backend.fail_next(Call::Claim, Fault::Hang);
    let mut call = ana.begin("box_ensure", json!({})).await;
    assert_eq!(call.next().await.unwrap()["method"], "notifications/progress");
    caller.ended.cancel();
    assert_eq!(stream.next().await, None);
    while let Some(message) = call.next().await {
        assert!(message.get("result").is_none(), "{message}");
    }
    let refused = ana.listen().await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert!(text(refused).await.contains("sign in"));
    // what was begun goes on
    let record = world.engine.get(&caller.user, "").await.unwrap().unwrap();
    assert!(record.pending.is_some());
}

/// Knows some callers by their tokens.
#[derive(Debug)]
struct Known<const N: usize>([(&'static str, Caller); N]);

impl<const N: usize> Authenticate for Known<N> {
    fn authenticate(&self, bearer: &str) -> Option<Caller> {
        self.0.iter().find(|(token, _)| *token == bearer).map(|(_, caller)| caller.clone())
    }
}

#[tokio::test]
async fn an_agents_token_is_no_token_at_the_other_door() {
    let world = World::new().await;
    let ana = world.user("ana");
    let agent = world.agent("agent", &ana.user, 1, 1);
    let both = Known([("ana", ana), ("agent", agent)]);
    assert!(both.authenticate("agent").is_some());
    let key = Arc::new(ed25519_dalek::SigningKey::from_bytes(&[7; 32]));
    let edge = Edge::new(
        Arc::new(world.engine.clone()),
        Arc::new(both),
        key,
        world.clock.clone(),
        Arc::new(Pool::default()),
    );
    let router = edge.router(tonic::service::Routes::default()).await.unwrap();
    for (token, expected) in [("ana", None), ("agent", Some("16")), ("nobody", Some("16"))] {
        // a message of no bytes
        let body = axum::body::Body::from(&[0_u8; 5][..]);
        let request = Request::post("/cocoonbox.control.v1.Boxes/Usage")
            .header("content-type", "application/grpc")
            .header("authorization", format!("Bearer {token}"))
            .body(body)
            .unwrap();
        let response = tower::ServiceExt::oneshot(router.clone(), request).await.unwrap();
        let status = response.headers().get("grpc-status").map(|status| status.to_str().unwrap());
        assert_eq!(status, expected, "{token}");
    }
}

/// Answers a ping, and keeps what it saw of the request.
#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl rmcp::ServerHandler for Seen {
    async fn ping(&self, context: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let parts = context.extensions.get::<http::request::Parts>().unwrap();
        assert!(parts.extensions.get::<Caller>().is_some());
        self.0.lock().unwrap().extend([format!("{parts:?}"), format!("{context:?}")]);
        Ok(())
    }
}

#[tokio::test]
async fn what_is_behind_the_door_does_not_see_the_token() {
    const CANARY: &str = "canary-token";
    let world = World::new().await;
    let ana = world.user("ana");
    let seen = Seen::default();
    let handler = seen.clone();
    let door = McpDoor::new(Arc::new(Known([(CANARY, ana)])));
    let router = testkit::mount("/seen", door, move || handler.clone());
    let send = async |session: Option<&str>, message: serde_json::Value| {
        let mut request = Request::post("/seen")
            .header("host", "localhost")
            .header("authorization", format!("Bearer {CANARY}"))
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        let request = request.body(axum::body::Body::from(message.to_string())).unwrap();
        tower::ServiceExt::oneshot(router.clone(), request).await.unwrap()
    };
    let first = initialize().collect().await.unwrap().to_bytes();
    let response = send(None, serde_json::from_slice(&first).unwrap()).await;
    let session = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    // its answer is read, so that the session goes on
    response.into_body().collect().await.unwrap();
    let told = send(Some(&session), json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    assert_eq!(told.status(), StatusCode::ACCEPTED);
    let pong = send(Some(&session), json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" })).await;
    assert_eq!(pong.status(), StatusCode::OK);
    pong.into_body().collect().await.unwrap();
    let seen = seen.0.lock().unwrap();
    assert!(seen[0].contains("mcp-session-id"), "positive control: {}", seen[0]);
    assert!(seen.iter().all(|seen| !seen.contains(CANARY)), "{seen:?}");
}
