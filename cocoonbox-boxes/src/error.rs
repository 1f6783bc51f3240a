use cocoonbox_core::backend::BackendError;
use cocoonbox_core::machine::{BoxState, FailureKind, Refusal};
use cocoonbox_core::{BoxName, EntropyError, OperationId, Retry};

use crate::KeeperError;
use crate::store::StoreError;

/// Why the engine did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The caller has no such thing: another user's box is told the same.
    #[error("you have no {what}")]
    NotFound {
        /// What was asked for, in words.
        what: String,
    },
    /// A value breaks its rule.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field of the request.
        field: &'static str,
        /// The rule.
        reason: String,
    },
    /// Another box of the caller has the name.
    #[error("you already have a box called {name}: choose another name, or use that box")]
    NameTaken {
        /// The name.
        name: BoxName,
    },
    /// The idempotency key came with another request before.
    #[error(
        "this idempotency key was used for another request within 24 hours: use a new key for a new request"
    )]
    KeyReused,
    /// The caller has as many boxes as allowed.
    #[error("you have {have} of {max} boxes: delete one, or ask the administrator for more")]
    TooManyBoxes {
        /// How many there are.
        have: u32,
        /// How many there may be.
        max: u32,
    },
    /// As many of the caller's boxes run as allowed.
    #[error(
        "{have} of the {max} boxes that may run at once are running: hibernate one, or ask the administrator for more"
    )]
    TooManyRunning {
        /// How many run.
        have: u32,
        /// How many may.
        max: u32,
    },
    /// The outside agent has made as many boxes as it was allowed.
    #[error(
        "this agent has {have} of the {max} boxes that it was allowed: delete one, or ask the user to allow more"
    )]
    AgentBoxes {
        /// How many it has.
        have: u32,
        /// How many it may have.
        max: u32,
    },
    /// As many of the outside agent's boxes run as it was allowed.
    #[error(
        "{have} of the {max} boxes that this agent may run at once are running: hibernate one, or ask the user to allow more"
    )]
    AgentRunning {
        /// How many run.
        have: u32,
        /// How many may.
        max: u32,
    },
    /// The user's agents have made as many boxes as allowed, all together.
    #[error("agents have made {have} of {max} boxes: delete one, or ask the administrator for more")]
    TooManyAgentBoxes {
        /// How many there are.
        have: u32,
        /// How many there may be.
        max: u32,
    },
    /// The box's state forbids it.
    #[error("the box is {state}: ensure it first")]
    WrongState {
        /// Its state.
        state: BoxState,
    },
    /// The node that holds the box does not answer.
    #[error("{reason}: the box is there again once the node answers")]
    Away {
        /// Which node, and since when, in words.
        reason: String,
    },
    /// A step that cannot be undone was not confirmed.
    #[error("{what}: name the box and set confirm")]
    Unconfirmed {
        /// What it does, in words.
        what: &'static str,
    },
    /// The operation ended without doing what was asked.
    #[error("{reason}")]
    OperationFailed {
        /// Which.
        operation: OperationId,
        /// What may be done next.
        kind: FailureKind,
        /// In words.
        reason: String,
    },
    /// This version cannot.
    #[error("{what}")]
    Unsupported {
        /// What is missing.
        what: &'static str,
    },
    /// Others changed the same box again and again.
    #[error("the box is being changed by others at the same time: try again")]
    Contended,
    /// The sandbox backend refused or cannot be reached.
    #[error("the box cannot be reached")]
    Backend(#[source] BackendError),
    /// The store of boxes refused or cannot be reached.
    #[error("the server cannot reach its store of boxes: try again later")]
    Store(#[source] StoreError),
    /// The box's state cannot be saved, read or restored.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The system gave no randomness.
    #[error("the server cannot draw a name")]
    Entropy(#[from] EntropyError),
}

impl EngineError {
    /// Returns what a caller may do next.
    pub const fn retry(&self) -> Retry {
        match self {
            Self::NotFound { .. }
            | Self::Invalid { .. }
            | Self::NameTaken { .. }
            | Self::KeyReused
            | Self::Unconfirmed { .. }
            | Self::Unsupported { .. } => Retry::Never,
            Self::TooManyBoxes { .. }
            | Self::TooManyRunning { .. }
            | Self::AgentBoxes { .. }
            | Self::AgentRunning { .. }
            | Self::TooManyAgentBoxes { .. }
            | Self::WrongState { .. }
            | Self::Away { .. }
            | Self::OperationFailed { .. }
            | Self::Entropy(_) => Retry::Later,
            Self::Contended => Retry::Reread,
            Self::Backend(error) => error.retry(),
            Self::Store(error) => error.retry(),
            Self::Keeper(error) => error.retry(),
        }
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NameTaken { name } => Self::NameTaken { name },
            StoreError::Conflict { .. } | StoreError::KeyTaken => Self::Contended,
            other => Self::Store(other),
        }
    }
}

impl From<Refusal> for EngineError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooManyBoxes { have, max } => Self::TooManyBoxes { have, max },
            Refusal::TooManyRunning { have, max } => Self::TooManyRunning { have, max },
            Refusal::AgentBoxes { have, max } => Self::AgentBoxes { have, max },
            Refusal::AgentRunning { have, max } => Self::AgentRunning { have, max },
            Refusal::TooManyAgentBoxes { have, max } => Self::TooManyAgentBoxes { have, max },
            Refusal::WrongState { state } => Self::WrongState { state },
            Refusal::Away { reason } => Self::Away { reason },
            Refusal::Absent => Self::NotFound { what: "such box".to_owned() },
            _ => Self::Contended,
        }
    }
}
