//! One claim, however its answer gets lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cocoonbox_core::backend::{
    BackendError, ClaimFilter, ClaimRequest, HostFile, MemoryOptions, SandboxBackend as _,
};
use cocoonbox_core::{ImageName, SystemEntropy};
use cocoonbox_sandbox::remote::{NodeAddress, RemoteBackend};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::node::{InProcess, token};

/// Stands before a node and swallows the answers to the first `lost` claims.
async fn swallowing(node: std::net::SocketAddr, lost: usize) -> (NodeAddress, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let left = Arc::new(AtomicUsize::new(lost));
    let task = tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let left = Arc::clone(&left);
            tokio::spawn(async move {
                let mut node = TcpStream::connect(node).await.unwrap();
                let mut start = Vec::new();
                let end = loop {
                    if let Some(end) = start.windows(4).position(|four| four == b"\r\n\r\n") {
                        break end;
                    }
                    if client.read_buf(&mut start).await.unwrap_or(0) == 0 {
                        return;
                    }
                };
                let head = String::from_utf8_lossy(&start[..end]).to_ascii_lowercase();
                let length =
                    head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                while start.len() < end + 4 + length.unwrap_or(0_usize) {
                    client.read_buf(&mut start).await.unwrap();
                }
                // so that each connection is one request
                let rest = start.split_off(end);
                node.write_all(&start).await.unwrap();
                node.write_all(b"\r\nconnection: close").await.unwrap();
                node.write_all(&rest).await.unwrap();
                let claims = start.starts_with(b"POST /v1/claim ");
                if claims
                    && left
                        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                        .is_ok()
                {
                    // the node's answer is awaited, so that it was done, and goes nowhere
                    let mut answer = [0; 1];
                    let _ = node.read(&mut answer).await;
                    return;
                }
                let _ = copy_bidirectional(&mut client, &mut node).await;
            });
        }
    });
    (address, AbortOnDropHandle::new(task))
}

#[tokio::test]
async fn a_claim_whose_answer_got_lost_is_made_once() {
    for (lost, answered) in [(0, true), (1, true), (2, true), (3, false)] {
        let node = InProcess::start(MemoryOptions::default()).await;
        let (address, _between) = swallowing(node.address, lost).await;
        let client = RemoteBackend::open(address, Some(token()), Arc::new(SystemEntropy)).await.unwrap();
        let request = ClaimRequest::new("one".parse().unwrap(), ImageName::host());
        let claimed = client.claim(request).await;
        match claimed {
            Ok(_) => assert!(answered, "{lost} answers lost"),
            Err(BackendError::Unavailable { .. }) => assert!(!answered, "{lost} answers lost"),
            Err(other) => panic!("{other:?}"),
        }
        let found = client.find(&ClaimFilter::all()).await.unwrap();
        assert_eq!(found.len(), 1, "{lost} answers lost");
        assert_eq!(node.store().live(), 1);
    }
}

#[tokio::test]
async fn host_files_that_a_request_cannot_carry_are_refused_before_anything_is_sent() {
    let node = InProcess::start(MemoryOptions::default()).await;
    let client = RemoteBackend::open(node.address(), Some(token()), Arc::new(SystemEntropy)).await.unwrap();
    let with = |count: usize| {
        let request = ClaimRequest::new("one".parse().unwrap(), ImageName::host());
        (0..count).fold(request, |request, nth| {
            let name = format!("file-{nth}").parse().unwrap();
            request.with_host_file(HostFile::new(name, vec![b'x'; HostFile::MAX_BYTES]))
        })
    };
    client.claim(with(10)).await.unwrap();
    let refused = client.claim(with(11)).await;
    assert!(matches!(refused, Err(BackendError::Invalid { .. })), "{refused:?}");
    assert_eq!(node.store().live(), 1);
}
