//! Sessions, each of one caller, and how many there may be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cocoonbox_core::{GrantId, UserId};
use futures::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::WorkerTransport;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, LocalSessionWorker,
};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId, SessionManager};

use crate::Caller;

/// How many sessions there may be, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "four numbers, built by hand")]
pub struct SessionLimits {
    /// Sessions of one user, all agents together.
    pub of_user: u32,
    /// Sessions in all.
    pub in_all: u32,
    /// Requests and streams of one user that are open at once.
    pub exchanges: u32,
    /// How long a session is kept that nothing is asked or answered in; a tool that is waited for must have ended by then.
    pub idle: Duration,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { of_user: 512, in_all: 4096, exchanges: 1024, idle: Duration::from_hours(1) }
    }
}

/// Whom a session belongs to: a user's own calls and those of each of the user's agents keep to themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    user: UserId,
    grant: Option<GrantId>,
}

impl Holder {
    fn of(caller: &Caller) -> Self {
        Self { user: caller.user.clone(), grant: caller.agent.as_ref().map(|agent| agent.id.clone()) }
    }
}

/// Of one user.
#[derive(Debug, Default)]
struct Count {
    sessions: u32,
    exchanges: u32,
}

#[derive(Debug, Default)]
struct Table {
    holders: HashMap<SessionId, Holder>,
    counts: HashMap<UserId, Count>,
    /// Those that are there, and those that are about to be.
    sessions: u32,
}

impl Table {
    fn change(&mut self, user: &UserId, change: impl FnOnce(&mut Count)) {
        let count = self.counts.entry(user.clone()).or_default();
        change(count);
        if count.sessions == 0 && count.exchanges == 0 {
            self.counts.remove(user);
        }
    }

    fn session_left(&mut self, user: &UserId) {
        self.sessions = self.sessions.saturating_sub(1);
        self.change(user, |count| count.sessions = count.sessions.saturating_sub(1));
    }
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    limits: SessionLimits,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

tokio::task_local! {
    /// The request that a session is opened by: rmcp asks for sessions in the task of the request, and does not say whose.
    pub(super) static VISIT: Arc<Visit>;
}

/// One request.
#[derive(Debug)]
pub(super) struct Visit {
    holder: Holder,
    /// Why no session was opened for it.
    refused: OnceLock<String>,
}

impl Visit {
    pub(super) fn of(caller: &Caller) -> Arc<Self> {
        Arc::new(Self { holder: Holder::of(caller), refused: OnceLock::new() })
    }

    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }
}

/// The sessions, as [`LocalSessionManager`] keeps them, with their holders.
#[derive(Debug)]
pub(super) struct Sessions {
    inner: LocalSessionManager,
    shared: Arc<Shared>,
}

/// A place that is taken until this is dropped, or kept by a session.
struct Place {
    shared: Arc<Shared>,
    user: UserId,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Session,
    Exchange,
    /// A session that is there, and leaves by being closed.
    Kept,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        match self.what {
            What::Session => table.session_left(&self.user),
            What::Exchange => {
                table.change(&self.user, |count| count.exchanges = count.exchanges.saturating_sub(1));
            }
            What::Kept => {}
        }
    }
}

/// A request or stream that is open while this lives.
pub(super) struct Exchange(#[expect(dead_code, reason = "held for its end")] Place);

impl Sessions {
    pub(super) fn new(limits: SessionLimits) -> Self {
        let mut inner = LocalSessionManager::default();
        inner.session_config.keep_alive = Some(limits.idle);
        Self { inner, shared: Arc::new(Shared { table: Mutex::default(), limits }) }
    }

    /// Returns whether a session is there and the caller's.
    pub(super) fn belongs(&self, id: &str, caller: &Caller) -> bool {
        self.shared.table().holders.get(id).is_some_and(|holder| *holder == Holder::of(caller))
    }

    /// Counts a request as open; none when the user has as many open as one may.
    pub(super) fn exchange(&self, user: &UserId) -> Option<Exchange> {
        let mut table = self.shared.table();
        let open = table.counts.get(user).map_or(0, |count| count.exchanges);
        if open >= self.shared.limits.exchanges {
            return None;
        }
        table.change(user, |count| count.exchanges += 1);
        Some(Exchange(self.place(user, What::Exchange)))
    }

    fn place(&self, user: &UserId, what: What) -> Place {
        Place { shared: Arc::clone(&self.shared), user: user.clone(), what }
    }

    /// Takes a place for a session.
    fn admit(&self, visit: &Visit) -> Result<Place, Refused> {
        let (user, limits) = (&visit.holder.user, self.shared.limits);
        let mut table = self.shared.table();
        let has = table.counts.get(user).map_or(0, |count| count.sessions);
        let reason = if has >= limits.of_user {
            format!(
                "you have {has} sessions open, as many as one may: end some, or wait until they are forgotten"
            )
        } else if table.sessions >= limits.in_all {
            "the server has as many sessions as it keeps: try again later".to_owned()
        } else {
            table.sessions += 1;
            table.change(user, |count| count.sessions += 1);
            return Ok(self.place(user, What::Session));
        };
        // the one that is set is the one that is told
        let _ = visit.refused.set(reason);
        Err(Refused::Full)
    }
}

/// Why the sessions did not do what they were asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// There are as many as there may be.
    #[error("there are as many sessions as there may be")]
    Full,
    /// No request asks.
    #[error("a session was opened by nobody")]
    Nobody,
    /// The session is gone or broke off.
    #[error(transparent)]
    Session(#[from] LocalSessionManagerError),
}

impl SessionManager for Sessions {
    type Error = Refused;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Refused> {
        let visit = VISIT.try_with(Arc::clone).map_err(|_| Refused::Nobody)?;
        let mut place = self.admit(&visit)?;
        let (id, transport) = self.inner.create_session().await?;
        self.shared.table().holders.insert(Arc::clone(&id), visit.holder.clone());
        place.what = What::Kept;
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Refused> {
        Ok(self.inner.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Refused> {
        Ok(self.inner.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Refused> {
        {
            let mut table = self.shared.table();
            if let Some(holder) = table.holders.remove(id) {
                table.session_left(&holder.user);
            }
        }
        Ok(self.inner.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        Ok(self.inner.create_stream(id, message).await?)
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Refused> {
        Ok(self.inner.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        Ok(self.inner.create_standalone_stream(id).await?)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Refused> {
        Ok(self.inner.resume(id, last_event_id).await?)
    }
}
