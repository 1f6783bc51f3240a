use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AgentShare, BoxRecord, BoxState, Limits, Phase, Schedule, Tally, Verb};
use crate::backend::{ClaimState, HibernateTo, Memory, SandboxId};
use crate::{BoxId, BoxName, ImageName, OperationId, Retry, Timestamp, UserId, WakeId};

/// Names drawn for a decision, which uses them or not.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "two names, built by hand")]
pub struct Fresh {
    /// For an operation that begins.
    pub operation: OperationId,
    /// For a boot or wake that begins.
    pub wake: WakeId,
}

/// A box to make.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "what Create cannot do without")]
pub struct NewBox {
    /// Its id.
    pub id: BoxId,
    /// Whose it will be.
    pub owner: UserId,
    /// Its name.
    pub name: BoxName,
    /// What it will run.
    pub image: ImageName,
}

/// When a box goes to sleep by itself.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "two settings and what the clock did, built by hand")]
pub struct SleepRules {
    /// How long a box runs unused; zero is for ever.
    pub idle: Duration,
    /// How long a sleeping box keeps its memory; zero is for ever.
    pub freeze_to_disk_after: Duration,
    /// When the wall clock was last seen to have jumped: what came before lies at an unknown distance, so that every
    /// span is counted from here.
    pub jumped_at: Option<Timestamp>,
}

impl SleepRules {
    /// Returns from when on a span is counted that began at `since`.
    pub fn counted_from(&self, since: Timestamp, now: Timestamp) -> Timestamp {
        match self.jumped_at {
            None => since,
            // written before the clock went back
            Some(jumped) if since > now => jumped,
            Some(jumped) => since.max(jumped),
        }
    }
}

/// A claim that the backend holds for a box.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "what a decision needs to know of a claim")]
pub struct SeenClaim {
    /// The backend's name for it.
    pub id: SandboxId,
    /// How it stands.
    pub state: ClaimState,
}

/// What the backend said about a box.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it answered or it did not")]
pub enum Look {
    /// Nothing: it could not be asked.
    Unknown,
    /// These claims, oldest first.
    Seen(Vec<SeenClaim>),
}

/// What happens to a box.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Command {
    /// The person makes a box; the only command without a record.
    Create {
        /// The box.
        new: NewBox,
        /// Names to use.
        fresh: Fresh,
        /// What the owner has.
        tally: Tally,
        /// What the owner may have.
        limits: Limits,
        /// The share of the outside agent that makes it, where one does.
        agent: Option<AgentShare>,
    },
    /// A box of another server is taken in: its saves were found. Without a record, too.
    Adopt {
        /// The box.
        new: NewBox,
        /// When its newest save was made.
        saved_at: Timestamp,
        /// What the owner may have.
        limits: Limits,
    },
    /// The person, or a call, wants the box running.
    Ensure {
        /// Names to use.
        fresh: Fresh,
        /// What the owner has, without this box.
        tally: Tally,
        /// What the owner may have.
        limits: Limits,
        /// The share, without this box, of the outside agent that asks, where one does.
        agent: Option<AgentShare>,
    },
    /// The person puts the box to sleep.
    Hibernate {
        /// What to keep.
        to: HibernateTo,
        /// The operation's id.
        operation: OperationId,
    },
    /// The person gives the box another name.
    Rename {
        /// The name.
        name: BoxName,
    },
    /// The person sets or clears when the box wakes by itself.
    SetSchedule {
        /// The schedule, its next time worked out.
        schedule: Option<Schedule>,
    },
    /// The person ends the box.
    Delete {
        /// The operation's id.
        operation: OperationId,
    },
    /// The person saves the box's state.
    Save {
        /// The operation's id.
        operation: OperationId,
    },
    /// The person puts a save's state in the place of what the box has.
    Restore {
        /// Which save.
        save: String,
        /// The operation's id.
        operation: OperationId,
    },
    /// The person puts some files of a save back.
    RestoreFiles {
        /// Which save.
        save: String,
        /// Which files and folders, by their names in the box.
        paths: Vec<Vec<u8>>,
        /// The operation's id.
        operation: OperationId,
    },
    /// The person moves the box to another image; its state stays.
    Rebase {
        /// Which image.
        image: ImageName,
        /// Names to use.
        fresh: Fresh,
    },
    /// A client call uses the box.
    Used,
    /// A minute went by.
    Tick {
        /// When boxes go to sleep.
        rules: SleepRules,
        /// Whether a client call is open.
        held: bool,
        /// When a client call last began or ended.
        used_at: Option<Timestamp>,
        /// The schedule's next time after now.
        next_at: Option<Timestamp>,
        /// What the owner has, without this box.
        tally: Tally,
        /// Names to use.
        fresh: Fresh,
    },
    /// The wall clock jumped.
    ClockJumped {
        /// By so many microseconds, forward or backward.
        by: i64,
        /// The schedule's next time after now.
        next_at: Option<Timestamp>,
    },
    /// A call opened before a sleep that gives way had any effect.
    GiveWay {
        /// The sleep.
        operation: OperationId,
    },
    /// A sandbox of another image holds the box's state and answers.
    Rebased {
        /// For this operation.
        operation: OperationId,
        /// The backend's name for it.
        sandbox: SandboxId,
        /// Its image.
        image: ImageName,
    },
    /// The box could not be moved to another image; its sandbox runs, started anew.
    NotRebased {
        /// Of this operation.
        operation: OperationId,
        /// What kind of failure.
        kind: FailureKind,
        /// In words.
        reason: String,
    },
    /// The sandbox was claimed and answers.
    Claimed {
        /// For this operation.
        operation: OperationId,
        /// The backend's name for it.
        sandbox: SandboxId,
    },
    /// The sandbox was woken and answers.
    Woke {
        /// For this operation.
        operation: OperationId,
        /// What the wake found.
        memory: Memory,
    },
    /// The sandbox sleeps.
    Hibernated {
        /// For this operation.
        operation: OperationId,
        /// What it kept.
        memory: Memory,
    },
    /// The operation is so far.
    Progress {
        /// Of this operation.
        operation: OperationId,
        /// Where it is.
        phase: Phase,
        /// In words.
        message: String,
        /// Bytes done and in all.
        bytes: Bytes,
        /// That the box's state was saved, and when.
        saved_at: Option<Timestamp>,
    },
    /// The state is in the state store.
    Saved {
        /// For this operation.
        operation: OperationId,
        /// When it was saved.
        at: Timestamp,
        /// In words.
        message: String,
        /// Bytes of the save.
        bytes: Bytes,
    },
    /// A save's state lies in the box, verified, and takes its place when the box starts next.
    Staged {
        /// For this operation.
        operation: OperationId,
        /// Names to use.
        fresh: Fresh,
    },
    /// The files are back.
    FilesRestored {
        /// For this operation.
        operation: OperationId,
        /// In words.
        message: String,
        /// Bytes of them.
        bytes: Bytes,
    },
    /// The sandbox is gone.
    Released {
        /// For this operation.
        operation: OperationId,
    },
    /// An effect failed, or nobody knows whether it did.
    EffectFailed {
        /// Of this operation.
        operation: OperationId,
        /// What kind of failure.
        kind: FailureKind,
        /// In words.
        reason: String,
        /// What the backend said afterwards.
        look: Look,
        /// Names to use.
        fresh: Fresh,
    },
    /// Nobody works on the box (after a restart): compare it with what the backend holds.
    Reconcile {
        /// The claims made for this box, oldest first.
        seen: Vec<SeenClaim>,
        /// Names to use.
        fresh: Fresh,
    },
}

/// What to do once a decision is written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Claim a sandbox, unless one with the box's reference is there: then give that one the identity and wake it.
    Claim {
        /// The boot's name.
        wake_id: WakeId,
    },
    /// Give the sandbox the identity of this wake, then wake it.
    Wake {
        /// Which.
        sandbox: SandboxId,
        /// The wake's name.
        wake_id: WakeId,
    },
    /// Put the sandbox to sleep.
    Hibernate {
        /// Which.
        sandbox: SandboxId,
        /// What to keep.
        to: HibernateTo,
    },
    /// Save the state of the box.
    Save {
        /// Its sandbox.
        sandbox: SandboxId,
        /// The wake that it runs in.
        wake_id: WakeId,
    },
    /// Bring a save into the box, verified, beside what it has.
    Stage {
        /// Its sandbox.
        sandbox: SandboxId,
        /// The wake that it runs in.
        wake_id: WakeId,
        /// Which save.
        save: String,
    },
    /// Put some files of a save back.
    RestoreFiles {
        /// Its sandbox.
        sandbox: SandboxId,
        /// The wake that it runs in.
        wake_id: WakeId,
        /// Which save.
        save: String,
        /// Which files and folders, by their names in the box.
        paths: Vec<Vec<u8>>,
    },
    /// End the sandbox's programs and start it anew, in another wake.
    Restart {
        /// Which.
        sandbox: SandboxId,
        /// The wake's name.
        wake_id: WakeId,
    },
    /// Start the sandbox anew, save it, and bring the save into a new sandbox of another image, which runs in the wake.
    Rebase {
        /// The one that the box has.
        sandbox: SandboxId,
        /// The wake's name.
        wake_id: WakeId,
        /// The image of the new one.
        image: ImageName,
    },
    /// Release the sandbox and whatever else carries the box's reference.
    Release {
        /// The one that is known.
        sandbox: Option<SandboxId>,
    },
    /// Release a second sandbox that carries the box's reference; nothing waits for it.
    ReleaseStray {
        /// Which.
        sandbox: SandboxId,
    },
}

/// Why an operation failed, by what a person may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The server stopped meanwhile: ask again.
    Interrupted,
    /// The request cannot work: change it.
    Invalid,
    /// The image is not there: choose another.
    UnknownImage,
    /// A cap of the node: end something, or ask later.
    Quota,
    /// The backend cannot be reached: ask later.
    Unavailable,
    /// The sandbox did not start, or something unforeseen.
    Broken,
    /// A call opened, so the box stays up.
    GaveWay,
}

/// How many bytes an operation has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "two numbers")]
pub struct Bytes {
    /// So far.
    pub done: u64,
    /// In all.
    pub total: u64,
}

impl Bytes {
    /// Returns whether none are moved at all.
    pub const fn is_none(&self) -> bool {
        self.done == 0 && self.total == 0
    }
}

/// One line of an operation's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperationEvent {
    /// Which operation.
    pub operation: OperationId,
    /// On which box.
    pub box_id: BoxId,
    /// 1 for the operation's first.
    pub sequence: u64,
    /// Where it is.
    pub phase: Phase,
    /// In words.
    pub message: String,
    /// When.
    pub at: Timestamp,
    /// Bytes done and in all, where the phase moves bytes.
    #[serde(default, skip_serializing_if = "Bytes::is_none")]
    pub bytes: Bytes,
    /// In a last event: what the box kept.
    pub memory: Option<Memory>,
    /// In a last event: why it failed.
    pub failure: Option<FailureKind>,
}

/// What becomes of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a record is kept, written or removed")]
pub enum Write {
    /// It stays as it is.
    Keep,
    /// It becomes this.
    Put(Box<BoxRecord>),
    /// It goes.
    Remove,
}

/// What to write, and what to do then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// What becomes of the record.
    pub write: Write,
    /// What to do once it is written, in order.
    pub effects: Vec<Effect>,
    /// What to append, in the same step as the record.
    pub events: Vec<OperationEvent>,
    /// The operation that begins, goes on or ends here, or was joined; absent when the command needed none.
    pub operation: Option<OperationId>,
    /// The verb of an operation that begins here.
    pub begins: Option<Verb>,
    /// Whether limits were counted: the tally must still hold when the record is written.
    pub admits: bool,
}

impl Decision {
    /// Changes nothing.
    pub const fn nothing() -> Self {
        Self {
            write: Write::Keep,
            effects: Vec::new(),
            events: Vec::new(),
            operation: None,
            begins: None,
            admits: false,
        }
    }

    /// Writes `record` and does nothing else.
    pub fn put(record: BoxRecord) -> Self {
        Self { write: Write::Put(Box::new(record)), ..Self::nothing() }
    }

    /// Returns the record after this decision, where there is one; `before` is the record before.
    pub fn record<'a>(&'a self, before: Option<&'a BoxRecord>) -> Option<&'a BoxRecord> {
        match &self.write {
            Write::Keep => before,
            Write::Put(record) => Some(record),
            Write::Remove => None,
        }
    }
}

/// Why a command is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such box.
    #[error("there is no such box")]
    Absent,
    /// An operation is under way: wait for its end.
    #[error("operation {operation} is under way on the box")]
    Busy {
        /// Which.
        operation: OperationId,
    },
    /// The owner has as many boxes as allowed.
    #[error("{have} of {max} boxes are in use")]
    TooManyBoxes {
        /// How many there are.
        have: u32,
        /// How many there may be.
        max: u32,
    },
    /// As many of the owner's boxes run as allowed.
    #[error("{have} of {max} boxes that may run at once are running")]
    TooManyRunning {
        /// How many run.
        have: u32,
        /// How many may.
        max: u32,
    },
    /// The outside agent has made as many boxes as it was allowed.
    #[error("the agent has {have} of the {max} boxes that it was allowed")]
    AgentBoxes {
        /// How many it has.
        have: u32,
        /// How many it may have.
        max: u32,
    },
    /// As many of the outside agent's boxes run as it was allowed.
    #[error("{have} of the {max} boxes that the agent may run at once are running")]
    AgentRunning {
        /// How many run.
        have: u32,
        /// How many may.
        max: u32,
    },
    /// The owner's agents have made as many boxes as allowed, all together.
    #[error("agents have made {have} of {max} boxes")]
    TooManyAgentBoxes {
        /// How many there are.
        have: u32,
        /// How many there may be.
        max: u32,
    },
    /// The box's state forbids it.
    #[error("the box is {state}")]
    WrongState {
        /// Its state.
        state: BoxState,
    },
    /// The node that holds the box does not answer: wait for it.
    #[error("{reason}")]
    Away {
        /// Which node, and since when, in words.
        reason: String,
    },
    /// The outcome of an operation that is no longer under way: compare the box with the backend.
    #[error("operation {operation} is not under way")]
    Stale {
        /// Which.
        operation: OperationId,
    },
}

impl Refusal {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Absent => Retry::Never,
            Self::Busy { .. }
            | Self::TooManyBoxes { .. }
            | Self::TooManyRunning { .. }
            | Self::AgentBoxes { .. }
            | Self::AgentRunning { .. }
            | Self::TooManyAgentBoxes { .. }
            | Self::WrongState { .. }
            | Self::Away { .. } => Retry::Later,
            Self::Stale { .. } => Retry::LookFirst,
        }
    }
}
