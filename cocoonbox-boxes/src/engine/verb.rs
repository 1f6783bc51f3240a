//! What a person asks for.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cocoonbox_core::backend::HibernateTo;
use cocoonbox_core::machine::{
    BoxRecord, BoxState, Command, Decision, Fresh, Limits, NewBox, Refusal, Tally, Write, decide,
};
use cocoonbox_core::{BoxId, BoxName, GrantId, ImageName, NameError, OperationId, Timestamp, UserId};

use super::{Engine, IdempotencyKey, Inner, agent, pick, schedule, serve};
use crate::store::{Change, Expect, KEY_LIFETIME, KeyedAnswer, Operation, Owned, StoreError, Stored};
use crate::usage::ModelUsage;
use crate::{AgentGrant, EngineError};

/// Times a decision is made anew because somebody else wrote first.
const MAX_TURNS: u32 = 64;

/// What a verb began.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Started {
    /// Which box.
    pub box_id: BoxId,
    /// The box as it stands now; none when it is gone.
    pub record: Option<BoxRecord>,
    /// The operation that was begun or joined; none when nothing was to be done.
    pub operation: Option<OperationId>,
}

/// One page of a user's boxes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The boxes, oldest first.
    pub boxes: Vec<BoxRecord>,
    /// The box to go on after; none on the last page.
    pub next: Option<BoxId>,
}

/// How much a user uses, of how much.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct UsageCount {
    /// What there is.
    pub tally: Tally,
    /// What there may be.
    pub limits: Limits,
    /// What model calls come to.
    pub models: ModelUsage,
}

/// A decision that is about to be made: on which box, and with which command.
struct Plan {
    stored: Option<Stored>,
    box_id: BoxId,
    command: Command,
    /// The grant that makes the box, where one does.
    grant: Option<GrantId>,
}

impl Plan {
    /// Whether the box should be running, and is said to be.
    fn wants_it_running(&self) -> bool {
        let runs =
            |stored: &Stored| stored.record.state == BoxState::Running && stored.record.pending.is_none();
        matches!(self.command, Command::Ensure { .. }) && self.stored.as_ref().is_some_and(runs)
    }
}

type Planner = Box<dyn Fn(&Inner, &Owned, Fresh) -> Result<Plan, EngineError> + Send + Sync>;

impl Engine {
    /// Makes a box and starts it; without a name it is called `main`.
    ///
    /// # Errors
    /// [`EngineError::NameTaken`], [`EngineError::TooManyBoxes`], [`EngineError::TooManyRunning`],
    /// [`EngineError::KeyReused`]; to an agent [`EngineError::AgentBoxes`], [`EngineError::AgentRunning`] and
    /// [`EngineError::TooManyAgentBoxes`] in place of the two limits.
    pub async fn create(
        &self,
        owner: &UserId,
        limits: Limits,
        name: Option<BoxName>,
        image: Option<ImageName>,
        key: Option<IdempotencyKey>,
    ) -> Result<Started, EngineError> {
        let name = name.unwrap_or_else(BoxName::first);
        let image = image.unwrap_or_else(|| self.inner.config.default_image.clone());
        let request = format!("create {name} {image}");
        let (owned_by, agent) = (owner.clone(), self.agent.clone());
        let plan = move |inner: &Inner, owned: &Owned, fresh: Fresh| {
            if owned.boxes.iter().any(|stored| stored.record.name == name) {
                return Err(EngineError::NameTaken { name: name.clone() });
            }
            inner.plan_create(&owned_by, limits, agent.as_ref(), name.clone(), image.clone(), owned, fresh)
        };
        self.begin(owner, key, request, Box::new(plan)).await
    }

    /// Brings a box to running: wakes it, starts it, or makes the user's first, under the name that is asked for.
    /// `hint` is an id, a name, or empty for the first box, which is made as `main`, an agent's as `agent`. A box that an
    /// agent made is never a user's first.
    ///
    /// # Errors
    /// [`EngineError::NotFound`], and those of [`create`](Self::create).
    pub async fn ensure(
        &self,
        owner: &UserId,
        limits: Limits,
        hint: &str,
        key: Option<IdempotencyKey>,
    ) -> Result<Started, EngineError> {
        let (hint, owned_by, agent) = (hint.to_owned(), owner.clone(), self.agent.clone());
        let request = format!("ensure {hint}");
        let plan = move |inner: &Inner, owned: &Owned, fresh: Fresh| {
            let agent = agent.as_ref();
            let found = pick(owned, agent, &hint);
            let none = !owned.boxes.iter().any(|stored| agent::is_own(agent, stored));
            if none && found.is_err() && hint.parse::<BoxId>().is_err() {
                // one that is asked for by name is made under that name
                let name = if hint.is_empty() { Ok(agent::free_name(agent, owned)) } else { hint.parse() };
                let name = name.map_err(|error: NameError| EngineError::Invalid {
                    field: "box",
                    reason: error.rule.to_owned(),
                })?;
                let image = inner.config.default_image.clone();
                if owned.boxes.iter().any(|stored| stored.record.name == name) {
                    return Err(EngineError::NameTaken { name });
                }
                return inner.plan_create(&owned_by, limits, agent, name, image, owned, fresh);
            }
            let stored = found?.clone();
            let box_id = stored.record.id.clone();
            let tally = tally_without(owned, &box_id);
            let agent = agent::share(agent, owned, Some(&box_id));
            let command = Command::Ensure { fresh, tally, limits, agent };
            Ok(Plan { box_id, stored: Some(stored), command, grant: None })
        };
        self.begin(owner, key, request, Box::new(plan)).await
    }

    /// Returns a box; none when `hint` is empty and the user has no box yet.
    ///
    /// # Errors
    /// [`EngineError::NotFound`].
    pub async fn get(&self, owner: &UserId, hint: &str) -> Result<Option<BoxRecord>, EngineError> {
        let owned = self.inner.store.owned(owner).await?;
        let agent = self.agent.as_ref();
        if hint.is_empty() && !owned.boxes.iter().any(|stored| agent::is_own(agent, stored)) {
            return Ok(None);
        }
        pick(&owned, agent, hint).map(|stored| Some(stored.record.clone()))
    }

    /// Returns at most `limit` of a user's boxes, oldest first, after the box `after`.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] when `after` is no box of the user's.
    pub async fn list(
        &self,
        owner: &UserId,
        after: Option<&BoxId>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        let mut owned = self.inner.store.owned(owner).await?;
        owned.boxes.retain(|stored| agent::sees(self.agent.as_ref(), stored));
        let start = match after {
            None => 0,
            Some(after) => {
                let at = owned.boxes.iter().position(|stored| stored.record.id == *after);
                let gone = || EngineError::Invalid {
                    field: "page_token",
                    reason: "the box it goes on after is gone: start again without it".to_owned(),
                };
                at.ok_or_else(gone)? + 1
            }
        };
        let all = owned.boxes.len();
        let boxes: Vec<_> =
            owned.boxes.into_iter().skip(start).take(limit).map(|stored| stored.record).collect();
        let more = start + boxes.len() < all;
        let next = if more { boxes.last().map(|last| last.id.clone()) } else { None };
        Ok(Page { boxes, next })
    }

    /// Puts a running box to sleep, or takes the memory of a sleeping one.
    ///
    /// # Errors
    /// [`EngineError::NotFound`], [`EngineError::WrongState`], [`EngineError::KeyReused`].
    pub async fn hibernate(
        &self,
        owner: &UserId,
        hint: &str,
        to: HibernateTo,
        key: Option<IdempotencyKey>,
    ) -> Result<Started, EngineError> {
        let request = format!("hibernate {to:?} {hint}");
        self.on_one(owner, hint, key, request, move |fresh, _| {
            Ok(Command::Hibernate { to, operation: fresh.operation })
        })
        .await
    }

    /// Gives a box another name, which its host name follows at the next wake.
    ///
    /// # Errors
    /// [`EngineError::NotFound`], [`EngineError::NameTaken`].
    pub async fn rename(&self, owner: &UserId, hint: &str, name: BoxName) -> Result<BoxRecord, EngineError> {
        let started = self
            .on_one(owner, hint, None, String::new(), move |_, _| Ok(Command::Rename { name: name.clone() }))
            .await?;
        started.record.ok_or(EngineError::Contended)
    }

    /// Ends a box and everything in it; it must be named and confirmed.
    ///
    /// # Errors
    /// [`EngineError::Unconfirmed`], [`EngineError::NotFound`], [`EngineError::KeyReused`].
    pub async fn delete(
        &self,
        owner: &UserId,
        hint: &str,
        confirm: Confirm,
        key: Option<IdempotencyKey>,
    ) -> Result<Started, EngineError> {
        if hint.is_empty() || confirm == Confirm::No {
            return Err(EngineError::Unconfirmed { what: "deleting a box ends everything in it" });
        }
        let request = format!("delete {hint}");
        self.on_one(owner, hint, key, request, |fresh, _| Ok(Command::Delete { operation: fresh.operation }))
            .await
    }

    /// Sets when a box wakes by itself; an empty `cron` clears it, an empty `time_zone` is UTC.
    ///
    /// # Errors
    /// [`EngineError::NotFound`], [`EngineError::Invalid`].
    pub async fn set_schedule(
        &self,
        owner: &UserId,
        hint: &str,
        cron: &str,
        time_zone: &str,
        stay_up: Duration,
    ) -> Result<BoxRecord, EngineError> {
        let schedule = if cron.trim().is_empty() {
            None
        } else {
            Some(schedule::read(cron, time_zone, stay_up, self.inner.clock.now())?)
        };
        let command = move |_, _: Timestamp| Ok(Command::SetSchedule { schedule: schedule.clone() });
        let started = self.on_one(owner, hint, None, String::new(), command).await?;
        started.record.ok_or(EngineError::Contended)
    }

    /// Returns how much a user uses, all boxes and all agents together.
    ///
    /// # Errors
    /// [`EngineError::Store`].
    pub async fn usage(&self, owner: &UserId, limits: Limits) -> Result<UsageCount, EngineError> {
        let ledger = self.inner.usage.read().unwrap_or_else(PoisonError::into_inner).clone();
        let cap = self.inner.config.daily_cap_micros;
        let models = match ledger {
            Some(ledger) => ModelUsage::read(ledger.as_ref(), owner, cap, self.inner.clock.now()).await?,
            None => ModelUsage::none(cap),
        };
        Ok(UsageCount { tally: self.inner.tally(owner).await?, limits, models })
    }

    pub(super) async fn on_one(
        &self,
        owner: &UserId,
        hint: &str,
        key: Option<IdempotencyKey>,
        request: String,
        command: impl Fn(Fresh, Timestamp) -> Result<Command, EngineError> + Send + Sync + 'static,
    ) -> Result<Started, EngineError> {
        let (hint, agent) = (hint.to_owned(), self.agent.clone());
        let plan = move |inner: &Inner, owned: &Owned, fresh: Fresh| {
            let stored = pick(owned, agent.as_ref(), &hint)?.clone();
            let command = command(fresh, inner.clock.now())?;
            Ok(Plan { box_id: stored.record.id.clone(), stored: Some(stored), command, grant: None })
        };
        self.begin(owner, key, request, Box::new(plan)).await
    }

    /// Decides, writes and sets to work, in a task that goes on when the caller does not.
    async fn begin(
        &self,
        owner: &UserId,
        key: Option<IdempotencyKey>,
        request: String,
        plan: Planner,
    ) -> Result<Started, EngineError> {
        let (inner, owner) = (Arc::clone(&self.inner), owner.clone());
        let request = self.spelled(request);
        serve::run_on(
            &self.inner,
            async move { inner.begin(&owner, key.map(|key| (key, request)), plan).await },
        )
        .await
    }
}

/// Whether a step that cannot be undone is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it is meant or it is not")]
pub enum Confirm {
    /// It is.
    Yes,
    /// Nobody said so.
    No,
}

fn tally_without(owned: &Owned, id: &BoxId) -> Tally {
    Tally::of(owned.boxes.iter().map(|stored| &stored.record).filter(|record| record.id != *id))
}

impl Inner {
    #[expect(clippy::too_many_arguments, reason = "the parts of one command")]
    fn plan_create(
        &self,
        owner: &UserId,
        limits: Limits,
        agent: Option<&AgentGrant>,
        name: BoxName,
        image: ImageName,
        owned: &Owned,
        fresh: Fresh,
    ) -> Result<Plan, EngineError> {
        let id = BoxId::random(self.entropy.as_ref())?;
        let tally = Tally::of(owned.boxes.iter().map(|stored| &stored.record));
        let new = NewBox { id: id.clone(), owner: owner.clone(), name, image };
        let share = agent::share(agent, owned, None);
        let command = Command::Create { new, fresh, tally, limits, agent: share };
        Ok(Plan { stored: None, box_id: id, command, grant: agent.map(|agent| agent.id.clone()) })
    }

    async fn begin(
        self: &Arc<Self>,
        owner: &UserId,
        key: Option<(IdempotencyKey, String)>,
        plan: Planner,
    ) -> Result<Started, EngineError> {
        let mut turns = 0;
        let mut looked = false;
        while turns < MAX_TURNS {
            // until it is written; what may take long waits without it
            let mut turn = Some(self.turns.take(owner).await);
            if let Some((key, request)) = &key
                && let Some(answer) = self.answered(owner, key, request).await?
            {
                return Ok(answer);
            }
            let owned = self.store.owned(owner).await?;
            let plan = plan(self, &owned, self.fresh()?)?;
            if plan.wants_it_running() {
                turn = None;
            }
            if plan.wants_it_running() && self.is_down(&plan.box_id).await {
                self.settle(&plan.box_id).await?;
                turns += 1;
                continue;
            }
            let Plan { stored, box_id, command, grant } = plan;
            let in_doubt = |record: &BoxRecord| (record.unsettled || record.away) && record.pending.is_none();
            if !looked && stored.as_ref().is_some_and(|stored| in_doubt(&stored.record)) {
                drop(turn);
                self.settle(&box_id).await?;
                looked = true;
                turns += 1;
                continue;
            }
            let now = self.clock.now();
            let before = stored.as_ref().map(|stored| &stored.record);
            let decision = match decide(before, command, now) {
                Ok(decision) => decision,
                Err(Refusal::Busy { operation }) => {
                    drop(turn);
                    self.wait_end(&box_id, &operation).await?;
                    continue;
                }
                Err(refusal) => return Err(refusal.into()),
            };
            let started = Started {
                box_id: box_id.clone(),
                record: decision.record(before).cloned(),
                operation: decision.operation.clone(),
            };
            if decision.write == Write::Keep && key.is_none() {
                return Ok(started);
            }
            let change = Self::change(owner, &box_id, stored.as_ref(), &decision, now);
            let mut change = change.with_grant(grant);
            if decision.admits {
                change = change.with_admits(owned.admissions);
            }
            if let Some((key, request)) = &key {
                change = change.with_key(KeyedAnswer::new(
                    owner.clone(),
                    key.as_str().to_owned(),
                    request.clone(),
                    box_id.clone(),
                    decision.operation.clone(),
                    now,
                ));
            }
            let mut written = None;
            match self.store.commit(change).await {
                Ok(revision) => {
                    written = decision.record(before).map(|record| Stored::new(record.clone(), revision));
                }
                Err(StoreError::Conflict { .. } | StoreError::KeyTaken) => {
                    turns += 1;
                    continue;
                }
                Err(error @ StoreError::Unknown { .. }) => {
                    // an operation that was written and that nobody works on would hold the box
                    let held = self.store.load(&box_id).await?;
                    let ours = held.and_then(|held| held.record.pending).map(|pending| pending.operation);
                    if decision.begins.is_none() || ours != decision.operation {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
            drop(turn);
            self.notices.tell(&box_id);
            serve::work(self, &box_id, &decision, written);
            return Ok(started);
        }
        Err(EngineError::Contended)
    }

    /// Returns what the same request was answered before.
    pub(super) async fn answered(
        &self,
        owner: &UserId,
        key: &IdempotencyKey,
        request: &str,
    ) -> Result<Option<Started>, EngineError> {
        self.look_at_the_clock().await;
        let since = self.jumps.older_than(self.clock.as_ref(), KEY_LIFETIME);
        let Some(answer) = self.store.keyed(owner, key.as_str(), since).await? else { return Ok(None) };
        if answer.request != request {
            return Err(EngineError::KeyReused);
        }
        let record = self.store.load(&answer.box_id).await?.map(|stored| stored.record);
        Ok(Some(Started { box_id: answer.box_id, record, operation: answer.operation }))
    }

    /// Spells a decision as a change of the store.
    pub(super) fn change(
        owner: &UserId,
        box_id: &BoxId,
        stored: Option<&Stored>,
        decision: &Decision,
        now: Timestamp,
    ) -> Change {
        let expect = stored.map_or(Expect::Absent, |stored| Expect::Revision(stored.revision));
        let mut change = Change::new(box_id.clone(), owner.clone(), expect, decision.write.clone())
            .with_events(decision.events.clone());
        if let (Some(verb), Some(operation)) = (decision.begins, &decision.operation) {
            change = change.with_operation(Operation::new(
                operation.clone(),
                box_id.clone(),
                owner.clone(),
                verb,
                now,
            ));
        }
        change
    }
}
