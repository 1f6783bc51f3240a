//! What the calls do.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use cocoonbox_core::backend::{BackendError, Claim, ClaimRequest, HibernateTo, Memory, SandboxId};

use super::error::{refused, unavailable};
use super::journal::{Phase, Process, Record};
use super::registry::{Entry, hold};
use super::start::{self, Places};
use super::{Inner, image, serve};
use crate::bwrap::{channel, disk, draw_id, tree};

impl Inner {
    pub(super) async fn claim(self: Arc<Self>, request: ClaimRequest) -> Result<Claim, BackendError> {
        request.check(&self.capabilities())?;
        // before anything is written: an image may be long on its way, and may not be there
        self.ready().await?;
        image::bring(&self, &request.image).await?;
        let entry = {
            let mut registry = hold(&self.registry);
            registry.check_caps(self.config.max_claims, request.tenant.as_ref())?;
            let share = self.shares.map(|shares| registry.free_share(shares)).transpose()?;
            let id = draw_id(self.entropy.as_ref()).ok_or_else(|| {
                unavailable("the system gives no randomness", std::io::ErrorKind::Other.into())
            })?;
            let record = Record::new(id, registry.next_sequence(), &request, self.clock.now(), share);
            let entry = Arc::new(Entry::new(&self.data.join("claims"), record));
            registry.insert(Arc::clone(&entry));
            entry
        };
        let mut record = entry.turn.lock().await;
        let made = async {
            let (directory, written) = (entry.directory.clone(), record.clone());
            let owner = self.owner(record.share);
            serve::blocking(move || {
                let make = || {
                    disk::directory(&directory, 0o700)?;
                    written.store(&directory)?;
                    start::make_places(&directory, owner, &request.host_files)
                };
                make().map_err(refused("the claim's directory could not be made"))
            })
            .await?;
            start::start(&self, &entry, &mut record).await?;
            record.phase = Phase::Running;
            record.established = true;
            entry.store(&record).await
        };
        match made.await {
            Ok(()) => {
                entry.show(&record);
                Ok(record.claim())
            }
            Err(error) => {
                // why it failed is the answer; what is left is found when the node opens again
                if let Err(left) = self.remove(&entry, &record).await {
                    left_behind(&entry.id, &left);
                }
                Err(error)
            }
        }
    }

    /// Ends a claim's processes and removes all of it.
    ///
    /// Moving its directory away is what decides: it takes no room on a full disk, and when the node stops after it,
    /// opening goes on from there.
    pub(super) async fn remove(&self, entry: &Entry, record: &Record) -> Result<(), BackendError> {
        *hold(&entry.doors) = None;
        let trash = self.data.join("trash").join(entry.id.as_str());
        let (from, to) = (entry.directory.clone(), trash.clone());
        serve::blocking(move || {
            let away = || match fs::rename(&from, &to) {
                // gone already, and not for want of a place to move it to
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && !from.exists() => Ok(()),
                Err(error) => Err(error),
                Ok(()) => from.parent().map_or(Ok(()), disk::sync),
            };
            away().map_err(refused("the claim's directory could not be moved away"))
        })
        .await?;
        self.bury(&entry.id, trash, record.process.as_ref()).await?;
        hold(&self.registry).entries.remove(&entry.id);
        Ok(())
    }

    /// Ends the processes of a claim whose directory was moved to `trash`, and removes it.
    pub(super) async fn bury(
        &self,
        id: &SandboxId,
        trash: PathBuf,
        process: Option<&Process>,
    ) -> Result<(), BackendError> {
        if !trash.exists() {
            return Ok(());
        }
        self.end_in(id, &trash, process).await?;
        serve::blocking(move || {
            tree::remove(&trash).map_err(refused("the files of a released box could not be removed"))
        })
        .await
    }

    pub(super) async fn hibernate(
        &self,
        entry: &Arc<Entry>,
        record: &mut Record,
        to: HibernateTo,
    ) -> Result<Memory, BackendError> {
        match record.phase {
            // what a call that failed left half done is taken up again
            Phase::Running | Phase::Frozen | Phase::Freezing | Phase::Thawing | Phase::Stopping => {}
            Phase::Stopped => return Ok(Memory::Lost),
            Phase::Failed { .. } => {
                self.end(entry, record).await?;
                entry.step(record, Phase::Stopped).await?;
                entry.show(record);
                return Ok(Memory::Lost);
            }
            _ => return Err(conflict(record, "it is between two states")),
        }
        let held = record.phase == Phase::Frozen;
        if to == HibernateTo::Disk || record.phase == Phase::Stopping || !(held || self.freezes()) {
            entry.step(record, Phase::Stopping).await?;
            self.end(entry, record).await?;
            record.process = None;
            entry.settle(record, Phase::Stopped).await;
            return Ok(Memory::Lost);
        }
        if held {
            return Ok(Memory::Kept);
        }
        entry.step(record, Phase::Freezing).await?;
        let frozen = match self.freeze(record).await {
            Ok(()) => entry.step(record, Phase::Frozen).await,
            Err(error) => Err(error),
        };
        if let Err(error) = frozen {
            match self.thaw(record).await {
                Ok(()) => entry.settle(record, Phase::Running).await,
                Err(left) => left_behind(&entry.id, &left),
            }
            return Err(error);
        }
        entry.show(record);
        Ok(Memory::Kept)
    }

    pub(super) async fn wake(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        record: &mut Record,
    ) -> Result<Memory, BackendError> {
        match record.phase {
            Phase::Running => return Ok(Memory::Kept),
            Phase::Frozen | Phase::Freezing | Phase::Thawing => {
                entry.step(record, Phase::Thawing).await?;
                self.thaw(record).await?;
                entry.settle(record, Phase::Running).await;
                let channel = Places::of(&entry.directory).channel;
                return match serve::within(channel::ANSWER_LIMIT, start::first_answer(&entry.id, &channel))
                    .await
                {
                    Some(Ok(())) => Ok(Memory::Kept),
                    Some(Err(error)) => Err(error),
                    None => Err(channel::misbehaved(&entry.id, "it did not answer within 10 s of its wake")),
                };
            }
            _ => {}
        }
        let before = record.phase.clone();
        self.end(entry, record).await?;
        record.process = None;
        entry.step(record, Phase::Starting).await?;
        let started = match start::start(self, entry, record).await {
            Ok(()) => entry.step(record, Phase::Running).await,
            Err(error) => Err(error),
        };
        if let Err(error) = started {
            match self.end(entry, record).await {
                Ok(()) => record.process = None,
                // the next call that starts or releases it ends them first
                Err(left) => left_behind(&entry.id, &left),
            }
            entry.settle(record, before).await;
            return Err(error);
        }
        entry.show(record);
        Ok(Memory::Lost)
    }

    /// Marks a box failed whose first process ended without anybody asking for it.
    pub(super) async fn died(&self, entry: &Arc<Entry>, process: &Process) {
        let mut record = entry.turn.lock().await;
        let same = record
            .process
            .as_ref()
            .is_some_and(|now| (now.pid, now.start_time) == (process.pid, process.start_time));
        if !same || !matches!(record.phase, Phase::Running | Phase::Frozen) {
            return;
        }
        tracing::warn!(sandbox = %entry.id, "the first process of a box ended by itself");
        if let Err(error) = self.end(entry, &record).await {
            tracing::warn!(sandbox = %entry.id, %error, "processes of a dead box are left");
        }
        record.process = None;
        let reason = "its first process ended by itself".to_owned();
        entry.settle(&mut record, Phase::Failed { reason }).await;
    }
}

/// Says what a call that failed could not clean up; its answer is why it failed.
pub(super) fn left_behind(id: &SandboxId, error: &BackendError) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(sandbox = %id, error, "a call that failed left something behind");
}

/// The error of a call that the claim's state forbids.
pub(super) fn conflict(record: &Record, reason: &str) -> BackendError {
    let reason = match &record.phase {
        Phase::Frozen | Phase::Stopped => "it is hibernated".to_owned(),
        Phase::Failed { reason } => format!("it failed: {reason}"),
        _ => reason.to_owned(),
    };
    BackendError::Conflict { id: record.id.clone(), reason }
}
