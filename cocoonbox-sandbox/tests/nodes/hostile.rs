//! Nodes that are broken, slow, or mean no good: each gets a typed error in bounded time, and the next call works.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cocoonbox_core::SystemEntropy;
use cocoonbox_core::backend::{
    BackendError, Capabilities, ClaimFilter, HibernateTo, HostFile, HostFileName, SandboxBackend, SandboxId,
    Target,
};
use cocoonbox_sandbox::remote::RemoteBackend;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::node::{InProcess, port, token};

/// What a peer does with a request.
#[derive(Clone, Debug)]
enum Deed {
    /// Answers these bytes and hangs up.
    Say(Vec<u8>),
    /// Answers these bytes and keeps the connection.
    SayAndWait(Vec<u8>),
    /// Answers these bytes, then the second ones without end.
    SayForEver(Vec<u8>, Vec<u8>),
    /// Answers one byte of these now and then.
    Drip(Vec<u8>),
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn ok(body: &str) -> Deed {
    Deed::Say(answer("200 OK", body))
}

/// A peer that is a good node until it is told otherwise.
struct Peer {
    address: std::net::SocketAddr,
    deed: Arc<Mutex<Option<Deed>>>,
    _serves: AbortOnDropHandle<()>,
}

impl Peer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let deed: Arc<Mutex<Option<Deed>>> = Arc::default();
        let told = Arc::clone(&deed);
        let serves = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let told = Arc::clone(&told);
                // one that goes on for ever ends with the test's runtime
                tokio::spawn(async move { drop(serve(stream, &told).await) });
            }
        });
        Self { address, deed, _serves: AbortOnDropHandle::new(serves) }
    }

    async fn client(&self) -> RemoteBackend {
        let address = format!("http://{}", self.address).parse().unwrap();
        RemoteBackend::open(address, Some(token()), Arc::new(SystemEntropy)).await.unwrap()
    }

    /// Does this at the next request, and is good again afterwards.
    fn next(&self, deed: Deed) {
        *self.deed.lock().unwrap() = Some(deed);
    }
}

async fn serve(mut stream: TcpStream, told: &Mutex<Option<Deed>>) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let deed = told.lock().unwrap().take();
    match deed.unwrap_or_else(|| good(&request)) {
        Deed::Say(bytes) => stream.write_all(&bytes).await?,
        Deed::SayAndWait(bytes) => {
            stream.write_all(&bytes).await?;
            tokio::time::sleep(Duration::from_mins(5)).await;
        }
        Deed::SayForEver(first, then) => {
            stream.write_all(&first).await?;
            loop {
                stream.write_all(&then).await?;
            }
        }
        Deed::Drip(bytes) => {
            for byte in bytes {
                stream.write_all(&[byte]).await?;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
    stream.shutdown().await
}

/// What a good node says.
fn good(request: &[u8]) -> Deed {
    let request = String::from_utf8_lossy(request);
    let path = request.split(' ').nth(1).unwrap_or_default();
    if path == "/v1/x/capabilities" {
        let capabilities = serde_json::to_value(Capabilities::new("good")).unwrap();
        return ok(
            &json!({ "node": "good", "capabilities": capabilities, "room": { "claimed": 0 } }).to_string()
        );
    }
    if path.starts_with("/v1/x/sandboxes?") {
        return ok(r#"{"sandboxes":[]}"#);
    }
    if path.ends_with("/wake") || path.ends_with("/hibernate") {
        return ok(r#"{"memory":"kept"}"#);
    }
    if path.ends_with("/agent") {
        let head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: silkd\r\n\r\nhello";
        return Deed::Say(head.to_vec());
    }
    Deed::Say(answer("204 No Content", ""))
}

fn id() -> SandboxId {
    "sb_one".parse().unwrap()
}

/// Bodies of lists that are none.
fn garbage() -> Vec<(&'static str, Deed)> {
    let row = |id: &str| {
        json!({
            "id": id, "claim_ref": "a", "image": "host", "size": "small", "network": "none",
            "claimed_at_micros": 0, "state": "running",
        })
    };
    let rows = |rows: &[serde_json::Value]| ok(&json!({ "sandboxes": rows }).to_string());
    let mut wrong_id = row("sb_one");
    wrong_id["id"] = json!("../../etc/passwd");
    let mut wrong_label = row("sb_one");
    wrong_label["claim_ref"] = json!("x".repeat(300));
    let mut wrong_state = row("sb_one");
    wrong_state["state"] = json!("dreaming");
    let mut wrong_time = row("sb_one");
    wrong_time["claimed_at_micros"] = json!(1e300);
    vec![
        ("no JSON", ok("hello")),
        ("half of it", ok(r#"{"sandboxes":[{"id":"#)),
        ("something else", ok(r#"{"claims":[]}"#)),
        ("deep", ok(&"[".repeat(100_000))),
        ("an id that is none", rows(&[wrong_id])),
        ("a label that is none", rows(&[wrong_label])),
        ("a state that is none", rows(&[wrong_state])),
        ("a time that is none", rows(&[wrong_time])),
        ("the same twice", rows(&[row("sb_one"), row("sb_one")])),
        ("a redirect", Deed::Say(answer("302 Found", ""))),
        ("a redirect elsewhere", Deed::Say(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec())),
        ("nothing", Deed::Say(Vec::new())),
        ("another protocol", Deed::Say(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec())),
        ("a switch that nobody asked for", Deed::Say(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: silkd\r\n\r\n".to_vec())),
        ("less than it said", Deed::Say(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec())),
        ("a broken chunk", Deed::Say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec())),
        ("no reason", Deed::Say(answer("500 Internal Server Error", "<html>"))),
        ("an endless head", Deed::SayForEver(b"HTTP/1.1 200 OK\r\n".to_vec(), b"x-a: b\r\n".to_vec())),
        ("an endless body", Deed::SayForEver(b"HTTP/1.1 200 OK\r\n\r\n[".to_vec(), vec![b'1'; 64 * 1024])),
        ("an endless refusal", Deed::SayForEver(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), vec![b'1'; 64 * 1024])),
        ("silence", Deed::SayAndWait(Vec::new())),
        ("silence after the head", Deed::SayAndWait(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec())),
        ("one byte at a time", Deed::Drip(answer("200 OK", &format!("{{\"sandboxes\":[{}]}}", " ".repeat(1000))))),
    ]
}

#[tokio::test]
async fn a_list_that_is_none_is_unavailable_and_the_next_one_is_read() {
    let tries = garbage().into_iter().map(|(name, deed)| async move {
        let peer = Peer::start().await;
        let client = peer.client().await;
        peer.next(deed);
        let found = tokio::time::timeout(Duration::from_secs(30), client.find(&ClaimFilter::all())).await;
        let found = found.unwrap_or_else(|_| panic!("{name}: it ends"));
        let Err(error @ BackendError::Unavailable { .. }) = &found else { panic!("{name}: {found:?}") };
        assert!(error.to_string().len() < 4096, "{name}: its words are short");
        assert_eq!(client.find(&ClaimFilter::all()).await.unwrap(), [], "{name}: the next call works");
    });
    futures::future::join_all(tries).await;
}

#[tokio::test]
async fn an_answer_about_one_sandbox_that_is_none_is_the_peers_fault() {
    let peer = Peer::start().await;
    let client = peer.client().await;
    for body in ["", "{}", r#"{"memory":"maybe"}"#, "[1]", r#"{"memory":null}"#] {
        peer.next(ok(body));
        let woke = client.wake(&id()).await;
        assert!(
            matches!(&woke, Err(BackendError::PeerMisbehaved { id: of, .. }) if *of == id()),
            "{body}: {woke:?}"
        );
        peer.next(ok(body));
        let slept = client.hibernate(&id(), HibernateTo::Disk).await;
        assert!(matches!(slept, Err(BackendError::PeerMisbehaved { .. })), "{body}: {slept:?}");
        client.wake(&id()).await.unwrap();
    }
}

#[tokio::test]
async fn every_refusal_is_read_as_what_it_is() {
    let peer = Peer::start().await;
    let client = peer.client().await;
    let refuse = |status: &str, body: serde_json::Value| Deed::Say(answer(status, &body.to_string()));
    let long = "x".repeat(100_000);
    for (deed, expected) in [
        (refuse("404 Not Found", json!({ "error": "gone", "code": "not_found" })), "NotFound"),
        (refuse("404 Not Found", json!({ "error": "gone" })), "Unavailable"),
        (refuse("409 Conflict", json!({ "error": "it sleeps", "code": "conflict" })), "Conflict"),
        (
            refuse("409 Conflict", json!({ "error": "", "x_error": { "kind": "conflict", "reason": long } })),
            "Conflict",
        ),
        (refuse("400 Bad Request", json!({ "error": "bad", "code": "invalid" })), "Invalid"),
        (refuse("429 Too Many Requests", json!({ "error": "full", "code": "quota_node" })), "Quota"),
        (
            refuse(
                "500 Internal Server Error",
                json!({ "error": "", "x_error": { "kind": "start_failed", "reason": "no bwrap" } }),
            ),
            "StartFailed",
        ),
        (
            refuse(
                "502 Bad Gateway",
                json!({ "error": "", "x_error": { "kind": "peer_misbehaved", "reason": "?" } }),
            ),
            "PeerMisbehaved",
        ),
        (
            refuse(
                "500 Internal Server Error",
                json!({ "error": "", "x_error": { "kind": "from tomorrow" } }),
            ),
            "Unavailable",
        ),
        (
            refuse("401 Unauthorized", json!({ "error": "who are you", "code": "unauthorized" })),
            "Unavailable",
        ),
        (refuse("404 Not Found", json!({ "error": long, "code": "not_found" })), "NotFound"),
    ] {
        peer.next(deed);
        let refused = client.wake(&id()).await.unwrap_err();
        assert!(format!("{refused:?}").starts_with(expected), "{expected}: {refused:?}");
        assert!(format!("{refused} {refused:?}").len() < 10_000, "what a peer says is cut");
    }
    client.put_host_file(&id(), HostFile::new(HostFileName::identity(), b"x".to_vec())).await.unwrap();
}

#[tokio::test]
async fn a_way_into_a_guest_that_is_none_is_told() {
    let peer = Peer::start().await;
    let client = peer.client().await;
    let switched = |to: &str| {
        Deed::Say(format!("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n{to}\r\n").into_bytes())
    };
    for (name, deed) in [
        ("no switch", ok("{}")),
        ("to something else", switched("upgrade: h2c\r\n")),
        ("to nothing", switched("")),
    ] {
        peer.next(deed);
        match client.connect(&id(), Target::Channel).await {
            Err(BackendError::PeerMisbehaved { .. }) => {}
            Err(other) => panic!("{name}: {other:?}"),
            Ok(_) => panic!("{name}: a way in"),
        }
    }
    // dies in the middle of a relay: what came is read, and then it ends
    let mut stream = client.connect(&id(), Target::Channel).await.unwrap();
    let mut came = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut came)).await.unwrap().unwrap();
    assert_eq!(came, b"hello");
    let refused = Deed::Say(answer("502 Bad Gateway", r#"{"error":"nobody","code":"unreachable"}"#));
    peer.next(refused);
    match client.connect(&id(), port(80)).await {
        Err(BackendError::Unreachable { target, .. }) => assert_eq!(target, "port 80"),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("a way to nobody"),
    }
}

#[tokio::test]
async fn each_direction_of_a_stream_ends_on_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = Peer::start().await;
    let client = peer.client().await;
    drop(listener);
    // the peer hangs up its direction at once and still reads ours
    let mut stream = client.connect(&id(), Target::Channel).await.unwrap();
    let mut came = Vec::new();
    stream.read_to_end(&mut came).await.unwrap();
    assert_eq!(came, b"hello");

    let node = InProcess::start(cocoonbox_core::backend::MemoryOptions::default()).await;
    let client = RemoteBackend::open(node.address(), Some(token()), Arc::new(SystemEntropy)).await.unwrap();
    let request =
        cocoonbox_core::backend::ClaimRequest::new("a".parse().unwrap(), cocoonbox_core::ImageName::host());
    let claim = client.claim(request).await.unwrap();
    for target in [Target::Channel, port(7)] {
        let mut stream = client.connect(&claim.id, target).await.unwrap();
        stream.write_all(b"all that there is").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut back = String::new();
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut back))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            back, "all that there is",
            "{target}: what was sent before the end arrives, and its end too"
        );
    }
}

#[tokio::test]
async fn a_node_that_dies_under_calls_is_unavailable_and_then_works_again() {
    let mut node = InProcess::start(cocoonbox_core::backend::MemoryOptions::default()).await;
    let client = RemoteBackend::open(node.address(), Some(token()), Arc::new(SystemEntropy)).await.unwrap();
    let request =
        cocoonbox_core::backend::ClaimRequest::new("a".parse().unwrap(), cocoonbox_core::ImageName::host());
    let claim = client.claim(request).await.unwrap();
    for _ in 0..3 {
        let mut stream = client.connect(&claim.id, Target::Channel).await.unwrap();
        node.stop().await;
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a relay through a node that ended ends");
        assert!(matches!(client.wake(&claim.id).await, Err(BackendError::Unavailable { .. })));
        assert!(matches!(client.find(&ClaimFilter::all()).await, Err(BackendError::Unavailable { .. })));
        node.start_again().await;
        assert_eq!(client.find(&ClaimFilter::all()).await.unwrap(), std::slice::from_ref(&claim));
        client.wake(&claim.id).await.unwrap();
    }
}
