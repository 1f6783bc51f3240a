//! What the node writes down about each claim, before it does anything.

use std::error::Error;
use std::io;
use std::path::Path;

use cocoonbox_core::backend::{
    Claim, ClaimRef, ClaimRequest, ClaimState, Doors, Memory, Metadata, NetworkMode, SandboxId, Size,
};
use cocoonbox_core::{ImageName, TenantName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::bwrap::{OpenError, disk};

/// The record's file in a claim's directory.
const FILE: &str = "claim.json";
/// The most bytes of a record.
const MAX_BYTES: u64 = 256 * 1024;
/// The format's version.
const VERSION: u32 = 1;

/// The kind of backend that a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Container,
}

/// Where a claim stands, written before the step that leads there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Its container is being made and started.
    Starting,
    /// It runs.
    Running,
    /// Its processes are being held still.
    Freezing,
    /// Its processes stand still.
    Frozen,
    /// Its processes are being let go.
    Thawing,
    /// Its container is being removed, its files stay.
    Stopping,
    /// Only files are left.
    Stopped,
    /// It died by itself.
    Failed {
        /// Why, in words.
        reason: String,
    },
    /// It is being removed.
    Releasing,
}

/// The guest's first process as the host sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    /// The engine's id of its container.
    pub(super) container: String,
    /// Its pid on the host.
    pub(super) pid: i32,
    /// When it started, in ticks since the machine booted: with the pid, a name that is not given twice.
    pub(super) start_time: u64,
    /// The number of its pid namespace.
    pub(super) pid_namespace: u64,
    /// Which copy of the guest's binary it runs.
    pub(super) agent: String,
}

/// One claim's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    version: u32,
    backend: Kind,
    pub(super) id: SandboxId,
    /// Which claim of this node it was, counted from one; the order of `find`.
    pub(super) sequence: u64,
    pub(super) claim_ref: ClaimRef,
    pub(super) image: ImageName,
    pub(super) network: NetworkMode,
    pub(super) size: Size,
    pub(super) tenant: Option<TenantName>,
    pub(super) metadata: Metadata,
    pub(super) doors: Doors,
    pub(super) hostname: String,
    pub(super) claimed_at: Timestamp,
    /// Which share of the host's ids the box has, where the engine maps them.
    pub(super) share: Option<u32>,
    /// Whether the claim was ever answered; one that was not is removed when the node opens.
    pub(super) established: bool,
    pub(super) phase: Phase,
    pub(super) process: Option<Process>,
}

impl Record {
    pub(super) fn new(
        id: SandboxId,
        sequence: u64,
        request: &ClaimRequest,
        claimed_at: Timestamp,
        share: Option<u32>,
    ) -> Self {
        let hostname = request.hostname.clone().unwrap_or_else(|| id.as_str().replace('_', "-"));
        Self {
            version: VERSION,
            backend: Kind::Container,
            sequence,
            claim_ref: request.claim_ref.clone(),
            image: request.image.clone(),
            network: request.network,
            size: request.size,
            tenant: request.tenant.clone(),
            metadata: request.metadata.clone(),
            doors: request.doors,
            hostname,
            claimed_at,
            share,
            established: false,
            phase: Phase::Starting,
            process: None,
            id,
        }
    }

    /// Returns the claim as callers see it.
    pub(super) fn claim(&self) -> Claim {
        let state = match &self.phase {
            Phase::Starting | Phase::Running | Phase::Freezing | Phase::Thawing | Phase::Releasing => {
                ClaimState::Running
            }
            Phase::Frozen => ClaimState::Hibernated { memory: Memory::Kept },
            Phase::Stopping | Phase::Stopped => ClaimState::Hibernated { memory: Memory::Lost },
            Phase::Failed { reason } => ClaimState::Failed { reason: reason.clone() },
        };
        let mut request = ClaimRequest::new(self.claim_ref.clone(), self.image.clone())
            .with_network(self.network)
            .with_size(self.size)
            .with_metadata(self.metadata.clone());
        request.tenant.clone_from(&self.tenant);
        Claim::new(self.id.clone(), &request, self.claimed_at, state)
    }

    /// Writes the record into the claim's directory.
    pub(super) fn store(&self, directory: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        disk::replace(directory, FILE, &bytes, 0o600)
    }

    /// Reads a claim's record; nothing when its directory has none yet.
    pub(super) fn load(directory: &Path) -> Result<Option<Self>, OpenError> {
        let path = directory.join(FILE);
        let bytes = match disk::read(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(OpenError::Unusable { path, what: "reading", source }),
        };
        Self::parse(&bytes).map(Some).map_err(|source| OpenError::Journal { path, source })
    }

    /// Reads a record's bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let value: serde_json::Value = serde_json::from_slice(bytes)?;
        if value.is_object() && value.get("backend").is_none() {
            return Err(
                "it is of another backend's box: start with --backend bwrap, or choose another --data".into(),
            );
        }
        let record: Self = serde_json::from_value(value)?;
        if record.version == VERSION {
            Ok(record)
        } else {
            Err(format!("its format is version {}, this program reads {VERSION}", record.version).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> Record {
        let request = ClaimRequest::new("cb-abcdefghij".parse().unwrap(), "small:1".parse().unwrap());
        let id = "sb_abc".parse().unwrap();
        let mut record = Record::new(id, 1, &request, Timestamp::from_millis(5), Some(7));
        record.process = Some(Process {
            container: "c0".into(),
            pid: 4,
            start_time: 5,
            pid_namespace: 6,
            agent: "ab".into(),
        });
        record
    }

    #[test]
    fn a_stored_record_reads_back() -> Result<(), Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        assert_eq!(Record::load(directory.path())?, None);
        let mut record = record();
        for phase in
            [Phase::Starting, Phase::Frozen, Phase::Failed { reason: "died".into() }, Phase::Releasing]
        {
            record.phase = phase;
            record.store(directory.path())?;
            assert_eq!(Record::load(directory.path())?.as_ref(), Some(&record));
        }
        Ok(())
    }

    #[test]
    fn a_broken_or_foreign_record_is_an_error_that_names_the_file() -> Result<(), Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join(FILE);
        let own = serde_json::to_string(&record())?;
        let newer = own.replace("\"version\":1", "\"version\":2");
        let foreign = own.replace("\"backend\":\"container\",", "");
        for text in ["", "{", "[]", &newer, &foreign, &" ".repeat(300_000)] {
            std::fs::write(&path, text)?;
            let error = Record::load(directory.path()).expect_err("must be refused");
            assert!(error.to_string().contains(FILE), "{error}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Record::parse(&bytes);
        }
    }
}
