//! Taking every claim of a data directory in again, and settling what an earlier server left half done.

use std::fs;
use std::sync::Arc;

use cocoonbox_core::backend::{BackendError, Doors};

use super::Inner;
use super::engine::Standing;
use super::error::{engine, refused};
use super::journal::{Phase, Process, Record};
use super::registry::{Entry, hold};
use super::serve;
use super::start::{self, Places};
use crate::bwrap::{OpenError, channel, disk, process, tree};

/// Takes every claim in again, and removes containers and guest binaries that nothing needs any more.
pub(super) async fn adopt(inner: &Arc<Inner>) -> Result<(), OpenError> {
    let trash = inner.data.join("trash");
    for found in fs::read_dir(&trash).map_err(OpenError::unusable(&trash, "listing it"))? {
        let path = found.map_err(OpenError::unusable(&trash, "listing it"))?.path();
        let record = Record::load(&path).ok().flatten();
        let id = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let Some(id) = id else { continue };
        let process = record.and_then(|record| record.process);
        inner.bury(&id, path, process.as_ref()).await.map_err(OpenError::Settle)?;
    }
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
        if found.file_name() != record.id.as_str() {
            let source = format!("it is the record of {}", record.id).into();
            return Err(OpenError::Journal { path, source });
        }
        let entry = Arc::new(Entry::new(&claims, record.clone()));
        hold(&inner.registry).insert(Arc::clone(&entry));
        settle(inner, &entry, record).await.map_err(OpenError::Settle)?;
        if let Ok(record) = entry.turn.try_lock() {
            used.extend(record.process.as_ref().map(|process| process.agent.clone()));
        }
    }
    for entry in fs::read_dir(inner.data.join("bin")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !used.iter().any(|used| name == **used) && name != *inner.agent {
            let _ = tree::remove(&entry.path());
        }
    }
    sweep(inner).await.map_err(OpenError::Settle)
}

/// Removes this node's containers that are no claim's.
async fn sweep(inner: &Inner) -> Result<(), BackendError> {
    let found = inner.engine.of_node(&inner.node).await.map_err(engine("containers cannot be listed"))?;
    for (container, sandbox) in found {
        let known = {
            let registry = hold(&inner.registry);
            sandbox.parse().is_ok_and(|id| registry.entries.contains_key(&id))
        };
        if !known {
            inner
                .engine
                .remove(&container)
                .await
                .map_err(engine("a container of no claim could not be removed"))?;
        }
    }
    Ok(())
}

/// Brings one claim into a state that lasts.
async fn settle(inner: &Arc<Inner>, entry: &Arc<Entry>, mut record: Record) -> Result<(), BackendError> {
    if !record.established || record.phase == Phase::Releasing {
        return inner.remove(entry, &record).await;
    }
    let before = record.clone();
    let mut stands = match &record.process {
        Some(process) => standing(inner, entry, process).await?,
        None => Standing::Over,
    };
    // who was just killed may not be gone yet, and does not answer any more
    if stands == Standing::Running
        && let Some(process) = &record.process
    {
        let channel = Places::of(&entry.directory).channel;
        let answer = serve::within(channel::ANSWER_LIMIT, start::first_answer(&entry.id, &channel)).await;
        if !matches!(answer, Some(Ok(()))) {
            stands = standing(inner, entry, process).await?;
        }
    }
    match (&record.phase, stands) {
        (Phase::Frozen, Standing::Paused) | (Phase::Running, Standing::Running) => {
            take_again(inner, entry, &mut record)?;
        }
        // nobody got an answer to a freeze that was broken off, so it did not happen; and what others paused runs
        (Phase::Running | Phase::Freezing | Phase::Thawing, Standing::Paused | Standing::Running) => {
            inner.thaw(&record).await?;
            record.phase = Phase::Running;
            take_again(inner, entry, &mut record)?;
        }
        (Phase::Frozen, Standing::Running) => {
            inner.freeze(&record).await?;
            take_again(inner, entry, &mut record)?;
        }
        (Phase::Running | Phase::Frozen | Phase::Freezing | Phase::Thawing, Standing::Over) => {
            inner.end(entry, &record).await?;
            let reason =
                "its processes were gone when the node started (the machine restarted, or they were ended)";
            record.phase = Phase::Failed { reason: reason.to_owned() };
            record.process = None;
        }
        (Phase::Starting | Phase::Stopping | Phase::Stopped, _) => {
            inner.end(entry, &record).await?;
            record.phase = Phase::Stopped;
            record.process = None;
        }
        (Phase::Failed { .. }, _) => {
            inner.end(entry, &record).await?;
            record.process = None;
        }
        (Phase::Releasing, _) => {}
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

/// How a recorded process stands. It is the box's first when it is who it was, the box's lock is held, and the engine
/// says so of a container with this node's and this box's label.
async fn standing(inner: &Inner, entry: &Entry, process: &Process) -> Result<Standing, BackendError> {
    let lives = inner.open(process).is_some()
        && process::pid_namespace(process.pid) == Some(process.pid_namespace)
        && matches!(disk::lock(&Places::of(&entry.directory).lock), Ok(None));
    if !lives {
        return Ok(Standing::Over);
    }
    let found =
        inner.engine.look(&process.container).await.map_err(engine("a container cannot be looked at"))?;
    Ok(found
        .filter(|found| {
            found.node == inner.node
                && found.sandbox == entry.id.as_str()
                && found.pid == i64::from(process.pid)
                && found.id == process.container
        })
        .map_or(Standing::Over, |found| found.state))
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
        if let Some(handle) = inner.open(&process) {
            serve::watch(inner, entry, handle, process);
        } else {
            record.phase =
                Phase::Failed { reason: "its first process ended while the node started".to_owned() };
            record.process = None;
        }
    }
    Ok(())
}
