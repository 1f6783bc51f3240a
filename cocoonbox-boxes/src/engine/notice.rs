//! Who waits for what happens to which box.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cocoonbox_core::BoxId;
use tokio::sync::watch;

/// Wakes those who wait for a box; what happened is for them to read.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<HashMap<BoxId, watch::Sender<()>>>);

impl Notices {
    fn senders(&self) -> MutexGuard<'_, HashMap<BoxId, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to hear of `id`; subscribe first, read then, and nothing is missed.
    pub(super) fn subscribe(&self, id: &BoxId) -> watch::Receiver<()> {
        self.senders().entry(id.clone()).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Wakes those who wait for `id`.
    pub(super) fn tell(&self, id: &BoxId) {
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
        self.senders().retain(|_, sender| sender.send(()).is_ok());
    }
}
