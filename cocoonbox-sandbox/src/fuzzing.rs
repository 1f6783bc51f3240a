//! What the fuzz targets reach; not there in any other build.

use cocoonbox_wire::silkd::Door;
use futures::FutureExt as _;
use tokio::io::AsyncReadExt as _;

use crate::doors::{DoorHandler as _, NoPolicy};

/// Reads the line that names a door, and answers what follows as a node without a policy does.
pub fn door(bytes: &[u8]) {
    let mut rest = bytes;
    let Some(Ok(door)) = crate::doors::serve::hello(&mut rest).now_or_never() else { return };
    let line = &bytes[..bytes.len() - rest.len()];
    assert!(
        line.ends_with(b"\n") && line.len() <= crate::doors::serve::MAX_HELLO + 1,
        "one line and no more"
    );
    let (node, mut guest) = tokio::io::duplex(256 * 1024);
    let id = "sb_fuzz".parse().expect("an id");
    let served = async {
        use tokio::io::AsyncWriteExt as _;
        guest.write_all(&rest[..rest.len().min(100_000)]).await.expect("there is room");
        guest.shutdown().await.expect("an end");
        NoPolicy.open(&id, door, Box::new(node)).await;
        let mut answer = Vec::new();
        // a node that hung up early leaves bytes unread
        let _ = guest.read_to_end(&mut answer).await;
        assert!(answer.len() < 1024, "a refusal is short");
        assert!(door == Door::Socks5 || answer.starts_with(b"HTTP/1.1 403 "), "it is refused");
    };
    assert!(served.now_or_never().is_some(), "it never waits on a guest that has ended");
}

/// Reads a claim's record.
pub fn record(bytes: &[u8]) {
    crate::bwrap::fuzz_record(bytes);
}

/// Reads the body of a claim over HTTP.
#[cfg(feature = "http")]
pub fn claim_body(bytes: &[u8]) {
    crate::http::fuzz_claim_body(bytes);
}

/// Reads the signed word of a preview URL.
#[cfg(feature = "http")]
pub fn preview_token(bytes: &[u8]) {
    crate::node::fuzz_token(bytes);
}

/// Reads one of the node's own records.
#[cfg(feature = "http")]
pub fn node_record(bytes: &[u8]) {
    crate::node::fuzz_record(bytes);
}

/// Reads what a node answers, as good and as bad news, and what may be a node's address.
#[cfg(feature = "client")]
pub fn node_answer(bytes: &[u8]) {
    crate::message::read_any(bytes);
    crate::remote::fuzz_refusal(bytes);
    if let Ok(address) = String::from_utf8_lossy(bytes).parse::<crate::remote::NodeAddress>() {
        assert_eq!(address.to_string().parse(), Ok(address), "an address is read as it is written");
    }
}
