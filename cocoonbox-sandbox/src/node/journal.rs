//! What happened: the usage journal on disk, and the last of it in memory for those who follow.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cocoonbox_core::backend::{Claim, NetworkMode, SandboxId};
use cocoonbox_core::{Entropy, TenantName, Timestamp};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;

use super::record::hold;
use super::token::hex;

/// How large the journal grows before it becomes the backup.
const MAX_FILE: u64 = 64 * 1024 * 1024;
/// The most events that are kept for those who follow.
const MAX_KEPT: usize = 4096;

/// Returns a time as the API writes it.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.micros()) * 1000)
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_default()
}

/// One thing that happened to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// When.
    pub t: String,
    /// What: `claim`, `hibernate`, `wake`, `release`, `reap`, `archive`, `unarchive`.
    pub ev: &'static str,
    /// Which claim.
    pub id: SandboxId,
    /// What the machine calls it.
    pub vm: SandboxId,
    /// A stable hash of template, network and size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantName>,
}

impl Event {
    pub(super) fn of(ev: &'static str, claim: &Claim, at: Timestamp) -> Self {
        Self {
            t: rfc3339(at),
            ev,
            id: claim.id.clone(),
            vm: claim.id.clone(),
            key: None,
            tenant: claim.tenant.clone(),
        }
    }

    pub(super) fn with_key(mut self, claim: &Claim) -> Self {
        let net = if claim.network == NetworkMode::Open { "egress" } else { "none" };
        let text = format!("{}|{net}|{:?}", claim.image, claim.size);
        self.key = Some(hex(&Sha256::digest(text)[..8]));
        self
    }
}

/// An event and its place among those of this start.
#[derive(Clone, Debug)]
struct Kept {
    number: u64,
    event: Arc<Event>,
}

/// What a follower reads at a time.
#[derive(Debug)]
pub(crate) struct Page {
    /// The events, each with the cursor to go on from.
    pub(crate) events: Vec<(String, Arc<Event>)>,
    /// Whether events between the cursor and these are not kept any more.
    pub(crate) lost: bool,
    /// Where to go on from.
    pub(crate) next: u64,
}

/// The journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: Mutex<Option<(File, u64)>>,
    /// Names this start in cursors, as its numbers begin anew.
    start: String,
    kept: Mutex<VecDeque<Kept>>,
    last: watch::Sender<u64>,
}

impl Journal {
    /// Opens the journal; one that cannot be written is said to be so, and keeps no sandbox from its owner.
    pub(super) fn open(path: PathBuf, entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; 6];
        // all alike at worst: a follower then reads an event twice
        let _ = entropy.fill(&mut bytes);
        let file = match append_to(&path) {
            Ok(file) => Some(file),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the usage journal cannot be opened");
                None
            }
        };
        Self {
            path,
            file: Mutex::new(file),
            start: hex(&bytes),
            kept: Mutex::default(),
            last: watch::Sender::new(0),
        }
    }

    pub(super) fn tell(&self, event: Event) {
        if let Err(error) = self.write(&event) {
            tracing::warn!(path = %self.path.display(), %error, "an event was not written to the usage journal");
        }
        let mut kept = hold(&self.kept);
        let number = *self.last.borrow() + 1;
        kept.push_back(Kept { number, event: Arc::new(event) });
        if kept.len() > MAX_KEPT {
            kept.pop_front();
        }
        drop(kept);
        self.last.send_replace(number);
    }

    fn write(&self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event).map_err(io::Error::other)?;
        line.push(b'\n');
        let mut place = hold(&self.file);
        if place.as_ref().is_some_and(|(_, size)| size + line.len() as u64 > MAX_FILE) {
            *place = None;
            let mut backup = self.path.clone().into_os_string();
            backup.push(".1");
            fs::rename(&self.path, backup)?;
        }
        if place.is_none() {
            *place = Some(append_to(&self.path)?);
        }
        if let Some((file, size)) = place.as_mut() {
            // one write a line: a kill leaves it whole or not there
            file.write_all(&line)?;
            *size += line.len() as u64;
        }
        Ok(())
    }

    /// Returns the number after which a follower with `cursor` reads on, and whether it missed what was before.
    pub(crate) fn begin(&self, cursor: Option<&str>) -> (u64, bool) {
        let Some(cursor) = cursor else { return (0, false) };
        match cursor.split_once('-') {
            Some((start, number)) if start == self.start => match number.parse() {
                Ok(number) if number <= *self.last.borrow() => (number, false),
                _ => (0, true),
            },
            _ => (0, true),
        }
    }

    /// Returns what followed `after`, for `tenant` alone where there is one.
    pub(crate) fn read(&self, after: u64, tenant: Option<&TenantName>) -> Page {
        let kept = hold(&self.kept);
        let lost = kept.front().is_some_and(|first| first.number > after + 1);
        let next = kept.back().map_or(after, |last| last.number).max(after);
        let events = kept
            .iter()
            .filter(|kept| kept.number > after)
            .filter(|kept| tenant.is_none() || kept.event.tenant.as_ref() == tenant)
            .map(|kept| (format!("{}-{}", self.start, kept.number), Arc::clone(&kept.event)));
        Page { events: events.collect(), lost, next }
    }

    /// Tells when there is more.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}

fn append_to(path: &std::path::Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}
