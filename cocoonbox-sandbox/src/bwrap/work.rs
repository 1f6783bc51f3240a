//! What the calls do.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use cocoonbox_core::backend::{BackendError, Claim, ClaimRequest, HibernateTo, HostFile, Memory, SandboxId};

use super::error::{refused, unavailable};
use super::journal::{self, Phase, Process, Record};
use super::limit::DiskLimit;
use super::registry::{Entry, Kind, hold};
use super::start::{self, Places};
use super::{Inner, channel, disk, image, serve, volume};

impl Inner {
    pub(super) async fn claim(self: Arc<Self>, request: ClaimRequest) -> Result<Claim, BackendError> {
        request.check(&self.capabilities())?;
        if image::find(&self.data, &request.image).is_none() {
            return Err(BackendError::UnknownImage { image: request.image.as_str().to_owned() });
        }
        if let Some(claim) = self.claim_warm(&request).await? {
            return Ok(claim);
        }
        let entry = self.enter(&request, Kind::Claim)?;
        self.hurry();
        let mut record = entry.turn.lock().await;
        let made = async {
            let names: Vec<_> = request.host_files.iter().map(|file| file.name.clone()).collect();
            self.make_directory(&entry, &record, request.host_files).await?;
            let (directory, claims) = (entry.directory.clone(), self.data.join("claims"));
            let prepare = move |record: Record| {
                start::sync_host_files(&directory, &names)
                    .and_then(|()| record.answered().prepare(&directory))
                    .and_then(|()| disk::sync(&claims))
                    .map_err(refused("cannot write the claim's record"))
            };
            start::start(&self, &entry, &mut record, prepare).await?;
            entry.put(&mut record, Phase::Running).await?;
            record.established = true;
            Ok(())
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

    /// Makes the start that follows shorter.
    fn hurry(self: &Arc<Self>) {
        let inner = Arc::clone(self);
        serve::aside(move || inner.cgroups.hurry());
    }

    /// Gives a box to be its place among the entries, and its uid.
    pub(super) fn enter(&self, request: &ClaimRequest, kind: Kind) -> Result<Arc<Entry>, BackendError> {
        let mut registry = hold(&self.registry);
        if kind == Kind::Claim {
            registry.check_caps(self.config.max_claims, request.tenant.as_ref())?;
        }
        let uid = self.uids.clone().map(|uids| registry.free_uid(uids)).transpose()?;
        let id = journal::draw_id(self.entropy.as_ref())
            .ok_or_else(|| unavailable("the system gives no randomness", std::io::ErrorKind::Other.into()))?;
        let record = Record::new(id, registry.next_sequence(), request, self.clock.now(), uid);
        let entry = Arc::new(Entry::new(&self.data.join("claims"), record, kind));
        registry.insert(Arc::clone(&entry));
        Ok(entry)
    }

    /// Makes the directory of a box to be, with the intent to start it.
    pub(super) async fn make_directory(
        &self,
        entry: &Entry,
        record: &Record,
        host_files: Vec<HostFile>,
    ) -> Result<(), BackendError> {
        let (data, directory, record) = (self.data.clone(), entry.directory.clone(), record.clone());
        let limits = &self.config.limits;
        let own = (limits.disk == DiskLimit::Loop).then(|| limits.tier(record.size).disk_bytes);
        let owner = self.owner_of(&record);
        serve::blocking(move || {
            let make = || {
                disk::directory(&directory, 0o700)?;
                record.store_intent(&directory)?;
                if let Some(bytes) = own {
                    volume::make(&data, &directory, bytes)?;
                }
                start::make_places(&directory, owner, &host_files)
            };
            make().map_err(refused("the claim's directory could not be made"))
        })
        .await
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
        let map = self.map.clone();
        serve::blocking(move || {
            start::remove_tree(map.as_deref(), &trash)
                .map_err(refused("the files of a released box could not be removed"))
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
        if to == HibernateTo::Disk || record.phase == Phase::Stopping {
            let runs = record.phase == Phase::Running;
            entry.step(record, Phase::Stopping).await?;
            if runs {
                self.ask_to_end(record).await;
            }
            self.end(entry, record).await?;
            record.process = None;
            entry.settle(record, Phase::Stopped).await;
            return Ok(Memory::Lost);
        }
        if record.phase == Phase::Frozen {
            return Ok(Memory::Kept);
        }
        entry.step(record, Phase::Freezing).await?;
        let frozen = match self.freeze(record).await {
            Ok(before) => {
                if let Some(process) = &mut record.process {
                    process.stopped_before = before;
                }
                entry.step(record, Phase::Frozen).await
            }
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
                if let Some(process) = &mut record.process {
                    process.stopped_before.clear();
                }
                record.let_go();
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
        self.hurry();
        self.end(entry, record).await?;
        record.process = None;
        entry.step(record, Phase::Starting).await?;
        let directory = entry.directory.clone();
        let prepare = move |record: Record| {
            let mut record = record.answered();
            record.let_go();
            record.prepare(&directory).map_err(refused("cannot write the claim's record"))
        };
        let started = match start::start(self, entry, record, prepare).await {
            Ok(()) => {
                record.let_go();
                entry.put(record, Phase::Running).await
            }
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
    pub(super) async fn died(&self, id: &SandboxId, process: &Process) {
        let Some(entry) = self.warm_died(id).await else { return };
        let mut record = entry.turn.lock().await;
        let same = record
            .process
            .as_ref()
            .is_some_and(|now| (now.pid, now.start_time) == (process.pid, process.start_time));
        if !same || !matches!(record.phase, Phase::Running | Phase::Frozen) {
            return;
        }
        tracing::warn!(sandbox = %entry.id, "the first process of a box ended by itself");
        if let Err(error) = self.end(&entry, &record).await {
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
        Phase::Frozen | Phase::Stopped => match record.held() {
            Some(held) => format!("the node hibernated it: {held}"),
            None => "it is hibernated".to_owned(),
        },
        Phase::Failed { reason } => format!("it failed: {reason}"),
        _ => reason.to_owned(),
    };
    BackendError::Conflict { id: record.id.clone(), reason }
}
