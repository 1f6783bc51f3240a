//! What a tool that does nothing answers.

use rmcp::ErrorData;
use rmcp::model::{CallToolResult, ContentBlock};
use tonic::Status;

use crate::EngineError;

/// Why a tool did nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// It cannot be done, for a reason that the agent can read and act on.
    Refused(String),
    /// The call was no call of a tool, or the server failed.
    Protocol(ErrorData),
}

impl Failure {
    pub(super) fn into_result(self) -> Result<CallToolResult, ErrorData> {
        match self {
            Self::Refused(reason) => Ok(CallToolResult::error(vec![ContentBlock::text(reason)])),
            Self::Protocol(error) => Err(error),
        }
    }
}

impl From<ErrorData> for Failure {
    fn from(error: ErrorData) -> Self {
        Self::Protocol(error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let internal = matches!(error, EngineError::Store(_) | EngineError::Entropy(_));
        // the words, and what is logged, are those of the other door
        let message = Status::from(error).message().to_owned();
        if internal {
            Self::Protocol(ErrorData::internal_error(message, None))
        } else {
            Self::Refused(message)
        }
    }
}
