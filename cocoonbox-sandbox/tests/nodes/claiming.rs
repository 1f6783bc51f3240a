//! One claim, however its answer gets lost, and the truth about a call whose answer did.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::backend::{
    BackendError, BoxedDuplex, Capabilities, Claim, ClaimFilter, ClaimRequest, ClaimState, HibernateTo,
    HostFile, Memory, MemoryBackend, MemoryOptions, SandboxBackend, SandboxId, Target, Tenants,
};
use cocoonbox_core::{ImageName, SystemClock, SystemEntropy};
use cocoonbox_sandbox::remote::{Fleet, FleetConfig, NodeAddress, RemoteBackend};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::node::{InProcess, serve, token};

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

/// Sandboxes in memory whose wakes take until they are let.
#[derive(Debug)]
struct Slow {
    memory: MemoryBackend,
    lets: Semaphore,
}

#[async_trait]
impl SandboxBackend for Slow {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError> {
        self.memory.claim(request).await
    }
    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        self.memory.find(filter).await
    }
    async fn release(&self, id: &SandboxId) -> Result<(), BackendError> {
        self.memory.release(id).await
    }
    async fn hibernate(&self, id: &SandboxId, to: HibernateTo) -> Result<Memory, BackendError> {
        self.memory.hibernate(id, to).await
    }
    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        self.lets.acquire().await.expect("it stays open").forget();
        self.memory.wake(id).await
    }
    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError> {
        self.memory.connect(id, target).await
    }
    async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), BackendError> {
        self.memory.put_host_file(id, file).await
    }
    fn tenants(&self) -> Option<&dyn Tenants> {
        self.memory.tenants()
    }
}

#[tokio::test]
async fn a_question_about_one_sandbox_waits_for_what_is_under_way_on_it() {
    let memory = MemoryBackend::new(Arc::new(SystemClock), Arc::new(SystemEntropy));
    let slow = Arc::new(Slow { memory, lets: Semaphore::new(0) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: NodeAddress = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let serving = serve(slow.clone(), &folder.path().join("node"), 8, listener).await;
    let client = RemoteBackend::open(address, Some(token()), Arc::new(SystemEntropy)).await.unwrap();
    let client = Arc::new(client);
    let claimed = client.claim(ClaimRequest::new("one".parse().unwrap(), ImageName::host())).await.unwrap();
    client.hibernate(&claimed.id, HibernateTo::Memory).await.unwrap();
    let asleep = ClaimState::Hibernated { memory: Memory::Kept };

    let (waking, id) = (Arc::clone(&client), claimed.id.clone());
    let waking = tokio::spawn(async move { waking.wake(&id).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let all = client.find(&ClaimFilter::all()).await.unwrap();
    assert_eq!(all[0].state, asleep, "who asks about all is told how it stands");
    let by_id = ClaimFilter::by_id(claimed.id.clone());
    let by_ref = ClaimFilter::by_ref(claimed.claim_ref.clone());
    for filter in [&by_id, &by_ref] {
        // what takes too long is neither the one nor the other
        let unsure = client.find(filter).await;
        assert!(matches!(unsure, Err(BackendError::Unavailable { .. })), "{unsure:?}");
    }
    let (asking, filter) = (Arc::clone(&client), by_id.clone());
    let asking = tokio::spawn(async move { asking.find(&filter).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    slow.lets.add_permits(1);
    assert_eq!(asking.await.unwrap().unwrap()[0].state, ClaimState::Running);
    waking.await.unwrap().unwrap();
    assert_eq!(client.find(&by_ref).await.unwrap()[0].state, ClaimState::Running);
    serving.end().await;
}

#[tokio::test]
async fn a_claim_that_may_have_been_made_is_not_said_to_be_nowhere() {
    let mut node = InProcess::start(MemoryOptions::default()).await;
    let (address, _between) = swallowing(node.address, 3).await;
    let folder = tempfile::tempdir().unwrap();
    let config = FleetConfig::new(folder.path().join("nodes.json")).with_node(address.clone(), Some(token()));
    let fleet = Fleet::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await.unwrap();
    let claimed = fleet.claim(ClaimRequest::new("one".parse().unwrap(), ImageName::host())).await;
    assert!(matches!(claimed, Err(BackendError::Unavailable { .. })), "{claimed:?}");
    node.stop().await;
    let asked = ClaimFilter::by_ref("one".parse().unwrap());
    let unsure = fleet.find(&asked).await;
    assert!(matches!(unsure, Err(BackendError::Unavailable { .. })), "{unsure:?}");
    let other = fleet.find(&ClaimFilter::by_ref("other".parse().unwrap())).await;
    assert_eq!(other.unwrap(), [], "of another one nothing is in doubt");
    // nor does a process that comes after this one take it for nowhere
    drop(fleet);
    let config = FleetConfig::new(folder.path().join("nodes.json")).with_node(address, Some(token()));
    let fleet = Fleet::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await.unwrap();
    let unsure = fleet.find(&asked).await;
    assert!(matches!(unsure, Err(BackendError::Unavailable { .. })), "{unsure:?}");
    assert_eq!(fleet.find(&ClaimFilter::by_ref("other".parse().unwrap())).await.unwrap(), []);
    node.start_again().await;
    let fleet_again = fleet.clone();
    let tended = AbortOnDropHandle::new(tokio::spawn(async move {
        fleet_again.serve(tokio_util::sync::CancellationToken::new()).await;
    }));
    let found = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            match fleet.find(&asked).await {
                Ok(found) => return found,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    });
    assert_eq!(found.await.expect("it comes back").len(), 1);
    drop(tended);
    node.stop().await;
    assert!(fleet.find(&asked).await.is_ok(), "and then nothing is");
}
