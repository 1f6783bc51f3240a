//! Who waits for what happens to which box.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cocoonbox_core::BoxId;
use tokio::sync::watch;

/// Wakes those who wait for a box; what happened is for them to read.
#[derive(Debug)]
pub(super) struct Notices {
    senders: Mutex<HashMap<BoxId, watch::Sender<()>>>,
    any: watch::Sender<()>,
}

impl Default for Notices {
    fn default() -> Self {
        Self { senders: Mutex::default(), any: watch::channel(()).0 }
    }
}

impl Notices {
    fn senders(&self) -> MutexGuard<'_, HashMap<BoxId, watch::Sender<()>>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to hear of `id`; subscribe first, read then, and nothing is missed.
    pub(super) fn subscribe(&self, id: &BoxId) -> watch::Receiver<()> {
        self.senders().entry(id.clone()).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Starts to hear of every box.
    pub(super) fn subscribe_all(&self) -> watch::Receiver<()> {
        self.any.subscribe()
    }

    /// Wakes those who wait for `id`.
    pub(super) fn tell(&self, id: &BoxId) {
        self.any.send_replace(());
        let mut senders = self.senders();
        if let Some(sender) = senders.get(id)
            && sender.send(()).is_err()
        {
            // nobody waits any more
            senders.remove(id);
        }
    }

    /// Wakes everybody.
    pub(super) fn tell_all(&self) {
        self.any.send_replace(());
        self.senders().retain(|_, sender| sender.send(()).is_ok());
    }
}
