//! What goes by the clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::backend::{ClaimFilter, ClaimState, SandboxId};
use cocoonbox_core::machine::{BoxRecord, BoxState, Command, Tally, Write, decide};
use cocoonbox_core::{BoxId, Timestamp};

use super::reconcile::{PAGE, Pending};
use super::up::{Asked, is_idle_sleep};
use super::{Engine, Inner, effect, schedule, serve};
use crate::EngineError;
use crate::store::{KEY_LIFETIME, StoreError, Stored};

/// An operation this old that nobody in this process works on was cut off.
const ABANDONED: Duration = Duration::from_mins(15);

/// How far the stored time of use may lag behind.
pub(super) const USE_LAG: Duration = Duration::from_secs(15);

impl Engine {
    /// Looks once at every box: unused ones go to sleep, scheduled ones wake and sleep, memory kept too long goes to
    /// disk, and what could not be settled is tried again. Called once a minute while the engine is served.
    ///
    /// # Errors
    /// [`EngineError::Store`]; what fails on one box is logged and tried again at the next look.
    pub async fn tick(&self) -> Result<(), EngineError> {
        let inner = &self.inner;
        inner.look_at_the_clock().await;
        let mut after: Option<BoxId> = None;
        let claims = inner.claim_states().await;
        loop {
            let page = inner.store.page(after.as_ref(), PAGE).await?;
            for stored in &page {
                if let Err(error) = inner.tick_one(stored, claims.as_ref(), Asked::No).await {
                    tracing::warn!(box_id = %stored.record.id, error = effect::text(&error), "a box's clock was not kept");
                }
            }
            after = page.last().map(|last| last.record.id.clone());
            if page.len() < PAGE as usize {
                break;
            }
        }
        inner.store.prune(inner.jumps.older_than(inner.clock.as_ref(), KEY_LIFETIME)).await?;
        Ok(())
    }
}

/// Returns whether a box is no longer what it is said to be, as far as that shows from outside.
fn disagrees(record: &BoxRecord, claims: &HashMap<SandboxId, ClaimState>) -> bool {
    let claim = record.sandbox.as_ref().and_then(|sandbox| claims.get(sandbox));
    let away = matches!(claim, Some(ClaimState::Away { .. }));
    match record.state {
        BoxState::Running => claim != Some(&ClaimState::Running),
        BoxState::Hibernated => away,
        _ => record.away && !away,
    }
}

impl Inner {
    /// Sees whether the wall clock jumped, and moves with it what was reckoned ahead.
    pub(super) async fn look_at_the_clock(&self) {
        let Some(by) = self.jumps.look(self.clock.as_ref()) else { return };
        if let Err(error) = self.shift(by).await {
            tracing::warn!(error = effect::text(&error), "schedules were not moved with the clock");
        }
    }

    async fn shift(&self, by: i64) -> Result<(), EngineError> {
        let mut after: Option<BoxId> = None;
        loop {
            let page = self.store.page(after.as_ref(), PAGE).await?;
            for stored in &page {
                self.shift_one(&stored.record.id, by).await?;
            }
            after = page.last().map(|last| last.record.id.clone());
            if page.len() < PAGE as usize {
                return Ok(());
            }
        }
    }

    async fn shift_one(&self, id: &BoxId, by: i64) -> Result<(), EngineError> {
        loop {
            let Some(stored) = self.store.load(id).await? else { return Ok(()) };
            let now = self.clock.now();
            let schedule = stored.record.schedule.as_ref();
            let next_at = schedule.and_then(|schedule| schedule::next_after(schedule, now));
            let decision = decide(Some(&stored.record), Command::ClockJumped { by, next_at }, now)?;
            if decision.write == Write::Keep {
                return Ok(());
            }
            let change = Self::change(&stored.record.owner, id, Some(&stored), &decision, now);
            match self.store.commit(change).await {
                Ok(_) => return Ok(()),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns how every sandbox stands; none when the backend cannot be asked.
    async fn claim_states(&self) -> Option<HashMap<SandboxId, ClaimState>> {
        let claims = self.backend.find(&ClaimFilter::all()).await.ok()?;
        Some(claims.into_iter().map(|claim| (claim.id, claim.state)).collect())
    }

    pub(super) async fn tick_one(
        self: &Arc<Self>,
        stored: &Stored,
        claims: Option<&HashMap<SandboxId, ClaimState>>,
        asked: Asked,
    ) -> Result<(), EngineError> {
        let record = &stored.record;
        let now = self.clock.now();
        let rules = self.config.rules(record, self.jumps.jumped_at());
        if let Some(pending) = &record.pending {
            let since = rules.counted_from(pending.started_at, now);
            if !self.at_work(&record.id) && now.since(since) >= ABANDONED {
                tracing::warn!(box_id = %record.id, operation = %pending.operation, "taking up an operation that nobody works on");
                if let Some(decision) = self.compare(&record.id, Pending::CutOff).await? {
                    serve::work(self, &record.id, &decision, None);
                }
            }
            return Ok(());
        }
        if record.unsettled || claims.is_some_and(|claims| disagrees(record, claims)) {
            return self.settle(&record.id).await;
        }
        let (held, used_at) = self.holds.of(&record.id);
        if held {
            // other processes on the same store see the box used, too
            self.touch(stored.clone()).await?;
        }
        let due = record.schedule.as_ref().filter(|schedule| schedule.next_at.is_some_and(|at| at <= now));
        let next_at = due.and_then(|schedule| schedule::next_after(schedule, now));
        let (tally, admissions) = if due.is_some() {
            let owned = self.store.owned(&record.owner).await?;
            let others =
                owned.boxes.iter().map(|stored| &stored.record).filter(|other| other.id != record.id);
            (Tally::of(others), owned.admissions)
        } else {
            (Tally::default(), 0)
        };
        // read again: a call may have touched the box since the page was read
        let Some(stored) = self.store.load(&record.id).await? else { return Ok(()) };
        let command = Command::Tick { rules, held, used_at, next_at, tally, fresh: self.fresh()? };
        let decision = decide(Some(&stored.record), command, now)?;
        if decision.write == Write::Keep {
            return Ok(());
        }
        if asked == Asked::No && is_idle_sleep(&decision, &stored.record) && !self.who_keeps_up().is_empty() {
            serve::ask(self, &stored.record.id);
            return Ok(());
        }
        let mut change = Self::change(&stored.record.owner, &stored.record.id, Some(&stored), &decision, now);
        if decision.admits {
            change = change.with_admits(admissions);
        }
        match self.store.commit(change).await {
            Ok(_) => {
                self.notices.tell(&stored.record.id);
                serve::work(self, &stored.record.id, &decision, None);
                Ok(())
            }
            // somebody uses the box: the next look decides anew
            Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes that the box is used, unless that was written a moment ago; `stored` is how it was last read.
    pub(super) async fn touch(&self, mut stored: Stored) -> Result<(), EngineError> {
        let id = stored.record.id.clone();
        loop {
            let now = self.clock.now();
            let recent = |at: Timestamp| at <= now && now.since(at) < USE_LAG;
            if stored.record.last_used_at.is_some_and(recent) {
                return Ok(());
            }
            let decision = decide(Some(&stored.record), Command::Used, now)?;
            let change = Self::change(&stored.record.owner, &id, Some(&stored), &decision, now);
            match self.store.commit(change).await {
                Ok(_) => return Ok(()),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let Some(newer) = self.store.load(&id).await? else { return Ok(()) };
            stored = newer;
        }
    }
}
