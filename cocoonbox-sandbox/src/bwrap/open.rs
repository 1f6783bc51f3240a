//! Opening a data directory: its lock, its owner, and every claim in it again.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::TenantName;
use cocoonbox_core::backend::{BackendError, Doors, SandboxId};
use sha2::{Digest as _, Sha256};

use super::error::OpenError;
use super::journal::{Phase, Record};
use super::map::Map;
use super::registry::{Entry, Kind, hold};
use super::start::{self, Places};
use super::{Inner, disk, process, serve, tree, volume};

/// The file of the tenants' caps.
const TENANTS: &str = "tenants.json";
/// The file whose lock says that a server has the directory.
const LOCK: &str = "sandbox.lock";

/// How often the lock is asked for.
const LOCK_TRIES: u32 = 20;
/// How long to wait in between.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Makes the data directory where it is missing, sees whose it is, and takes its lock.
pub(crate) async fn directory(path: &Path) -> Result<(PathBuf, fs::File), OpenError> {
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(OpenError::unusable(path, "making it"))?;
    disk::directory(path, 0o700).map_err(OpenError::unusable(path, "making it"))?;
    let data = fs::canonicalize(path).map_err(OpenError::unusable(path, "finding it"))?;
    let found = fs::metadata(&data).map_err(OpenError::unusable(&data, "looking at it"))?;
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own {
        return Err(OpenError::ForeignOwner { path: data, owner: found.uid(), own });
    }
    let lock = data.join(LOCK);
    let mut taken = None;
    for _ in 0..LOCK_TRIES {
        taken = disk::lock(&lock).map_err(OpenError::unusable(&lock, "locking it"))?;
        if taken.is_some() {
            break;
        }
        // a box that a killed server was launching has the lock until it runs
        serve::pause(LOCK_PAUSE).await;
    }
    let Some(mut file) = taken else {
        let mut holder = String::new();
        let _ = fs::File::open(&lock).and_then(|file| file.take(200).read_to_string(&mut holder));
        let holder = holder.trim();
        let holder = if holder.is_empty() { "another process".to_owned() } else { holder.to_owned() };
        return Err(OpenError::InUse { path: data, holder });
    };
    // a help to who is refused, no more: a full disk must not keep a server from the boxes that filled it
    let who = format!("process {}\n", std::process::id());
    let _ = file.set_len(0).and_then(|()| file.write_all(who.as_bytes()));
    for name in ["bin", "claims", "images", "trash"] {
        let path = data.join(name);
        disk::directory(&path, 0o700).map_err(OpenError::unusable(&path, "making it"))?;
    }
    Ok((data, file))
}

/// Returns bytes as lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Copies the guest's binary to a place of its own, so that replacing the program leaves running boxes as they are.
/// Returns the name of the copy.
pub(crate) fn agent(data: &Path, program: &Path) -> Result<String, OpenError> {
    let bytes =
        fs::read(program).map_err(|source| OpenError::AgentMissing { path: program.to_owned(), source })?;
    let name: String = hex(&Sha256::digest(&bytes)[..16]);
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

/// Whether this process, being root, may give files and processes to `uids`.
///
/// Root of a user namespace that maps less is an ordinary user in all that counts here, unless it is the host's root
/// under that mapping, which no box may be.
pub(crate) fn may_give(uids: &Range<u32>) -> Result<bool, OpenError> {
    let mut all = true;
    for path in ["/proc/self/uid_map", "/proc/self/gid_map"] {
        let path = Path::new(path);
        let map = fs::read_to_string(path).map_err(OpenError::unusable(path, "reading it"))?;
        let (covers, is_host_root) = read_map(&map, uids);
        if !covers && is_host_root {
            let source = io::Error::other(format!("it maps the host's root and not the boxes' {uids:?}"));
            return Err(OpenError::Unusable {
                path: path.to_owned(),
                what: "finding uids for boxes",
                source,
            });
        }
        all &= covers;
    }
    Ok(all)
}

/// The ids beside its own that this process, an ordinary user's, may give.
pub(super) async fn map() -> Option<Map> {
    match serve::work(Map::find).await {
        Some(Ok(map)) => Some(map),
        Some(Err(error)) => {
            tracing::info!(error = &error as &dyn std::error::Error, "boxes share the node's own uid");
            None
        }
        None => None,
    }
}

/// The part of a map that this node's boxes get: the configured one, or one that follows from `place`, as a user's
/// nodes should not share theirs.
pub(super) fn share(map: &Map, asked: Option<&Range<u32>>, place: &[u8]) -> Option<Range<u32>> {
    const SHARE: u32 = 4096;
    if let Some(asked) = asked {
        if !map.covers(asked) {
            tracing::warn!("the configured uids are not in /etc/subuid: boxes share the node's own uid");
        }
        return map.covers(asked).then(|| asked.clone());
    }
    let all = map.uids();
    let shares = all.len() as u32 / SHARE;
    if shares == 0 {
        return Some(all);
    }
    let place = place.iter().fold(0, |place, byte| place << 8 | u32::from(*byte));
    let first = all.start + place % shares * SHARE;
    Some(first..first + SHARE)
}

/// Whether a map covers `ids`, and whether its 0 is 0 outside.
fn read_map(map: &str, ids: &Range<u32>) -> (bool, bool) {
    let lines = || {
        map.lines().filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse::<u64>);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
    };
    let covers = lines().any(|(inside, _, count)| {
        u64::from(ids.start) >= inside && u64::from(ids.end) <= inside.saturating_add(count)
    });
    (covers, lines().any(|(inside, outside, _)| inside == 0 && outside == 0))
}

/// Reads the tenants' caps.
pub(crate) fn tenants(data: &Path) -> Result<Vec<(TenantName, u32)>, OpenError> {
    let path = data.join(TENANTS);
    let bytes = match disk::read(&path, 64 * 1024 * 1024) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(OpenError::Unusable { path, what: "reading it", source }),
    };
    serde_json::from_slice(&bytes).map_err(|error| OpenError::Journal { path, source: Box::new(error) })
}

/// Writes the tenants' caps.
pub(crate) fn store_tenants(data: &Path, tenants: &[(TenantName, u32)]) -> io::Result<()> {
    disk::replace(data, TENANTS, &serde_json::to_vec(tenants).map_err(io::Error::other)?, 0o600)
}

/// Takes every claim in again and settles what an earlier server left half done.
pub(super) async fn adopt(inner: &Arc<Inner>) -> Result<(), OpenError> {
    volume::sweep(&inner.data).map_err(OpenError::unusable(&inner.data, "removing what was half made"))?;
    let trash = inner.data.join("trash");
    for found in fs::read_dir(&trash).map_err(OpenError::unusable(&trash, "listing it"))? {
        let path = found.map_err(OpenError::unusable(&trash, "listing it"))?.path();
        let record = Record::load(&path).ok().flatten();
        let id = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let Some(id): Option<SandboxId> = id else { continue };
        let uid = record.as_ref().and_then(|record| record.uid);
        let process = record.and_then(|record| record.process);
        if let Err(error) = inner.bury(&id, path, process.as_ref()).await {
            // what may still run has its uid to itself, and files of an id that the node could give once stay until it
            // can again; the next opening tries
            hold(&inner.registry).reserved.extend(uid);
            set_aside(&id, &error);
        }
    }
    let claims = inner.data.join("claims");
    let (mut used, mut seen) = (Vec::new(), Vec::new());
    for found in fs::read_dir(&claims).map_err(OpenError::unusable(&claims, "listing it"))? {
        let found = found.map_err(OpenError::unusable(&claims, "listing it"))?;
        let path = found.path();
        if !path.is_dir() {
            continue;
        }
        let Some(record) = Record::load(&path)? else {
            // it was never written down, so nothing of it was ever started
            volume::detach(&path).map_err(OpenError::unusable(&path, "unmounting its files"))?;
            start::remove_tree(inner.map.as_deref(), &path)
                .map_err(OpenError::unusable(&path, "removing it"))?;
            continue;
        };
        if found.file_name() != record.id.as_str() {
            let source = format!("it is the record of {}", record.id).into();
            return Err(OpenError::Journal { path, source });
        }
        let entry = Arc::new(Entry::new(&claims, record.clone(), Kind::Claim));
        hold(&inner.registry).insert(Arc::clone(&entry));
        if let Err(error) = settle(inner, &entry, record).await {
            quarantine(&entry, &error).await;
        }
        if let Ok(record) = entry.turn.try_lock() {
            used.extend(record.process.as_ref().map(|process| process.agent.clone()));
            seen.extend(record.process.as_ref().and_then(|process| process.etc.clone()));
        }
    }
    remove_old_agents(inner, &used);
    inner.etc.remove_unused(&seen);
    let registry = hold(&inner.registry);
    inner.cgroups.sweep(|name| name.parse().is_ok_and(|id| registry.entries.contains_key(&id)));
    Ok(())
}

/// Keeps a claim that could not be settled, so that it holds up no other: callers see it failed, with the reason, and a
/// wake or a release tries again to end what is left of it. One that was never answered stays unseen.
async fn quarantine(entry: &Arc<Entry>, error: &BackendError) {
    set_aside(&entry.id, error);
    let mut record = entry.turn.lock().await;
    record.phase = Phase::Failed { reason: format!("it could not be taken in again: {}", told(error)) };
    if record.established {
        entry.show(&record);
    }
}

fn set_aside(id: &SandboxId, error: &BackendError) {
    tracing::error!(sandbox = %id, error = told(error), "a sandbox could not be settled and is set aside");
}

/// Walks an error's causes into one line.
fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Brings one claim into a state that lasts.
async fn settle(inner: &Arc<Inner>, entry: &Arc<Entry>, mut record: Record) -> Result<(), BackendError> {
    if !record.established || record.phase == Phase::Releasing {
        return inner.remove(entry, &record).await;
    }
    let before = record.clone();
    let lives = record.process.as_ref().is_some_and(|process| is_ours(entry, process));
    match record.phase {
        Phase::Running | Phase::Frozen if lives => take_again(inner, entry, &mut record),
        // nobody got an answer to a freeze that was broken off, so it did not happen
        Phase::Freezing | Phase::Thawing if lives => {
            inner.thaw(&record).await?;
            record.phase = Phase::Running;
            take_again(inner, entry, &mut record);
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
    if record != before {
        let phase = record.phase.clone();
        // what cannot be written is settled the same way the next time
        entry.settle(&mut record, phase).await;
    }
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

fn take_again(inner: &Arc<Inner>, entry: &Arc<Entry>, record: &mut Record) {
    let places = Places::of(&entry.directory);
    if record.doors == Doors::Bound {
        let doors =
            start::bind_doors(&places.doors).and_then(|listener| serve::doors(inner, entry, listener));
        match doors {
            Ok(doors) => *hold(&entry.doors) = Some(doors),
            // its programs go on, and reach nothing outside until it is started anew
            Err(error) => {
                tracing::error!(sandbox = %entry.id, %error, "a box's doors could not be bound again");
            }
        }
    }
    if let Some(process) = record.process.clone() {
        if let Some(handle) = process::open(&process) {
            serve::watch(inner, &entry.id, handle, process);
        } else {
            record.phase =
                Phase::Failed { reason: "its first process ended while the node started".to_owned() };
            record.process = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_tells_who_may_be_made_a_boxs_owner() {
        let ids = 1_879_048_192..1_879_052_288;
        for (map, expected) in [
            ("         0          0 4294967295\n", (true, true)),
            ("0 0 1\n", (false, true)),
            ("0 1000 1\n", (false, false)),
            ("0 1000 1\n1 100000 65536\n", (false, false)),
            ("0 1000 1\n1879048192 100000 65536\n", (true, false)),
            ("nonsense", (false, false)),
        ] {
            assert_eq!(read_map(map, &ids), expected, "{map:?}");
        }
    }
}
