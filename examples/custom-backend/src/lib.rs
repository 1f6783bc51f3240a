#![doc = include_str!("../README.md")]

use std::{collections::BTreeMap, error::Error, fs, io, os::fd::OwnedFd, os::unix::net::UnixListener};
use std::{path::Path, path::PathBuf, process::Stdio, time::Duration};
use std::{sync::Arc, sync::Mutex, sync::MutexGuard, sync::PoisonError};

use async_trait::async_trait;
#[allow(clippy::wildcard_imports, reason = "an implementor speaks the whole vocabulary")]
use cocoonbox_core::backend::*;
use cocoonbox_core::{Clock, ImageName, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::{net::UnixStream, sync::OwnedMutexGuard, time::timeout};

const NAME: &str = "plain";

/// A backend whose sandboxes are a folder and a child process each. They are not isolated at all.
#[derive(Debug)]
pub struct PlainBackend {
    root: PathBuf,
    guest: PathBuf,
    clock: Arc<dyn Clock>,
    /// By order of claiming.
    claims: Mutex<BTreeMap<u64, Arc<Sandbox>>>,
}

#[derive(Debug)]
struct Sandbox {
    folder: PathBuf,
    /// Calls on one claim take turns.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// How it stands; held for moments only, so that `find` never waits for a turn.
    now: Mutex<(Record, Option<Child>)>,
}

/// A claim as it lies on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[rustfmt::skip]
struct Record {
    nth: u64, id: SandboxId, claim_ref: ClaimRef, metadata: Metadata, size: Size, claimed_at: Timestamp, asleep: bool,
}

fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> BackendError {
    BackendError::Unavailable {
        backend: NAME,
        reason: "its folder cannot be used".into(),
        source: Some(source.into()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a file beside, then moves it into place: a reader sees the old bytes or the new ones.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), BackendError> {
    let beside = path.with_file_name(".new");
    fs::write(&beside, bytes).and_then(|()| fs::rename(beside, path)).map_err(unavailable)
}

impl Sandbox {
    fn new(folder: PathBuf, record: Record) -> Self {
        Self { folder, turn: Arc::default(), now: Mutex::new((record, None)) }
    }

    fn claim(&self) -> Claim {
        let (record, child) = &mut *lock(&self.now);
        let state = match child.as_mut().map(Child::try_wait) {
            _ if record.asleep => ClaimState::Hibernated { memory: Memory::Lost },
            Some(Ok(None)) => ClaimState::Running,
            _ => ClaimState::Failed { reason: "its process ended".into() },
        };
        let image = NAME.parse::<ImageName>().expect("the name is good");
        let request = ClaimRequest::new(record.claim_ref.clone(), image).with_network(NetworkMode::Open);
        let request = request.with_size(record.size).with_metadata(record.metadata.clone());
        Claim::new(record.id.clone(), &request, record.claimed_at, state)
    }

    /// Keeps how it stands now: on disk first, so that no crash makes memory know more.
    fn keep(&self, asleep: bool, child: Option<Child>) -> Result<Option<Child>, BackendError> {
        let mut now = lock(&self.now);
        let record = Record { asleep, ..now.0.clone() };
        replace(&self.folder.join("claim"), &serde_json::to_vec(&record).map_err(unavailable)?)?;
        now.0 = record;
        Ok(std::mem::replace(&mut now.1, child))
    }
}

impl PlainBackend {
    /// Opens the backend on the folder `root`; `guest` is the program to run in each sandbox.
    pub fn open(root: PathBuf, guest: PathBuf, clock: Arc<dyn Clock>) -> Result<Self, BackendError> {
        let mut claims = BTreeMap::new();
        for folder in fs::read_dir(&root).map_err(unavailable)? {
            let folder = folder.map_err(unavailable)?.path();
            if let Ok(bytes) = fs::read(folder.join("claim")) {
                let record: Record = serde_json::from_slice(&bytes).map_err(unavailable)?;
                claims.insert(record.nth, Arc::new(Sandbox::new(folder, record)));
            } else {
                // a claim that was never answered, or a release that was
                fs::remove_dir_all(&folder).map_err(unavailable)?;
            }
        }
        Ok(Self { root, guest, clock, claims: Mutex::new(claims) })
    }

    fn sandbox(&self, id: &SandboxId) -> Result<Arc<Sandbox>, BackendError> {
        let found = lock(&self.claims).values().find(|sandbox| lock(&sandbox.now).0.id == *id).cloned();
        found.ok_or_else(|| BackendError::NotFound { id: id.clone() })
    }

    /// Waits for the claim's turn; whoever had it before may have released the claim.
    async fn turn(&self, id: &SandboxId) -> Result<(Arc<Sandbox>, OwnedMutexGuard<()>), BackendError> {
        let turn = self.sandbox(id)?.turn.clone().lock_owned().await;
        Ok((self.sandbox(id)?, turn))
    }

    /// Starts the guest and waits for its first answer; the child dies with the future.
    async fn start(&self, folder: &Path) -> Result<Child, BackendError> {
        let start = async {
            let socket = folder.join("guest.sock");
            let _ = fs::remove_file(&socket);
            // the listener ends up in the child alone, and dies with it
            let listener = OwnedFd::from(UnixListener::bind(&socket)?);
            let child = Command::new(&self.guest)
                .env_clear()
                .current_dir(folder.join("home"))
                .kill_on_drop(true)
                .stdin(Stdio::from(listener))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            let mut stream = BufReader::new(UnixStream::connect(socket).await?).take(4096);
            stream.get_mut().write_all(b"{\"v\":1,\"op\":\"info\"}\n").await?;
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            if line.contains("\"info\"") { Ok(child) } else { Err(io::Error::other("no answer")) }
        };
        let started = timeout(Duration::from_secs(5), start).await.unwrap_or_else(|late| Err(late.into()));
        let reason = "its process does not answer".to_owned();
        started.map_err(|error| BackendError::StartFailed { reason, source: Some(error.into()) })
    }
}

#[async_trait]
impl SandboxBackend for PlainBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(NAME).with_network_modes(vec![NetworkMode::Open])
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claim, BackendError> {
        request.check(&self.capabilities())?;
        if request.image.as_str() != NAME {
            return Err(BackendError::UnknownImage { image: request.image.to_string() });
        }
        // the folder goes away with the future, until it is kept
        let folder = tempfile::Builder::new().prefix("sb_").tempdir_in(&self.root).map_err(unavailable)?;
        fs::create_dir(folder.path().join("home")).map_err(unavailable)?;
        fs::create_dir(folder.path().join("run")).map_err(unavailable)?;
        for file in &request.host_files {
            replace(&folder.path().join("run").join(file.name.as_str()), &file.bytes)?;
        }
        let child = self.start(folder.path()).await?;
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (id, claimed_at) = (SandboxId::try_from(name).map_err(unavailable)?, self.clock.now());
        let mut claims = lock(&self.claims);
        let nth = claims.last_key_value().map_or(0, |(last, _)| last + 1);
        let ClaimRequest { claim_ref, metadata, size, .. } = request;
        let record = Record { nth, id, claim_ref, metadata, size, claimed_at, asleep: false };
        let sandbox = Arc::new(Sandbox::new(folder.path().to_owned(), record));
        sandbox.keep(false, Some(child))?;
        let _ = folder.keep();
        claims.insert(nth, Arc::clone(&sandbox));
        Ok(sandbox.claim())
    }

    async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Claim>, BackendError> {
        Ok(lock(&self.claims)
            .values()
            .map(|sandbox| sandbox.claim())
            .filter(|claim| filter.matches(claim))
            .collect())
    }

    async fn release(&self, id: &SandboxId) -> Result<(), BackendError> {
        let (sandbox, _turn) = self.turn(id).await?;
        fs::remove_file(sandbox.folder.join("claim")).map_err(unavailable)?;
        lock(&self.claims).retain(|_, kept| !Arc::ptr_eq(kept, &sandbox));
        let child = lock(&sandbox.now).1.take();
        if let Some(mut child) = child {
            child.kill().await.map_err(unavailable)?;
        }
        fs::remove_dir_all(&sandbox.folder).map_err(unavailable)
    }

    async fn hibernate(&self, id: &SandboxId, _: HibernateTo) -> Result<Memory, BackendError> {
        let (sandbox, _turn) = self.turn(id).await?;
        if let Some(mut child) = sandbox.keep(true, None)? {
            child.kill().await.map_err(unavailable)?;
        }
        Ok(Memory::Lost)
    }

    async fn wake(&self, id: &SandboxId) -> Result<Memory, BackendError> {
        let (sandbox, _turn) = self.turn(id).await?;
        if sandbox.claim().state == ClaimState::Running {
            return Ok(Memory::Kept);
        }
        let child = self.start(&sandbox.folder).await?;
        sandbox.keep(false, Some(child))?;
        Ok(Memory::Lost)
    }

    async fn connect(&self, id: &SandboxId, target: Target) -> Result<BoxedDuplex, BackendError> {
        let (sandbox, _turn) = self.turn(id).await?;
        if sandbox.claim().state != ClaimState::Running {
            return Err(BackendError::Conflict { id: id.clone(), reason: "it does not run".into() });
        }
        let unreachable =
            |source| BackendError::Unreachable { id: id.clone(), target: target.to_string(), source };
        if target != Target::Channel {
            return Err(unreachable(None));
        }
        let stream = UnixStream::connect(sandbox.folder.join("guest.sock")).await;
        Ok(Box::new(stream.map_err(|error| unreachable(Some(error.into())))?))
    }

    async fn put_host_file(&self, id: &SandboxId, file: HostFile) -> Result<(), BackendError> {
        file.check()?;
        let (sandbox, _turn) = self.turn(id).await?;
        replace(&sandbox.folder.join("run").join(file.name.as_str()), &file.bytes)
    }

    fn tenants(&self) -> Option<&dyn Tenants> {
        None
    }
}
