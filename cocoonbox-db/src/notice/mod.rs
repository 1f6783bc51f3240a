//! Change notices: a hint to read again, never the data itself.

mod serve;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use tokio::sync::broadcast;

use crate::DbError;
pub use serve::Listener;

/// The longest channel name in bytes.
pub const CHANNEL_MAX: usize = 63;
/// The longest payload in bytes.
pub const PAYLOAD_MAX: usize = 4096;
/// Notices that wait for a slow listener; what is more turns into one [`Notice::Rescan`].
const QUEUE: usize = 256;

/// What a listener hears.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Something changed.
    Changed {
        /// What the sender wrote: an id, as a rule.
        payload: String,
    },
    /// Notices may have been missed: read everything again.
    Rescan,
}

pub(crate) fn check(channel: &str, payload: &str) -> Result<(), DbError> {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !(1..=CHANNEL_MAX).contains(&channel.len()) || !channel.bytes().all(word) {
        return Err(DbError::InvalidNotice { rule: "a channel is 1 to 63 of a-z, 0-9 and _" });
    }
    if payload.len() > PAYLOAD_MAX || payload.contains('\0') {
        return Err(DbError::InvalidNotice { rule: "a payload is at most 4096 bytes, none of them zero" });
    }
    Ok(())
}

/// Notices inside this process, one hub for each SQLite file.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    channels: Mutex<HashMap<String, broadcast::Sender<Notice>>>,
}

static HUBS: LazyLock<Mutex<HashMap<PathBuf, Weak<Hub>>>> = LazyLock::new(Mutex::default);

impl Hub {
    /// Returns the hub of a file, so that two `Db`s on one file in one process hear each other.
    pub(crate) fn of(path: &Path) -> Arc<Self> {
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.get(path).and_then(Weak::upgrade) {
            return hub;
        }
        let hub = Arc::new(Self::default());
        hubs.insert(path.to_owned(), Arc::downgrade(&hub));
        hub
    }

    pub(crate) fn publish(&self, channel: &str, notice: Notice) {
        let channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = channels.get(channel) {
            // nobody listening is no failure
            let _ = sender.send(notice);
        }
    }

    fn subscribe(&self, channel: &str) -> broadcast::Receiver<Notice> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.entry(channel.to_owned()).or_insert_with(|| broadcast::channel(QUEUE).0).subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_and_payloads_have_limits() {
        let (long, longest) = ("a".repeat(PAYLOAD_MAX + 1), "a".repeat(PAYLOAD_MAX));
        for (channel, payload, good) in [
            ("cocoonbox_users", "us_a", true),
            ("c", longest.as_str(), true),
            ("c", long.as_str(), false),
            ("c", "a\0", false),
            ("", "", false),
            ("a\"b", "", false),
            ("Users", "", false),
        ] {
            assert_eq!(check(channel, payload).is_ok(), good, "{channel}");
        }
    }
}
