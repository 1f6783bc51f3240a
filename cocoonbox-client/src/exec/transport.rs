//! The seam between a session and what carries it.

use std::fmt;
use std::pin::Pin;

use cocoonbox_wire::agent::v1::{ExecRequest, ExecResponse};
use futures::Stream;
use tokio::sync::mpsc;
use tonic::Status;

use crate::{BoxRef, Client};

/// How many messages may wait for the connection.
const QUEUE: usize = 4;

/// Opens streams to an agent.
///
/// # Behavior
/// - Each call opens a new stream whose first message is `first`.
/// - A status that carries a source says that the connection broke; one without is the peer's answer.
/// - Dropping the returned [`Wire`] ends the stream.
pub trait Transport: Send + Sync {
    /// Opens a stream and sends `first` on it.
    fn open(&self, first: ExecRequest) -> impl Future<Output = Result<Wire, Status>> + Send;
}

/// One open stream.
pub struct Wire {
    /// To the agent.
    pub requests: mpsc::Sender<ExecRequest>,
    /// From the agent; ends after the exit, an error, or a loss.
    pub responses: Pin<Box<dyn Stream<Item = Result<ExecResponse, Status>> + Send>>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

/// A box's agent behind the edge's relay.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) client: Client,
    pub(super) name: Option<BoxRef>,
}

impl Transport for Relay {
    async fn open(&self, first: ExecRequest) -> Result<Wire, Status> {
        let (requests, queue) = mpsc::channel(QUEUE);
        requests.try_send(first).map_err(|_| Status::internal("a new queue is full"))?;
        let stream = tokio_stream::wrappers::ReceiverStream::new(queue);
        let request = self.client.request_to(self.name.as_ref(), stream)?;
        let responses = self.client.session().exec(request).await?.into_inner();
        Ok(Wire { requests, responses: Box::pin(responses) })
    }
}
