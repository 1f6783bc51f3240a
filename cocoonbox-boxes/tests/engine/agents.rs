//! Boxes that outside agents make.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_boxes::{AgentGrant, CallUse, Confirm, Engine, EngineError, KeepUp, Limits, Started, Work};
use cocoonbox_core::backend::{ClaimRequest, HibernateTo, SandboxBackend as _};
use cocoonbox_core::machine::{BoxRecord, BoxState};
use cocoonbox_core::{GrantId, ImageName, SystemEntropy, TenantName, UserId};

use super::setup::{FREE, World, config, not_found, user};

const IDLE: Duration = Duration::from_mins(10);

fn grant(max_boxes: u32, max_running: u32) -> AgentGrant {
    AgentGrant { id: GrantId::random(&SystemEntropy).unwrap(), max_boxes, max_running }
}

/// Makes a box and waits until it runs.
async fn make(engine: &Engine, owner: &UserId, limits: Limits, name: &str) -> BoxRecord {
    let started = engine.create(owner, limits, Some(name.parse().unwrap()), None, None).await.unwrap();
    settled(engine, started).await
}

async fn settled(engine: &Engine, started: Started) -> BoxRecord {
    engine.wait(&started).await.unwrap();
    engine.drained().await;
    let owner = started.record.expect("a box").owner;
    engine.get(&owner, started.box_id.as_str()).await.unwrap().expect("a box")
}

async fn names(engine: &Engine, owner: &UserId) -> Vec<String> {
    let page = engine.list(owner, None, 100).await.unwrap();
    page.boxes.into_iter().map(|record| record.name.to_string()).collect()
}

#[tokio::test]
async fn an_agent_sees_the_boxes_alone_that_its_grant_made() {
    let (world, ana) = (World::new().await, user());
    let one = world.engine.acting_for(Some(&grant(2, 2)));
    let two = world.engine.acting_for(Some(&grant(2, 2)));
    let own = make(&world.engine, &ana, FREE, "own").await;
    world.clock.advance(Duration::from_secs(1));
    let made = make(&one, &ana, FREE, "made").await;
    assert_eq!((own.agent, made.agent), (false, true));
    assert_eq!(names(&world.engine, &ana).await, ["own", "made"]);
    assert_eq!(names(&one, &ana).await, ["made"]);
    assert!(names(&two, &ana).await.is_empty());
    assert_eq!(two.get(&ana, "").await.unwrap(), None, "it has no first box");
    for hint in ["own", own.id.as_str()] {
        not_found(one.get(&ana, hint).await);
        not_found(one.ensure(&ana, FREE, hint, None).await);
        not_found(one.hibernate(&ana, hint, HibernateTo::Memory, None).await);
        not_found(one.delete(&ana, hint, Confirm::Yes, None).await);
        not_found(one.rename(&ana, hint, "other".parse().unwrap()).await);
        not_found(one.open_call(&ana, FREE, Some(hint), CallUse::Use).await);
        not_found(one.set_schedule(&ana, hint, "", "", Duration::ZERO).await);
    }
    not_found(two.get(&ana, "made").await);
    not_found(two.delete(&ana, made.id.as_str(), Confirm::Yes, None).await);
    // what an agent makes stays its user's, who sees all of it
    assert_eq!(world.engine.get(&ana, "made").await.unwrap().map(|record| record.id), Some(made.id.clone()));
    let slept = world.engine.hibernate(&ana, "made", HibernateTo::Memory, None).await.unwrap();
    let operation = slept.operation.clone().expect("an operation");
    assert!(one.last_event(&ana, &operation).await.is_ok());
    not_found(two.last_event(&ana, &operation).await);
    let own_sleep = world.engine.hibernate(&ana, "own", HibernateTo::Memory, None).await.unwrap();
    not_found(one.last_event(&ana, own_sleep.operation.as_ref().expect("an operation")).await);
}

#[tokio::test]
async fn a_key_answers_an_agent_nothing_that_another_was_answered() {
    let (world, ana) = (World::new().await, user());
    let key = || Some("k".parse().unwrap());
    world.engine.ensure(&ana, FREE, "", key()).await.unwrap();
    let agent = world.engine.acting_for(Some(&grant(1, 1)));
    let refused = agent.ensure(&ana, FREE, "", key()).await;
    assert!(matches!(refused, Err(EngineError::KeyReused)), "{refused:?}");
}

#[tokio::test]
async fn without_a_name_a_user_never_means_an_agents_box() {
    let (world, ana) = (World::new().await, user());
    let agent = world.engine.acting_for(Some(&grant(2, 2)));
    let first = settled(&agent, agent.ensure(&ana, FREE, "", None).await.unwrap()).await;
    assert_eq!((first.name.as_str(), first.agent), ("agent", true));
    assert_eq!(world.engine.get(&ana, "").await.unwrap(), None);
    not_found(world.engine.open_call(&ana, FREE, None, CallUse::Use).await);
    let main = world.running(&ana).await;
    assert_eq!((main.name.as_str(), main.agent), ("main", false));
    // and an agent means the first of its own
    assert_eq!(agent.get(&ana, "").await.unwrap().map(|record| record.id), Some(first.id));
    let other = world.engine.acting_for(Some(&grant(1, 1)));
    let second = settled(&other, other.ensure(&ana, FREE, "", None).await.unwrap()).await;
    assert_eq!(second.name.as_str(), "agent-2");
    let taken = other.create(&ana, FREE, Some("main".parse().unwrap()), None, None).await;
    assert!(matches!(taken, Err(EngineError::NameTaken { .. })), "{taken:?}");
}

#[tokio::test]
async fn a_grant_bounds_its_boxes_and_the_users_limits_do_not() {
    let (world, ana) = (World::new().await, user());
    let limits = Limits { max_boxes: Some(1), max_running: Some(1), max_agent_boxes: Some(3) };
    let one = world.engine.acting_for(Some(&grant(2, 1)));
    world.engine.ensure(&ana, limits, "", None).await.unwrap();
    world.engine.drained().await;
    make(&one, &ana, limits, "a1").await;
    let refused = one.create(&ana, limits, Some("a2".parse().unwrap()), None, None).await;
    assert!(matches!(refused, Err(EngineError::AgentRunning { have: 1, max: 1 })), "{refused:?}");
    let slept = one.hibernate(&ana, "a1", HibernateTo::Memory, None).await.unwrap();
    settled(&one, slept).await;
    make(&one, &ana, limits, "a2").await;
    let refused = one.ensure(&ana, limits, "a1", None).await;
    assert!(matches!(refused, Err(EngineError::AgentRunning { have: 1, max: 1 })), "{refused:?}");
    let refused = one.create(&ana, limits, Some("a3".parse().unwrap()), None, None).await;
    assert!(matches!(refused, Err(EngineError::AgentBoxes { have: 2, max: 2 })), "{refused:?}");
    // its user may start it beside their own
    settled(&world.engine, world.engine.ensure(&ana, limits, "a1", None).await.unwrap()).await;
    let two = world.engine.acting_for(Some(&grant(16, 16)));
    make(&two, &ana, limits, "b1").await;
    let refused = two.create(&ana, limits, Some("b2".parse().unwrap()), None, None).await;
    assert!(matches!(refused, Err(EngineError::TooManyAgentBoxes { have: 3, max: 3 })), "{refused:?}");
    let usage = world.engine.usage(&ana, limits).await.unwrap();
    assert_eq!((usage.tally.boxes, usage.tally.running, usage.tally.agent_boxes), (1, 1, 3));
    // and agents take none of the user's places
    let refused = world.engine.create(&ana, limits, Some("mine".parse().unwrap()), None, None).await;
    assert!(matches!(refused, Err(EngineError::TooManyBoxes { have: 1, max: 1 })), "{refused:?}");
}

#[tokio::test]
async fn of_many_creates_of_agents_at_once_no_more_than_allowed_succeed() {
    let (world, ana) = (World::new().await, user());
    let limits = Limits { max_boxes: Some(1), max_running: Some(1), max_agent_boxes: Some(4) };
    let agents = [grant(3, 2), grant(9, 9)].map(|grant| world.engine.acting_for(Some(&grant)));
    let create = |n: usize| {
        let name = format!("b{n}").parse().unwrap();
        agents[n % 2].create(&ana, limits, Some(name), None, None)
    };
    let made = futures::future::join_all((0..16).map(create)).await;
    let made: Vec<_> = made.iter().map(Result::is_ok).collect();
    assert_eq!(made.iter().filter(|made| **made).count(), 4, "{made:?}");
    assert!(made.iter().step_by(2).filter(|made| **made).count() <= 2, "{made:?}");
    world.engine.drained().await;
    assert_eq!(world.node.store().live(), 4);
}

#[tokio::test]
async fn a_node_holds_a_claim_more_for_each_box_of_an_agent_and_one_less_when_it_goes() {
    let (world, ana) = (World::new().await, user());
    let limits = Limits { max_boxes: Some(1), max_running: None, max_agent_boxes: None };
    let agent = world.engine.acting_for(Some(&grant(4, 4)));
    world.engine.ensure(&ana, limits, "", None).await.unwrap();
    for name in ["a1", "a2"] {
        make(&agent, &ana, limits, name).await;
    }
    let claim = async |name: &str| {
        let request = ClaimRequest::new(name.parse().unwrap(), ImageName::host());
        world.node.claim(request.with_tenant(TenantName::from(&ana))).await
    };
    claim("x1").await.expect("beside a box of the user's own and two of the agent's");
    assert!(claim("x2").await.is_err());
    let gone = agent.delete(&ana, "a1", Confirm::Yes, None).await.unwrap();
    agent.wait(&gone).await.unwrap();
    world.engine.drained().await;
    assert!(claim("x2").await.is_err(), "the place of a box that is gone is gone");
}

#[tokio::test]
async fn an_agents_box_sleeps_by_its_own_clock() {
    for (agents, users, expected) in [
        (IDLE, Duration::ZERO, [BoxState::Running, BoxState::Hibernated]),
        (Duration::ZERO, IDLE, [BoxState::Hibernated, BoxState::Running]),
    ] {
        let config = config().with_agent_idle_hibernate(agents).with_user_idle_hibernate(users);
        let (world, ana) = (World::with(config).await, user());
        let agent = world.engine.acting_for(Some(&grant(1, 1)));
        world.running(&ana).await;
        make(&agent, &ana, FREE, "a1").await;
        world.minutes(9).await;
        let states = async || [world.state(&ana).await, agent.get(&ana, "").await.unwrap().unwrap().state];
        assert_eq!(states().await, [BoxState::Running; 2]);
        world.minutes(1).await;
        assert_eq!(states().await, expected);
    }
    assert_eq!(config().agent_idle_hibernate, Duration::from_mins(30), "unless somebody says otherwise");
}

/// Says what it was told to, or nothing; knows which boxes it was asked about.
#[derive(Debug, Default)]
struct Source {
    says: Mutex<Option<Work>>,
    asked: Mutex<Vec<String>>,
}

impl Source {
    fn saying(says: Option<Work>) -> Arc<Self> {
        Arc::new(Self { says: Mutex::new(says), asked: Mutex::default() })
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[async_trait]
impl KeepUp for Source {
    async fn work_in(&self, record: &BoxRecord) -> Work {
        self.asked.lock().unwrap().push(record.name.to_string());
        let says = *self.says.lock().unwrap();
        match says {
            Some(work) => work,
            None => std::future::pending().await,
        }
    }
}

/// Lets a minute go by, and then as much time as answers may take.
async fn minute(world: &World) {
    world.minutes(1).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    world.engine.drained().await;
}

#[tokio::test(start_paused = true)]
async fn a_users_idle_box_stays_up_while_somebody_says_that_it_is_busy_or_says_nothing() {
    let world = World::with(config().with_user_idle_hibernate(IDLE)).await;
    let (first, second) = (Source::saying(Some(Work::Idle)), Source::saying(Some(Work::Busy)));
    let engine = world.engine.clone().with_keep_up(first.clone()).with_keep_up(second.clone());
    let (ana, bert) = (user(), user());
    world.running(&ana).await;
    world.minutes(9).await;
    assert_eq!(second.asked(), 0, "nobody is asked about a box that is not idle");
    minute(&world).await;
    assert_eq!((world.state(&ana).await, second.asked()), (BoxState::Running, 1));
    // one that does not answer holds up nobody else
    *second.says.lock().unwrap() = None;
    world.running(&bert).await;
    world.minutes(1).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    world.minutes(1).await;
    assert_eq!(second.asked(), 2, "one question at a time is open about a box");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    *second.says.lock().unwrap() = Some(Work::Idle);
    minute(&world).await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
    assert_eq!(world.state(&bert).await, BoxState::Running);
    assert!(first.asked.lock().unwrap().iter().all(|name| name == "main"));
    drop(engine);
}

#[tokio::test(start_paused = true)]
async fn a_box_that_is_called_while_it_is_asked_about_stays_up_and_agents_boxes_are_asked_about_by_nobody() {
    let config = config().with_user_idle_hibernate(IDLE).with_agent_idle_hibernate(IDLE);
    let world = World::with(config).await;
    let source = Source::saying(Some(Work::Idle));
    let engine = world.engine.clone().with_keep_up(source.clone());
    let ana = user();
    let agent = engine.acting_for(Some(&grant(1, 1)));
    world.running(&ana).await;
    make(&agent, &ana, FREE, "a1").await;
    world.minutes(9).await;
    let call = engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    drop(call);
    minute(&world).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    assert_eq!(agent.get(&ana, "").await.unwrap().unwrap().state, BoxState::Hibernated);
    assert_eq!(source.asked(), 0);
    world.minutes(8).await;
    assert_eq!(source.asked(), 0);
    minute(&world).await;
    assert_eq!((world.state(&ana).await, source.asked()), (BoxState::Hibernated, 1));
}
