//! What goes through, and what does not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_core::Clock as _;
use cocoonbox_core::backend::{ClaimFilter, HostFileName, SandboxBackend as _};
use cocoonbox_wire::call_token::{MethodClass, verify};
use cocoonbox_wire::identity::Identity;
use http_body_util::BodyExt as _;

use crate::agent::{Seen, breaks, done, echo, endless, guest};
use crate::setup::{World, status, until};

const EXEC: &str = "/cocoonbox.agent.v1.Session/Exec";
const ANNA: &[(&str, &str)] = &[("authorization", "Bearer anna")];

#[tokio::test]
async fn bytes_headers_and_trailers_pass_as_they_are() {
    let seen = Arc::new(Seen::default());
    let world = World::new(guest(Arc::clone(&seen), echo)).await;
    world.owner("anna").await;
    let (input, response) =
        world.call(EXEC, &[ANNA[0], ("x-own", "kept"), ("cocoonbox-call-token", "forged")]).await;
    assert_eq!(response.headers()["x-odd-header"], "kept");
    // nothing that a protobuf decoder would take
    let sent = Bytes::from_static(b"\xff\xfe no message at all \x00\x01");
    input.send(sent.clone()).await.unwrap();
    drop(input);
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["x-odd-trailer"], "kept");
    assert_eq!(body.to_bytes(), sent);

    let headers = seen.headers.lock().unwrap()[0].clone();
    assert!(headers.get("authorization").is_none(), "the caller's token reached the box");
    assert_eq!(headers["x-own"], "kept");
    let tokens: Vec<_> = headers.get_all("cocoonbox-call-token").iter().collect();
    assert_eq!(tokens.len(), 1);
    let claims = world.backend.find(&ClaimFilter::all()).await.unwrap();
    let sandbox = world.backend.store().sandbox(&claims[0].id).unwrap();
    let file = sandbox.host_file(&HostFileName::identity()).unwrap();
    let identity = Identity::parse(&file).unwrap();
    let claims =
        verify(tokens[0].to_str().unwrap(), &identity, MethodClass::Exec, world.clock.now()).unwrap();
    assert_eq!(claims.box_id, identity.box_id);
    assert_eq!(identity.key().unwrap(), world.key.verifying_key());
}

#[tokio::test]
async fn calls_of_one_wake_share_a_connection() {
    let seen = Arc::new(Seen::default());
    let world = World::new(guest(Arc::clone(&seen), done)).await;
    world.owner("anna").await;
    for _ in 0..5 {
        let (_, response) = world.call(EXEC, ANNA).await;
        assert_eq!(response.status(), 200);
    }
    assert_eq!(seen.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn who_may_not_is_told_so_in_grpcs_words() {
    let world = World::new(guest(Arc::default(), done)).await;
    world.owner("anna").await;
    let bert = world.owner("bert").await;
    let berts = world.engine.get(&bert.user, "").await.unwrap().unwrap().id.to_string();
    world.caller("carl");
    let with_box = |name| vec![ANNA[0], ("cocoonbox-box", name)];
    for (what, method, headers, expected) in [
        ("no token", EXEC, vec![], "16"),
        ("a wrong token", EXEC, vec![("authorization", "Bearer nobody")], "16"),
        ("a token of another scheme", EXEC, vec![("authorization", "Basic anna")], "16"),
        ("no token on Boxes", "/cocoonbox.control.v1.Boxes/List", vec![], "16"),
        ("another user's box", EXEC, with_box(berts.as_str()), "5"),
        ("a box that is not there", EXEC, with_box("nope"), "5"),
        ("no box at all", EXEC, vec![("authorization", "Bearer carl")], "5"),
        ("a name outside the grammar", EXEC, with_box("../main"), "3"),
        ("a method that no class covers", "/cocoonbox.agent.v1.Session/Nope", ANNA.to_vec(), "12"),
        ("saving, which is the edge's own", "/cocoonbox.agent.v1.State/Save", ANNA.to_vec(), "12"),
        ("a service that is not there", "/cocoonbox.agent.v1.Nope/Nope", ANNA.to_vec(), "12"),
    ] {
        let (_, response) = world.call(method, &headers).await;
        assert_eq!(status(&response), Some(expected), "{what}");
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_resets_the_agents_side() {
    let seen = Arc::new(Seen::default());
    let world = World::new(guest(Arc::clone(&seen), echo)).await;
    world.owner("anna").await;
    let (client, connection) = world.client_and_connection().await;
    let (input, mut response) = World::call_over(client, EXEC, ANNA).await.unwrap();
    input.send(Bytes::from_static(b"x")).await.unwrap();
    assert!(response.body_mut().frame().await.is_some());
    let early = tokio::time::timeout(Duration::from_millis(200), seen.over.notified()).await;
    assert!(early.is_err(), "the call was over before the caller went away");
    connection.abort();
    tokio::time::timeout(Duration::from_secs(5), seen.over.notified())
        .await
        .expect("the agent never heard of it");
}

#[tokio::test]
async fn an_agent_that_breaks_off_breaks_the_call_and_not_the_next() {
    let world = World::new(guest(Arc::default(), breaks)).await;
    world.owner("anna").await;
    for _ in 0..2 {
        let (_input, mut response) = world.call(EXEC, ANNA).await;
        assert_eq!(response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap(), "x");
        assert!(response.body_mut().frame().await.unwrap().is_err());
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_the_agent_back() {
    let seen = Arc::new(Seen::default());
    let world = World::new(guest(Arc::clone(&seen), endless)).await;
    world.owner("anna").await;
    let (_input, mut response) = world.call(EXEC, ANNA).await;
    let sent = || seen.sent.load(Ordering::SeqCst);
    let mut last = 0;
    until("the agent stands still", async || {
        tokio::time::sleep(Duration::from_millis(50)).await;
        std::mem::replace(&mut last, sent()) == sent()
    })
    .await;
    assert!(last < 16 * 1024 * 1024, "{last} bytes are under way to a reader that reads none");
    // the control: one that reads gets more
    let mut read = 0;
    while read < 32 * 1024 * 1024 {
        read += response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap().len();
    }
    assert!(sent() > last);
}

#[tokio::test]
async fn an_open_call_ends_with_its_token() {
    let world = World::new(guest(Arc::default(), echo)).await;
    let anna = world.owner("anna").await;
    let (_input, response) = world.call(EXEC, ANNA).await;
    anna.ended.cancel();
    let body = tokio::time::timeout(Duration::from_secs(5), response.into_body().collect())
        .await
        .expect("it goes on")
        .unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "16");
}

#[tokio::test]
async fn headers_without_end_and_garbage_end_their_connection_alone() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let world = World::new(guest(Arc::default(), done)).await;
    world.owner("anna").await;
    let flood = [b"GET / HTTP/1.1\r\nx: ".to_vec(), vec![b'a'; 4 << 20]].concat();
    for bytes in [b"\x16\x03\x01 no http\r\n\r\n".to_vec(), flood] {
        let mut stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
        let _ = stream.write_all(&bytes).await;
        let mut answer = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        assert!(end.is_ok(), "the connection stays open");
    }
    let huge = "a".repeat(64 * 1024);
    let request = http::Request::post(format!("http://edge{EXEC}")).header("x-huge", huge);
    let body = http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync();
    let refused = world.client().await.send_request(request.body(body).unwrap()).await;
    assert!(refused.is_err() || refused.is_ok_and(|response| response.status() == 431));
    assert_eq!(world.call(EXEC, ANNA).await.1.status(), 200);
}

#[tokio::test]
async fn what_is_not_there_is_said_in_the_callers_own_words() {
    let world = World::new(guest(Arc::default(), done)).await;
    let (_, response) = world.call("/nothing.like.That/Do", &[]).await;
    assert_eq!((response.status().as_u16(), status(&response)), (200, Some("12")));
    for method in ["GET", "POST"] {
        let body = http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync();
        let request = hyper::Request::builder().method(method).uri("http://edge/token").body(body).unwrap();
        let response = world.client().await.send_request(request).await.unwrap();
        assert_eq!((response.status().as_u16(), status(&response)), (404, None));
    }
}
