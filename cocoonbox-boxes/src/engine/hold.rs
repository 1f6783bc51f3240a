//! Which boxes client calls hold awake.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cocoonbox_core::{BoxId, Clock, Timestamp};

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    open: u32,
    at: Option<Timestamp>,
}

/// How a box is used in this process.
#[derive(Debug)]
pub(super) struct Holds {
    uses: Mutex<HashMap<BoxId, Use>>,
    clock: Arc<dyn Clock>,
}

impl Holds {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { uses: Mutex::default(), clock })
    }

    fn uses(&self) -> MutexGuard<'_, HashMap<BoxId, Use>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call as open until the answer is dropped.
    pub(super) fn hold(self: &Arc<Self>, id: &BoxId) -> Hold {
        let now = self.clock.now();
        let mut uses = self.uses();
        let one = uses.entry(id.clone()).or_default();
        one.open += 1;
        one.at = Some(now);
        Hold { holds: Arc::clone(self), id: id.clone() }
    }

    /// Returns whether a call is open, and when one last began or ended.
    pub(super) fn of(&self, id: &BoxId) -> (bool, Option<Timestamp>) {
        self.uses().get(id).map_or((false, None), |one| (one.open > 0, one.at))
    }

    /// Forgets a box without open calls.
    pub(super) fn forget(&self, id: &BoxId) {
        let mut uses = self.uses();
        if uses.get(id).is_some_and(|one| one.open == 0) {
            uses.remove(id);
        }
    }
}

/// An open client call: while it lives, its box counts as used.
#[derive(Debug)]
#[must_use = "the box counts as used only while this lives"]
pub struct Hold {
    holds: Arc<Holds>,
    id: BoxId,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let now = self.holds.clock.now();
        if let Some(one) = self.holds.uses().get_mut(&self.id) {
            one.open = one.open.saturating_sub(1);
            one.at = Some(now);
        }
    }
}
