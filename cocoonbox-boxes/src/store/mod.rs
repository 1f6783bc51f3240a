//! Where boxes, their operations and their events are kept.

mod error;
#[cfg(any(test, feature = "testkit"))]
mod faulty;
mod memory;
#[cfg(feature = "sql")]
mod sql;

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::machine::{BoxRecord, OperationEvent, Verb, Write};
use cocoonbox_core::{BoxId, GrantId, OperationId, Timestamp, UserId};
use futures::Stream;

pub use error::StoreError;
#[cfg(any(test, feature = "testkit"))]
pub use faulty::{FaultyStore, StoreCall, StoreFault};
pub use memory::MemoryStore;
#[cfg(feature = "sql")]
pub use sql::{MIGRATIONS, STATEMENTS, SqlStore};

/// How long an idempotency key is remembered.
pub const KEY_LIFETIME: Duration = Duration::from_hours(24);

/// Counts the writes of one box, or of one owner's admissions; 0 before the first.
pub type Revision = u64;

/// A record and the revision it was read at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stored {
    /// The record.
    pub record: BoxRecord,
    /// What a write that rests on it must expect.
    pub revision: Revision,
    /// The grant of the outside agent that made the box; none for a box of its owner's own.
    pub grant: Option<GrantId>,
}

impl Stored {
    /// Puts a record and its revision together; the box is of its owner's own.
    pub const fn new(record: BoxRecord, revision: Revision) -> Self {
        Self { record, revision, grant: None }
    }

    /// Says which grant made the box.
    pub fn with_grant(mut self, grant: Option<GrantId>) -> Self {
        self.grant = grant;
        self
    }
}

/// All boxes of one user, and the count of the user's admissions when they were read.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Owned {
    /// The boxes, oldest first.
    pub boxes: Vec<Stored>,
    /// What an admission that rests on them must expect.
    pub admissions: Revision,
}

impl Owned {
    /// Puts boxes and the admissions' count together.
    pub const fn new(boxes: Vec<Stored>, admissions: Revision) -> Self {
        Self { boxes, admissions }
    }
}

/// An operation, without its events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// On which box, which may be gone.
    pub box_id: BoxId,
    /// Whose.
    pub owner: UserId,
    /// What it does.
    pub verb: Verb,
    /// When it began.
    pub started_at: Timestamp,
}

impl Operation {
    /// Describes an operation.
    pub const fn new(
        id: OperationId,
        box_id: BoxId,
        owner: UserId,
        verb: Verb,
        started_at: Timestamp,
    ) -> Self {
        Self { id, box_id, owner, verb, started_at }
    }
}

/// What a request with an idempotency key was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyedAnswer {
    /// Whose key.
    pub owner: UserId,
    /// The key.
    pub key: String,
    /// The request, in one spelling.
    pub request: String,
    /// The box it was about.
    pub box_id: BoxId,
    /// The operation it began or joined.
    pub operation: Option<OperationId>,
    /// When.
    pub at: Timestamp,
}

impl KeyedAnswer {
    /// Describes an answer.
    pub const fn new(
        owner: UserId,
        key: String,
        request: String,
        box_id: BoxId,
        operation: Option<OperationId>,
        at: Timestamp,
    ) -> Self {
        Self { owner, key, request, box_id, operation, at }
    }
}

/// What must still be so when a change is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a box is there or it is not")]
pub enum Expect {
    /// There is no such box.
    Absent,
    /// The box is at this revision.
    Revision(Revision),
}

/// One step: all of it is written, or nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Change {
    /// Which box.
    pub box_id: BoxId,
    /// Whose.
    pub owner: UserId,
    /// What must still be so.
    pub expect: Expect,
    /// The owner's count of admissions that must still be so; writing then counts one more.
    pub admits: Option<Revision>,
    /// What becomes of the record.
    pub write: Write,
    /// The grant that makes the box, where the box is new and an outside agent's.
    pub grant: Option<GrantId>,
    /// An operation that begins.
    pub operation: Option<Operation>,
    /// Events to append.
    pub events: Vec<OperationEvent>,
    /// An answer to remember.
    pub key: Option<KeyedAnswer>,
}

impl Change {
    /// Writes `write` if `expect` holds.
    pub const fn new(box_id: BoxId, owner: UserId, expect: Expect, write: Write) -> Self {
        Self {
            box_id,
            owner,
            expect,
            admits: None,
            write,
            grant: None,
            operation: None,
            events: Vec::new(),
            key: None,
        }
    }
    /// Notes which grant makes the box.
    pub fn with_grant(mut self, grant: Option<GrantId>) -> Self {
        self.grant = grant;
        self
    }
    /// Makes it an admission that rests on the owner's count.
    pub const fn with_admits(mut self, admissions: Revision) -> Self {
        self.admits = Some(admissions);
        self
    }
    /// Begins an operation with it.
    pub fn with_operation(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }
    /// Appends events with it.
    pub fn with_events(mut self, events: Vec<OperationEvent>) -> Self {
        self.events = events;
        self
    }
    /// Remembers an answer with it.
    pub fn with_key(mut self, key: KeyedAnswer) -> Self {
        self.key = Some(key);
        self
    }
}

/// A hint that something was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "readers match on both")]
pub enum Hint {
    /// This box, or an operation on it.
    Box(BoxId),
    /// Anything: hints may have been missed.
    All,
}

/// Hints, for as long as they are asked for.
pub type Hints = Pin<Box<dyn Stream<Item = Hint> + Send>>;

/// Where boxes, their operations, events and remembered answers are kept.
///
/// # Behavior
/// - **One step.** [`commit`](Self::commit) writes the record, the operation, the events and the remembered answer all
///   together or not at all, and compares what it expects in the same step. A process that dies in the middle leaves
///   the state before. A finished commit is durable.
/// - **Conflict.** When the box's revision, or the owner's count of admissions, is not what the change expects, it is
///   [`StoreError::Conflict`] and nothing is written. Revisions of one box only grow; a removed box has none.
/// - **Names** are unique among an owner's boxes: [`StoreError::NameTaken`]. **Keys** are unique among an owner's keys
///   of the last 24 hours: [`StoreError::KeyTaken`]; an older one is replaced.
/// - **Grants.** Which grant made a box is written with the box, stays as it is while the box is there, and goes with it; a
///   change of a box that is there already says nothing of it.
/// - **Order.** [`owned`](Self::owned) is oldest first, by time and then id; [`page`](Self::page) goes by id. Events
///   are in their sequence, and the same sequence twice is a conflict.
/// - What is not there is `None` or empty, never an error. Operations and their events outlive their box until
///   [`prune`](Self::prune) takes those that are over and old.
/// - **Hints** come after the commit they speak of; one who subscribed before it hears of it, or hears
///   [`Hint::All`]. Which processes are heard is the store's to say.
/// - After [`StoreError::Unknown`] a commit may have happened: read before trying again. A caller that stops waiting
///   leaves it done or undone, never half.
#[async_trait]
pub trait BoxStore: fmt::Debug + Send + Sync + 'static {
    /// Returns a box.
    async fn load(&self, id: &BoxId) -> Result<Option<Stored>, StoreError>;

    /// Returns all boxes of a user.
    async fn owned(&self, owner: &UserId) -> Result<Owned, StoreError>;

    /// Returns at most `limit` boxes of all users, by id, after `after`.
    async fn page(&self, after: Option<&BoxId>, limit: u32) -> Result<Vec<Stored>, StoreError>;

    /// Writes one step; returns the box's revision after it (0 when it is gone).
    async fn commit(&self, change: Change) -> Result<Revision, StoreError>;

    /// Returns an operation and its events after sequence `after`.
    async fn operation(
        &self,
        id: &OperationId,
        after: u64,
    ) -> Result<Option<(Operation, Vec<OperationEvent>)>, StoreError>;

    /// Returns what the request with this key was answered, unless that was before `since`.
    async fn keyed(
        &self,
        owner: &UserId,
        key: &str,
        since: Timestamp,
    ) -> Result<Option<KeyedAnswer>, StoreError>;

    /// Forgets operations that ended, and answers that were given, before `before`; returns how many.
    async fn prune(&self, before: Timestamp) -> Result<u64, StoreError>;

    /// Starts to hear hints.
    async fn hints(&self) -> Result<Hints, StoreError>;
}
