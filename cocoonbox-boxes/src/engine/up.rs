//! Who keeps a user's box up that nobody calls.

use std::fmt;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use cocoonbox_core::BoxId;
use cocoonbox_core::machine::{BoxRecord, Cause, Decision};

use super::{Engine, Inner};

/// Whether something in a box is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it is at work or it is not")]
pub enum Work {
    /// Nothing is.
    Idle,
    /// Something is, or may be.
    Busy,
}

/// Asked before a box of a user's own is put to sleep because nobody calls it.
///
/// # Behavior
/// - Who says that the box is busy keeps it up until the next check, a minute later. So does one who gives no answer within
///   15 s, which it must not rest on: the wait ends there, and the question is dropped.
/// - Who cannot tell says busy; who finds that the box has nothing that could be at work says idle.
/// - Asking must neither wake the box nor count as a call into it.
/// - Several boxes are asked about at once, and each box once at a time.
#[async_trait]
pub trait KeepUp: fmt::Debug + Send + Sync + 'static {
    /// Returns whether something in the box is at work; it runs.
    async fn work_in(&self, record: &BoxRecord) -> Work;
}

/// Whether those who keep boxes up were asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Yes,
    No,
}

impl Engine {
    /// Adds somebody to be asked before an idle box of a user's own is put to sleep.
    pub fn with_keep_up(self, source: Arc<dyn KeepUp>) -> Self {
        self.inner.keep_up.write().unwrap_or_else(PoisonError::into_inner).push(source);
        self
    }
}

/// Returns whether a decision puts a box of its owner's own to sleep because nobody uses it.
pub(super) fn is_idle_sleep(decision: &Decision, before: &BoxRecord) -> bool {
    let next = decision.record(None).and_then(|record| record.pending.as_ref());
    !before.agent && decision.begins.is_some() && next.is_some_and(|pending| pending.cause == Cause::Idle)
}

/// While it lives, nobody else asks about the box.
pub(super) struct Asking<'a>(&'a Inner, BoxId);

impl Inner {
    pub(super) fn who_keeps_up(&self) -> Vec<Arc<dyn KeepUp>> {
        self.keep_up.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins to ask about a box; none when that is under way.
    pub(super) fn asking(&self, id: &BoxId) -> Option<Asking<'_>> {
        let first = self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        first.then(|| Asking(self, id.clone()))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}
