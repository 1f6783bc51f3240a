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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use cocoonbox_core::{BoxId, SystemEntropy};
    use tokio::time::Instant;

    use super::*;
    use crate::{CheckInfo, PrintedStateKey, PruneInfo, RecoveredInfo};

    /// The runtime's time, which stands still until everybody waits.
    #[derive(Debug)]
    struct Paused(Instant);

    impl Clock for Paused {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(1_000_000).plus(self.0.elapsed())
        }
        fn steady(&self) -> Duration {
            self.0.elapsed()
        }
    }

    /// Writes down after how many minutes it prunes whom; the second of its users has something to sweep in an hour, the
    /// third cannot be pruned.
    #[derive(Debug)]
    struct Noted {
        users: [UserId; 3],
        clock: Paused,
        pruned: Mutex<Vec<(usize, u64)>>,
    }

    #[async_trait]
    impl StateCare for Noted {
        async fn check(
            &self,
            _: &UserId,
            _: &BoxId,
            _: &str,
            _: u32,
            _: watch::Sender<Bytes>,
        ) -> Result<CheckInfo, KeeperError> {
            Err(KeeperError::Raced)
        }
        async fn plan_prune(&self, _: &UserId) -> Result<PruneInfo, KeeperError> {
            Err(KeeperError::Raced)
        }
        async fn prune(&self, owner: &UserId) -> Result<PruneInfo, KeeperError> {
            let user = self.users.iter().position(|user| user == owner).unwrap();
            self.pruned.lock().unwrap().push((user, self.clock.0.elapsed().as_secs() / 60));
            match user {
                0 => Ok(PruneInfo::default()),
                1 => {
                    let sweep_at = Some(self.clock.now().plus(Duration::from_hours(1)));
                    Ok(PruneInfo { sweep_at, ..PruneInfo::default() })
                }
                _ => Err(KeeperError::Store { reason: "it is away".to_owned() }),
            }
        }
        async fn owners(&self) -> Result<Vec<UserId>, KeeperError> {
            Ok(self.users.to_vec())
        }
        async fn export_key(&self, _: &UserId) -> Result<PrintedStateKey, KeeperError> {
            Err(KeeperError::Raced)
        }
        async fn import_key(&self, _: &UserId, _: &str) -> Result<Vec<RecoveredInfo>, KeeperError> {
            Err(KeeperError::Raced)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn saves_are_pruned_once_a_day_and_what_is_marked_once_it_may_go() {
        let users = std::array::from_fn(|_| UserId::random(&SystemEntropy).unwrap());
        let start = Instant::now();
        let care = Arc::new(Noted { users, clock: Paused(start), pruned: Mutex::default() });
        let shutdown = CancellationToken::new();
        let looking = look_after(Arc::clone(&care) as _, Arc::new(Paused(start)), shutdown.clone());
        let ends = async {
            tokio::time::sleep(Duration::from_hours(25)).await;
            shutdown.cancel();
        };
        tokio::join!(looking, ends);
        let pruned = care.pruned.lock().unwrap();
        let of = |user| pruned.iter().filter(|(who, _)| *who == user).map(|(_, at)| *at).collect::<Vec<_>>();
        // it looks once a minute
        for (user, every, least) in [(0, 24 * 60, 2), (1, 60, 24), (2, 20, 70)] {
            let pruned = of(user);
            assert!(pruned[0] == 21 || pruned[0] == 22, "{pruned:?}");
            assert!(pruned.len() >= least, "{pruned:?}");
            let gaps = pruned.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(gaps.clone().all(|gap| (every..=every + 1).contains(&gap)), "{pruned:?}");
        }
    }

    #[test]
    fn a_guest_does_not_fill_the_log() {
        let KeeperError::Guest { reason } = refused(&Status::internal("\u{fc}".repeat(5 * MAX_REASON)))
        else {
            panic!("another error");
        };
        assert_eq!(reason, "\u{fc}".repeat(MAX_REASON));
        assert!(matches!(refused(&Status::aborted("raced")), KeeperError::Raced));
        assert!(matches!(refused(&Status::data_loss("bad")), KeeperError::Damaged { .. }));
    }
}
