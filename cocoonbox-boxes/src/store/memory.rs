//! A store in this process's memory, as strict as the real ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cocoonbox_core::machine::{OperationEvent, Write};
use cocoonbox_core::{BoxId, OperationId, Timestamp, UserId};
use futures::StreamExt as _;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

use super::{
    BoxStore, Change, Expect, Hint, Hints, KEY_LIFETIME, KeyedAnswer, Operation, Owned, Revision, StoreError,
    Stored,
};

#[derive(Clone, Debug, Default)]
struct Tables {
    boxes: BTreeMap<BoxId, Stored>,
    admissions: BTreeMap<UserId, Revision>,
    operations: BTreeMap<OperationId, (Operation, Vec<OperationEvent>)>,
    keys: BTreeMap<(UserId, String), KeyedAnswer>,
}

/// A [`BoxStore`] that forgets everything when it is dropped; clones share one content.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
    hints: broadcast::Sender<Hint>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self { tables: Arc::default(), hints: broadcast::channel(256).0 }
    }
}

impl MemoryStore {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn commit(&mut self, change: Change) -> Result<Revision, StoreError> {
        let conflict = || StoreError::Conflict { id: change.box_id.clone() };
        let held = self.boxes.get(&change.box_id).map(|stored| stored.revision);
        let expected = match change.expect {
            Expect::Absent => None,
            Expect::Revision(revision) => Some(revision),
        };
        if held != expected {
            return Err(conflict());
        }
        if let Some(admissions) = change.admits {
            let count = self.admissions.entry(change.owner.clone()).or_default();
            if *count != admissions {
                return Err(conflict());
            }
            *count += 1;
        }
        let revision = match change.write {
            Write::Keep => held.unwrap_or(0),
            Write::Remove => {
                self.boxes.remove(&change.box_id);
                0
            }
            Write::Put(record) => {
                let taken = self.boxes.values().any(|other| {
                    other.record.owner == record.owner
                        && other.record.name == record.name
                        && other.record.id != record.id
                });
                if taken {
                    return Err(StoreError::NameTaken { name: record.name });
                }
                let revision = held.unwrap_or(0) + 1;
                let grant = match self.boxes.get(&change.box_id) {
                    Some(stored) => stored.grant.clone(),
                    None => change.grant,
                };
                self.boxes.insert(change.box_id.clone(), Stored::new(*record, revision).with_grant(grant));
                revision
            }
        };
        if let Some(key) = change.key {
            let place = (key.owner.clone(), key.key.clone());
            if self.keys.get(&place).is_some_and(|old| key.at < old.at.plus(KEY_LIFETIME)) {
                return Err(StoreError::KeyTaken);
            }
            self.keys.insert(place, key);
        }
        if let Some(operation) = change.operation {
            self.operations.insert(operation.id.clone(), (operation, Vec::new()));
        }
        for event in change.events {
            let Some((_, log)) = self.operations.get_mut(&event.operation) else {
                return Err(StoreError::Corrupt { what: "event without an operation", source: None });
            };
            if log.last().map_or(0, |last| last.sequence) + 1 != event.sequence {
                return Err(StoreError::Conflict { id: change.box_id });
            }
            log.push(event);
        }
        Ok(revision)
    }
}

#[async_trait]
impl BoxStore for MemoryStore {
    async fn load(&self, id: &BoxId) -> Result<Option<Stored>, StoreError> {
        tokio::task::yield_now().await;
        Ok(self.tables().boxes.get(id).cloned())
    }

    async fn owned(&self, owner: &UserId) -> Result<Owned, StoreError> {
        tokio::task::yield_now().await;
        let tables = self.tables();
        let mut boxes: Vec<_> =
            tables.boxes.values().filter(|stored| stored.record.owner == *owner).cloned().collect();
        boxes.sort_by(|a, b| (a.record.created_at, &a.record.id).cmp(&(b.record.created_at, &b.record.id)));
        Ok(Owned::new(boxes, tables.admissions.get(owner).copied().unwrap_or(0)))
    }

    async fn page(&self, after: Option<&BoxId>, limit: u32) -> Result<Vec<Stored>, StoreError> {
        tokio::task::yield_now().await;
        let tables = self.tables();
        let later =
            tables.boxes.values().filter(|stored| after.is_none_or(|after| stored.record.id > *after));
        Ok(later.take(limit as usize).cloned().collect())
    }

    async fn commit(&self, change: Change) -> Result<Revision, StoreError> {
        tokio::task::yield_now().await;
        let id = change.box_id.clone();
        let revision = {
            let mut tables = self.tables();
            let mut next = tables.clone();
            let revision = next.commit(change)?;
            *tables = next;
            revision
        };
        // nobody listening is no failure
        let _ = self.hints.send(Hint::Box(id));
        tokio::task::yield_now().await;
        Ok(revision)
    }

    async fn operation(
        &self,
        id: &OperationId,
        after: u64,
    ) -> Result<Option<(Operation, Vec<OperationEvent>)>, StoreError> {
        tokio::task::yield_now().await;
        Ok(self.tables().operations.get(id).map(|(operation, log)| {
            (operation.clone(), log.iter().filter(|event| event.sequence > after).cloned().collect())
        }))
    }

    async fn keyed(
        &self,
        owner: &UserId,
        key: &str,
        since: Timestamp,
    ) -> Result<Option<KeyedAnswer>, StoreError> {
        tokio::task::yield_now().await;
        let answer = self.tables().keys.get(&(owner.clone(), key.to_owned())).cloned();
        Ok(answer.filter(|answer| answer.at > since))
    }

    async fn prune(&self, before: Timestamp) -> Result<u64, StoreError> {
        let mut tables = self.tables();
        let held = tables.operations.len() + tables.keys.len();
        tables
            .operations
            .retain(|_, (_, log)| !log.last().is_some_and(|last| last.phase.is_last() && last.at < before));
        tables.keys.retain(|_, key| key.at >= before);
        Ok((held - tables.operations.len() - tables.keys.len()) as u64)
    }

    async fn hints(&self) -> Result<Hints, StoreError> {
        let stream = BroadcastStream::new(self.hints.subscribe());
        Ok(Box::pin(stream.map(|hint| hint.unwrap_or(Hint::All))))
    }
}
