//! The one place where errors become gRPC statuses.

use cocoonbox_core::backend::{BackendError, QuotaScope};
use cocoonbox_core::machine::FailureKind;
use tonic::{Code, Status};

use crate::store::StoreError;
use crate::{EngineError, KeeperError};

impl From<EngineError> for Status {
    fn from(error: EngineError) -> Self {
        let code = match &error {
            EngineError::NotFound { .. } | EngineError::Keeper(KeeperError::NotFound { .. }) => {
                Code::NotFound
            }
            EngineError::Invalid { .. } | EngineError::Keeper(KeeperError::Invalid { .. }) => {
                Code::InvalidArgument
            }
            EngineError::NameTaken { .. } | EngineError::KeyReused => Code::AlreadyExists,
            EngineError::TooManyBoxes { .. }
            | EngineError::TooManyRunning { .. }
            | EngineError::AgentBoxes { .. }
            | EngineError::AgentRunning { .. }
            | EngineError::TooManyAgentBoxes { .. } => Code::ResourceExhausted,
            EngineError::WrongState { .. }
            | EngineError::Unconfirmed { .. }
            | EngineError::Keeper(KeeperError::Held { .. }) => Code::FailedPrecondition,
            EngineError::OperationFailed { kind, .. } => match kind {
                FailureKind::Interrupted | FailureKind::GaveWay => Code::Aborted,
                FailureKind::Invalid => Code::InvalidArgument,
                FailureKind::UnknownImage => Code::FailedPrecondition,
                FailureKind::Quota => Code::ResourceExhausted,
                FailureKind::Unavailable => Code::Unavailable,
                _ => Code::Internal,
            },
            EngineError::Unsupported { .. } => Code::Unimplemented,
            EngineError::Contended | EngineError::Keeper(KeeperError::Raced) => Code::Aborted,
            EngineError::Keeper(KeeperError::Damaged { .. }) => Code::DataLoss,
            EngineError::Backend(error) => match error {
                BackendError::Quota { scope: QuotaScope::Tenant, .. } => Code::ResourceExhausted,
                _ => Code::Unavailable,
            },
            EngineError::Away { .. } | EngineError::Store(_) | EngineError::Keeper(_) => Code::Unavailable,
            EngineError::Entropy(_) => Code::Internal,
        };
        let message = match &error {
            EngineError::OperationFailed { kind, reason, .. } => format!("{reason}; {}", next_step(*kind)),
            EngineError::Backend(BackendError::Unreachable { target, .. }) => {
                format!("nothing in the box listens on {target}: start it, or try again in a moment")
            }
            EngineError::Backend(BackendError::Conflict { .. } | BackendError::NotFound { .. }) => {
                "the box has fallen asleep or is gone: try again".to_owned()
            }
            EngineError::Store(StoreError::Full { .. }) => {
                "the server's disk is full and nothing was changed: free space there and try again".to_owned()
            }
            EngineError::Backend(_) => "the box cannot be reached: try again later".to_owned(),
            other => other.to_string(),
        };
        if matches!(code, Code::Internal | Code::Unavailable) {
            tracing::warn!(error = &error as &dyn std::error::Error, "a call on boxes failed");
        }
        Self::new(code, message)
    }
}

const fn next_step(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Interrupted => "ask again",
        FailureKind::GaveWay => "the box is in use",
        FailureKind::Invalid => "change the request",
        FailureKind::UnknownImage => "choose an image that the server has",
        FailureKind::Quota => "delete or hibernate a box, or try again later",
        FailureKind::Unavailable => "try again later",
        _ => "ensure the box to try again; the server's log says more",
    }
}
