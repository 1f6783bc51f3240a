//! The part that spawns and waits: operations that go on when their caller does not, and the clock's minute.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use cocoonbox_core::machine::{
    Command, Decision, Effect, FailureKind, Fresh, Look, Phase, Refusal, Write, decide,
};
use cocoonbox_core::{BoxId, OperationId};
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::reconcile::Pending;
use super::up::{Asked, Work};
use super::{Engine, Inner, effect};
use crate::store::{Hint, StoreError, Stored};
use crate::{EngineError, Moved};

/// How often an operation says how far it is.
const PROGRESS: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long those who keep boxes up have to answer.
const ANSWER: Duration = Duration::from_secs(15);
/// How many boxes they are asked about at once.
pub(super) const MAX_QUESTIONS: usize = 16;

impl Engine {
    /// Keeps the clock until `shutdown`, then waits for the operations that are under way.
    pub async fn serve(&self, shutdown: CancellationToken) {
        let mut minutes = interval(MINUTE);
        minutes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                _ = minutes.tick() => {}
            }
            if let Err(error) = self.tick().await {
                tracing::warn!(error = effect::text(&error), "the minute's look at the boxes was cut short");
            }
        }
        self.drained().await;
    }

    /// Waits until no operation of this process is under way.
    pub async fn drained(&self) {
        let work = &self.inner.work;
        work.close();
        work.wait().await;
        work.reopen();
    }
}

/// Runs `future` to its end, whether or not the caller waits for it.
pub(super) async fn run_on<T: Send + 'static>(
    inner: &Arc<Inner>,
    future: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, EngineError> {
    match inner.work.spawn(future).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // the runtime is ending
        Err(_) => Err(EngineError::Contended),
    }
}

/// Hears the store's hints for as long as the engine lives.
pub(super) async fn listen(inner: &Arc<Inner>) -> Result<(), EngineError> {
    let mut hints = inner.store.hints().await?;
    let inner: Weak<Inner> = Arc::downgrade(inner);
    tokio::spawn(async move {
        while let Some(hint) = hints.next().await {
            let Some(inner) = inner.upgrade() else { return };
            match hint {
                Hint::Box(id) => inner.notices.tell(&id),
                Hint::All => inner.notices.tell_all(),
            }
        }
    });
    Ok(())
}

/// Sets a task to work on what was decided; `written` is the box as that decision left it, where it is known.
pub(super) fn work(inner: &Arc<Inner>, id: &BoxId, decision: &Decision, written: Option<Stored>) {
    if decision.effects.is_empty() {
        return;
    }
    let (task, id, decision) = (Arc::clone(inner), id.clone(), decision.clone());
    inner.work.spawn(async move { carry_out(&task, &id, &decision, written).await });
}

/// Asks those who keep boxes up about one that nobody uses, and puts it to sleep if none of them says that it is busy.
///
/// Nothing waits for their answers: not the minute's look at the other boxes, and not the end of the process.
pub(super) fn ask(inner: &Arc<Inner>, id: &BoxId) {
    let (weak, id) = (Arc::downgrade(inner), id.clone());
    tokio::spawn(async move {
        let Some(inner) = weak.upgrade() else { return };
        let Some(_asking) = inner.asking(&id) else { return };
        if let Err(error) = ask_all(&inner, &id).await {
            tracing::warn!(box_id = %id, error = effect::text(&error), "a box's clock was not kept");
        }
    });
}

async fn ask_all(inner: &Arc<Inner>, id: &BoxId) -> Result<(), EngineError> {
    let Ok(_question) = inner.questions.acquire().await else { return Ok(()) };
    let Some(stored) = inner.store.load(id).await? else { return Ok(()) };
    for source in inner.who_keeps_up() {
        if timeout(ANSWER, source.work_in(&stored.record)).await != Ok(Work::Idle) {
            return Ok(());
        }
    }
    inner.tick_one(&stored, None, Asked::Yes).await
}

struct AtWork<'a>(&'a Inner, &'a BoxId);

impl<'a> AtWork<'a> {
    fn new(inner: &'a Inner, id: &'a BoxId) -> Self {
        inner.at_work.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        Self(inner, id)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.at_work.lock().unwrap_or_else(PoisonError::into_inner).remove(self.1);
    }
}

/// Performs effects, and those that follow from them, until none is left.
pub(super) async fn carry_out(
    inner: &Arc<Inner>,
    id: &BoxId,
    decision: &Decision,
    mut written: Option<Stored>,
) {
    let _at_work = AtWork::new(inner, id);
    let mut queue = VecDeque::new();
    enqueue(&mut queue, decision);
    while let Some((operation, effect)) = queue.pop_front() {
        let known = written.take();
        if let Some(command) = outcome(inner, id, operation, effect, known.clone()).await
            && let Some(next) = conclude(inner, id, command, known).await
        {
            enqueue(&mut queue, &next);
        }
    }
}

fn enqueue(queue: &mut VecDeque<(Option<OperationId>, Effect)>, decision: &Decision) {
    queue.extend(decision.effects.iter().map(|effect| (decision.operation.clone(), effect.clone())));
}

/// Has the saves of a box that is gone forgotten; what fails is found again by a look at the store.
async fn forget(inner: &Inner, record: &cocoonbox_core::machine::BoxRecord) {
    let Ok(keeper) = inner.keeper() else { return };
    if let Err(error) = keeper.forget(&record.owner, &record.id).await {
        tracing::warn!(box_id = %record.id, error = effect::text(&error), "the saves of a deleted box stay");
    }
}

/// Performs one effect in a task of its own, so that a backend that panics fails one operation and no more.
async fn outcome(
    inner: &Arc<Inner>,
    id: &BoxId,
    operation: Option<OperationId>,
    effect: Effect,
    mut known: Option<Stored>,
) -> Option<Command> {
    let mut pause = Pause::default();
    let (record, fresh) = loop {
        let stored = match known.take() {
            Some(known) => Ok(Some(known)),
            None => inner.store.load(id).await,
        };
        match (stored, inner.fresh()) {
            (Ok(Some(stored)), Ok(fresh)) => break (stored.record, fresh),
            (Ok(None), _) => return None,
            (Err(error), _) => pause.after(id, &error).await,
            (_, Err(error)) => pause.after(id, &error).await,
        }
    };
    let (task, for_task, again) = (Arc::clone(inner), operation.clone(), fresh.clone());
    let performed =
        tokio::spawn(async move { task.perform(&record, for_task.as_ref(), effect, again).await }).await;
    match performed {
        Ok(command) => command,
        Err(error) if error.is_panic() => {
            tracing::error!(box_id = %id, "the backend panicked");
            Some(panicked(inner, id, operation?, fresh).await)
        }
        Err(_) => None,
    }
}

async fn panicked(inner: &Inner, id: &BoxId, operation: OperationId, fresh: Fresh) -> Command {
    let look = inner.look(id, None).await.map_or(Look::Unknown, Look::Seen);
    let reason = "the backend broke down: see the server's log".to_owned();
    Command::EffectFailed { operation, kind: FailureKind::Broken, reason, look, fresh }
}

/// Decides on an outcome and writes it, for as long as that takes: an outcome must not be lost while we live.
///
/// `known` is the box as it was last seen: what rests on it alone is written only if it still is so, and nothing else
/// is concluded from it.
async fn conclude(
    inner: &Inner,
    id: &BoxId,
    command: Command,
    mut known: Option<Stored>,
) -> Option<Decision> {
    let mut pause = Pause::default();
    loop {
        let now = inner.clock.now();
        let puts = |known: &Stored| {
            decide(Some(&known.record), command.clone(), now)
                .is_ok_and(|decision| decision.write != Write::Keep)
        };
        let stored = match known.take().filter(puts) {
            Some(known) => Ok(Some(known)),
            None => inner.store.load(id).await,
        };
        let stored = match stored {
            Ok(Some(stored)) => stored,
            Ok(None) => {
                inner.notices.tell(id);
                return None;
            }
            Err(error) => {
                pause.after(id, &error).await;
                continue;
            }
        };
        match decide(Some(&stored.record), command.clone(), now) {
            Ok(decision) if decision.write == Write::Keep => {
                inner.notices.tell(id);
                return Some(decision);
            }
            Ok(decision) => {
                let change = Inner::change(&stored.record.owner, id, Some(&stored), &decision, now);
                match inner.store.commit(change).await {
                    Ok(_) => {
                        inner.notices.tell(id);
                        if decision.write == Write::Remove {
                            inner.holds.forget(id);
                            forget(inner, &stored.record).await;
                            if stored.record.agent {
                                inner.agent_box_left(&stored.record).await;
                            }
                        }
                        return Some(decision);
                    }
                    Err(StoreError::Conflict { .. }) => {}
                    Err(error) => pause.after(id, &error).await,
                }
            }
            // somebody took the operation for cut off, or it was written although we were told it might not be
            Err(Refusal::Stale { .. }) if stored.record.pending.is_none() => {
                match inner.compare(id, Pending::AtWork).await {
                    Ok(decision) => return decision,
                    Err(error) => pause.after(id, &error).await,
                }
            }
            Err(_) => return None,
        }
    }
}

/// Runs `work`, and tells at most once a second how far it is; `new` says what the new bytes are.
pub(super) async fn with_progress<T, F: Future<Output = T>>(
    inner: &Inner,
    id: &BoxId,
    operation: &OperationId,
    phase: Phase,
    new: &str,
    work: impl FnOnce(watch::Sender<Moved>) -> F,
) -> T {
    let (sender, mut seen) = watch::channel(Moved::default());
    let work = work(sender);
    tokio::pin!(work);
    let mut ticks = interval(PROGRESS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = ticks.tick() => {}
        }
        if seen.has_changed().unwrap_or(false) {
            let at = *seen.borrow_and_update();
            let tenths = at.new_bytes * 10 / (1 << 20);
            let message = format!(
                "{} of {} files, {}.{} MiB {new}",
                at.files,
                at.files_total,
                tenths / 10,
                tenths % 10
            );
            inner.progress(id, operation, phase, message, at.bytes, None).await;
        }
    }
}

/// Longer and longer pauses.
#[derive(Debug, Default)]
struct Pause(Option<Duration>);

impl Pause {
    async fn after(&mut self, id: &BoxId, error: &(dyn std::error::Error + Sync)) {
        let pause = self.0.unwrap_or(FIRST_PAUSE);
        tracing::warn!(box_id = %id, error = effect::text(error), "trying again in {pause:?}");
        sleep(pause).await;
        self.0 = Some((pause * 2).min(LONGEST_PAUSE));
    }
}
