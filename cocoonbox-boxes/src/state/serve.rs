//! One call of `cocoonbox.agent.v1.State`, and what it needs of the runtime.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::machine::Bytes;
use cocoonbox_core::{Clock, Timestamp, UserId};
use cocoonbox_state::{Presign, URL_LIFETIME_MAX};
use cocoonbox_wire::agent::v1::state_client::StateClient;
use cocoonbox_wire::agent::v1::state_request::Message as Tell;
use cocoonbox_wire::agent::v1::state_response::Message as Said;
use cocoonbox_wire::agent::v1::{Grant, Grants, Header, StateRequest};
use cocoonbox_wire::call_token::{self, MethodClass};
use ed25519_dalek::SigningKey;
use hyper_util::rt::TokioIo;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::grant::{Scope, Wanted};
use crate::{Guest, KeeperError, Moved, StateCare};

/// How long an agent may say nothing at all.
const SILENCE: Duration = Duration::from_mins(10);
/// The most letters of what it says went wrong.
const MAX_REASON: usize = 1000;
/// How long its connection may take.
const CONNECT: Duration = Duration::from_secs(20);

/// Runs `work` where it holds nothing up; none when it broke down.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// Does `work`, and tells `tell` of each step it reports meanwhile.
pub(super) async fn heard_of<P: Clone, T>(
    work: impl Future<Output = T>,
    mut heard: watch::Receiver<P>,
    tell: impl Fn(&P),
) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            changed = heard.changed() => match changed {
                Ok(()) => tell(&heard.borrow_and_update()),
                Err(_) => return work.await,
            },
        }
    }
}

/// How often a user's saves are pruned, and how long after a failure, or after the start, it is tried.
const PRUNE_EVERY: Duration = Duration::from_hours(24);
const PRUNE_SOON: Duration = Duration::from_mins(20);
/// How often it is looked whose turn it is.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// Prunes every user's saves once a day, and deletes what a prune marked once it may go, until `shutdown` fires.
pub async fn look_after(care: Arc<dyn StateCare>, clock: Arc<dyn Clock>, shutdown: CancellationToken) {
    let mut due: BTreeMap<UserId, Timestamp> = BTreeMap::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let owners = match care.owners().await {
            Ok(owners) => owners,
            Err(error) => {
                tracing::warn!(%error, "nobody's saves are pruned now");
                continue;
            }
        };
        for owner in owners {
            let now = clock.now();
            let at = *due.entry(owner.clone()).or_insert_with(|| now.plus(PRUNE_SOON));
            if at > now {
                continue;
            }
            // one that is broken off is gone on with by the next server
            let pruned = tokio::select! {
                () = shutdown.cancelled() => return,
                pruned = care.prune(&owner) => pruned,
            };
            let next = match pruned {
                Ok(info) => info.sweep_at.unwrap_or_else(|| clock.now().plus(PRUNE_EVERY)),
                Err(error) => {
                    tracing::warn!(%owner, %error, "a user's saves are not pruned now");
                    clock.now().plus(PRUNE_SOON)
                }
            };
            due.insert(owner, next);
        }
    }
}

/// Which call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Save,
    Stage,
    RestoreFiles,
}

/// What a call stands on.
pub(super) struct Way<'a> {
    pub(super) presign: &'a dyn Presign,
    pub(super) call_key: &'a SigningKey,
    pub(super) clock: &'a Arc<dyn Clock>,
}

/// Calls the agent, grants what it asks for within `scope`, and returns its last message.
pub(super) async fn call(
    way: &Way<'_>,
    guest: Guest,
    kind: Kind,
    first: Tell,
    scope: &Scope,
    progress: &watch::Sender<Moved>,
) -> Result<Said, KeeperError> {
    let token =
        call_token::mint(way.call_key, &guest.box_id, &guest.wake_id, MethodClass::State, way.clock.now());
    let broken = |reason: &str| KeeperError::Guest { reason: reason.to_owned() };
    let connected = timeout(CONNECT, connect(guest)).await;
    let channel = connected
        .map_err(|_| broken("its agent does not answer"))?
        .map_err(|error| broken(&error.to_string()))?;
    let mut client = StateClient::new(channel)
        .max_decoding_message_size(cocoonbox_wire::MAX_FRAME_BYTES)
        .max_encoding_message_size(cocoonbox_wire::MAX_FRAME_BYTES);
    let (tell, told) = mpsc::channel(8);
    let say = |message| StateRequest { message: Some(message) };
    let _ = tell.send(say(first)).await;
    let mut request = Request::new(ReceiverStream::new(told));
    let token = token.parse().map_err(|_| broken("the call token is no header value"))?;
    request.metadata_mut().insert(call_token::METADATA, token);
    let answer = match kind {
        Kind::Save => client.save(request).await,
        Kind::Stage => client.stage(request).await,
        Kind::RestoreFiles => client.restore_files(request).await,
    };
    let mut said = answer.map_err(|status| refused(&status))?.into_inner();
    loop {
        let next = timeout(SILENCE, said.message()).await.map_err(|_| broken("it fell silent"))?;
        match next.map_err(|status| refused(&status))?.and_then(|next| next.message) {
            Some(Said::Asks(asks)) => {
                let mut grants = Vec::with_capacity(asks.asks.len());
                for ask in &asks.asks {
                    grants.push(grant(way.presign, scope, ask).await?);
                }
                if tell.send(say(Tell::Grants(Grants { grants }))).await.is_err() {
                    return Err(broken("it hung up"));
                }
            }
            Some(Said::Progress(at)) => {
                progress.send_replace(Moved {
                    bytes: Bytes { done: at.bytes, total: at.bytes_total },
                    files: at.files,
                    files_total: at.files_total,
                    new_bytes: at.new_bytes,
                });
            }
            Some(last) => return Ok(last),
            None => return Err(broken("it hung up")),
        }
    }
}

async fn grant(
    presign: &dyn Presign,
    scope: &Scope,
    ask: &cocoonbox_wire::agent::v1::Ask,
) -> Result<Grant, KeeperError> {
    let signed = match scope.check(ask) {
        Ok(Wanted::Put(grant)) => presign.presign_put(&grant, URL_LIFETIME_MAX).await,
        Ok(Wanted::Get(key)) => presign.presign_get(&key, URL_LIFETIME_MAX).await,
        Err(reason) => {
            return Ok(Grant { number: ask.number, refusal: reason.to_owned(), ..Grant::default() });
        }
    };
    let signed = signed.map_err(|error| KeeperError::Store { reason: error.to_string() })?;
    let header = |(name, value): &(String, String)| Header { name: name.clone(), value: value.clone() };
    Ok(Grant {
        number: ask.number,
        url: signed.url.reveal().to_owned(),
        headers: signed.headers.iter().map(header).collect(),
        refusal: String::new(),
    })
}

/// Speaks gRPC on the guest's stream.
async fn connect(guest: Guest) -> Result<Channel, tonic::transport::Error> {
    let mut stream = Some(guest.stream);
    let connector = tower::service_fn(move |_| {
        // a second connection would be another box's, for all we know
        let stream = stream.take().map(TokioIo::new);
        async move { stream.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected)) }
    });
    Endpoint::from_static("http://agent").connect_with_connector(connector).await
}

fn refused(status: &Status) -> KeeperError {
    let said =
        if status.message().is_empty() { status.code().to_string() } else { status.message().to_owned() };
    // a guest's words stay in the operation's log: so many, and no more
    let reason: String = said.chars().take(MAX_REASON).collect();
    match status.code() {
        tonic::Code::DataLoss => KeeperError::Damaged { reason },
        tonic::Code::Aborted => KeeperError::Raced,
        _ => KeeperError::Guest { reason },
    }
}
