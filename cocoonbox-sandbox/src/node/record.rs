//! What the node writes down about a claim of its own, before it does anything.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cocoonbox_core::backend::{ClaimRef, SandboxId};
use cocoonbox_core::{Entropy, TenantName, Timestamp};
use serde::{Deserialize, Serialize};

use super::env::Env;
use super::idle::Uses;
use super::lease::{Lease, OnExpire};
use super::refusal::{Code, Refusal};

/// The format's version.
const VERSION: u32 = 1;
/// The most bytes of a record: an environment with every byte escaped, and room.
pub(super) const MAX_BYTES: u64 = 1024 * 1024;

/// Where a claim stands beside what its backend says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// The backend was asked; nobody has an answer yet.
    Claiming,
    /// It is held.
    Live,
    /// Its lease is over, and it is being put away.
    Archiving,
    /// It is put away: its files are kept without end.
    Archived,
    /// It is being given back.
    Releasing,
    /// It is gone; its idempotency key is remembered.
    Ended,
}

/// The idempotency key that a claim was asked for with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyUse {
    /// The key and whose it is, hashed.
    pub(super) name: String,
    /// The request, hashed.
    pub(super) request: String,
    /// Until when it is remembered, in time served.
    pub(super) until_millis: u64,
}

/// One claim's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) version: u32,
    /// The label that the backend keeps with the claim, and the record's name.
    pub(super) mark: String,
    /// The backend's name for it, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<SandboxId>,
    pub(super) phase: Phase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) claim_ref: Option<ClaimRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<TenantName>,
    /// Absent: held until it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<Lease>,
    #[serde(default)]
    pub(super) on_expire: OnExpire,
    #[serde(default)]
    pub(super) env: Env,
    /// Whether the guest was ever given a part of the environment.
    #[serde(default)]
    pub(super) env_delivered: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) instance_metadata: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default)]
    pub(super) restarts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) restarted_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<KeyUse>,
    /// When one that was put away is removed, in time served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) delete_at_millis: Option<u64>,
}

impl Record {
    pub(super) fn new(mark: String) -> Self {
        Self {
            version: VERSION,
            mark,
            id: None,
            phase: Phase::Claiming,
            claim_ref: None,
            tenant: None,
            lease: None,
            on_expire: OnExpire::default(),
            env: Env::default(),
            env_delivered: false,
            instance_metadata: None,
            restarts: 0,
            restarted_at: None,
            key: None,
            delete_at_millis: None,
        }
    }

    /// Whether it was put away long enough to be removed.
    pub(super) fn is_to_be_deleted(&self, served: Duration) -> bool {
        self.phase == Phase::Archived
            && self.delete_at_millis.is_some_and(|at| Duration::from_millis(at) <= served)
    }

    /// Reads a record's bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let record: Self = serde_json::from_slice(bytes)?;
        if record.version != VERSION {
            let version = record.version;
            return Err(format!("its format is version {version}, this program reads {VERSION}").into());
        }
        if !is_mark(&record.mark) || (record.id.is_none() && record.phase != Phase::Claiming) {
            return Err("it is no record that this program wrote".into());
        }
        Ok(record)
    }

    /// Whether callers see it.
    pub(super) const fn is_shown(&self) -> bool {
        matches!(self.phase, Phase::Live | Phase::Archiving | Phase::Archived)
    }

    /// Whether it counts against caps.
    pub(super) fn counts(&self) -> bool {
        self.phase != Phase::Ended
    }

    /// Whether its key, where it has one, is to be remembered.
    pub(super) fn keeps_key(&self, served: Duration) -> bool {
        self.key.as_ref().is_some_and(|key| Duration::from_millis(key.until_millis) > served)
    }
}

#[cfg(fuzzing)]
pub(crate) fn fuzz_record(bytes: &[u8]) {
    if let Ok(record) = Record::parse(bytes) {
        let again = serde_json::to_vec(&record).expect("a record is always JSON");
        assert_eq!(Record::parse(&again).expect("what we write we read"), record);
    }
}

/// Draws a mark: 26 of `[a-z2-7]`.
pub(super) fn draw_mark(entropy: &dyn Entropy) -> Result<String, Refusal> {
    let mut bytes = [0_u8; 26];
    let drawn = entropy.fill(&mut bytes);
    drawn.map_err(|_| Refusal::new(Code::Internal, "the system gives no randomness"))?;
    Ok(bytes
        .iter()
        .map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte & 31)]))
        .collect())
}

pub(super) fn is_mark(text: &str) -> bool {
    text.len() == 26 && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
}

/// A record in memory, and the turn of who changes it.
#[derive(Debug)]
pub(super) struct Entry {
    /// Held by whoever works on the claim.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    pub(super) uses: Uses,
    record: Mutex<Arc<Record>>,
}

impl Entry {
    pub(super) fn new(record: Record) -> Arc<Self> {
        Arc::new(Self { turn: Arc::default(), uses: Uses::default(), record: Mutex::new(Arc::new(record)) })
    }

    pub(super) fn record(&self) -> Arc<Record> {
        Arc::clone(&hold(&self.record))
    }

    pub(super) fn set(&self, record: Record) {
        *hold(&self.record) = Arc::new(record);
    }
}

/// Locks for a moment; what a panic left is still whole, as every change is one assignment.
pub(super) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::SeededEntropy;

    use super::*;

    #[test]
    fn a_record_reads_back_and_a_strange_one_is_refused() {
        let mut record = Record::new(draw_mark(&SeededEntropy::new(3)).unwrap());
        record.id = Some("sb_a".parse().unwrap());
        record.phase = Phase::Live;
        record.lease = Some(Lease::begin(Duration::from_secs(5), Duration::ZERO, Timestamp::default()));
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(Record::parse(text.as_bytes()).unwrap(), record);
        for text in [
            "",
            "[]",
            &text.replace("\"version\":1", "\"version\":2"),
            &text.replace("\"phase\":\"live\"", "\"phase\":\"alive\""),
            &text.replace("\"id\":\"sb_a\",", ""),
            &text.replace(&record.mark, "../../x"),
            &text.replace("\"restarts\"", "\"starts\""),
        ] {
            assert!(Record::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
