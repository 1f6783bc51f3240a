//! Client calls into boxes.

use std::fmt;
use std::sync::Arc;

use cocoonbox_core::backend::{BackendError, BoxedDuplex, SandboxId, Target};
use cocoonbox_core::machine::{BoxRecord, BoxState, FailureKind, Limits, OperationEvent, Phase, Verb};
use cocoonbox_core::{BoxId, UserId, WakeId};

use super::{Engine, Hold, Inner, effect, pick};
use crate::EngineError;

/// What a call does to the box it goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a call uses a box or looks on")]
pub enum CallUse {
    /// It wakes the box and holds it awake.
    Use,
    /// It neither wakes the box nor counts; while the box sleeps, it waits for its next wake.
    Watch,
}

/// A call into a running box. While it lives, and was opened to use the box, the box counts as used.
pub struct OpenCall {
    /// Which box.
    pub box_id: BoxId,
    /// In which wake.
    pub wake_id: WakeId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    inner: Arc<Inner>,
    _hold: Option<Hold>,
}

impl OpenCall {
    /// Opens a byte stream into the box.
    ///
    /// # Errors
    /// [`EngineError::Backend`]: nobody listens there, or the box has fallen asleep meanwhile.
    pub async fn connect(&self, target: Target) -> Result<BoxedDuplex, EngineError> {
        let connected = self.inner.backend.connect(&self.sandbox, target).await;
        if let Err(
            BackendError::Conflict { .. } | BackendError::NotFound { .. } | BackendError::Unavailable { .. },
        ) = connected
        {
            // it died unseen, or its node is away: the next call finds it so
            if let Err(error) = self.inner.settle(&self.box_id).await {
                tracing::warn!(box_id = %self.box_id, error = effect::text(&error), "a box that does not run was not settled");
            }
        }
        connected.map_err(EngineError::Backend)
    }
}

impl fmt::Debug for OpenCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCall")
            .field("box_id", &self.box_id)
            .field("wake_id", &self.wake_id)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens a call into a box: brings it to running as [`ensure`](Self::ensure) does, limits included, and holds it
    /// awake, or, to watch, waits until it runs. `hint` is an id, a name, or nothing for the first box; a user
    /// without a box gets none here.
    ///
    /// # Behavior
    /// - The hold is counted before the box is looked at, and a sleep by the idle clock or the schedule looks at the
    ///   holds after it is written and before it has any effect: such a sleep gives way, or has ended before this
    ///   answers. A sleep that the person asks for goes on although calls are open.
    ///
    /// # Errors
    /// [`EngineError::NotFound`], [`EngineError::TooManyRunning`], [`EngineError::OperationFailed`] when the box does
    /// not start.
    pub async fn open_call(
        &self,
        owner: &UserId,
        limits: Limits,
        hint: Option<&str>,
        call: CallUse,
    ) -> Result<OpenCall, EngineError> {
        let inner = &self.inner;
        let owned = inner.store.owned(owner).await?;
        let id = pick(&owned, self.agent.as_ref(), hint.unwrap_or_default())?.record.id.clone();
        drop(owned);
        let hold = if call == CallUse::Use { Some(inner.holds.hold(&id)) } else { None };
        let mut changes = inner.notices.subscribe(&id);
        loop {
            changes.borrow_and_update();
            let gone = || EngineError::NotFound { what: format!("box {id}") };
            let stored = inner.store.load(&id).await?.ok_or_else(gone)?;
            if let Some((wake_id, sandbox)) = ready(&stored.record) {
                if call == CallUse::Use {
                    inner.touch(stored).await?;
                }
                let inner = Arc::clone(inner);
                return Ok(OpenCall { box_id: id, wake_id, sandbox, inner, _hold: hold });
            }
            if call == CallUse::Watch {
                if changes.changed().await.is_err() {
                    return Err(EngineError::Contended);
                }
                continue;
            }
            let (operation, starts) = match &stored.record.pending {
                Some(pending) => (Some(pending.operation.clone()), pending.verb.starts()),
                None => (self.ensure(owner, limits, id.as_str(), None).await?.operation, true),
            };
            if let Some(operation) = operation {
                let last = inner.wait_end(&id, &operation).await?;
                if starts && let Some(event) = last {
                    check(event)?;
                }
            }
        }
    }
}

/// Returns how to reach a box that runs and is not on its way elsewhere.
fn ready(record: &BoxRecord) -> Option<(WakeId, SandboxId)> {
    let leaving = record.pending.as_ref().is_some_and(|pending| pending.verb == Verb::Delete);
    if record.state == BoxState::Running && !leaving {
        Some((record.wake_id.clone()?, record.sandbox.clone()?))
    } else {
        None
    }
}

/// Turns a last event that says failed into the error that says so.
pub(crate) fn check(event: OperationEvent) -> Result<OperationEvent, EngineError> {
    if event.phase == Phase::Failed {
        let kind = event.failure.unwrap_or(FailureKind::Broken);
        Err(EngineError::OperationFailed { operation: event.operation, kind, reason: event.message })
    } else {
        Ok(event)
    }
}
