use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::BoxState;
use crate::backend::{HibernateTo, Memory, SandboxId};
use crate::{BoxId, BoxName, ImageName, OperationId, Timestamp, UserId, WakeId};

/// How much a user may have; absent is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "three numbers, built by hand")]
pub struct Limits {
    /// Boxes of the user's own, in whatever state.
    pub max_boxes: Option<u32>,
    /// Boxes of the user's own that run, start, or are being put to sleep.
    pub max_running: Option<u32>,
    /// Boxes that outside agents made for the user, all grants together.
    pub max_agent_boxes: Option<u32>,
}

/// How much a user has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "three numbers, built by hand")]
pub struct Tally {
    /// Boxes of the user's own, in whatever state.
    pub boxes: u32,
    /// Boxes of the user's own that count as running.
    pub running: u32,
    /// Boxes that outside agents made, in whatever state.
    pub agent_boxes: u32,
}

impl Tally {
    /// Counts `records`.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a BoxRecord>) -> Self {
        records.into_iter().fold(Self::default(), |tally, record| {
            let (agents, own) = (u32::from(record.agent), u32::from(!record.agent));
            Self {
                boxes: tally.boxes + own,
                running: tally.running + own * u32::from(record.occupies()),
                agent_boxes: tally.agent_boxes + agents,
            }
        })
    }
}

/// What one outside agent has made and may make: what bounds its boxes in place of the user's own limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "four numbers, built by hand")]
pub struct AgentShare {
    /// Boxes that it made, in whatever state.
    pub boxes: u32,
    /// Those of them that count as running.
    pub running: u32,
    /// How many it may have made.
    pub max_boxes: u32,
    /// How many of them may run at once.
    pub max_running: u32,
}

impl AgentShare {
    /// Counts `records`, which are the agent's.
    pub fn of<'a>(
        records: impl IntoIterator<Item = &'a BoxRecord>,
        max_boxes: u32,
        max_running: u32,
    ) -> Self {
        let none = Self { boxes: 0, running: 0, max_boxes, max_running };
        records.into_iter().fold(none, |share, record| Self {
            boxes: share.boxes + 1,
            running: share.running + u32::from(record.occupies()),
            ..share
        })
    }
}

/// When a box wakes by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "a row of the stored record")]
pub struct Schedule {
    /// Five fields: minute, hour, day of month, month, day of week.
    pub cron: String,
    /// An IANA name.
    pub time_zone: String,
    /// How long the box stays up after each scheduled wake.
    pub stay_up: Duration,
    /// When it wakes next; absent when it never does.
    pub next_at: Option<Timestamp>,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verb {
    /// Makes the box and starts it.
    Create,
    /// Brings the box to running.
    Ensure,
    /// Puts the box to sleep.
    Hibernate(HibernateTo),
    /// Ends the box.
    Delete,
    /// Saves the box's state.
    Save,
    /// Puts a save's state in the place of what the box has.
    Restore,
    /// Puts some files of a save back beside what the box has.
    RestoreFiles,
    /// Moves the box to another image.
    Rebase,
}

impl Verb {
    /// Returns whether the operation brings a box that does not run to running.
    pub const fn starts(self) -> bool {
        matches!(self, Self::Create | Self::Ensure)
    }
}

/// Who began an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// The box's owner.
    Person,
    /// The idle clock: gives way to an open call.
    Idle,
    /// The box's schedule: its sleep gives way to an open call.
    Schedule,
    /// The operator's rule that memory is not kept for ever.
    FreezeToDisk,
    /// A comparison with the backend found the box running that should sleep.
    Reconcile,
}

impl Cause {
    /// Returns whether a sleep that this began gives way to an open call.
    pub const fn gives_way(self) -> bool {
        matches!(self, Self::Idle | Self::Schedule)
    }
}

/// The operation that is under way on a box; while there is one, no other begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pending {
    /// Its id.
    pub operation: OperationId,
    /// What it does.
    pub verb: Verb,
    /// Who began it.
    pub cause: Cause,
    /// When it began.
    pub started_at: Timestamp,
    /// How many events it has.
    pub events: u64,
    /// How often a start was picked up again after its outcome had been unclear.
    pub attempts: u8,
}

/// Everything that is known of a box.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BoxRecord {
    /// Its id.
    pub id: BoxId,
    /// Whose it is.
    pub owner: UserId,
    /// Its name, unique among its owner's boxes.
    pub name: BoxName,
    /// What it runs.
    pub image: ImageName,
    /// Whether an outside agent made it. It was so from the first and stays so, whatever becomes of the agent's grant.
    #[serde(default)]
    pub agent: bool,
    /// How it stands.
    pub state: BoxState,
    /// What a sleeping box still has, and for a running box what its last wake found.
    pub memory: Option<Memory>,
    /// Its sandbox, once it has one.
    pub sandbox: Option<SandboxId>,
    /// This boot or wake; present while the box runs or may run.
    pub wake_id: Option<WakeId>,
    /// The operation under way.
    pub pending: Option<Pending>,
    /// Why the box failed.
    pub failure: Option<String>,
    /// Whether the backend could not be asked how the box stands after its last operation failed.
    #[serde(default)]
    pub unsettled: bool,
    /// Whether the box counts as failed because the node that holds it does not answer; once it does, the box is again
    /// what it is there.
    #[serde(default)]
    pub away: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When a client call last used it.
    pub last_used_at: Option<Timestamp>,
    /// When it was last saved.
    pub last_saved_at: Option<Timestamp>,
    /// When it last began to run.
    pub woke_at: Option<Timestamp>,
    /// When it fell asleep.
    pub hibernated_at: Option<Timestamp>,
    /// When it wakes by itself.
    pub schedule: Option<Schedule>,
    /// When a scheduled wake ends.
    pub sleep_at: Option<Timestamp>,
    /// Its owner's limits when they were last seen; a scheduled wake keeps to them.
    #[serde(default)]
    pub limits: Limits,
}

impl BoxRecord {
    /// Returns whether the box counts as running: a sandbox of it runs or may run.
    pub const fn occupies(&self) -> bool {
        self.wake_id.is_some()
    }
}
