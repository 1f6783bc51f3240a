//! The engine: decides over stored boxes, and lets the backend do what was decided.

mod agent;
mod call;
mod config;
mod effect;
mod hold;
mod jump;
mod keep;
mod key;
mod notice;
mod rebase;
mod reconcile;
mod schedule;
mod serve;
mod state;
mod tick;
mod up;
mod verb;
mod watch;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use async_trait::async_trait;
use cocoonbox_core::backend::SandboxBackend;
use cocoonbox_core::machine::Fresh;
use cocoonbox_core::{BoxId, BoxName, Clock, Entropy, OperationId, Turns, UserId, WakeId};
use tokio::sync::Semaphore;

#[cfg(feature = "grpc")]
pub(crate) use call::check;
pub use call::{CallUse, OpenCall};
pub use config::EngineConfig;
#[cfg(feature = "state")]
pub(crate) use effect::text;
pub use hold::Hold;
pub use key::IdempotencyKey;
pub use reconcile::Reconciled;
pub use up::{KeepUp, Work};
pub use verb::{Confirm, Page, Started, UsageCount};
pub use watch::OperationEvents;

use crate::store::{BoxStore, Owned, Stored};
use crate::usage::UsageStore;
use crate::{AgentGrant, EngineError, StateKeeper};

/// Told before a box's sandbox is put to sleep or released, so that what is pooled for it can be closed.
///
/// # Behavior
/// - It is told once the sleep is decided and before the backend does anything; the engine waits for the answer.
/// - It may be told again for the same wake, when a sleep failed and is tried again.
#[async_trait]
pub trait BeforeSleep: fmt::Debug + Send + Sync + 'static {
    /// Closes what is open into `box_id` in `wake_id`.
    async fn box_sleeps(&self, box_id: &BoxId, wake_id: &WakeId);
}

/// The engine; clones share one.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
    /// The outside agent that it is asked by.
    agent: Option<AgentGrant>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    store: Arc<dyn BoxStore>,
    backend: Arc<dyn SandboxBackend>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    config: EngineConfig,
    notices: notice::Notices,
    holds: Arc<hold::Holds>,
    jumps: jump::Jumps,
    /// Changes of one user's boxes: those that count the same things would undo each other.
    turns: Turns<UserId>,
    /// Tellings of a node how many claims one user may hold; nothing else waits for a node that is slow to hear.
    tenants: Turns<UserId>,
    hooks: RwLock<Vec<Arc<dyn BeforeSleep>>>,
    keeper: RwLock<Option<Arc<dyn StateKeeper>>>,
    usage: RwLock<Option<Arc<dyn UsageStore>>>,
    keep_up: RwLock<Vec<Arc<dyn KeepUp>>>,
    /// The boxes that those who keep boxes up are being asked about.
    asked: Mutex<HashSet<BoxId>>,
    questions: Semaphore,
    /// The boxes that a task of this process works on.
    at_work: Mutex<HashSet<BoxId>>,
    work: tokio_util::task::TaskTracker,
}

impl Engine {
    /// Puts an engine together; [`start`](Self::start) must end before anything is asked of it.
    pub fn new(
        store: Arc<dyn BoxStore>,
        backend: Arc<dyn SandboxBackend>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        config: EngineConfig,
    ) -> Self {
        let holds = hold::Holds::new(Arc::clone(&clock));
        let inner = Inner {
            store,
            backend,
            clock,
            entropy,
            config,
            notices: notice::Notices::default(),
            holds,
            jumps: jump::Jumps::default(),
            turns: Turns::default(),
            tenants: Turns::default(),
            hooks: RwLock::default(),
            keeper: RwLock::default(),
            usage: RwLock::default(),
            keep_up: RwLock::default(),
            asked: Mutex::default(),
            questions: Semaphore::new(serve::MAX_QUESTIONS),
            at_work: Mutex::default(),
            work: tokio_util::task::TaskTracker::new(),
        };
        Self { inner: Arc::new(inner), agent: None }
    }

    /// Adds somebody to be told before a box sleeps.
    pub fn with_before_sleep(self, hook: Arc<dyn BeforeSleep>) -> Self {
        self.inner.hooks.write().unwrap_or_else(PoisonError::into_inner).push(hook);
        self
    }

    /// Has boxes saved and restored by `keeper`: by itself before they sleep, and when they are asked to be.
    pub fn with_keeper(self, keeper: Arc<dyn StateKeeper>) -> Self {
        *self.inner.keeper.write().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
        self
    }

    /// Has it read from `ledger` what a user's model calls cost.
    pub fn with_usage(self, ledger: Arc<dyn UsageStore>) -> Self {
        *self.inner.usage.write().unwrap_or_else(PoisonError::into_inner) = Some(ledger);
        self
    }

    /// Returns the engine's settings.
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// Returns what the backend can do.
    pub fn capabilities(&self) -> cocoonbox_core::backend::Capabilities {
        self.inner.backend.capabilities()
    }
}

impl Inner {
    fn fresh(&self) -> Result<Fresh, EngineError> {
        Ok(Fresh {
            operation: OperationId::random(self.entropy.as_ref())?,
            wake: WakeId::random(self.entropy.as_ref())?,
        })
    }

    fn at_work(&self, id: &BoxId) -> bool {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }
}

/// Finds the box that `hint` names among those of `owned` that the caller sees: an id, a name, or nothing for the first.
fn pick<'a>(owned: &'a Owned, agent: Option<&AgentGrant>, hint: &str) -> Result<&'a Stored, EngineError> {
    let mut seen = owned.boxes.iter().filter(|stored| agent::sees(agent, stored));
    if hint.is_empty() {
        let none = || EngineError::NotFound { what: "box yet: ensure one to make it".to_owned() };
        return seen.find(|stored| agent::is_own(agent, stored)).ok_or_else(none);
    }
    let found = if let Ok(id) = hint.parse::<BoxId>() {
        seen.find(|stored| stored.record.id == id)
    } else {
        let name = hint
            .parse::<BoxName>()
            .map_err(|error| EngineError::Invalid { field: "box", reason: error.rule.to_owned() })?;
        seen.find(|stored| stored.record.name == name)
    };
    found.ok_or_else(|| EngineError::NotFound { what: format!("box {hint}") })
}
