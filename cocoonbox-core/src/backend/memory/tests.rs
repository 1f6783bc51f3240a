use std::error::Error;
use std::num::NonZeroU16;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::backend::HostFileName;
use crate::{ManualClock, SeededEntropy};

type Outcome = Result<(), Box<dyn Error>>;

fn backend() -> MemoryBackend {
    MemoryBackend::new(Arc::new(ManualClock::default()), Arc::new(SeededEntropy::new(1)))
}

fn request(claim_ref: &str) -> Result<ClaimRequest, Box<dyn Error>> {
    Ok(ClaimRequest::new(claim_ref.parse()?, ImageName::host()))
}

#[tokio::test]
async fn a_frozen_sandbox_holds_its_streams_still_and_a_wake_lets_them_go_on() -> Outcome {
    let backend = backend();
    let id = backend.claim(request("a")?).await?.id;
    let mut stream = backend.connect(&id, Target::Channel).await?;
    stream.write_all(b"hello").await?;
    assert_eq!(backend.hibernate(&id, HibernateTo::Memory).await?, Memory::Kept);
    assert_eq!((backend.store().live(), backend.store().held()), (0, 1));
    let mut bytes = [0; 5];
    assert!(tokio::time::timeout(Duration::from_millis(20), stream.read_exact(&mut bytes)).await.is_err());
    assert_eq!(backend.wake(&id).await?, Memory::Kept);
    stream.read_exact(&mut bytes).await?;
    assert_eq!(&bytes, b"hello");
    Ok(())
}

#[tokio::test]
async fn an_old_opening_cannot_reach_the_data_any_more() -> Outcome {
    let old = backend();
    let id = old.claim(request("a")?).await?.id;
    let new = old.reopen();
    assert!(matches!(old.wake(&id).await, Err(BackendError::Unavailable { .. })));
    assert_eq!(new.wake(&id).await?, Memory::Kept);
    Ok(())
}

#[tokio::test]
async fn what_does_not_survive_a_restart_is_failed_or_lost() -> Outcome {
    let old = backend().with_options(MemoryOptions::default().with_survives_restart(false));
    let running = old.claim(request("running")?).await?.id;
    let frozen = old.claim(request("frozen")?).await?.id;
    old.hibernate(&frozen, HibernateTo::Memory).await?;
    let new = old.reopen();
    let states: Vec<_> =
        new.find(&ClaimFilter::all()).await?.into_iter().map(|claim| (claim.id, claim.state)).collect();
    let failed = ClaimState::Failed { reason: "its processes ended with the backend".to_owned() };
    assert_eq!(states, [(running, failed), (frozen, ClaimState::Hibernated { memory: Memory::Lost })]);
    Ok(())
}

#[tokio::test]
async fn the_guest_sees_host_files_and_keeps_its_disk() -> Outcome {
    let guest = guest_fn(|sandbox, target| {
        let Target::Port(port) = target else { return None };
        let file = sandbox.host_file(&HostFileName::identity())?;
        sandbox.write("seen", &port.get().to_be_bytes());
        Some(Box::new(std::io::Cursor::new(file)))
    });
    let backend = backend().with_guest(guest);
    let file = HostFile::new(HostFileName::identity(), b"me".to_vec());
    let id = backend.claim(request("a")?.with_host_file(file)).await?.id;
    let mut seen = String::new();
    let port = Target::Port(NonZeroU16::MIN);
    backend.connect(&id, port).await?.read_to_string(&mut seen).await?;
    assert_eq!(seen, "me");
    backend.hibernate(&id, HibernateTo::Disk).await?;
    backend.wake(&id).await?;
    let sandbox = backend.store().sandbox(&id).ok_or("gone")?;
    assert_eq!((sandbox.read("seen"), sandbox.starts()), (Some(vec![0, 1]), 2));
    Ok(())
}

#[tokio::test]
async fn a_draining_node_takes_no_claims() -> Outcome {
    let backend = backend();
    backend.store().set_draining(true);
    let refusal = backend.claim(request("a")?).await;
    assert!(matches!(refusal, Err(BackendError::Quota { scope: QuotaScope::Draining, .. })), "{refusal:?}");
    Ok(())
}
