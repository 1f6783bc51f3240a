//! What a box becomes once it is known what the backend holds for it.

use super::decide::{asleep, begin_sleep, event, fail, remove, sleep};
use super::{
    BoxRecord, BoxState, Cause, Decision, Effect, FailureKind, Fresh, Phase, SeenClaim, Verb, Write,
};
use crate::Timestamp;
use crate::backend::{ClaimState, HibernateTo, Memory, SandboxId};

/// Times a start whose outcome is unclear is picked up again before the box is put to sleep instead.
const MAX_ATTEMPTS: u8 = 2;

/// Why an operation that did not get its way failed.
pub(super) struct Blame {
    pub(super) kind: FailureKind,
    pub(super) reason: String,
}

/// Brings `record` into agreement with the claims that carry its reference.
pub(super) fn settle(
    record: &BoxRecord,
    seen: &[SeenClaim],
    blame: Blame,
    fresh: &Fresh,
    now: Timestamp,
) -> Decision {
    // the recorded sandbox holds the files; without a record of one, the oldest was there first
    let kept = seen.iter().find(|claim| Some(&claim.id) == record.sandbox.as_ref()).or_else(|| seen.first());
    let strays = seen.iter().filter(|claim| Some(&claim.id) != kept.map(|kept| &kept.id));
    let strays = strays.map(|claim| Effect::ReleaseStray { sandbox: claim.id.clone() });

    let mut decision = match kept {
        None => gone(record, blame, now),
        Some(claim) => match &claim.state {
            ClaimState::Running => running(record, &claim.id, blame, fresh, now),
            ClaimState::Hibernated { memory } => sleeping(record, &claim.id, *memory, blame, now),
            ClaimState::Failed { reason } => {
                let mut next = record.clone();
                next.sandbox = Some(claim.id.clone());
                broken(next, reason.clone(), blame, now)
            }
            ClaimState::Away { reason } => away(record, &claim.id, reason, now),
        },
    };
    decision.effects.extend(strays);
    if decision.write == Write::Put(Box::new(record.clone())) {
        decision.write = Write::Keep;
    }
    decision
}

fn gone(record: &BoxRecord, blame: Blame, now: Timestamp) -> Decision {
    let verb = record.pending.as_ref().map(|pending| pending.verb);
    if verb == Some(Verb::Delete) {
        return remove(record.clone(), now);
    }
    let mut next = record.clone();
    let reason = if record.sandbox.is_some() {
        "its sandbox is gone".to_owned()
    } else if verb.is_some() {
        blame.reason.clone()
    } else {
        record.failure.clone().unwrap_or_else(|| "it has no sandbox".to_owned())
    };
    next.sandbox = None;
    broken(next, reason, blame, now)
}

fn broken(mut next: BoxRecord, reason: String, blame: Blame, now: Timestamp) -> Decision {
    next.state = BoxState::Failed;
    next.failure = Some(reason.clone());
    next.unsettled = false;
    next.away = false;
    next.memory = None;
    next.wake_id = None;
    next.woke_at = None;
    next.hibernated_at = None;
    next.sleep_at = None;
    let told = if reason == blame.reason { reason } else { format!("{}: {reason}", blame.reason) };
    fail(next, blame.kind, told, now)
}

/// Says that nobody knows, and keeps all that the box was.
fn away(record: &BoxRecord, sandbox: &SandboxId, reason: &str, now: Timestamp) -> Decision {
    let mut next = record.clone();
    next.sandbox = Some(sandbox.clone());
    next.state = BoxState::Failed;
    next.failure = Some(reason.to_owned());
    next.away = true;
    // a start that was cut off may have given the sandbox its new identity or not
    next.unsettled |= record.state == BoxState::Starting
        || record.pending.as_ref().is_some_and(|pending| pending.verb.starts());
    fail(next, FailureKind::Unavailable, reason.to_owned(), now)
}

fn running(record: &BoxRecord, sandbox: &SandboxId, blame: Blame, fresh: &Fresh, now: Timestamp) -> Decision {
    let mut next = record.clone();
    next.sandbox = Some(sandbox.clone());
    next.away = false;
    let verb = record.pending.as_ref().map(|pending| pending.verb);
    let restarts = verb == Some(Verb::Restore) && record.state == BoxState::Starting;
    if let (Some(pending), Some(wake_id)) = (&mut next.pending, &record.wake_id)
        && (pending.verb.starts() || restarts)
        && pending.attempts < MAX_ATTEMPTS
    {
        // it runs, but perhaps with the identity of an earlier wake: say again who it is
        pending.attempts += 1;
        let (sandbox, wake_id) = (sandbox.clone(), wake_id.clone());
        let effect =
            if restarts { Effect::Restart { sandbox, wake_id } } else { Effect::Wake { sandbox, wake_id } };
        let told = event(&mut next, Phase::Waking, "picking the start up again".to_owned(), now);
        return Decision {
            operation: Some(told.operation.clone()),
            events: vec![told],
            effects: vec![effect],
            ..Decision::put(next)
        };
    }
    let ours = record.wake_id.is_some()
        && !record.unsettled
        && !verb.is_some_and(Verb::starts)
        && record.state != BoxState::Starting;
    if ours {
        next.state = BoxState::Running;
        next.failure = None;
        return fail(next, blame.kind, blame.reason, now);
    }
    // nobody may use a sandbox whose identity is not known, and it takes a place: it sleeps until it is wanted. Until it
    // does, it is in doubt: a sleep that is refused must not make it one that runs.
    next.unsettled = true;
    let mut ended = fail(next, blame.kind, blame.reason, now);
    let Write::Put(next) = &ended.write else { return ended };
    let Some(asleep) = begin_sleep(next, HibernateTo::Memory, fresh.operation.clone(), Cause::Reconcile, now)
    else {
        return ended;
    };
    ended.events.extend(asleep.events);
    Decision { events: ended.events, ..asleep }
}

fn sleeping(
    record: &BoxRecord,
    sandbox: &SandboxId,
    memory: Memory,
    blame: Blame,
    now: Timestamp,
) -> Decision {
    let mut next = record.clone();
    next.sandbox = Some(sandbox.clone());
    match record.pending.as_ref().map(|pending| pending.verb) {
        Some(Verb::Hibernate(to)) if to != HibernateTo::Disk || memory == Memory::Lost => {
            sleep(next, memory, now)
        }
        _ => {
            asleep(&mut next, memory, now);
            fail(next, blame.kind, blame.reason, now)
        }
    }
}
