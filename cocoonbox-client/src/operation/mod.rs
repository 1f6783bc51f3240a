//! Operations: reading their events to the end.

mod serve;

use cocoonbox_wire::control::v1::{Memory, OperationEvent, Phase};
use tonic::Streaming;

use crate::{ClientError, Endpoint};

/// The events of one operation, in order.
#[derive(Debug)]
pub struct OperationEvents {
    stream: Streaming<OperationEvent>,
    endpoint: Endpoint,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Followed {
    /// The server's last words.
    pub message: String,
    /// Whether memory was kept, where the operation put a box to sleep or woke it.
    pub memory: Option<Memory>,
}

impl OperationEvents {
    pub(crate) fn new(stream: Streaming<OperationEvent>, endpoint: Endpoint) -> Self {
        Self { stream, endpoint }
    }

    /// Returns the next event; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<OperationEvent>, ClientError> {
        self.stream.message().await.map_err(|status| ClientError::from_status(status, &self.endpoint))
    }
}

/// Returns how the operation ended when `event` is its last.
fn ending(event: &OperationEvent) -> Option<Result<Followed, ClientError>> {
    match event.phase() {
        Phase::Done => Some(Ok(Followed {
            message: event.message.clone(),
            memory: Some(event.memory()).filter(|memory| *memory != Memory::Unspecified),
        })),
        Phase::Failed => Some(Err(ClientError::OperationFailed {
            operation: event.operation_id.clone(),
            message: event.message.clone(),
        })),
        _ => None,
    }
}
