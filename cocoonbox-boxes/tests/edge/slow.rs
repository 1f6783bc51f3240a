//! Peers that take their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cocoonbox_boxes::edge::Patience;
use cocoonbox_core::backend::{BoxedDuplex, MemoryGuest, guest_fn};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::agent::{done, echo, guest};
use crate::setup::{World, status};

const EXEC: &str = "/cocoonbox.agent.v1.Session/Exec";
const ANNA: &[(&str, &str)] = &[("authorization", "Bearer anna")];

#[tokio::test]
async fn a_call_that_no_agent_answers_ends_with_its_token_too() {
    let world = World::new(guest(Arc::default(), async |_, _| std::future::pending().await)).await;
    let anna = world.owner("anna").await;
    let call = world.call(EXEC, ANNA);
    tokio::pin!(call);
    // it waits for an answer that does not come
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut call).await.is_err());
    anna.ended.cancel();
    let (_, response) = tokio::time::timeout(Duration::from_secs(5), call).await.expect("it goes on");
    assert_eq!(status(&response), Some("16"));
}

/// A guest whose agent takes connections and then does nothing, `hung` of them; later ones are served.
fn hangs(hung: u64) -> (Arc<AtomicU64>, Arc<dyn MemoryGuest>) {
    let connections = Arc::new(AtomicU64::new(0));
    let (count, served) = (Arc::clone(&connections), guest(Arc::default(), echo));
    let guest = guest_fn(move |sandbox, target| {
        if count.fetch_add(1, Ordering::SeqCst) >= hung {
            return served.accept(sandbox, target);
        }
        let (ours, theirs) = tokio::io::duplex(256 * 1024);
        // open, and read by nobody
        tokio::spawn(async move {
            let _held = theirs;
            std::future::pending::<()>().await;
        });
        Some(Box::new(ours) as BoxedDuplex)
    });
    (connections, guest)
}

#[tokio::test]
async fn an_agent_that_hangs_fails_its_calls_and_the_next_call_dials_anew() {
    let (connections, guest) = hangs(1);
    let patience = Patience { every: Duration::from_millis(100), answer: Duration::from_millis(200) };
    let world = World::with_patience(guest, patience).await;
    world.owner("anna").await;
    let call = tokio::time::timeout(Duration::from_secs(20), world.call(EXEC, ANNA));
    let (_, response) = call.await.expect("a hung agent holds its caller");
    assert_eq!(status(&response), Some("14"));
    let (input, response) = world.call(EXEC, ANNA).await;
    drop(input);
    assert!(response.into_body().collect().await.is_ok());
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_agent_that_only_takes_its_time_is_waited_for() {
    let slow = async |seen, request| {
        tokio::time::sleep(Duration::from_millis(900)).await;
        echo(seen, request).await
    };
    let patience = Patience { every: Duration::from_millis(50), answer: Duration::from_millis(300) };
    let world = World::with_patience(guest(Arc::default(), slow), patience).await;
    world.owner("anna").await;
    let (input, response) = world.call(EXEC, ANNA).await;
    drop(input);
    assert!(response.into_body().collect().await.is_ok());
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_asked_does_not_stay_open() {
    let world = World::new(guest(Arc::default(), done)).await;
    let mut waiting = tokio::task::JoinSet::new();
    for bytes in [&b""[..], b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\nx: "] {
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        waiting.spawn(async move {
            let mut answer = Vec::new();
            tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.is_ok()
        });
    }
    assert_eq!(waiting.join_all().await, [true, true, true]);
}
