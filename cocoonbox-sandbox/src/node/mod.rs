//! The node behind its HTTP API: what it keeps beside its backend's own claims, and what it does with them.
//!
//! The backend makes and ends sandboxes. The node adds who may use them and for how long: leases, tenants, tokens,
//! environments, idempotency keys. Each change is written to the node's directory before it takes effect.

mod claim;
mod clock;
mod delivery;
mod env;
mod exec;
mod idle;
mod journal;
mod lease;
mod life;
mod metric;
mod open;
mod pool;
mod preview;
mod record;
mod refusal;
mod registry;
pub mod serve;
mod store;
mod tenant;
mod token;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cocoonbox_core::backend::{Claim, ClaimFilter, PoolKey, SandboxBackend, SandboxId};
use cocoonbox_core::{Clock, Entropy, SystemClock, SystemEntropy, Timestamp};

pub(crate) use claim::{Ask, Key};
pub use clock::{BootClock, ManualBootClock, SystemBootClock};
pub(crate) use delivery::EnvWrite;
pub(crate) use env::{Change as EnvChange, Env, Written};
pub(crate) use exec::Command;
pub use idle::Idle;
pub(crate) use idle::PoolIdle;
pub use journal::Event;
pub(crate) use journal::rfc3339;
pub(crate) use lease::grant;
pub use lease::{DEFAULT_LEASE, LONGEST_LEASE, OnExpire};
pub use preview::PreviewKey;
#[cfg(fuzzing)]
pub(crate) use preview::fuzz_token;
#[cfg(fuzzing)]
pub(crate) use record::fuzz_record;
pub use refusal::{Code, Refusal};
pub use store::NodeError;
pub(crate) use tenant::TenantWrite;
pub(crate) use token::same;
pub use token::{NodeToken, SandboxKey, SandboxToken};

use clock::ServiceClock;
use journal::Journal;
use metric::Metrics;
use preview::Previews;
use record::{Entry, Record, hold};
use registry::Registry;
use store::Store;

/// How long a question waits for what is under way; a caller gives it longer.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// How a node is set up.
#[derive(Debug)]
#[non_exhaustive]
pub struct NodeOptions {
    /// The directory for what the node keeps; made when it is not there.
    pub directory: PathBuf,
    /// What sandbox tokens follow from.
    pub key: SandboxKey,
    /// What clients are told to reach this node by.
    pub address: String,
    /// The root token; absent, everybody who reaches the node may use it.
    pub token: Option<NodeToken>,
    /// How many claims the node holds by its own count, 0 for no cap but the backend's.
    pub max_claims: u32,
    /// When sandboxes are idle of which no pool says so.
    pub idle: Idle,
    /// What preview URLs begin with and are signed by; absent, none are minted.
    pub previews: Option<(String, PreviewKey)>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The time that leases count.
    pub boot_clock: Arc<dyn BootClock>,
    /// Where names are drawn from.
    pub entropy: Arc<dyn Entropy>,
}

impl NodeOptions {
    /// Makes options of an open node that goes by the machine's clocks.
    pub fn new(directory: impl Into<PathBuf>, key: SandboxKey, address: impl Into<String>) -> Self {
        Self {
            directory: directory.into(),
            key,
            address: address.into(),
            token: None,
            max_claims: 0,
            idle: Idle::default(),
            previews: None,
            clock: Arc::new(SystemClock),
            boot_clock: Arc::new(SystemBootClock),
            entropy: Arc::new(SystemEntropy),
        }
    }
    /// Closes the node to all that do not carry `token`.
    pub fn with_token(mut self, token: NodeToken) -> Self {
        self.token = Some(token);
        self
    }
    /// Sets how many claims the node holds.
    pub const fn with_max_claims(mut self, max_claims: u32) -> Self {
        self.max_claims = max_claims;
        self
    }
    /// Sets when sandboxes are idle of which no pool says so.
    pub const fn with_idle(mut self, idle: Idle) -> Self {
        self.idle = idle;
        self
    }
    /// Sets what preview URLs begin with, such as `http://127.0.0.1:7422`, and are signed by.
    pub fn with_previews(mut self, base: impl Into<String>, key: PreviewKey) -> Self {
        self.previews = Some((base.into(), key));
        self
    }
    /// Sets the clock on the wall.
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }
    /// Sets the clock that leases count by.
    pub fn with_boot_clock(mut self, boot_clock: Arc<dyn BootClock>) -> Self {
        self.boot_clock = boot_clock;
        self
    }
}

/// A node: a backend, its claims' records, and who may use it. Clones are the same node.
#[derive(Clone, Debug)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    backend: Arc<dyn SandboxBackend>,
    token: Option<NodeToken>,
    key: SandboxKey,
    address: String,
    name: String,
    max_claims: u32,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    served: ServiceClock,
    store: Store,
    registry: Mutex<Registry>,
    /// When sandboxes are idle, by what they are like.
    idle: Mutex<HashMap<PoolKey, Idle>>,
    /// When the others are.
    own_idle: Idle,
    /// Held by who writes the tenants.
    tenants_turn: tokio::sync::Mutex<()>,
    journal: Journal,
    execs: exec::Room,
    previews: Option<Previews>,
    metrics: Metrics,
}

/// A claim as callers see it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) claim: Claim,
    record: Arc<Record>,
    pub(crate) deadline: Option<Timestamp>,
}

impl Seen {
    pub(crate) fn claim_ref(&self) -> Option<&str> {
        self.record.claim_ref.as_ref().map(cocoonbox_core::backend::ClaimRef::as_str)
    }
    pub(crate) fn is_archived(&self) -> bool {
        self.record.phase == record::Phase::Archived
    }
    pub(crate) fn on_expire(&self) -> OnExpire {
        self.record.on_expire
    }
    pub(crate) fn restarts(&self) -> (u32, Option<Timestamp>) {
        (self.record.restarts, self.record.restarted_at)
    }
    pub(crate) fn env(&self) -> &Env {
        &self.record.env
    }
}

impl Node {
    /// Returns the backend.
    pub(crate) fn backend(&self) -> &Arc<dyn SandboxBackend> {
        &self.0.backend
    }
    pub(crate) fn address(&self) -> &str {
        &self.0.address
    }
    /// Returns the node's own name, drawn when its directory was made.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }
    /// Returns how many claims the node holds at most, where it counts them.
    pub(crate) fn max_claims(&self) -> Option<u32> {
        Some(self.0.max_claims).filter(|max| *max > 0)
    }
    /// Tells whether everybody who reaches the node may use it.
    pub(crate) fn is_open(&self) -> bool {
        self.0.token.is_none()
    }
    /// Tells whether `shown` is the root token; none is, on an open node.
    pub(crate) fn is_root(&self, shown: &str) -> bool {
        self.0.token.as_ref().is_some_and(|token| same(token.reveal(), shown))
    }
    pub(crate) fn sandbox_token(&self, id: &SandboxId) -> SandboxToken {
        self.0.key.token(id)
    }

    /// Returns the claims that match, as callers see them, oldest first.
    pub(crate) async fn find(&self, filter: &ClaimFilter) -> Result<Vec<Seen>, Refusal> {
        let claims = self.0.backend.find(filter).await?;
        let registry = hold(&self.0.registry);
        let seen = claims.into_iter().filter_map(|claim| {
            let record = match registry.of(&claim) {
                Some(entry) => entry.record(),
                // somebody else's claim on the same backend: it is held without a lease
                None => Arc::new(Inner::foreign(&claim)),
            };
            let deadline = record.lease.as_ref().map(|lease| self.0.deadline(lease));
            record.is_shown().then_some(Seen { claim, record, deadline })
        });
        Ok(seen.collect())
    }

    /// Returns the claims of an id or a reference once nothing is under way on them, as a caller wants to know it whose
    /// call got lost: it may be at work still, and its outcome is what is asked for.
    pub(crate) async fn find_settled(&self, filter: &ClaimFilter) -> Result<Vec<Seen>, Refusal> {
        let settled = async {
            let entries = hold(&self.0.registry).all();
            for entry in entries {
                let record = entry.record();
                let is_it = filter.id.is_some() && filter.id == record.id
                    || filter.claim_ref.is_some() && filter.claim_ref == record.claim_ref;
                if is_it {
                    drop(entry.turn.lock().await);
                }
            }
        };
        let busy = || Refusal::new(Code::Busy, "a call on it is under way: ask again");
        serve::within(SETTLE_LIMIT, settled).await.ok_or_else(busy)?;
        self.find(filter).await
    }

    /// Returns one claim.
    pub(crate) async fn see(&self, id: &SandboxId) -> Result<Seen, Refusal> {
        self.find(&ClaimFilter::by_id(id.clone())).await?.pop().ok_or_else(Refusal::not_found)
    }

    pub(crate) fn is_draining(&self) -> bool {
        hold(&self.0.registry).draining
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.0.journal
    }
}

impl Inner {
    fn deadline(&self, lease: &lease::Lease) -> Timestamp {
        lease.deadline(self.served.now(), self.clock.now())
    }

    /// Writes down what happened to a claim and counts it.
    fn tell(&self, verb: &'static str, claim: &Claim) {
        self.metrics.did(verb);
        self.journal.tell(Event::of(verb, claim, self.clock.now()));
    }

    fn lease(&self, granted: Duration) -> lease::Lease {
        lease::Lease::begin(granted, self.served.now(), self.clock.now())
    }

    /// The record of a claim that the node did not make.
    fn foreign(claim: &Claim) -> Record {
        let mut record = Record::new(String::new());
        record.id = Some(claim.id.clone());
        record.phase = record::Phase::Live;
        record.claim_ref = Some(claim.claim_ref.clone());
        record.tenant.clone_from(&claim.tenant);
        record
    }

    /// Returns the entry of a claim that is there; one that the node did not make gets one.
    async fn entry(&self, id: &SandboxId) -> Result<Arc<Entry>, Refusal> {
        if let Some(entry) = hold(&self.registry).by_id(id) {
            return if entry.record().is_shown() { Ok(entry) } else { Err(Refusal::not_found()) };
        }
        let claim = self.backend.find(&ClaimFilter::by_id(id.clone())).await?.pop();
        let claim = claim.ok_or_else(Refusal::not_found)?;
        let mark = record::draw_mark(self.entropy.as_ref())?;
        let mut registry = hold(&self.registry);
        match registry.of(&claim) {
            Some(entry) if entry.record().is_shown() => Ok(entry),
            Some(_) => Err(Refusal::not_found()),
            None => {
                let entry = Entry::new(Record { mark, ..Self::foreign(&claim) });
                registry.insert(Arc::clone(&entry));
                Ok(entry)
            }
        }
    }

    /// Writes down what `change` makes of a record, then makes it so. The caller has the turn.
    async fn change(&self, entry: &Entry, change: impl FnOnce(&mut Record)) -> Result<(), Refusal> {
        let mut record = (*entry.record()).clone();
        change(&mut record);
        self.store.put(&record).await?;
        entry.set(record);
        Ok(())
    }
}
