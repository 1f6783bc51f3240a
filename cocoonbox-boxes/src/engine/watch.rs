//! Following an operation from its first event to its last.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use cocoonbox_core::machine::{BoxRecord, OperationEvent};
use cocoonbox_core::{BoxId, OperationId, UserId};
use futures::Stream;
use tokio::sync::watch;

use super::{Engine, Inner, Started, agent};
use crate::EngineError;

/// An operation's events, in their order, to its last.
pub type OperationEvents = Pin<Box<dyn Stream<Item = Result<OperationEvent, EngineError>> + Send>>;

impl Engine {
    /// Follows an operation: what it has said after sequence `after`, then what it says, to its end.
    ///
    /// # Errors
    /// [`EngineError::NotFound`] for another user's operation, and for one that ended more than a day ago.
    pub async fn watch(
        &self,
        owner: &UserId,
        operation: &OperationId,
        after: u64,
    ) -> Result<OperationEvents, EngineError> {
        let missing = || EngineError::NotFound { what: format!("operation {operation}") };
        let (head, _) = self.inner.store.operation(operation, u64::MAX).await?.ok_or_else(missing)?;
        if head.owner != *owner {
            return Err(missing());
        }
        if self.agent.is_some() {
            let stored = self.inner.store.load(&head.box_id).await?;
            if !stored.is_some_and(|stored| agent::sees(self.agent.as_ref(), &stored)) {
                return Err(missing());
            }
        }
        Ok(Inner::follow(Arc::clone(&self.inner), head.box_id, operation.clone(), after))
    }

    /// Tells at most `limit` of a user's boxes, oldest first: at once, and again whenever one of them changed.
    pub fn listed(
        &self,
        owner: UserId,
        limit: usize,
    ) -> Pin<Box<dyn Stream<Item = Result<Vec<BoxRecord>, EngineError>> + Send>> {
        let mut changes = self.inner.notices.subscribe_all();
        changes.mark_changed();
        let state = (self.clone(), changes, None::<Vec<BoxRecord>>);
        Box::pin(futures::stream::unfold(state, move |(engine, mut changes, told)| {
            let owner = owner.clone();
            async move {
                loop {
                    changes.changed().await.ok()?;
                    match engine.list(&owner, None, limit).await {
                        Ok(page) if told.as_ref() == Some(&page.boxes) => {}
                        Ok(page) => {
                            let boxes = page.boxes.clone();
                            return Some((Ok(boxes), (engine, changes, Some(page.boxes))));
                        }
                        Err(error) => return Some((Err(error), (engine, changes, told))),
                    }
                }
            }
        }))
    }

    /// Follows what a verb began, from its first event; none when there was nothing to be done.
    pub fn follow(&self, started: &Started) -> Option<OperationEvents> {
        let operation = started.operation.clone()?;
        Some(Inner::follow(Arc::clone(&self.inner), started.box_id.clone(), operation, 0))
    }

    /// Waits for an operation's last event.
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    pub async fn last_event(
        &self,
        owner: &UserId,
        operation: &OperationId,
    ) -> Result<OperationEvent, EngineError> {
        use futures::StreamExt as _;
        let mut events = self.watch(owner, operation, 0).await?;
        let mut last = None;
        while let Some(event) = events.next().await {
            last = Some(event?);
        }
        last.filter(|event| event.phase.is_last())
            .ok_or_else(|| EngineError::NotFound { what: format!("operation {operation}") })
    }

    /// Waits for the last event of what a verb began; none when there was nothing to be done.
    ///
    /// # Errors
    /// [`EngineError::NotFound`] when it ended more than a day ago.
    pub async fn wait(&self, started: &Started) -> Result<Option<OperationEvent>, EngineError> {
        let Some(operation) = &started.operation else { return Ok(None) };
        let last = self.inner.wait_end(&started.box_id, operation).await?;
        last.filter(|event| event.phase.is_last())
            .map(Some)
            .ok_or_else(|| EngineError::NotFound { what: format!("operation {operation}") })
    }
}

impl Inner {
    fn follow(inner: Arc<Self>, box_id: BoxId, operation: OperationId, after: u64) -> OperationEvents {
        let changes = inner.notices.subscribe(&box_id);
        let reader =
            Reader { inner, changes, operation, after, first: true, read: VecDeque::new(), ended: false };
        Box::pin(futures::stream::try_unfold(reader, |mut reader| async move {
            Ok(reader.next().await?.map(|event| (event, reader)))
        }))
    }

    /// Returns whether an operation's last event is at or before sequence `after`.
    async fn is_over(&self, operation: &OperationId, after: u64) -> Result<bool, EngineError> {
        let all = self.store.operation(operation, 0).await?;
        let last = |events: Vec<OperationEvent>| {
            events.last().is_some_and(|event| event.phase.is_last() && event.sequence <= after)
        };
        Ok(all.is_none_or(|(_, events)| last(events)))
    }

    /// Waits until an operation on a box is over; returns its last event, none when it was forgotten.
    pub(super) async fn wait_end(
        self: &Arc<Self>,
        box_id: &BoxId,
        operation: &OperationId,
    ) -> Result<Option<OperationEvent>, EngineError> {
        use futures::StreamExt as _;
        let mut events = Self::follow(Arc::clone(self), box_id.clone(), operation.clone(), 0);
        let mut last = None;
        while let Some(event) = events.next().await {
            last = Some(event?);
        }
        Ok(last)
    }
}

/// Who follows an operation, and how far.
struct Reader {
    inner: Arc<Inner>,
    changes: watch::Receiver<()>,
    operation: OperationId,
    after: u64,
    /// Whether nothing was read yet.
    first: bool,
    read: VecDeque<OperationEvent>,
    ended: bool,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<OperationEvent>, EngineError> {
        loop {
            if let Some(event) = self.read.pop_front() {
                self.after = event.sequence;
                self.ended = event.phase.is_last();
                return Ok(Some(event));
            }
            if self.ended || (!self.first && self.changes.changed().await.is_err()) {
                return Ok(None);
            }
            // seen before reading, so that what is written while we read wakes us again
            self.changes.borrow_and_update();
            let Some((_, events)) = self.inner.store.operation(&self.operation, self.after).await? else {
                // it ended and was forgotten
                return Ok(None);
            };
            // a caller's cursor may be at or past the end, also at one that the operation reaches later
            let unsure = events.is_empty() && self.after > 0;
            if unsure && self.inner.is_over(&self.operation, self.after).await? {
                return Ok(None);
            }
            self.first = false;
            self.read.extend(events);
        }
    }
}
