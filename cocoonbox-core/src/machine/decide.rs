use super::settle::{Blame, settle};
use super::{
    AgentShare, BoxRecord, BoxState, Bytes, Cause, Command, Decision, Effect, FailureKind, Fresh, Limits,
    Look, NewBox, OperationEvent, Pending, Phase, Refusal, SleepRules, Tally, Verb, Write,
};
use crate::backend::{HibernateTo, Memory, SandboxId};
use crate::{ImageName, OperationId, Timestamp, WakeId};

/// Decides what `command` does to a box.
///
/// # Errors
/// [`Refusal`], when it does nothing.
pub fn decide(record: Option<&BoxRecord>, command: Command, now: Timestamp) -> Result<Decision, Refusal> {
    if let Command::Create { new, fresh, tally, limits, agent } = command {
        match agent {
            None => {
                admit_box(tally, limits)?;
                admit_running(tally, limits)?;
            }
            Some(share) => admit_agent_box(share, tally, limits)?,
        }
        let record = BoxRecord { agent: agent.is_some(), ..first(new, limits, now) };
        return Ok(Decision { admits: true, ..start(record, Verb::Create, Cause::Person, &fresh, now) });
    }
    if let Command::Adopt { new, saved_at, limits } = command {
        return Ok(match record {
            Some(_) => Decision::nothing(),
            None => Decision::put(BoxRecord {
                state: BoxState::Failed,
                failure: Some(
                    "it has no sandbox here yet: ensure it to bring its newest save back".to_owned(),
                ),
                last_saved_at: Some(saved_at),
                last_used_at: None,
                ..first(new, limits, now)
            }),
        });
    }
    let record = record.ok_or(Refusal::Absent)?;
    match command {
        Command::Create { .. } | Command::Adopt { .. } => unreachable!("handled above"),
        Command::Ensure { fresh, tally, limits, agent } => ensure(record, &fresh, tally, limits, agent, now),
        Command::Hibernate { to, operation } => hibernate(record, to, operation, now),
        Command::Rename { name } => Ok(Decision::put(BoxRecord { name, ..record.clone() })),
        Command::SetSchedule { schedule } => {
            let sleep_at = if schedule.is_some() { record.sleep_at } else { None };
            Ok(Decision::put(BoxRecord { schedule, sleep_at, ..record.clone() }))
        }
        Command::Delete { operation } => {
            free(record)?;
            let mut next = record.clone();
            let mut decision = begin(&mut next, operation, Verb::Delete, Cause::Person, now);
            decision.events.push(event(&mut next, Phase::Deleting, format!("deleting {}", record.name), now));
            decision.effects.push(Effect::Release { sandbox: record.sandbox.clone() });
            decision.write = Write::Put(Box::new(next));
            Ok(decision)
        }
        Command::Save { operation } => {
            at_work(record, operation, Verb::Save, Phase::Saving, "saving", now, |sandbox, wake_id| {
                Effect::Save { sandbox, wake_id }
            })
        }
        Command::Restore { save, operation } => {
            let stage = |sandbox, wake_id| Effect::Stage { sandbox, wake_id, save };
            at_work(record, operation, Verb::Restore, Phase::Restoring, "restoring", now, stage)
        }
        Command::RestoreFiles { save, paths, operation } => {
            let effect = |sandbox, wake_id| Effect::RestoreFiles { sandbox, wake_id, save, paths };
            let told = "restoring files of";
            at_work(record, operation, Verb::RestoreFiles, Phase::RestoringFiles, told, now, effect)
        }
        Command::Rebase { image, fresh } => rebase(record, image, &fresh, now),
        Command::Rebased { operation, sandbox, image } => {
            pending(record, &operation)?;
            let old = record.sandbox.clone().filter(|old| *old != sandbox);
            let next = BoxRecord { sandbox: Some(sandbox), image, ..record.clone() };
            let mut decision = run(next, Some(Memory::Lost), now);
            decision.effects.extend(old.map(|sandbox| Effect::ReleaseStray { sandbox }));
            Ok(decision)
        }
        Command::NotRebased { operation, kind, reason } => {
            pending(record, &operation)?;
            let next = BoxRecord { state: BoxState::Running, memory: Some(Memory::Lost), ..record.clone() };
            Ok(fail(next, kind, reason, now))
        }
        Command::Used => Ok(Decision::put(BoxRecord { last_used_at: Some(now), ..record.clone() })),
        Command::Tick { rules, held, used_at, next_at, tally, fresh } => {
            Ok(tick(record, rules, held, used_at.max(record.last_used_at), next_at, tally, &fresh, now))
        }
        Command::ClockJumped { by, next_at } => Ok(jump(record, by, next_at)),
        Command::GiveWay { operation } => {
            pending(record, &operation)?;
            let mut next = record.clone();
            next.state = BoxState::Running;
            Ok(fail(next, FailureKind::GaveWay, "a call opened: the box stays up".to_owned(), now))
        }
        Command::Claimed { operation, sandbox } => {
            let verb = pending(record, &operation)?.verb;
            let mut next = record.clone();
            next.sandbox = Some(sandbox);
            Ok(run(next, if verb == Verb::Create { None } else { Some(Memory::Lost) }, now))
        }
        Command::Woke { operation, memory } => {
            let verb = pending(record, &operation)?.verb;
            Ok(run(record.clone(), if verb == Verb::Create { None } else { Some(memory) }, now))
        }
        Command::Hibernated { operation, memory } => {
            pending(record, &operation)?;
            Ok(sleep(record.clone(), memory, now))
        }
        Command::Progress { operation, phase, message, bytes, saved_at } => {
            pending(record, &operation)?;
            let mut next = record.clone();
            next.last_saved_at = saved_at.or(next.last_saved_at);
            let told = OperationEvent { bytes, ..event(&mut next, phase, message, now) };
            Ok(Decision { operation: Some(operation), events: vec![told], ..Decision::put(next) })
        }
        Command::Saved { operation, at, message, bytes } => {
            pending(record, &operation)?;
            Ok(done(BoxRecord { last_saved_at: Some(at), ..record.clone() }, message, bytes, now))
        }
        Command::FilesRestored { operation, message, bytes } => {
            pending(record, &operation)?;
            Ok(done(record.clone(), message, bytes, now))
        }
        Command::Staged { operation, fresh } => {
            pending(record, &operation)?;
            let sandbox = record.sandbox.clone().ok_or(Refusal::WrongState { state: record.state })?;
            let mut next = record.clone();
            next.state = BoxState::Starting;
            next.wake_id = Some(fresh.wake.clone());
            let message = format!("starting {} with what was restored", next.name);
            let told = event(&mut next, Phase::Restoring, message, now);
            Ok(Decision {
                operation: Some(operation),
                events: vec![told],
                effects: vec![Effect::Restart { sandbox, wake_id: fresh.wake }],
                ..Decision::put(next)
            })
        }
        Command::Released { operation } => {
            pending(record, &operation)?;
            Ok(remove(record.clone(), now))
        }
        Command::EffectFailed { operation, kind, reason, look, fresh } => {
            pending(record, &operation)?;
            let blame = Blame { kind, reason };
            Ok(match look {
                Look::Seen(seen) => settle(record, &seen, blame, &fresh, now),
                Look::Unknown => {
                    let mut next = record.clone();
                    next.state = BoxState::Failed;
                    next.failure = Some(blame.reason.clone());
                    next.unsettled = true;
                    fail(next, blame.kind, blame.reason, now)
                }
            })
        }
        Command::Reconcile { seen, fresh } => {
            let blame =
                Blame { kind: FailureKind::Interrupted, reason: "interrupted by a restart".to_owned() };
            Ok(settle(record, &seen, blame, &fresh, now))
        }
    }
}

/// Makes the record of a box that nothing was done for yet.
fn first(new: NewBox, limits: Limits, now: Timestamp) -> BoxRecord {
    BoxRecord {
        id: new.id,
        owner: new.owner,
        name: new.name,
        image: new.image,
        agent: false,
        state: BoxState::Absent,
        memory: None,
        sandbox: None,
        wake_id: None,
        pending: None,
        failure: None,
        unsettled: false,
        away: false,
        created_at: now,
        last_used_at: Some(now),
        last_saved_at: None,
        woke_at: None,
        hibernated_at: None,
        schedule: None,
        sleep_at: None,
        limits,
    }
}

fn free(record: &BoxRecord) -> Result<(), Refusal> {
    match &record.pending {
        Some(pending) => Err(Refusal::Busy { operation: pending.operation.clone() }),
        None => Ok(()),
    }
}

/// Refuses to begin what needs the sandbox while nobody can reach it: trying would forget what it was.
fn present(record: &BoxRecord) -> Result<(), Refusal> {
    if record.away {
        return Err(Refusal::Away { reason: record.failure.clone().unwrap_or_default() });
    }
    Ok(())
}

fn pending<'a>(record: &'a BoxRecord, operation: &OperationId) -> Result<&'a Pending, Refusal> {
    match &record.pending {
        Some(pending) if pending.operation == *operation => Ok(pending),
        _ => Err(Refusal::Stale { operation: operation.clone() }),
    }
}

/// Begins what works on a running box, which goes on running.
fn at_work(
    record: &BoxRecord,
    operation: OperationId,
    verb: Verb,
    phase: Phase,
    told: &str,
    now: Timestamp,
    effect: impl FnOnce(SandboxId, WakeId) -> Effect,
) -> Result<Decision, Refusal> {
    free(record)?;
    present(record)?;
    let (BoxState::Running, Some(sandbox), Some(wake_id)) = (record.state, &record.sandbox, &record.wake_id)
    else {
        return Err(Refusal::WrongState { state: record.state });
    };
    let effect = effect(sandbox.clone(), wake_id.clone());
    let mut next = record.clone();
    let mut decision = begin(&mut next, operation, verb, Cause::Person, now);
    let message = format!("{told} {}", next.name);
    decision.events.push(event(&mut next, phase, message, now));
    decision.effects.push(effect);
    decision.write = Write::Put(Box::new(next));
    Ok(decision)
}

/// Begins to move a running box to another image. Nobody uses it meanwhile: what is written after the save would be lost.
fn rebase(record: &BoxRecord, image: ImageName, fresh: &Fresh, now: Timestamp) -> Result<Decision, Refusal> {
    let wake_id = fresh.wake.clone();
    let effect = |sandbox, _| Effect::Rebase { sandbox, wake_id, image: image.clone() };
    let told = format!("moving to image {image}:");
    let operation = fresh.operation.clone();
    let mut decision = at_work(record, operation, Verb::Rebase, Phase::Saving, &told, now, effect)?;
    if let Write::Put(next) = &mut decision.write {
        next.state = BoxState::Starting;
        next.wake_id = Some(fresh.wake.clone());
    }
    Ok(decision)
}

fn admit_box(tally: Tally, limits: Limits) -> Result<(), Refusal> {
    match limits.max_boxes {
        Some(max) if tally.boxes >= max => Err(Refusal::TooManyBoxes { have: tally.boxes, max }),
        _ => Ok(()),
    }
}

fn admit_running(tally: Tally, limits: Limits) -> Result<(), Refusal> {
    match limits.max_running {
        Some(max) if tally.running >= max => Err(Refusal::TooManyRunning { have: tally.running, max }),
        _ => Ok(()),
    }
}

/// Refuses what is over the agent's own share, or over what all agents of the user may have together.
fn admit_agent_box(share: AgentShare, tally: Tally, limits: Limits) -> Result<(), Refusal> {
    if share.boxes >= share.max_boxes {
        return Err(Refusal::AgentBoxes { have: share.boxes, max: share.max_boxes });
    }
    match limits.max_agent_boxes {
        Some(max) if tally.agent_boxes >= max => {
            Err(Refusal::TooManyAgentBoxes { have: tally.agent_boxes, max })
        }
        _ => admit_agent_running(share),
    }
}

fn admit_agent_running(share: AgentShare) -> Result<(), Refusal> {
    if share.running >= share.max_running {
        return Err(Refusal::AgentRunning { have: share.running, max: share.max_running });
    }
    Ok(())
}

fn ensure(
    record: &BoxRecord,
    fresh: &Fresh,
    tally: Tally,
    limits: Limits,
    agent: Option<AgentShare>,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    if let Some(pending) = &record.pending {
        // a start that is under way is the start that was asked for
        return if pending.verb.starts() {
            Ok(Decision { operation: Some(pending.operation.clone()), ..Decision::nothing() })
        } else {
            Err(Refusal::Busy { operation: pending.operation.clone() })
        };
    }
    let used = BoxRecord { last_used_at: Some(now), limits, ..record.clone() };
    if record.state == BoxState::Running {
        return Ok(Decision::put(used));
    }
    present(record)?;
    match agent {
        Some(share) => admit_agent_running(share)?,
        // its owner may start it beside the boxes of their own
        None if record.agent => {}
        None => admit_running(tally, limits)?,
    }
    Ok(Decision { admits: true, ..start(used, Verb::Ensure, Cause::Person, fresh, now) })
}

/// Begins to start a box whose owner may run one more.
fn start(mut next: BoxRecord, verb: Verb, cause: Cause, fresh: &Fresh, now: Timestamp) -> Decision {
    let mut decision = begin(&mut next, fresh.operation.clone(), verb, cause, now);
    next.state = BoxState::Starting;
    next.wake_id = Some(fresh.wake.clone());
    next.failure = None;
    next.unsettled = false;
    next.away = false;
    if let Some(sandbox) = next.sandbox.clone() {
        let message = format!("waking {}", next.name);
        decision.events.push(event(&mut next, Phase::Waking, message, now));
        decision.effects.push(Effect::Wake { sandbox, wake_id: fresh.wake.clone() });
    } else {
        let message = format!("starting {} from image {}", next.name, next.image);
        decision.events.push(event(&mut next, Phase::Creating, message, now));
        decision.effects.push(Effect::Claim { wake_id: fresh.wake.clone() });
    }
    decision.write = Write::Put(Box::new(next));
    decision
}

fn hibernate(
    record: &BoxRecord,
    to: HibernateTo,
    operation: OperationId,
    now: Timestamp,
) -> Result<Decision, Refusal> {
    free(record)?;
    present(record)?;
    match (record.state, record.memory, to) {
        (BoxState::Running, _, _) | (BoxState::Hibernated, Some(Memory::Kept), HibernateTo::Disk) => {
            begin_sleep(record, to, operation, Cause::Person, now)
                .ok_or(Refusal::WrongState { state: record.state })
        }
        (BoxState::Hibernated, _, _) => Ok(Decision::nothing()),
        _ => Err(Refusal::WrongState { state: record.state }),
    }
}

/// Begins to put a box to sleep; none when it has no sandbox.
pub(super) fn begin_sleep(
    record: &BoxRecord,
    to: HibernateTo,
    operation: OperationId,
    cause: Cause,
    now: Timestamp,
) -> Option<Decision> {
    let sandbox = record.sandbox.clone()?;
    let mut next = record.clone();
    let mut decision = begin(&mut next, operation, Verb::Hibernate(to), cause, now);
    next.state = BoxState::Hibernating;
    let keeps = if to == HibernateTo::Disk { "files" } else { "memory where possible" };
    let message = format!("putting {} to sleep, keeping {keeps}", record.name);
    decision.events.push(event(&mut next, Phase::Snapshotting, message, now));
    decision.effects.push(Effect::Hibernate { sandbox, to });
    decision.write = Write::Put(Box::new(next));
    Some(decision)
}

#[expect(clippy::too_many_arguments, reason = "the parts of one command")]
fn tick(
    record: &BoxRecord,
    rules: SleepRules,
    held: bool,
    used_at: Option<Timestamp>,
    next_at: Option<Timestamp>,
    tally: Tally,
    fresh: &Fresh,
    now: Timestamp,
) -> Decision {
    if record.pending.is_some() || record.unsettled || record.away {
        return Decision::nothing();
    }
    if let Some(schedule) = &record.schedule
        && schedule.next_at.is_some_and(|at| at <= now)
    {
        let mut next = record.clone();
        let sleep_at = now.plus(schedule.stay_up);
        if let Some(schedule) = &mut next.schedule {
            schedule.next_at = next_at;
        }
        let admitted = record.agent || admit_running(tally, record.limits).is_ok();
        if record.state != BoxState::Running && !admitted {
            // the wake is left out and not made up for: the owner's other boxes have the places
            return Decision::put(next);
        }
        next.sleep_at = next.sleep_at.max(Some(sleep_at));
        return if record.state == BoxState::Running {
            Decision::put(next)
        } else {
            Decision { admits: true, ..start(next, Verb::Ensure, Cause::Schedule, fresh, now) }
        };
    }
    let over = |since: Option<Timestamp>, span: std::time::Duration| {
        !span.is_zero() && since.is_some_and(|since| now.since(rules.counted_from(since, now)) >= span)
    };
    let sleep = |to, cause| {
        begin_sleep(record, to, fresh.operation.clone(), cause, now).unwrap_or(Decision::nothing())
    };
    match record.state {
        BoxState::Running if held => Decision::nothing(),
        BoxState::Running => match record.sleep_at {
            Some(at) if at <= now => sleep(HibernateTo::Memory, Cause::Schedule),
            None if over(used_at.max(record.woke_at), rules.idle) => sleep(HibernateTo::Memory, Cause::Idle),
            Some(_) | None => Decision::nothing(),
        },
        BoxState::Hibernated
            if record.memory == Some(Memory::Kept)
                && over(record.hibernated_at, rules.freeze_to_disk_after) =>
        {
            sleep(HibernateTo::Disk, Cause::FreezeToDisk)
        }
        _ => Decision::nothing(),
    }
}

/// Moves with the wall clock what was reckoned ahead by it.
fn jump(record: &BoxRecord, by: i64, next_at: Option<Timestamp>) -> Decision {
    let mut next = record.clone();
    // a scheduled wake lasts as long as it was to last
    next.sleep_at = next.sleep_at.map(|at| Timestamp::from_micros(at.micros().saturating_add(by)));
    if let (Some(schedule), Some(sooner)) = (&mut next.schedule, next_at) {
        // after a jump back the times in between come again
        schedule.next_at = schedule.next_at.map(|at| at.min(sooner));
    }
    if next == *record { Decision::nothing() } else { Decision::put(next) }
}

fn begin(next: &mut BoxRecord, operation: OperationId, verb: Verb, cause: Cause, now: Timestamp) -> Decision {
    next.pending =
        Some(Pending { operation: operation.clone(), verb, cause, started_at: now, events: 0, attempts: 0 });
    Decision { operation: Some(operation), begins: Some(verb), ..Decision::nothing() }
}

/// Numbers the next event of the record's operation.
///
/// Only called while an operation is under way.
pub(super) fn event(next: &mut BoxRecord, phase: Phase, message: String, now: Timestamp) -> OperationEvent {
    let pending = next.pending.as_mut().expect("an operation is under way");
    pending.events += 1;
    OperationEvent {
        operation: pending.operation.clone(),
        box_id: next.id.clone(),
        sequence: pending.events,
        phase,
        message,
        at: now,
        bytes: Bytes::default(),
        memory: None,
        failure: None,
    }
}

/// Ends the record's operation with one last event, where one is under way.
fn end(mut next: BoxRecord, last: impl FnOnce(&mut BoxRecord) -> OperationEvent) -> Decision {
    if next.pending.is_none() {
        return Decision::put(next);
    }
    let last = last(&mut next);
    next.pending = None;
    Decision { operation: Some(last.operation.clone()), events: vec![last], ..Decision::put(next) }
}

fn done(next: BoxRecord, message: String, bytes: Bytes, now: Timestamp) -> Decision {
    end(next, |next| OperationEvent { bytes, ..event(next, Phase::Done, message, now) })
}

pub(super) fn fail(next: BoxRecord, kind: FailureKind, reason: String, now: Timestamp) -> Decision {
    end(next, |next| {
        let mut last = event(next, Phase::Failed, reason, now);
        last.failure = Some(kind);
        last
    })
}

fn run(mut next: BoxRecord, memory: Option<Memory>, now: Timestamp) -> Decision {
    next.state = BoxState::Running;
    next.memory = memory;
    next.failure = None;
    next.unsettled = false;
    next.away = false;
    next.woke_at = Some(now);
    next.hibernated_at = None;
    end(next, |next| {
        let message = match memory {
            None => format!("{} is running", next.name),
            Some(Memory::Kept) => format!("{} is running; its programs went on", next.name),
            Some(Memory::Lost) => {
                format!("{} is running; its files are there, its programs start anew", next.name)
            }
        };
        let mut last = event(next, Phase::Done, message, now);
        last.memory = memory;
        last
    })
}

pub(super) fn sleep(mut next: BoxRecord, memory: Memory, now: Timestamp) -> Decision {
    asleep(&mut next, memory, now);
    end(next, |next| {
        let message = match memory {
            Memory::Kept => format!("{} sleeps; memory kept", next.name),
            Memory::Lost => format!("{} sleeps; memory lost, files kept", next.name),
        };
        let mut last = event(next, Phase::Done, message, now);
        last.memory = Some(memory);
        last
    })
}

/// Makes the record that of a sleeping box.
pub(super) fn asleep(next: &mut BoxRecord, memory: Memory, now: Timestamp) {
    next.hibernated_at = next.hibernated_at.or(Some(now));
    next.state = BoxState::Hibernated;
    next.memory = Some(memory);
    next.wake_id = None;
    next.failure = None;
    next.unsettled = false;
    next.away = false;
    next.woke_at = None;
    next.sleep_at = None;
}

pub(super) fn remove(next: BoxRecord, now: Timestamp) -> Decision {
    let mut decision = end(next, |next| {
        let message = format!("{} is deleted", next.name);
        event(next, Phase::Done, message, now)
    });
    decision.write = Write::Remove;
    decision
}
