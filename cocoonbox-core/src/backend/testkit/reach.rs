//! Ways into a guest: streams and host files.

use std::num::NonZeroU16;

use tokio::io::AsyncReadExt;

use super::support::{all, answers, claimed, conflict, hibernated, join_all, request, stands_still, state};
use super::{GuestProbe, Harness};
use crate::backend::{
    BackendError, ClaimState, HibernateTo, HostFile, HostFileName, Memory, SandboxBackend, SandboxId, Target,
};

fn file(byte: u8, size: usize) -> HostFile {
    HostFile::new(HostFileName::identity(), vec![byte; size])
}

async fn holds(
    guest: &dyn GuestProbe,
    backend: &dyn SandboxBackend,
    id: &SandboxId,
    expected: &HostFile,
    when: &str,
) {
    let found = guest.host_file(backend, id, &expected.name).await;
    assert!(found.as_ref() == Some(&expected.bytes), "the guest reads what was put last, {when}");
}

/// `connect` never wakes.
pub async fn connecting_to_what_does_not_run_is_a_conflict_and_wakes_nothing(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    for to in [HibernateTo::Memory, HibernateTo::Disk] {
        let memory = backend.hibernate(&id, to).await.expect("it hibernates");
        conflict(backend.connect(&id, Target::Channel).await);
        conflict(backend.connect(&id, Target::Port(NonZeroU16::MIN)).await);
        assert_eq!(state(&*backend, &id).await, hibernated(memory), "after {to:?}");
        stands_still(harness, &id, memory).await;
        backend.wake(&id).await.expect("it wakes");
        answers(harness, &id).await;
    }
}

/// The guest runs and nobody listens.
pub async fn a_port_that_nobody_listens_on_is_unreachable(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    let port = NonZeroU16::new(49_151).unwrap_or(NonZeroU16::MAX);
    match backend.connect(&id, Target::Port(port)).await {
        Err(BackendError::Unreachable { id: named, .. }) => assert_eq!(named, id),
        Err(error) => panic!("unreachable is expected, not {error:?}"),
        Ok(_) => panic!("unreachable is expected, not a stream"),
    }
    assert_eq!(
        state(&*backend, &id).await,
        ClaimState::Running,
        "a closed port is no failure of the sandbox"
    );
    answers(harness, &id).await;
}

/// A stream ends with what it leads to.
async fn streams_end(harness: &dyn Harness, end: impl AsyncFn(&dyn SandboxBackend, &SandboxId)) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    let mut stream = backend.connect(&id, Target::Channel).await.expect("the channel opens");
    end(&*backend, &id).await;
    // an end of file or an error, whatever was still on its way before
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(harness.patience(), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "a stream into a sandbox that ended ends");
}

/// Nobody waits for ever on a stream into what was released.
pub async fn a_release_ends_open_streams(harness: &dyn Harness) {
    streams_end(harness, async |backend, id| backend.release(id).await.expect("it is released")).await;
}

/// Nobody waits for ever on a stream into what keeps files alone.
pub async fn a_hibernate_to_disk_ends_open_streams(harness: &dyn Harness) {
    streams_end(harness, async |backend, id| {
        backend.hibernate(id, HibernateTo::Disk).await.expect("it hibernates");
    })
    .await;
}

/// Host files of the request are there when the claim is answered.
pub async fn host_files_of_the_claim_are_there(harness: &dyn Harness) {
    let Some(guest) = harness.guest() else { return };
    let backend = harness.backend();
    let files = [file(b'i', HostFile::MAX_BYTES), HostFile::new(HostFileName::machine_id(), Vec::new())];
    let request =
        files.iter().fold(request(harness, "a"), |request, file| request.with_host_file(file.clone()));
    let id = backend.claim(request).await.expect("the claim is granted").id;
    for file in &files {
        holds(guest, &*backend, &id, file, "from the start").await;
    }
}

/// Running, frozen, on disk: a host file can be put, and a wake finds it.
pub async fn a_host_file_is_replaced_in_every_state(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    let put = async |byte, when: &str| {
        let file = file(byte, 100);
        backend
            .put_host_file(&id, file.clone())
            .await
            .unwrap_or_else(|error| panic!("it is put {when}: {error}"));
        file
    };
    let new = put(b'0', "while it runs").await;
    if let Some(guest) = harness.guest() {
        holds(guest, &*backend, &id, &new, "while it runs").await;
    }
    for (byte, to) in [(b'1', HibernateTo::Memory), (b'2', HibernateTo::Disk)] {
        let memory = backend.hibernate(&id, to).await.expect("it hibernates");
        let new = put(byte, "while it sleeps").await;
        assert_eq!(state(&*backend, &id).await, hibernated(memory), "putting a file wakes nothing ({to:?})");
        stands_still(harness, &id, memory).await;
        backend.wake(&id).await.expect("it wakes");
        if let Some(guest) = harness.guest() {
            holds(guest, &*backend, &id, &new, "after a wake").await;
        }
    }
}

/// 64 KiB and not a byte more.
pub async fn a_host_file_over_the_limit_is_refused_and_changes_nothing(harness: &dyn Harness) {
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    let most = file(b'm', HostFile::MAX_BYTES);
    backend.put_host_file(&id, most.clone()).await.expect("the limit itself is allowed");
    let refusal = backend.put_host_file(&id, file(b'x', HostFile::MAX_BYTES + 1)).await;
    assert!(matches!(refusal, Err(BackendError::Invalid { .. })), "too large is invalid, not {refusal:?}");
    if let Some(guest) = harness.guest() {
        holds(guest, &*backend, &id, &most, "after a refusal").await;
    }
}

/// A reader sees the old bytes or the new ones.
pub async fn a_reader_sees_a_host_file_whole(harness: &dyn Harness) {
    let Some(guest) = harness.guest() else { return };
    let backend = harness.backend();
    let sizes = [HostFile::MAX_BYTES, 10_000];
    let request = request(harness, "a").with_host_file(file(b'a', sizes[0]));
    let id = &backend.claim(request).await.expect("the claim is granted").id;
    let backend = &*backend;
    let put = async {
        for nth in 1..=20 {
            backend
                .put_host_file(id, file(b'a' + nth, sizes[usize::from(nth % 2)]))
                .await
                .expect("it is put");
        }
    };
    let read = async {
        for _ in 0..20 {
            let bytes =
                guest.host_file(backend, id, &HostFileName::identity()).await.expect("it is never away");
            let whole = sizes.contains(&bytes.len()) && bytes.iter().all(|byte| *byte == bytes[0]);
            assert!(whole, "{} bytes from {:?} to {:?} are torn", bytes.len(), bytes.first(), bytes.last());
        }
    };
    join_all(vec![Box::pin(put), Box::pin(read)]).await;
}

/// Host files belong to the claim, not to the process that put them.
pub async fn host_files_last_across_a_reopen(harness: &dyn Harness) {
    let Some(guest) = harness.guest() else { return };
    let backend = harness.backend();
    let id = claimed(harness, "a").await.id;
    let put = file(b'p', 100);
    backend.put_host_file(&id, put.clone()).await.expect("it is put");
    drop(backend);
    let backend = harness.reopen().await;
    let memory = backend.wake(&id).await.expect("it wakes");
    holds(guest, &*backend, &id, &put, "after a reopen").await;
    assert_eq!(memory == Memory::Kept, backend.capabilities().survives_restart);
    assert_eq!(all(&*backend).await.len(), 1);
}
