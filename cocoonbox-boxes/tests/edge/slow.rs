//! Peers that take their time.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::agent::{done, guest};
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
