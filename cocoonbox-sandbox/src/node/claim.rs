//! Claiming: admitted, written down, made, written down again, answered.

use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::Timestamp;
use cocoonbox_core::backend::{
    BackendError, Claim, ClaimFilter, ClaimRef, ClaimRequest, HostFile, SandboxId,
};
use sha2::{Digest as _, Sha256};

use super::env::Env;
use super::journal::Event;
use super::lease::OnExpire;
use super::record::{Entry, KeyUse, Phase, Record, draw_mark, hold};
use super::refusal::{Code, Refusal};
use super::token::hex;
use super::{Inner, Node, serve};

/// How long an idempotency key is remembered.
const KEY_KEPT: Duration = Duration::from_hours(24);
/// The longest idempotency key.
const MAX_KEY: usize = 255;
/// The most idempotency keys that are remembered.
const MAX_KEYS: usize = 100_000;

/// An idempotency key: whose it is and for which request.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    name: String,
    request: String,
}

impl Key {
    /// Takes in the key that `caller` sent with `body`.
    pub(crate) fn new(caller: &str, key: &str, body: &[u8]) -> Result<Self, Refusal> {
        if !(1..=MAX_KEY).contains(&key.len()) || !key.bytes().all(|byte| matches!(byte, 0x21..=0x7e)) {
            return Err(Refusal::invalid(format!(
                "an Idempotency-Key is 1 to {MAX_KEY} printable characters without spaces"
            )));
        }
        let name = Sha256::new().chain_update(caller).chain_update([0]).chain_update(key).finalize();
        Ok(Self { name: hex(&name), request: hex(&Sha256::digest(body)) })
    }
}

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) request: ClaimRequest,
    pub(crate) claim_ref: Option<ClaimRef>,
    pub(crate) lease: Duration,
    pub(crate) on_expire: OnExpire,
    pub(crate) env: Env,
    pub(crate) key: Option<Key>,
}

/// A claim that is held.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) id: SandboxId,
    pub(crate) deadline: Option<Timestamp>,
}

impl Node {
    /// Claims a sandbox; the same idempotency key has the same answer.
    pub(crate) async fn claim(&self, ask: Ask) -> Result<Claimed, Refusal> {
        let inner = Arc::clone(&self.0);
        serve::to_the_end(async move { inner.claim(ask).await }).await
    }
}

/// What was decided about a claim before anything was done.
enum Admission {
    New(Arc<Entry>, tokio::sync::OwnedMutexGuard<()>),
    Known(Arc<Entry>),
}

impl Inner {
    async fn claim(self: Arc<Self>, ask: Ask) -> Result<Claimed, Refusal> {
        ask.request.check(&self.backend.capabilities())?;
        loop {
            match self.admit(&ask)? {
                Admission::New(entry, turn) => {
                    let made = self.make(&entry, ask).await;
                    drop(turn);
                    return made;
                }
                Admission::Known(entry) => {
                    // whoever came first with the key may still be at it
                    drop(entry.turn.lock().await);
                    let record = entry.record();
                    match record.phase {
                        Phase::Live | Phase::Archiving | Phase::Archived => {
                            let id = record.id.clone().ok_or_else(Refusal::not_found)?;
                            let deadline = record.lease.as_ref().map(|lease| self.deadline(lease));
                            return Ok(Claimed { id, deadline });
                        }
                        Phase::Releasing | Phase::Ended => {
                            let text = "the sandbox that this Idempotency-Key claimed is gone";
                            return Err(Refusal::new(Code::Gone, text));
                        }
                        // that claim failed, and the key is free again
                        Phase::Claiming => {}
                    }
                }
            }
        }
    }

    /// Decides under one lock, so that no cap is ever exceeded and no key used twice.
    fn admit(&self, ask: &Ask) -> Result<Admission, Refusal> {
        let mut record = Record::new(draw_mark(self.entropy.as_ref())?);
        record.claim_ref.clone_from(&ask.claim_ref);
        record.tenant.clone_from(&ask.request.tenant);
        record.on_expire = ask.on_expire;
        record.env = ask.env.clone();
        record.env_delivered = ask.env.has_guest_part();
        let served = self.served.now();
        record.key = ask.key.as_ref().map(|key| KeyUse {
            name: key.name.clone(),
            request: key.request.clone(),
            until_millis: u64::try_from((served + KEY_KEPT).as_millis()).unwrap_or(u64::MAX),
        });
        let mut registry = hold(&self.registry);
        if let Some(key) = &ask.key
            && let Some(entry) = registry.by_key(&key.name)
        {
            let known = entry.record();
            if known.keeps_key(served) {
                if known.key.as_ref().is_some_and(|known| known.request != key.request) {
                    let text = "this Idempotency-Key was used for another request";
                    return Err(Refusal::new(Code::KeyReused, text));
                }
                return Ok(Admission::Known(entry));
            }
        }
        registry.admit(self.max_claims, ask.request.tenant.as_ref())?;
        if ask.key.is_some() && registry.keys() >= MAX_KEYS {
            return Err(Refusal::new(
                Code::Busy,
                format!("{MAX_KEYS} idempotency keys are remembered already"),
            ));
        }
        let entry = Entry::new(record);
        let turn = Arc::clone(&entry.turn).try_lock_owned();
        let turn = turn.map_err(|_| Refusal::new(Code::Internal, "a new claim has a turn"))?;
        registry.insert(Arc::clone(&entry));
        Ok(Admission::New(entry, turn))
    }

    async fn make(&self, entry: &Arc<Entry>, ask: Ask) -> Result<Claimed, Refusal> {
        let began = self.served.now();
        let made = self.try_make(entry, ask).await;
        self.metrics.claimed(self.served.now().saturating_sub(began), made.is_ok());
        if let Err(refusal) = &made {
            // on the disk it is a claim that nobody was told of, which the next start gives back
            let mut left = (*entry.record()).clone();
            left.phase = Phase::Releasing;
            left.key = None;
            entry.set(left);
            if let Err(error) = self.undo(entry, refusal.code() == Code::Internal).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "a claim that failed is not cleaned up yet; it is tried again");
            }
        }
        made
    }

    /// Gives back what was made for a claim that failed. Where the backend's answer got lost it is looked for.
    pub(super) async fn undo(&self, entry: &Arc<Entry>, look: bool) -> Result<(), Refusal> {
        let record = entry.record();
        let mut made = record.id.clone();
        if made.is_none() && look {
            let claims = self.backend.find(&ClaimFilter::all()).await?;
            made = claims
                .into_iter()
                .find(|claim| claim.metadata.mark() == Some(&record.mark))
                .map(|claim| claim.id);
        }
        if let Some(id) = made {
            match self.backend.release(&id).await {
                Ok(()) | Err(BackendError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.store.remove(&record.mark).await?;
        hold(&self.registry).remove(entry);
        Ok(())
    }

    async fn try_make(&self, entry: &Arc<Entry>, ask: Ask) -> Result<Claimed, Refusal> {
        let record = entry.record();
        self.store.put(&record).await?;
        let mut request = ask.request;
        request.metadata = request.metadata.marked(&record.mark);
        if record.env_delivered {
            request.host_files.push(guest_file(&record.env)?);
        }
        let claim = self.backend.claim(request).await?;
        let lease = self.lease(ask.lease);
        let deadline = Some(self.deadline(&lease));
        let established = self.change(entry, |record| {
            record.id = Some(claim.id.clone());
            record.phase = Phase::Live;
            record.lease = Some(lease);
        });
        if let Err(refusal) = established.await {
            let mut made = (*entry.record()).clone();
            made.id = Some(claim.id.clone());
            entry.set(made);
            return Err(refusal);
        }
        hold(&self.registry).established(entry);
        self.metrics.did("claim");
        self.journal.tell(Event::of("claim", &claim, self.clock.now()).with_key(&claim));
        Ok(Claimed { id: claim.id, deadline })
    }

    pub(super) async fn claim_of(&self, id: &SandboxId) -> Result<Claim, Refusal> {
        let found = self.backend.find(&ClaimFilter::by_id(id.clone())).await?.pop();
        found.ok_or_else(Refusal::not_found)
    }
}

/// Returns the host file that carries an environment's guest part.
pub(super) fn guest_file(env: &Env) -> Result<HostFile, Refusal> {
    Ok(HostFile::new(cocoonbox_wire::env_file::FILE.parse()?, env.guest_file()))
}
