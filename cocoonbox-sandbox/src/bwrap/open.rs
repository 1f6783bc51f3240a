//! Opening a data directory: its lock, its owner, and every claim in it again.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cocoonbox_core::TenantName;
use cocoonbox_core::backend::{BackendError, Doors};
use sha2::{Digest as _, Sha256};

use super::error::{OpenError, refused};
use super::journal::{Phase, Record};
use super::registry::{Entry, hold};
use super::start::{self, Places};
use super::{Inner, disk, process, serve, tree};

/// The file of the tenants' caps.
const TENANTS: &str = "tenants.json";
/// The file whose lock says that a server has the directory.
const LOCK: &str = "sandbox.lock";

/// Makes the data directory where it is missing, sees whose it is, and takes its lock.
pub(super) fn directory(path: &Path) -> Result<(PathBuf, fs::File), OpenError> {
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(OpenError::unusable(path, "making it"))?;
    disk::directory(path, 0o700).map_err(OpenError::unusable(path, "making it"))?;
    let data = fs::canonicalize(path).map_err(OpenError::unusable(path, "finding it"))?;
    let found = fs::metadata(&data).map_err(OpenError::unusable(&data, "looking at it"))?;
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own {
        return Err(OpenError::ForeignOwner { path: data, owner: found.uid(), own });
    }
    let lock = data.join(LOCK);
    let Some(mut file) = disk::lock(&lock).map_err(OpenError::unusable(&lock, "locking it"))? else {
        let mut holder = String::new();
        let _ = fs::File::open(&lock).and_then(|file| file.take(200).read_to_string(&mut holder));
        let holder = holder.trim();
        let holder = if holder.is_empty() { "another process".to_owned() } else { holder.to_owned() };
        return Err(OpenError::InUse { path: data, holder });
    };
    let who = format!("process {}\n", std::process::id());
    file.set_len(0)
        .and_then(|()| file.write_all(who.as_bytes()))
        .and_then(|()| file.sync_all())
        .map_err(OpenError::unusable(&lock, "writing it"))?;
    for name in ["bin", "claims", "images", "trash"] {
        let path = data.join(name);
        disk::directory(&path, 0o700).map_err(OpenError::unusable(&path, "making it"))?;
    }
    Ok((data, file))
}

/// Copies the guest's binary to a place of its own, so that replacing the program leaves running boxes as they are.
/// Returns the name of the copy.
pub(super) fn agent(data: &Path, program: &Path) -> Result<String, OpenError> {
    let bytes =
        fs::read(program).map_err(|source| OpenError::AgentMissing { path: program.to_owned(), source })?;
    let name: String = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let directory = data.join("bin").join(&name);
    let copy = || -> io::Result<()> {
        disk::directory(&directory, 0o755)?;
        let path = directory.join("cocoonbox-agent");
        if fs::metadata(&path).is_ok_and(|found| found.len() == bytes.len() as u64) {
            return Ok(());
        }
        disk::replace(&directory, "cocoonbox-agent", &bytes, 0o755)
    };
    copy().map_err(OpenError::unusable(&directory, "copying the guest's binary"))?;
    Ok(name)
}

/// Removes copies of the guest's binary that nothing runs any more.
fn remove_old_agents(inner: &Inner, used: &[String]) {
    for entry in fs::read_dir(inner.data.join("bin")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !used.iter().any(|used| name == **used) && name != *inner.agent {
            let _ = tree::remove(&entry.path());
        }
    }
}

/// Reads the tenants' caps.
pub(super) fn tenants(data: &Path) -> Result<Vec<(TenantName, u32)>, OpenError> {
    let path = data.join(TENANTS);
    let bytes = match disk::read(&path, 64 * 1024 * 1024) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(OpenError::Unusable { path, what: "reading it", source }),
    };
    serde_json::from_slice(&bytes).map_err(|error| OpenError::Journal { path, source: Box::new(error) })
}

/// Writes the tenants' caps.
pub(super) fn store_tenants(data: &Path, tenants: &[(TenantName, u32)]) -> io::Result<()> {
    disk::replace(data, TENANTS, &serde_json::to_vec(tenants).map_err(io::Error::other)?, 0o600)
}

/// Takes every claim in again and settles what an earlier server left half done.
pub(super) async fn adopt(inner: &Arc<Inner>) -> Result<(), OpenError> {
    let trash = inner.data.join("trash");
    tree::clear(&trash).map_err(OpenError::unusable(&trash, "emptying it"))?;
    let claims = inner.data.join("claims");
    let mut used = Vec::new();
    for found in fs::read_dir(&claims).map_err(OpenError::unusable(&claims, "listing it"))? {
        let found = found.map_err(OpenError::unusable(&claims, "listing it"))?;
        let path = found.path();
        if !path.is_dir() {
            continue;
        }
        let Some(record) = Record::load(&path)? else {
            // it was never written down, so nothing of it was ever started
            tree::remove(&path).map_err(OpenError::unusable(&path, "removing it"))?;
            continue;
        };
        let entry = Arc::new(Entry::new(&claims, record.clone()));
        hold(&inner.registry).insert(Arc::clone(&entry));
        settle(inner, &entry, record).await.map_err(OpenError::Settle)?;
        if let Ok(record) = entry.turn.try_lock() {
            used.extend(record.process.as_ref().map(|process| process.agent.clone()));
        }
    }
    remove_old_agents(inner, &used);
    Ok(())
}

/// Brings one claim into a state that lasts.
async fn settle(inner: &Arc<Inner>, entry: &Arc<Entry>, mut record: Record) -> Result<(), BackendError> {
    if !record.established || record.phase == Phase::Releasing {
        return inner.remove(entry, &record).await;
    }
    let lives = record.process.as_ref().is_some_and(|process| is_ours(entry, process));
    match record.phase {
        Phase::Running | Phase::Frozen if lives => take_again(inner, entry, &mut record)?,
        // nobody got an answer to a freeze that was broken off, so it did not happen
        Phase::Freezing | Phase::Thawing if lives => {
            inner.thaw(&record)?;
            record.phase = Phase::Running;
            take_again(inner, entry, &mut record)?;
        }
        Phase::Running | Phase::Frozen | Phase::Freezing | Phase::Thawing => {
            inner.end(entry, &record).await?;
            let reason =
                "its processes were gone when the node started (the machine restarted, or they were ended)";
            record.phase = Phase::Failed { reason: reason.to_owned() };
            record.process = None;
        }
        Phase::Starting | Phase::Stopping | Phase::Stopped => {
            inner.end(entry, &record).await?;
            record.phase = Phase::Stopped;
            record.process = None;
        }
        Phase::Failed { .. } => {
            inner.end(entry, &record).await?;
            record.process = None;
        }
        Phase::Releasing => {}
    }
    record.store(&entry.directory).map_err(refused("cannot write a claim's record"))?;
    entry.show(&record);
    *entry.turn.lock().await = record;
    Ok(())
}

/// Whether a recorded process is the box's first: it is who it was, and the box's lock is held.
fn is_ours(entry: &Entry, process: &super::journal::Process) -> bool {
    process::is_alive(process)
        && process::pid_namespace(process.pid) == Some(process.pid_namespace)
        && matches!(disk::lock(&Places::of(&entry.directory).lock), Ok(None))
}

fn take_again(inner: &Arc<Inner>, entry: &Arc<Entry>, record: &mut Record) -> Result<(), BackendError> {
    let places = Places::of(&entry.directory);
    if record.doors == Doors::Bound {
        let doors = start::bind_doors(&places.doors)
            .and_then(|listener| serve::doors(inner, entry, listener))
            .map_err(refused("cannot bind a box's doors again"))?;
        *hold(&entry.doors) = Some(doors);
    }
    if let Some(process) = record.process.clone() {
        match process::open(&process) {
            Some(handle) => serve::watch(inner, entry, handle, process),
            None => {
                record.phase =
                    Phase::Failed { reason: "its first process ended while the node started".to_owned() };
                record.process = None;
            }
        }
    }
    Ok(())
}
