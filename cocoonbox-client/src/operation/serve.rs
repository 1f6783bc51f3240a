//! Following an operation over lost connections.

use std::time::Duration;

use cocoonbox_core::Retry;
use cocoonbox_wire::control::v1::{OperationEvent, OperationReply};

use super::{Followed, ending};
use crate::{Client, ClientError};

/// How often in a row a watch without news is begun again.
const ATTEMPTS: u32 = 30;

impl Client {
    /// Follows what `reply` began to its end and shows each event to `on_event`; `None` when nothing had to be done.
    ///
    /// A lost connection is taken up again after the last event seen. Dropping the future leaves the operation running.
    ///
    /// # Errors
    /// [`ClientError::OperationFailed`] when the operation failed; else why it could not be followed.
    pub async fn follow(
        &self,
        reply: &OperationReply,
        mut on_event: impl FnMut(&OperationEvent),
    ) -> Result<Option<Followed>, ClientError> {
        if reply.operation_id.is_empty() {
            return Ok(None);
        }
        let mut seen = 0;
        let mut quiet = 0;
        loop {
            let error = match self.watch(&reply.operation_id, seen).await {
                Err(error) => error,
                Ok(mut events) => loop {
                    match events.next().await {
                        Ok(Some(event)) if event.sequence <= seen => {}
                        Ok(Some(event)) => {
                            seen = event.sequence;
                            quiet = 0;
                            on_event(&event);
                            if let Some(end) = ending(&event) {
                                return end.map(Some);
                            }
                        }
                        Ok(None) => {
                            break ClientError::PeerMisbehaved {
                                what: "an operation's events stopped before its end",
                            };
                        }
                        Err(error) => break error,
                    }
                },
            };
            quiet += 1;
            let over =
                matches!(error.retry(), Retry::Never) && !matches!(error, ClientError::PeerMisbehaved { .. });
            if over || quiet > ATTEMPTS {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(u64::from(quiet.min(10)) * 200)).await;
        }
    }
}
