//! The machine against a model backend: random verbs, and every way in which a step can be cut off.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::backend::{ClaimState, HibernateTo, Memory, SandboxId};
use crate::{BoxId, BoxName, ImageName, OperationId, SeededEntropy, Timestamp, UserId, WakeId};

type Decider = fn(Option<&BoxRecord>, Command, Timestamp) -> Result<Decision, Refusal>;

const LIMITS: Limits = Limits { max_boxes: Some(3), max_running: Some(2), max_agent_boxes: Some(2) };
const RULES: SleepRules = SleepRules {
    idle: Duration::from_mins(10),
    freeze_to_disk_after: Duration::from_mins(20),
    jumped_at: None,
};

mod stories;

/// How an effect goes.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Done,
    /// Nothing happened, and the caller hears so.
    Refused,
    /// It happened, the answer is an error, and a look tells.
    AnswerLost,
    /// The backend cannot be asked afterwards.
    Dark {
        done: bool,
    },
    /// The node goes away, before or after it happened.
    Away {
        done: bool,
    },
    /// The process dies before the effect.
    CrashBefore,
    /// The process dies after the effect, before its outcome is written.
    CrashAfter,
}

#[derive(Clone, Debug)]
enum Step {
    Create {
        owner: usize,
    },
    /// The owner's agent makes a box.
    AgentCreates {
        owner: usize,
    },
    Ensure {
        pick: usize,
    },
    Hibernate {
        pick: usize,
        disk: bool,
    },
    Delete {
        pick: usize,
    },
    Schedule {
        pick: usize,
    },
    Keep {
        pick: usize,
        verb: Verb,
    },
    Tick {
        minutes: u64,
        held: bool,
    },
    Settle,
    Effect(Fate),
    Dies {
        pick: usize,
    },
    GiveWay,
    /// The node goes away, or is back.
    Turns {
        away: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        6 => Just(Fate::Done),
        1 => Just(Fate::Refused),
        1 => Just(Fate::AnswerLost),
        1 => any::<bool>().prop_map(|done| Fate::Dark { done }),
        1 => any::<bool>().prop_map(|done| Fate::Away { done }),
        1 => Just(Fate::CrashBefore),
        1 => Just(Fate::CrashAfter),
    ];
    prop_oneof![
        3 => (0..2_usize).prop_map(|owner| Step::Create { owner }),
        2 => (0..2_usize).prop_map(|owner| Step::AgentCreates { owner }),
        4 => (0..6_usize).prop_map(|pick| Step::Ensure { pick }),
        3 => (0..6_usize, any::<bool>()).prop_map(|(pick, disk)| Step::Hibernate { pick, disk }),
        1 => (0..6_usize).prop_map(|pick| Step::Delete { pick }),
        1 => (0..6_usize).prop_map(|pick| Step::Schedule { pick }),
        3 => (0..6_usize, prop_oneof![Just(Verb::Save), Just(Verb::Restore), Just(Verb::RestoreFiles), Just(Verb::Rebase)])
            .prop_map(|(pick, verb)| Step::Keep { pick, verb }),
        2 => (1..30_u64, any::<bool>()).prop_map(|(minutes, held)| Step::Tick { minutes, held }),
        1 => Just(Step::Settle),
        8 => fate.prop_map(Step::Effect),
        1 => (0..6_usize).prop_map(|pick| Step::Dies { pick }),
        1 => Just(Step::GiveWay),
        2 => any::<bool>().prop_map(|away| Step::Turns { away }),
    ]
}

/// A claim of the model backend.
#[derive(Clone, Debug)]
struct Held {
    of: BoxId,
    owner: UserId,
    state: ClaimState,
    identity: WakeId,
}

struct World {
    decider: Decider,
    entropy: SeededEntropy,
    now: Timestamp,
    owners: [UserId; 2],
    records: BTreeMap<BoxId, BoxRecord>,
    /// The boxes that agents made.
    agents: BTreeSet<BoxId>,
    claims: BTreeMap<SandboxId, Held>,
    /// The sandbox in which a box's files were first seen.
    files: BTreeMap<BoxId, SandboxId>,
    flight: VecDeque<(BoxId, OperationId, Effect)>,
    log: BTreeMap<OperationId, Vec<OperationEvent>>,
    made: u32,
    /// Whether the node does not answer.
    away: bool,
}

/// Whether the engine looks at the box before it does anything with it.
fn in_doubt(record: &BoxRecord) -> bool {
    (record.unsettled || record.away) && record.pending.is_none()
}

type Check = Result<(), String>;

impl World {
    fn new(decider: Decider) -> Self {
        let entropy = SeededEntropy::new(11);
        let owners = [UserId::random(&entropy).unwrap(), UserId::random(&entropy).unwrap()];
        Self {
            decider,
            entropy,
            now: Timestamp::from_millis(1_000_000),
            owners,
            records: BTreeMap::new(),
            agents: BTreeSet::new(),
            claims: BTreeMap::new(),
            files: BTreeMap::new(),
            flight: VecDeque::new(),
            log: BTreeMap::new(),
            made: 0,
            away: false,
        }
    }

    fn fresh(&self) -> Fresh {
        Fresh {
            operation: OperationId::random(&self.entropy).unwrap(),
            wake: WakeId::random(&self.entropy).unwrap(),
        }
    }

    fn pick(&self, pick: usize) -> Option<BoxId> {
        self.records.keys().nth(pick % self.records.len().max(1)).cloned()
    }

    fn tally(&self, owner: &UserId, without: Option<&BoxId>) -> Tally {
        Tally::of(
            self.records.values().filter(|record| record.owner == *owner && Some(&record.id) != without),
        )
    }

    fn share(&self, owner: &UserId, without: Option<&BoxId>) -> AgentShare {
        let made = self.records.values().filter(|record| record.agent && record.owner == *owner);
        AgentShare::of(made.filter(|record| Some(&record.id) != without), 3, 1)
    }

    fn create(&mut self, owner: usize, agent: Option<AgentShare>) -> Check {
        let owner = self.owners[owner].clone();
        let id = BoxId::random(&self.entropy).unwrap();
        let (name, image) = (BoxName::first(), ImageName::host());
        let new = NewBox { id: id.clone(), owner: owner.clone(), name, image };
        let tally = self.tally(&owner, None);
        if agent.is_some() {
            self.agents.insert(id.clone());
        }
        let command = Command::Create { new, fresh: self.fresh(), tally, limits: LIMITS, agent };
        self.command(&id, command)
    }

    fn seen(&self, id: &BoxId) -> Vec<SeenClaim> {
        let held = self.claims.iter().filter(|(_, held)| held.of == *id);
        let state = |held: &Held| {
            if self.away { ClaimState::Away { reason: "no answer".to_owned() } } else { held.state.clone() }
        };
        held.map(|(id, held)| SeenClaim { id: id.clone(), state: state(held) }).collect()
    }

    fn command(&mut self, id: &BoxId, command: Command) -> Check {
        let before = self.records.get(id).cloned();
        let moved =
            if let Command::Rebased { sandbox, .. } = &command { Some(sandbox.clone()) } else { None };
        let Ok(decision) = (self.decider)(before.as_ref(), command, self.now) else { return Ok(()) };
        self.files.extend(moved.map(|sandbox| (id.clone(), sandbox)));
        self.write(id, decision)
    }

    fn write(&mut self, id: &BoxId, decision: Decision) -> Check {
        match decision.write {
            Write::Keep => {}
            Write::Put(record) => {
                self.records.insert(id.clone(), *record);
            }
            Write::Remove => {
                self.records.remove(id);
            }
        }
        for event in decision.events {
            let log = self.log.entry(event.operation.clone()).or_default();
            if log.last().is_some_and(|last| last.phase.is_last()) {
                return Err(format!("an event follows the end of {}", event.operation));
            }
            log.push(event);
            if log.last().map(|event| event.sequence) != Some(log.len() as u64) {
                return Err("events are not numbered from 1".to_owned());
            }
        }
        // an operation id is needed only where an outcome is awaited
        let operation = decision.operation.unwrap_or_else(|| OperationId::random(&self.entropy).unwrap());
        for effect in decision.effects {
            self.flight.push_back((id.clone(), operation.clone(), effect));
        }
        self.check()
    }

    fn wake(&mut self, sandbox: &SandboxId, wake_id: &WakeId) -> Memory {
        let held = self.claims.get_mut(sandbox).unwrap();
        let memory = match held.state {
            ClaimState::Running | ClaimState::Hibernated { memory: Memory::Kept } => Memory::Kept,
            _ => Memory::Lost,
        };
        held.identity = wake_id.clone();
        held.state = ClaimState::Running;
        memory
    }

    /// Does what a backend would, and answers the outcome; none where nothing waits for one.
    fn perform(&mut self, id: &BoxId, operation: &OperationId, effect: &Effect) -> Option<Command> {
        let operation = operation.clone();
        if self.away {
            return match effect {
                Effect::ReleaseStray { .. } => None,
                _ => Some(self.failed(id, operation, false)),
            };
        }
        let known = |world: &Self, sandbox: &SandboxId| world.claims.contains_key(sandbox);
        match effect {
            Effect::Claim { wake_id } => {
                if let Some(claim) = self.seen(id).first() {
                    self.wake(&claim.id, wake_id);
                    return Some(Command::Claimed { operation, sandbox: claim.id.clone() });
                }
                self.made += 1;
                let sandbox: SandboxId = format!("sb_{:04}", self.made).parse().unwrap();
                let owner = self.records.get(id)?.owner.clone();
                let held =
                    Held { of: id.clone(), owner, state: ClaimState::Running, identity: wake_id.clone() };
                self.claims.insert(sandbox.clone(), held);
                Some(Command::Claimed { operation, sandbox })
            }
            Effect::Wake { sandbox, .. }
            | Effect::Hibernate { sandbox, .. }
            | Effect::Restart { sandbox, .. }
            | Effect::Save { sandbox, .. }
            | Effect::Stage { sandbox, .. }
            | Effect::RestoreFiles { sandbox, .. }
            | Effect::Rebase { sandbox, .. }
                if !known(self, sandbox) =>
            {
                Some(self.failed(id, operation, false))
            }
            // a guest answers in the wake that it was asked in, or not at all
            Effect::Save { sandbox, wake_id }
            | Effect::Stage { sandbox, wake_id, .. }
            | Effect::RestoreFiles { sandbox, wake_id, .. }
                if self.claims[sandbox].state != ClaimState::Running
                    || self.claims[sandbox].identity != *wake_id =>
            {
                Some(self.failed(id, operation, false))
            }
            Effect::Save { .. } => {
                let bytes = Bytes { done: 7, total: 9 };
                Some(Command::Saved { operation, at: self.now, message: "saved".to_owned(), bytes })
            }
            Effect::Stage { .. } => Some(Command::Staged { operation, fresh: self.fresh() }),
            Effect::RestoreFiles { .. } => {
                let message = "restored".to_owned();
                Some(Command::FilesRestored { operation, message, bytes: Bytes::default() })
            }
            Effect::Rebase { sandbox, wake_id, image } => {
                self.claims.get_mut(sandbox).unwrap().state = ClaimState::Hibernated { memory: Memory::Lost };
                self.wake(sandbox, wake_id);
                if *image == ImageName::host() {
                    let (kind, reason) = (FailureKind::UnknownImage, "no such image".to_owned());
                    return Some(Command::NotRebased { operation, kind, reason });
                }
                self.made += 1;
                let new: SandboxId = format!("sb_{:04}", self.made).parse().unwrap();
                let owner = self.records.get(id)?.owner.clone();
                let held =
                    Held { of: id.clone(), owner, state: ClaimState::Running, identity: wake_id.clone() };
                self.claims.insert(new.clone(), held);
                Some(Command::Rebased { operation, sandbox: new, image: image.clone() })
            }
            Effect::Restart { sandbox, wake_id } => {
                self.claims.get_mut(sandbox).unwrap().state = ClaimState::Hibernated { memory: Memory::Lost };
                let memory = self.wake(sandbox, wake_id);
                Some(Command::Woke { operation, memory })
            }
            Effect::Wake { sandbox, wake_id } => {
                let memory = self.wake(sandbox, wake_id);
                Some(Command::Woke { operation, memory })
            }
            Effect::Hibernate { sandbox, to } => {
                let held = self.claims.get_mut(sandbox).unwrap();
                if matches!(held.state, ClaimState::Failed { .. }) {
                    return Some(self.failed(id, operation, false));
                }
                let lost =
                    *to == HibernateTo::Disk || held.state == ClaimState::Hibernated { memory: Memory::Lost };
                let memory = if lost { Memory::Lost } else { Memory::Kept };
                held.state = ClaimState::Hibernated { memory };
                Some(Command::Hibernated { operation, memory })
            }
            Effect::Release { .. } => {
                self.claims.retain(|_, held| held.of != *id);
                self.files.remove(id);
                Some(Command::Released { operation })
            }
            Effect::ReleaseStray { sandbox } => {
                self.claims.remove(sandbox);
                None
            }
        }
    }

    fn failed(&self, id: &BoxId, operation: OperationId, dark: bool) -> Command {
        let look = if dark { Look::Unknown } else { Look::Seen(self.seen(id)) };
        let reason = "it did not work".to_owned();
        Command::EffectFailed { operation, kind: FailureKind::Broken, reason, look, fresh: self.fresh() }
    }

    fn effect(&mut self, fate: Fate) -> Check {
        let Some((id, operation, effect)) = self.flight.pop_front() else { return Ok(()) };
        let outcome = match fate {
            Fate::Done => self.perform(&id, &operation, &effect),
            Fate::Refused => Some(self.failed(&id, operation, false)),
            Fate::AnswerLost => {
                self.perform(&id, &operation, &effect);
                Some(self.failed(&id, operation, false))
            }
            Fate::Dark { done } => {
                if done {
                    self.perform(&id, &operation, &effect);
                }
                Some(self.failed(&id, operation, true))
            }
            Fate::Away { done } => {
                if done {
                    self.perform(&id, &operation, &effect);
                }
                self.away = true;
                Some(self.failed(&id, operation, false))
            }
            Fate::CrashBefore => return self.restart(),
            Fate::CrashAfter => {
                self.perform(&id, &operation, &effect);
                self.check()?;
                return self.restart();
            }
        };
        self.check()?;
        outcome.map_or(Ok(()), |outcome| self.command(&id, outcome))
    }

    fn restart(&mut self) -> Check {
        self.flight.clear();
        let records = &self.records;
        let away = self.away;
        self.claims.retain(|_, held| away || records.contains_key(&held.of));
        for id in self.records.keys().cloned().collect::<Vec<_>>() {
            self.reconcile(&id)?;
        }
        Ok(())
    }

    fn reconcile(&mut self, id: &BoxId) -> Check {
        let command = Command::Reconcile { seen: self.seen(id), fresh: self.fresh() };
        self.command(id, command)
    }

    fn take(&mut self, step: Step) -> Check {
        match step {
            Step::Create { owner } => self.create(owner, None),
            Step::AgentCreates { owner } => {
                let share = self.share(&self.owners[owner], None);
                self.create(owner, Some(share))
            }
            Step::Ensure { pick } => {
                let Some(id) = self.pick(pick) else { return Ok(()) };
                if in_doubt(&self.records[&id]) {
                    self.reconcile(&id)?;
                }
                let record = &self.records[&id];
                let tally = self.tally(&record.owner, Some(&id));
                let agent = record.agent.then(|| self.share(&record.owner, Some(&id)));
                let command = Command::Ensure { fresh: self.fresh(), tally, limits: LIMITS, agent };
                self.command(&id, command)
            }
            Step::Hibernate { pick, disk } => {
                let Some(id) = self.pick(pick) else { return Ok(()) };
                let to = if disk { HibernateTo::Disk } else { HibernateTo::Memory };
                let operation = self.fresh().operation;
                self.command(&id, Command::Hibernate { to, operation })
            }
            Step::Delete { pick } => {
                let Some(id) = self.pick(pick) else { return Ok(()) };
                let operation = self.fresh().operation;
                self.command(&id, Command::Delete { operation })
            }
            Step::Schedule { pick } => {
                let Some(id) = self.pick(pick) else { return Ok(()) };
                let next_at = Some(self.now.plus(Duration::from_mins(5)));
                let schedule = Schedule {
                    cron: "* * * * *".to_owned(),
                    time_zone: "UTC".to_owned(),
                    stay_up: Duration::from_mins(5),
                    next_at,
                };
                self.command(&id, Command::SetSchedule { schedule: Some(schedule) })
            }
            Step::Keep { pick, verb } => {
                let Some(id) = self.pick(pick) else { return Ok(()) };
                let operation = self.fresh().operation;
                let save = "a".to_owned();
                let command = match verb {
                    Verb::Save => Command::Save { operation },
                    Verb::Restore => Command::Restore { save, operation },
                    Verb::Rebase => {
                        let image = if self.made.is_multiple_of(3) { "host" } else { "other:2" };
                        Command::Rebase { image: image.parse().unwrap(), fresh: self.fresh() }
                    }
                    _ => Command::RestoreFiles { save, paths: vec![b"/workspace/a".to_vec()], operation },
                };
                self.command(&id, command)
            }
            Step::Tick { minutes, held } => {
                self.now = self.now.plus(Duration::from_mins(minutes));
                for id in self.records.keys().cloned().collect::<Vec<_>>() {
                    let tally = self.tally(&self.records[&id].owner, Some(&id));
                    let next_at = Some(self.now.plus(Duration::from_mins(5)));
                    let fresh = self.fresh();
                    self.command(
                        &id,
                        Command::Tick { rules: RULES, held, used_at: None, next_at, tally, fresh },
                    )?;
                }
                Ok(())
            }
            Step::Settle => {
                let in_doubt = self.records.values().filter(|record| in_doubt(record));
                for id in in_doubt.map(|record| record.id.clone()).collect::<Vec<_>>() {
                    self.reconcile(&id)?;
                }
                Ok(())
            }
            Step::Effect(fate) => self.effect(fate),
            Step::Dies { pick } => {
                let Some(id) = self.pick(pick) else { return Ok(()) };
                for held in self.claims.values_mut().filter(|held| held.of == id) {
                    held.state = ClaimState::Failed { reason: "killed".to_owned() };
                }
                Ok(())
            }
            Step::Turns { away } => {
                self.away = away;
                Ok(())
            }
            Step::GiveWay => {
                let Some((id, operation, Effect::Hibernate { .. })) = self.flight.front().cloned() else {
                    return Ok(());
                };
                let pending = self.records.get(&id).and_then(|record| record.pending.clone());
                if pending.is_some_and(|pending| pending.operation == operation && pending.cause.gives_way())
                {
                    self.flight.pop_front();
                    self.command(&id, Command::GiveWay { operation })?;
                }
                Ok(())
            }
        }
    }

    /// What must hold whenever anybody looks.
    fn check(&mut self) -> Check {
        for owner in &self.owners {
            let tally = self.tally(owner, None);
            if tally.boxes > 3 {
                return Err(format!("{} boxes", tally.boxes));
            }
            if tally.running > 2 {
                return Err(format!("{} boxes count as running", tally.running));
            }
            if tally.agent_boxes > 2 {
                return Err(format!("{} boxes of agents", tally.agent_boxes));
            }
            let own = |held: &&Held| held.owner == *owner && !self.agents.contains(&held.of);
            let running = self.claims.values().filter(own);
            let running = running.filter(|held| held.state == ClaimState::Running);
            // a box that moves to another image has its old sandbox until the new one holds its files
            let running: BTreeSet<&BoxId> = running.map(|held| &held.of).collect();
            if running.len() > 2 {
                return Err("more sandboxes run than may".to_owned());
            }
        }
        for record in self.records.values() {
            if record.agent != self.agents.contains(&record.id) {
                return Err(format!("{} has changed hands", record.id));
            }
            if record.pending.is_none() && record.state.is_between() {
                return Err(format!("{} is {} and nothing is under way", record.id, record.state));
            }
            if record.state != BoxState::Running || record.pending.is_some() {
                continue;
            }
            let sandbox = record.sandbox.as_ref().ok_or("a running box has no sandbox")?;
            self.files.entry(record.id.clone()).or_insert_with(|| sandbox.clone());
            if let Some(held) = self.claims.get(sandbox)
                && held.state == ClaimState::Running
                && Some(&held.identity) != record.wake_id.as_ref()
            {
                return Err("a running box has the identity of another wake".to_owned());
            }
        }
        for (id, sandbox) in &self.files {
            if !self.claims.contains_key(sandbox) {
                return Err(format!("the files of {id} are gone"));
            }
        }
        Ok(())
    }

    /// What must hold once the server was started again and nothing failed since.
    fn finish(&mut self) -> Check {
        self.away = false;
        self.restart()?;
        while !self.flight.is_empty() {
            self.effect(Fate::Done)?;
        }
        for record in self.records.values() {
            if record.pending.is_some() || record.state.is_between() || in_doubt(record) {
                return Err(format!("{} is stuck: {record:?}", record.id));
            }
            if let Some(files) = self.files.get(&record.id)
                && record.sandbox.as_ref() != Some(files)
            {
                return Err(format!("{} does not know its files", record.id));
            }
            let seen = self.seen(&record.id);
            let agrees = match (record.state, seen.as_slice()) {
                (BoxState::Failed, []) => record.sandbox.is_none(),
                (state, [claim]) => {
                    record.sandbox.as_ref() == Some(&claim.id)
                        && match &claim.state {
                            ClaimState::Running => state == BoxState::Running,
                            ClaimState::Hibernated { memory } => {
                                state == BoxState::Hibernated && record.memory == Some(*memory)
                            }
                            ClaimState::Failed { .. } => state == BoxState::Failed,
                            ClaimState::Away { .. } => false,
                        }
                }
                _ => false,
            };
            if !agrees {
                return Err(format!("{record:?} does not agree with {seen:?}"));
            }
        }
        for held in self.claims.values() {
            if !self.records.contains_key(&held.of) {
                return Err(format!("a sandbox of {} is left", held.of));
            }
        }
        match self.log.values().find(|log| !log.last().is_some_and(|last| last.phase.is_last())) {
            Some(log) => Err(format!("an operation never ended: {log:?}")),
            None => Ok(()),
        }
    }
}

fn survives(decider: Decider, cases: u32) -> Result<(), String> {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    runner
        .run(&proptest::collection::vec(step(), 1..60), |steps| {
            let mut world = World::new(decider);
            for step in steps {
                world.take(step).map_err(TestCaseError::fail)?;
            }
            world.finish().map_err(TestCaseError::fail)
        })
        .map_err(|error| error.to_string())
}

#[test]
fn no_sequence_loses_a_box_leaves_it_stuck_or_breaks_a_cap() -> Result<(), String> {
    survives(decide, 1500)
}

/// The property is worth something only if wrong machines fail it.
#[test]
fn the_property_catches_broken_machines() {
    fn starting_is_not_counted(
        record: Option<&BoxRecord>,
        command: Command,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        let command = match command {
            Command::Ensure { fresh, tally, limits, agent } => {
                Command::Ensure { fresh, tally, limits: Limits { max_running: None, ..limits }, agent }
            }
            other => other,
        };
        decide(record, command, now)
    }
    fn a_restart_is_ignored(
        record: Option<&BoxRecord>,
        command: Command,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        match command {
            Command::Reconcile { .. } if record.is_some_and(|record| record.pending.is_some()) => {
                Ok(Decision::nothing())
            }
            other => decide(record, other, now),
        }
    }
    fn a_lost_answer_is_believed(
        record: Option<&BoxRecord>,
        command: Command,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        let mut decision = decide(record, command.clone(), now)?;
        if let (Command::EffectFailed { .. }, Write::Put(record)) = (command, &mut decision.write)
            && let Some(sandbox) = record.sandbox.take()
        {
            decision.effects.push(Effect::ReleaseStray { sandbox });
        }
        Ok(decision)
    }
    fn a_wake_keeps_the_old_name(
        record: Option<&BoxRecord>,
        command: Command,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        let mut decision = decide(record, command, now)?;
        for effect in &mut decision.effects {
            if let (Effect::Wake { wake_id, .. }, Some(old)) =
                (effect, record.and_then(|record| record.wake_id.clone()))
            {
                *wake_id = old;
            }
        }
        if let (Some(record), Write::Put(next)) = (record, &mut decision.write)
            && record.state == BoxState::Hibernating
            && next.state == BoxState::Hibernated
        {
            next.wake_id.clone_from(&record.wake_id);
        }
        Ok(decision)
    }
    fn an_absence_is_taken_for_a_death(
        record: Option<&BoxRecord>,
        mut command: Command,
        now: Timestamp,
    ) -> Result<Decision, Refusal> {
        if let Command::Reconcile { seen, .. } | Command::EffectFailed { look: Look::Seen(seen), .. } =
            &mut command
        {
            for claim in seen {
                if let ClaimState::Away { reason } = &claim.state {
                    claim.state = ClaimState::Failed { reason: reason.clone() };
                }
            }
        }
        decide(record, command, now)
    }
    for (name, broken) in [
        ("starting is not counted", starting_is_not_counted as Decider),
        ("a restart is ignored", a_restart_is_ignored),
        ("a lost answer is believed", a_lost_answer_is_believed),
        ("a wake keeps the old name", a_wake_keeps_the_old_name),
        ("an absence is taken for a death", an_absence_is_taken_for_a_death),
    ] {
        assert!(survives(broken, 3000).is_err(), "{name}: not caught");
    }
}
