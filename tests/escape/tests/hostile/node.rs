//! The node beside a guest whose first process lies on the guest channel.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::backend::{
    BackendError, ClaimFilter, ClaimRequest, HibernateTo, SandboxBackend as _, SandboxId, Target,
};
use cocoonbox_core::{ImageName, SystemClock, SystemEntropy};
use cocoonbox_sandbox::{BwrapBackend, BwrapConfig};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::{Outcome, hostile_agent, is_plain};

/// A backend whose boxes are ended with it.
struct Node {
    backend: Arc<BwrapBackend>,
    _folder: tempfile::TempDir,
}

impl Node {
    async fn open() -> Result<Self, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let config = BwrapConfig::new(folder.path().join("data"), hostile_agent(folder.path())?);
        let backend = BwrapBackend::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await?;
        Ok(Self { backend, _folder: folder })
    }

    async fn claim(&self, name: &str) -> Result<SandboxId, BackendError> {
        let request =
            ClaimRequest::new(name.parse().expect("a label"), ImageName::host()).with_hostname(name);
        self.backend.claim(request).await.map(|claim| claim.id)
    }

    /// Runs `echo fine` in a box whose guest is the true one.
    async fn is_served(&self, id: &SandboxId) -> Outcome {
        let stream = self.backend.connect(id, Target::Channel).await?;
        let (read, mut write) = tokio::io::split(stream);
        write.write_all(b"{\"v\":1,\"op\":\"exec\",\"argv\":[\"echo\",\"fine\"]}\n").await?;
        let mut lines = BufReader::new(read).lines();
        let mut seen = Vec::new();
        while let Some(line) = lines.next_line().await? {
            seen.push(line);
            if seen.iter().any(|line| line.contains("\"exit\"")) {
                break;
            }
        }
        // "fine\n"
        if seen.iter().any(|line| line.contains("ZmluZQo=")) {
            Ok(())
        } else {
            Err(format!("{seen:?}").into())
        }
    }

    async fn end(self) -> Outcome {
        for claim in self.backend.find(&ClaimFilter::default()).await? {
            self.backend.release(&claim.id).await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_lies_from_the_start_is_a_typed_failure_and_others_are_served() -> Outcome {
    let node = Arc::new(Node::open().await?);
    let good = node.claim("good").await?;
    let mut starts = tokio::task::JoinSet::new();
    for how in ["garbage", "closed", "silent", "endless", "frames", "huge", "words", "slow", "empty", "exit"]
    {
        let node = Arc::clone(&node);
        starts.spawn(async move {
            let answer =
                tokio::time::timeout(Duration::from_mins(1), node.claim(&format!("start-{how}"))).await;
            (how, answer)
        });
    }
    let mut count = 0;
    while let Some(done) = starts.join_next().await {
        let (how, answer) = done?;
        let error = answer.map_err(|_| format!("{how}: no answer within a minute"))?.expect_err(how);
        assert!(matches!(error, BackendError::StartFailed { .. }), "{how}: {error:?}");
        let mut said = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            said.push_str(&error.to_string());
            cause = error.source();
        }
        assert!(said.len() < 8192, "{how}: {} bytes", said.len());
        is_plain(how, &said);
        node.is_served(&good).await?;
        count += 1;
    }
    assert_eq!(count, 10);
    let left = node.backend.find(&ClaimFilter::default()).await?;
    assert_eq!(left.iter().map(|claim| &claim.id).collect::<Vec<_>>(), [&good], "a liar is still held");
    Arc::into_inner(node).ok_or("held")?.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_lies_later_holds_up_nobody_and_can_be_ended() -> Outcome {
    let node = Arc::new(Node::open().await?);
    let good = node.claim("good").await?;
    // a port that leads through the first process; the agent's own has no words of the node's
    let port = Target::Port(NonZeroU16::new(8080).ok_or("zero")?);
    let mut calls = tokio::task::JoinSet::new();
    for how in ["garbage", "closed", "silent", "endless", "frames", "huge", "words", "slow", "empty"] {
        let node = Arc::clone(&node);
        calls.spawn(async move {
            let id = node.claim(&format!("late-{how}")).await.map_err(|error| format!("{how}: {error}"))?;
            let connect = tokio::time::timeout(Duration::from_mins(1), node.backend.connect(&id, port)).await;
            let error = match connect {
                Ok(Err(error)) => error,
                Ok(Ok(_)) => return Err(format!("{how}: it was taken at its word")),
                Err(_) => return Err(format!("{how}: no answer within a minute")),
            };
            if !matches!(error, BackendError::PeerMisbehaved { .. } | BackendError::Unreachable { .. }) {
                return Err(format!("{how}: {error:?}"));
            }
            is_plain(how, &error.to_string());
            // the rest of its life is the kernel's business, not its own
            for _ in 0..2 {
                node.backend.hibernate(&id, HibernateTo::Memory).await.map_err(|error| error.to_string())?;
                node.backend.wake(&id).await.map_err(|error| error.to_string())?;
            }
            node.backend.release(&id).await.map_err(|error| error.to_string())
        });
    }
    let mut count = 0;
    while let Some(done) = calls.join_next().await {
        done??;
        node.is_served(&good).await?;
        count += 1;
    }
    assert_eq!(count, 9);
    Arc::into_inner(node).ok_or("held")?.end().await
}
