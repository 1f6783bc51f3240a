//! What the node writes down about each claim, before it does anything.

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use cocoonbox_core::backend::{
    Claim, ClaimRef, ClaimRequest, ClaimState, Doors, Memory, Metadata, Nesting, NetworkMode, SandboxId, Size,
};
use cocoonbox_core::{Entropy, ImageName, TenantName, Timestamp};
use serde::{Deserialize, Serialize};

use super::disk::{self, Durable};
use super::error::OpenError;
use super::watch::Over;

/// The record's file in a claim's directory.
pub(super) const FILE: &str = "claim.json";
/// The file of a record that nobody was answered yet. It need not survive power loss, which ends what it speaks of, too;
/// a claim's record takes its place when it is answered.
const INTENT: &str = "intent.json";
/// The most bytes of a record.
const MAX_BYTES: u64 = 256 * 1024;
/// The format's version.
const VERSION: u32 = 1;

/// Where a claim stands, written before the step that leads there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Its processes are being started.
    Starting,
    /// It runs.
    Running,
    /// Its processes are being held still.
    Freezing,
    /// Its processes stand still.
    Frozen,
    /// Its processes are being let go.
    Thawing,
    /// Its processes are being ended, its files stay.
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
    /// Its pid on the host.
    pub(super) pid: i32,
    /// When it started, in ticks since the machine booted: with the pid, a name that is not given twice.
    pub(super) start_time: u64,
    /// The number of its pid namespace.
    pub(super) pid_namespace: u64,
    /// Which copy of the guest's binary it runs.
    pub(super) agent: String,
    /// Which copy of its image's `/etc` it sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) etc: Option<String>,
    /// Processes that stood still already when the box was frozen by signals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) stopped_before: Vec<i32>,
}

/// One claim's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    version: u32,
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
    pub(super) nesting: Nesting,
    pub(super) hostname: String,
    pub(super) claimed_at: Timestamp,
    /// The host uid of the box, where the node could give it one.
    pub(super) uid: Option<u32>,
    /// Whether the claim was ever answered; one that was not is removed when the node opens.
    pub(super) established: bool,
    pub(super) phase: Phase,
    pub(super) process: Option<Process>,
    /// That it was over its disk limit, until it is under it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) over: Option<Over>,
}

impl Record {
    pub(super) fn new(
        id: SandboxId,
        sequence: u64,
        request: &ClaimRequest,
        claimed_at: Timestamp,
        uid: Option<u32>,
    ) -> Self {
        let hostname = request.hostname.clone().unwrap_or_else(|| default_hostname(&id));
        Self {
            version: VERSION,
            sequence,
            claim_ref: request.claim_ref.clone(),
            image: request.image.clone(),
            network: request.network,
            size: request.size,
            tenant: request.tenant.clone(),
            metadata: request.metadata.clone(),
            doors: request.doors,
            nesting: request.nesting,
            hostname,
            claimed_at,
            uid,
            established: false,
            phase: Phase::Starting,
            process: None,
            over: None,
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
        let mut claim = Claim::new(self.id.clone(), &request, self.claimed_at, state);
        claim.held = self.held().map(str::to_owned);
        claim
    }

    /// Forgets why the node hibernated it: somebody woke it.
    pub(super) fn let_go(&mut self) {
        if let Some(over) = &mut self.over {
            over.held = None;
        }
    }

    /// Why the node itself hibernated it.
    pub(super) fn held(&self) -> Option<&str> {
        let hibernated = matches!(self.phase, Phase::Frozen | Phase::Stopped);
        self.over.as_ref().filter(|_| hibernated)?.held.as_deref()
    }

    /// Returns the record of a claim that runs and was answered.
    pub(super) fn answered(self) -> Self {
        Self { phase: Phase::Running, established: true, ..self }
    }

    /// Writes the record into the claim's directory, so that it survives power loss.
    pub(super) fn store(&self, directory: &Path) -> io::Result<()> {
        self.prepare(directory)?;
        Self::put(directory)
    }

    /// Writes what [`put`](Self::put) will make the claim's record through to the disk: the slow half of a store, which
    /// may run beside what it waits for.
    pub(super) fn prepare(&self, directory: &Path) -> io::Result<()> {
        disk::prepare(directory, FILE, &self.bytes()?, 0o600, Durable::Yes)
    }

    /// Makes what was prepared the claim's record.
    pub(super) fn put(directory: &Path) -> io::Result<()> {
        disk::put(directory, FILE)?;
        disk::sync(directory)?;
        // the record comes first where both are there
        let _ = std::fs::remove_file(directory.join(INTENT));
        Ok(())
    }

    /// Writes down what is about to be done for a claim that was not answered: it survives the end of this process.
    pub(super) fn store_intent(&self, directory: &Path) -> io::Result<()> {
        disk::prepare(directory, INTENT, &self.bytes()?, 0o600, Durable::No)?;
        disk::put(directory, INTENT)
    }

    fn bytes(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(io::Error::other)
    }

    /// Reads a claim's record; nothing when its directory has none yet.
    pub(super) fn load(directory: &Path) -> Result<Option<Self>, OpenError> {
        let path = directory.join(FILE);
        let bytes = match disk::read(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::load_intent(directory)),
            Err(source) => return Err(OpenError::Unusable { path, what: "reading", source }),
        };
        Self::parse(&bytes).map(Some).map_err(|source| OpenError::Journal { path, source })
    }

    /// Reads the record of a claim that was not answered; one that power loss tore speaks of nothing that is left.
    fn load_intent(directory: &Path) -> Option<Self> {
        let bytes = disk::read(&directory.join(INTENT), MAX_BYTES).ok()?;
        Self::parse(&bytes).ok().map(|record| Self { established: false, ..record })
    }

    /// Reads a record's bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let record: Self = serde_json::from_slice(bytes)?;
        if record.version == VERSION {
            Ok(record)
        } else {
            Err(format!("its format is version {}, this program reads {VERSION}", record.version).into())
        }
    }
}

/// Draws a claim's id, `sb_` and 16 of `[a-z2-7]`.
pub(crate) fn draw_id(entropy: &dyn Entropy) -> Option<SandboxId> {
    let mut bytes = [0_u8; 16];
    entropy.fill(&mut bytes).ok()?;
    let mut text = String::from("sb_");
    for byte in bytes {
        let _ = write!(text, "{}", char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte & 31)]));
    }
    text.parse().ok()
}

fn default_hostname(id: &SandboxId) -> String {
    let text: String = id
        .as_str()
        .bytes()
        .take(63)
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte.to_ascii_lowercase()) } else { '-' })
        .collect();
    text.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::SeededEntropy;

    use super::*;

    fn record() -> Record {
        let request = ClaimRequest::new("cb-abcdefghij".parse().unwrap(), ImageName::host());
        let id = draw_id(&SeededEntropy::new(1)).unwrap();
        let mut record = Record::new(id, 1, &request, Timestamp::from_millis(5), Some(7));
        record.process = Some(Process {
            pid: 4,
            start_time: 5,
            pid_namespace: 6,
            agent: "ab".into(),
            etc: Some("cd".into()),
            stopped_before: Vec::new(),
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
    fn a_broken_record_is_an_error_that_names_the_file() -> Result<(), Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join(FILE);
        let newer = serde_json::to_string(&record())?.replace("\"version\":1", "\"version\":2");
        for text in ["", "{", "[]", &newer, &" ".repeat(300_000)] {
            std::fs::write(&path, text)?;
            let error = Record::load(directory.path()).expect_err("must be refused");
            assert!(error.to_string().contains(FILE), "{error}");
        }
        Ok(())
    }

    #[test]
    fn the_default_hostname_is_one() {
        assert_eq!(default_hostname(&"sb_AB_".parse().unwrap()), "sb-ab");
    }
}
