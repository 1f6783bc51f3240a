//! One box's fate at a time.

use super::*;

fn box_in(state: BoxState) -> (World, BoxId) {
    let mut world = World::new(decide);
    world.take(Step::Create { owner: 0 }).unwrap();
    world.effect(Fate::Done).unwrap();
    let id = world.pick(0).unwrap();
    if state == BoxState::Hibernated {
        world.take(Step::Hibernate { pick: 0, disk: false }).unwrap();
        world.effect(Fate::Done).unwrap();
    }
    assert_eq!(world.records[&id].state, state);
    (world, id)
}

fn tick(world: &mut World, held: bool, minutes: u64) -> BoxState {
    world.take(Step::Tick { minutes, held }).unwrap();
    while !world.flight.is_empty() {
        world.effect(Fate::Done).unwrap();
    }
    world.records.values().next().unwrap().state
}

#[test]
fn a_box_whose_node_went_away_is_again_what_it_was() {
    for state in [BoxState::Running, BoxState::Hibernated] {
        let (mut world, id) = box_in(state);
        let before = world.records[&id].clone();
        for away in [true, true, false, false] {
            world.take(Step::Turns { away }).unwrap();
            world.reconcile(&id).unwrap();
            let record = &world.records[&id];
            if away {
                assert_eq!((record.state, record.failure.as_deref()), (BoxState::Failed, Some("no answer")));
                let fresh = world.fresh();
                let ensure = Command::Ensure { fresh, tally: Tally::default(), limits: LIMITS, agent: None };
                let refused = decide(Some(record), ensure, world.now);
                assert_eq!(refused, Err(Refusal::Away { reason: "no answer".to_owned() }));
            } else {
                assert_eq!(record, &before, "{state}");
            }
            assert!(world.flight.is_empty(), "nothing is done to it");
        }
    }
}

#[test]
fn an_unused_box_falls_asleep_and_later_gives_up_its_memory() {
    let (mut world, id) = box_in(BoxState::Running);
    assert_eq!(tick(&mut world, false, 9), BoxState::Running);
    assert_eq!(tick(&mut world, true, 5), BoxState::Running);
    assert_eq!(tick(&mut world, false, 1), BoxState::Hibernated);
    assert_eq!(world.records[&id].memory, Some(Memory::Kept));
    tick(&mut world, false, 20);
    assert_eq!(world.records[&id].memory, Some(Memory::Lost));
}

#[test]
fn a_scheduled_wake_stays_up_and_then_sleeps() {
    let (mut world, id) = box_in(BoxState::Hibernated);
    world.take(Step::Schedule { pick: 0 }).unwrap();
    assert_eq!(tick(&mut world, false, 5), BoxState::Running);
    assert!(world.records[&id].sleep_at.is_some());
    world.records.get_mut(&id).unwrap().schedule = None;
    assert_eq!(tick(&mut world, true, 6), BoxState::Running);
    assert_eq!(tick(&mut world, false, 1), BoxState::Hibernated);
    assert_eq!(world.records[&id].sleep_at, None);
}

#[test]
fn limits_are_checked_at_create_and_at_ensure() {
    let mut world = World::new(decide);
    for _ in 0..2 {
        world.take(Step::Create { owner: 0 }).unwrap();
    }
    let id = BoxId::random(&world.entropy).unwrap();
    let new = NewBox { id, owner: world.owners[0].clone(), name: BoxName::first(), image: ImageName::host() };
    let create = |tally| {
        let (new, fresh) = (new.clone(), world.fresh());
        Command::Create { new, fresh, tally, limits: LIMITS, agent: None }
    };
    let tally = world.tally(&world.owners[0], None);
    assert_eq!(
        decide(None, create(tally), world.now),
        Err(Refusal::TooManyRunning { have: 2, max: 2 }),
        "two are starting"
    );
    let tally = Tally { boxes: 3, ..Tally::default() };
    assert_eq!(decide(None, create(tally), world.now), Err(Refusal::TooManyBoxes { have: 3, max: 3 }));
    let (world, id) = box_in(BoxState::Hibernated);
    let tally = Tally { boxes: 3, running: 2, agent_boxes: 0 };
    let ensure = Command::Ensure { fresh: world.fresh(), tally, limits: LIMITS, agent: None };
    assert_eq!(
        decide(world.records.get(&id), ensure, world.now),
        Err(Refusal::TooManyRunning { have: 2, max: 2 })
    );
}

#[test]
fn what_an_agent_makes_is_bounded_by_its_share_and_not_by_its_owners_limits() {
    let world = World::new(decide);
    let id = BoxId::random(&world.entropy).unwrap();
    let new = NewBox { id, owner: world.owners[0].clone(), name: BoxName::first(), image: ImageName::host() };
    let create = |tally, agent| {
        let (new, fresh) = (new.clone(), world.fresh());
        decide(None, Command::Create { new, fresh, tally, limits: LIMITS, agent: Some(agent) }, world.now)
    };
    let used_up = Tally { boxes: 3, running: 2, agent_boxes: 1 };
    let share = AgentShare { boxes: 1, running: 0, max_boxes: 2, max_running: 1 };
    let made = create(used_up, share).unwrap();
    let record = made.record(None).unwrap().clone();
    assert!(record.agent && made.admits);
    assert_eq!(
        Tally::of([&record]),
        Tally { boxes: 0, running: 0, agent_boxes: 1 },
        "it is none of its owner's own"
    );
    let refused = create(used_up, AgentShare { boxes: 2, ..share });
    assert_eq!(refused, Err(Refusal::AgentBoxes { have: 2, max: 2 }));
    let refused = create(used_up, AgentShare { running: 1, ..share });
    assert_eq!(refused, Err(Refusal::AgentRunning { have: 1, max: 1 }));
    let refused = create(Tally { agent_boxes: 2, ..used_up }, share);
    assert_eq!(refused, Err(Refusal::TooManyAgentBoxes { have: 2, max: 2 }));

    let asleep = BoxRecord { pending: None, state: BoxState::Hibernated, wake_id: None, ..record };
    let ensure = |agent| {
        let command = Command::Ensure { fresh: world.fresh(), tally: used_up, limits: LIMITS, agent };
        decide(Some(&asleep), command, world.now)
    };
    assert!(ensure(None).is_ok(), "its owner starts it beside the boxes of their own");
    let refused = ensure(Some(AgentShare { running: 1, ..share }));
    assert_eq!(refused, Err(Refusal::AgentRunning { have: 1, max: 1 }));
    assert!(ensure(Some(share)).is_ok_and(|decision| decision.record(None).unwrap().agent));
}

#[test]
fn a_second_start_joins_the_first_and_a_sleep_waits() {
    let mut world = World::new(decide);
    world.take(Step::Create { owner: 0 }).unwrap();
    let record = world.records.values().next().unwrap();
    let operation = record.pending.as_ref().unwrap().operation.clone();
    let (fresh, tally) = (world.fresh(), Tally::default());
    let ensure = Command::Ensure { fresh, tally, limits: LIMITS, agent: None };
    let joined = decide(Some(record), ensure, world.now).unwrap();
    assert_eq!((joined.operation.as_ref(), joined.write), (Some(&operation), Write::Keep));
    let sleep = Command::Hibernate { to: HibernateTo::Memory, operation: world.fresh().operation };
    assert_eq!(decide(Some(record), sleep, world.now), Err(Refusal::Busy { operation }));
}

#[test]
fn a_box_whose_sandbox_is_gone_fails_and_can_be_ensured() {
    let (mut world, id) = box_in(BoxState::Running);
    world.claims.clear();
    world.files.clear();
    world.restart().unwrap();
    assert_eq!(world.records[&id].failure.as_deref(), Some("its sandbox is gone"));
    world.take(Step::Ensure { pick: 0 }).unwrap();
    world.effect(Fate::Done).unwrap();
    assert_eq!(world.records[&id].state, BoxState::Running);
}

#[test]
fn an_outcome_of_another_operation_is_stale() {
    let (world, id) = box_in(BoxState::Running);
    let operation = world.fresh().operation;
    let late = Command::Released { operation: operation.clone() };
    assert_eq!(decide(world.records.get(&id), late, world.now), Err(Refusal::Stale { operation }));
}

#[test]
fn a_save_and_files_that_come_back_leave_the_box_running() {
    let (mut world, id) = box_in(BoxState::Running);
    let wake = world.records[&id].wake_id.clone();
    for verb in [Verb::Save, Verb::RestoreFiles] {
        world.take(Step::Keep { pick: 0, verb }).unwrap();
        assert_eq!(world.records[&id].state, BoxState::Running);
        world.effect(Fate::Done).unwrap();
        assert_eq!((&world.records[&id].wake_id, &world.records[&id].pending), (&wake, &None));
    }
    assert_eq!(world.records[&id].last_saved_at, Some(world.now));
}

#[test]
fn a_restored_box_starts_anew_under_another_wakes_name() {
    let (mut world, id) = box_in(BoxState::Running);
    let before = world.records[&id].wake_id.clone();
    world.take(Step::Keep { pick: 0, verb: Verb::Restore }).unwrap();
    world.effect(Fate::Done).unwrap();
    assert_eq!(world.records[&id].state, BoxState::Starting);
    world.effect(Fate::Done).unwrap();
    let record = &world.records[&id];
    assert_eq!((record.state, record.memory), (BoxState::Running, Some(Memory::Lost)));
    assert_ne!(record.wake_id, before);
}

#[test]
fn a_sleeping_box_is_neither_saved_nor_restored() {
    let (world, id) = box_in(BoxState::Hibernated);
    let operation = world.fresh().operation;
    for command in [
        Command::Save { operation: operation.clone() },
        Command::Restore { save: "a".to_owned(), operation: operation.clone() },
    ] {
        let refused = decide(world.records.get(&id), command, world.now);
        assert_eq!(refused, Err(Refusal::WrongState { state: BoxState::Hibernated }));
    }
}
