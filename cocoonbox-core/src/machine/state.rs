use std::fmt;

use serde::{Deserialize, Serialize};

/// How a box stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::exhaustive_enums, reason = "the states are a fixed part of the contract")]
pub enum BoxState {
    /// There is none.
    #[default]
    Absent,
    /// It is being started or woken.
    Starting,
    /// It runs.
    Running,
    /// It is being put to sleep.
    Hibernating,
    /// It sleeps.
    Hibernated,
    /// It does not run, for a reason; ensuring it tries again.
    Failed,
}

impl BoxState {
    /// Returns whether this is a state on the way to another.
    pub const fn is_between(self) -> bool {
        matches!(self, Self::Starting | Self::Hibernating)
    }

    /// Returns the state's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Hibernating => "hibernating",
            Self::Hibernated => "hibernated",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for BoxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::exhaustive_enums, reason = "the phases are a fixed part of the contract")]
pub enum Phase {
    /// A sandbox is being made.
    Creating,
    /// A sleeping sandbox is being woken.
    Waking,
    /// The box is being put to sleep.
    Snapshotting,
    /// State is going to the state store.
    Saving,
    /// State is coming from the state store.
    Restoring,
    /// The box is being ended.
    Deleting,
    /// It is over and did what was asked.
    Done,
    /// It is over and did not.
    Failed,
    /// Chosen files are coming from the state store.
    RestoringFiles,
}

impl Phase {
    /// Returns the phase's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Waking => "waking",
            Self::Snapshotting => "snapshotting",
            Self::Saving => "saving",
            Self::Restoring => "restoring",
            Self::Deleting => "deleting",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::RestoringFiles => "restoring_files",
        }
    }

    /// Returns whether nothing follows an event of this phase.
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}
