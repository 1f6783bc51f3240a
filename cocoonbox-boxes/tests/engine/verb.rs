use std::sync::Arc;
use std::time::Duration;

use cocoonbox_boxes::{CallUse, Confirm, EngineError, IdempotencyKey, Limits};
use cocoonbox_core::ImageName;
use cocoonbox_core::backend::{
    ClaimFilter, Fault, Freeze, HibernateTo, Memory, MemoryBackend, MemoryOptions, Method,
    SandboxBackend as _, Size, Target,
};
use cocoonbox_core::machine::{BoxState, FailureKind, Phase};
use futures::StreamExt as _;

use crate::setup::{FREE, World, config, not_found, user};

fn key(text: &str) -> IdempotencyKey {
    text.parse().unwrap()
}

#[tokio::test]
async fn ensure_makes_the_first_box_and_then_finds_it() {
    let (world, ana) = (World::new().await, user());
    assert!(world.engine.get(&ana, "").await.unwrap().is_none());
    let started = world.engine.ensure(&ana, FREE, "", None).await.unwrap();
    assert_eq!(world.last(&ana, &started).await.phase, Phase::Done);
    let record = world.first(&ana).await;
    assert_eq!((record.name.as_str(), record.state), ("main", BoxState::Running));
    let claim = world.node.find(&ClaimFilter::all()).await.unwrap().remove(0);
    assert_eq!(claim.claim_ref.as_str(), record.id.as_str());
    assert_eq!(claim.tenant.unwrap().as_str(), ana.as_str());
    assert_eq!(Some(claim.id), record.sandbox);
    let again = world.engine.ensure(&ana, FREE, "main", None).await.unwrap();
    assert_eq!((again.operation, again.box_id), (None, record.id));
}

#[tokio::test]
async fn a_box_has_the_size_of_the_server_that_made_it() {
    for size in Size::ALL {
        let (world, ana) = (World::with(config().with_size(size)).await, user());
        world.running(&ana).await;
        assert_eq!(world.node.find(&ClaimFilter::all()).await.unwrap().remove(0).size, size);
    }
}

#[tokio::test]
async fn each_boot_and_wake_has_an_identity_and_a_machine_id_of_its_own() {
    let (world, ana) = (World::new().await, user());
    let mut seen = Vec::new();
    for to in [HibernateTo::Memory, HibernateTo::Disk, HibernateTo::Memory] {
        let record = world.running(&ana).await;
        let identity = world.identity(&record);
        assert_eq!(Some(identity.wake_id.clone()), record.wake_id);
        assert_eq!((identity.box_id, identity.name.as_str()), (record.id.clone(), "main"));
        let machine_id = world.machine_id(&record);
        assert!(machine_id.len() == 33 && machine_id.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(!seen.contains(&machine_id) && !seen.contains(&identity.wake_id.to_string()));
        seen.extend([machine_id, identity.wake_id.to_string()]);
        let started = world.engine.hibernate(&ana, "", to, None).await.unwrap();
        let kept = if to == HibernateTo::Disk { Memory::Lost } else { Memory::Kept };
        assert_eq!(world.last(&ana, &started).await.memory, Some(kept));
        assert_eq!(world.first(&ana).await.memory, Some(kept));
    }
}

#[tokio::test]
async fn a_wake_says_what_it_found_and_keeps_files() {
    let (world, ana) = (World::new().await, user());
    let record = world.running(&ana).await;
    assert!(world.sandbox(&record).write("/home/user/a", b"1"));
    for (to, found) in [(HibernateTo::Memory, Memory::Kept), (HibernateTo::Disk, Memory::Lost)] {
        let started = world.engine.hibernate(&ana, "", to, None).await.unwrap();
        world.last(&ana, &started).await;
        assert_eq!(world.node.store().live(), 0);
        let started = world.engine.ensure(&ana, FREE, "", None).await.unwrap();
        assert_eq!(world.last(&ana, &started).await.memory, Some(found));
        assert_eq!(world.sandbox(&world.first(&ana).await).read("/home/user/a").unwrap(), b"1");
    }
}

#[tokio::test]
async fn sleeping_memory_can_be_given_up_and_nothing_else_is_done_twice() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    let first = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    world.last(&ana, &first).await;
    let again = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    assert_eq!(again.operation, None);
    let disk = world.engine.hibernate(&ana, "", HibernateTo::Disk, None).await.unwrap();
    assert_eq!(world.last(&ana, &disk).await.memory, Some(Memory::Lost));
    assert_eq!(world.node.store().held(), 0);
    let again = world.engine.hibernate(&ana, "", HibernateTo::Disk, None).await.unwrap();
    assert_eq!(again.operation, None);
}

#[tokio::test]
async fn a_backend_that_keeps_no_memory_is_believed() {
    let ana = user();
    let first = World::new().await;
    let node = MemoryBackend::new(first.clock.clone(), Arc::new(cocoonbox_core::SystemEntropy))
        .with_options(MemoryOptions::default().with_freeze(Freeze::Absent));
    let world = World::on(first.tables.clone(), Arc::new(node), first.clock.clone(), config());
    world.running(&ana).await;
    let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    let last = world.last(&ana, &started).await;
    assert_eq!((last.memory, last.message.contains("memory lost")), (Some(Memory::Lost), true));
}

#[tokio::test]
async fn limits_hold_at_create_and_at_ensure() {
    let (world, ana) = (World::new().await, user());
    let limits = Limits { max_boxes: Some(2), max_running: Some(1), max_agent_boxes: None };
    let create = |name: &str| world.engine.create(&ana, limits, Some(name.parse().unwrap()), None, None);
    let one = create("one").await.unwrap();
    assert!(
        matches!(create("two").await, Err(EngineError::TooManyRunning { have: 1, max: 1 })),
        "it is starting"
    );
    world.last(&ana, &one).await;
    let slept = world.engine.hibernate(&ana, "one", HibernateTo::Memory, None).await.unwrap();
    world.last(&ana, &slept).await;
    let two = create("two").await.unwrap();
    world.last(&ana, &two).await;
    assert!(matches!(create("three").await, Err(EngineError::TooManyBoxes { have: 2, max: 2 })));
    let refused = world.engine.ensure(&ana, limits, "one", None).await;
    assert!(matches!(refused, Err(EngineError::TooManyRunning { have: 1, max: 1 })));
    let usage = world.engine.usage(&ana, limits).await.unwrap();
    assert_eq!((usage.tally.boxes, usage.tally.running), (2, 1));
    // another user's boxes do not count
    world.running(&user()).await;
}

#[tokio::test]
async fn of_many_creates_at_once_no_more_than_allowed_succeed() {
    let (world, ana) = (World::new().await, user());
    let limits = Limits { max_boxes: Some(3), max_running: Some(2), max_agent_boxes: None };
    let create =
        |n: u32| world.engine.create(&ana, limits, Some(format!("b{n}").parse().unwrap()), None, None);
    let made = futures::future::join_all((0..12).map(create)).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 2, "{made:?}");
    world.engine.drained().await;
    assert_eq!(world.node.store().live(), 2);
}

#[tokio::test]
async fn a_node_holds_one_claim_more_than_a_user_may_have_boxes() {
    let (world, ana) = (World::new().await, user());
    let limits = Limits { max_boxes: Some(1), max_running: None, max_agent_boxes: None };
    world.engine.ensure(&ana, limits, "", None).await.unwrap();
    world.engine.drained().await;
    // what the node itself would refuse, were the engine wrong
    let tenant = cocoonbox_core::TenantName::from(&ana);
    let claim = |n: u32| {
        cocoonbox_core::backend::ClaimRequest::new(format!("x{n}").parse().unwrap(), ImageName::host())
            .with_tenant(tenant.clone())
    };
    assert!(world.node.claim(claim(1)).await.is_ok());
    assert!(world.node.claim(claim(2)).await.is_err());
}

#[tokio::test]
async fn a_key_answers_the_same_for_a_day() {
    let (world, ana) = (World::new().await, user());
    let name = || Some("work".parse().unwrap());
    let first = world.engine.create(&ana, FREE, name(), None, Some(key("k1"))).await.unwrap();
    world.last(&ana, &first).await;
    let again = world.engine.create(&ana, FREE, name(), None, Some(key("k1"))).await.unwrap();
    assert_eq!((again.box_id, again.operation), (first.box_id.clone(), first.operation));
    let other = world.engine.create(&ana, FREE, Some("play".parse().unwrap()), None, Some(key("k1"))).await;
    assert!(matches!(other, Err(EngineError::KeyReused)));
    let other = world.engine.ensure(&ana, FREE, "work", Some(key("k1"))).await;
    assert!(matches!(other, Err(EngineError::KeyReused)));
    // the same key of another user is another key
    world.engine.create(&user(), FREE, name(), None, Some(key("k1"))).await.unwrap();
    world.clock.advance(Duration::from_hours(24));
    let later = world.engine.create(&ana, FREE, name(), None, Some(key("k1"))).await;
    assert!(matches!(later, Err(EngineError::NameTaken { .. })), "{later:?}");
    // a key is remembered for a call that had nothing to do, too
    let nothing = world.engine.ensure(&ana, FREE, "work", Some(key("k2"))).await.unwrap();
    assert_eq!(nothing.operation, None);
    assert!(matches!(
        world.engine.ensure(&ana, FREE, "", Some(key("k2"))).await,
        Err(EngineError::KeyReused)
    ));
}

#[tokio::test]
async fn the_same_request_twice_at_once_makes_one_box() {
    let (world, ana) = (World::new().await, user());
    let create = || world.engine.create(&ana, FREE, Some("work".parse().unwrap()), None, Some(key("k")));
    let (one, two) = tokio::join!(create(), create());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!((one.box_id, one.operation), (two.box_id, two.operation));
}

#[tokio::test]
async fn a_box_is_found_by_id_and_name_and_by_nobody_else() {
    let (world, ana, bob) = (World::new().await, user(), user());
    let record = world.running(&ana).await;
    let operation =
        world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap().operation.unwrap();
    for hint in [record.id.as_str(), "main"] {
        assert_eq!(world.engine.get(&ana, hint).await.unwrap().unwrap().id, record.id);
        not_found(world.engine.get(&bob, hint).await);
        not_found(world.engine.hibernate(&bob, hint, HibernateTo::Memory, None).await);
        not_found(world.engine.rename(&bob, hint, "mine".parse().unwrap()).await);
        not_found(world.engine.delete(&bob, hint, Confirm::Yes, None).await);
        not_found(world.engine.set_schedule(&bob, hint, "", "", Duration::ZERO).await);
    }
    not_found(world.engine.ensure(&bob, FREE, record.id.as_str(), None).await);
    assert!(world.engine.list(&bob, None, 10).await.unwrap().boxes.is_empty());
    // a name that is somebody else's is free for one's own first box, and no other is made by asking
    let own = world.engine.ensure(&bob, FREE, "main", None).await.unwrap();
    assert_ne!(own.box_id, record.id);
    not_found(world.engine.ensure(&bob, FREE, "other", None).await);
    assert!(
        world
            .engine
            .watch(&bob, &operation, 0)
            .await
            .is_err_and(|error| matches!(error, EngineError::NotFound { .. }))
    );
    assert!(matches!(world.engine.get(&ana, "No!").await, Err(EngineError::Invalid { field: "box", .. })));
}

#[tokio::test]
async fn boxes_are_listed_page_by_page() {
    let (world, ana) = (World::new().await, user());
    for name in ["z", "y", "x"] {
        world.engine.create(&ana, FREE, Some(name.parse().unwrap()), None, None).await.unwrap();
        world.clock.advance(Duration::from_secs(1));
    }
    let first = world.engine.list(&ana, None, 2).await.unwrap();
    let names = |page: &cocoonbox_boxes::Page| {
        page.boxes.iter().map(|record| record.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&first), ["z", "y"]);
    let second = world.engine.list(&ana, first.next.as_ref(), 2).await.unwrap();
    assert_eq!((names(&second), second.next), (vec!["x".to_owned()], None));
}

#[tokio::test]
async fn a_name_belongs_to_one_box() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    world.clock.advance(Duration::from_secs(1));
    world.engine.create(&ana, FREE, Some("work".parse().unwrap()), None, None).await.unwrap();
    let again = world.engine.create(&ana, FREE, Some("work".parse().unwrap()), None, None).await;
    assert!(matches!(again, Err(EngineError::NameTaken { .. })));
    let taken = world.engine.rename(&ana, "main", "work".parse().unwrap()).await;
    assert!(matches!(taken, Err(EngineError::NameTaken { .. })));
    assert_eq!(
        world.engine.rename(&ana, "main", "home".parse().unwrap()).await.unwrap().name.as_str(),
        "home"
    );
    // the guest learns its name at its next wake
    let started = world.engine.hibernate(&ana, "home", HibernateTo::Memory, None).await.unwrap();
    world.last(&ana, &started).await;
    assert_eq!(world.identity(&world.running(&ana).await).name, "home");
}

#[tokio::test]
async fn a_delete_is_named_and_confirmed_and_leaves_nothing() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    for (hint, confirm) in [("", Confirm::Yes), ("main", Confirm::No)] {
        assert!(matches!(
            world.engine.delete(&ana, hint, confirm, None).await,
            Err(EngineError::Unconfirmed { .. })
        ));
    }
    let started = world.engine.delete(&ana, "main", Confirm::Yes, Some(key("k"))).await.unwrap();
    let last = world.last(&ana, &started).await;
    assert_eq!((last.phase, last.sequence), (Phase::Done, 2));
    assert!(world.engine.get(&ana, "").await.unwrap().is_none());
    assert!(world.node.find(&ClaimFilter::all()).await.unwrap().is_empty());
    // a box that is gone is still answered for its key
    let pick = world.engine.delete(&ana, "main", Confirm::Yes, Some(key("k"))).await.unwrap();
    assert_eq!((pick.operation, pick.record), (started.operation, None));
}

#[tokio::test]
async fn a_watcher_sees_every_event_once_from_any_cursor() {
    let (world, ana) = (World::new().await, user());
    let started = world.engine.ensure(&ana, FREE, "", None).await.unwrap();
    let operation = started.operation.unwrap();
    for after in [0, 1, 2] {
        let events = world.engine.watch(&ana, &operation, after).await.unwrap();
        let sequences: Vec<_> = events.map(|event| event.unwrap().sequence).collect().await;
        assert_eq!(sequences, ((after + 1)..=2).collect::<Vec<_>>());
    }
    let none = format!("op_{}", "a".repeat(26)).parse().unwrap();
    assert!(world.engine.watch(&ana, &none, 0).await.is_err());
}

#[tokio::test]
async fn a_watcher_whose_cursor_is_past_the_end_ends_with_the_operation() {
    let (world, ana) = (World::new().await, user());
    let started = world.engine.ensure(&ana, FREE, "", None).await.unwrap();
    let operation = started.operation.unwrap();
    let mut watchers = Vec::new();
    for after in [2, 3, u64::MAX] {
        let mut events = world.engine.watch(&ana, &operation, after).await.unwrap();
        // it goes on, so these wait
        let polled = futures::poll!(events.next());
        assert!(polled.is_pending(), "{after}");
        watchers.push(events);
    }
    world.engine.drained().await;
    for mut events in watchers {
        let next = tokio::time::timeout(Duration::from_secs(10), events.next()).await.unwrap();
        assert!(next.is_none(), "{next:?}");
    }
}

#[tokio::test]
async fn an_operation_goes_on_when_its_caller_does_not() {
    let (world, ana) = (World::new().await, user());
    {
        let mut call = Box::pin(world.engine.ensure(&ana, FREE, "", None));
        let polled = futures::poll!(&mut call);
        assert!(polled.is_pending());
    }
    world.engine.drained().await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
}

#[tokio::test]
async fn verbs_on_one_box_take_turns() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    let sleep = || world.engine.hibernate(&ana, "", HibernateTo::Memory, None);
    let ensure = || world.engine.ensure(&ana, FREE, "", None);
    for _ in 0..20 {
        let (a, b, c, d) = tokio::join!(sleep(), ensure(), sleep(), ensure());
        for done in [a, b, c, d] {
            done.unwrap();
        }
    }
    world.engine.drained().await;
    world.nothing_is_under_way().await;
    assert_eq!(world.node.find(&ClaimFilter::all()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_unknown_image_fails_the_operation_and_keeps_the_box() {
    let (world, ana) = (World::new().await, user());
    let image: ImageName = "nowhere:1".parse().unwrap();
    let started = world.engine.create(&ana, FREE, None, Some(image), None).await.unwrap();
    let last = world.last(&ana, &started).await;
    assert_eq!((last.phase, last.failure), (Phase::Failed, Some(FailureKind::UnknownImage)));
    let record = world.first(&ana).await;
    assert_eq!((record.state, record.sandbox, record.wake_id), (BoxState::Failed, None, None));
    assert!(record.failure.unwrap().contains("no image"));
    assert!(matches!(
        world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await,
        Err(EngineError::WrongState { state: BoxState::Failed })
    ));
    let started = world.engine.delete(&ana, "main", Confirm::Yes, None).await.unwrap();
    assert_eq!(world.last(&ana, &started).await.phase, Phase::Done);
}

#[tokio::test]
async fn a_lost_answer_makes_no_second_sandbox_and_loses_no_box() {
    let (world, ana) = (World::new().await, user());
    world.backend.fail_next(Method::Claim, Fault::After);
    world.running(&ana).await;
    assert_eq!(world.state(&ana).await, BoxState::Running);
    assert_eq!(world.node.find(&ClaimFilter::all()).await.unwrap().len(), 1);
    let record = world.first(&ana).await;
    assert_eq!(Some(world.identity(&record).wake_id), record.wake_id);

    world.backend.fail_next(Method::Hibernate, Fault::After);
    let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    assert_eq!(world.last(&ana, &started).await.phase, Phase::Done, "a look showed that it sleeps");

    world.backend.fail_next(Method::Wake, Fault::After);
    let record = world.running(&ana).await;
    assert_eq!(Some(world.identity(&record).wake_id), record.wake_id);

    world.backend.fail_next(Method::Release, Fault::After);
    let started = world.engine.delete(&ana, "main", Confirm::Yes, None).await.unwrap();
    assert_eq!(world.last(&ana, &started).await.phase, Phase::Done);
}

#[tokio::test]
async fn what_did_not_happen_is_put_back() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    world.backend.fail_next(Method::Hibernate, Fault::Before);
    let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    let last = world.last(&ana, &started).await;
    assert_eq!((last.phase, last.failure), (Phase::Failed, Some(FailureKind::Unavailable)));
    assert_eq!(world.state(&ana).await, BoxState::Running);
    let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    world.last(&ana, &started).await;
    for method in [Method::PutHostFile, Method::Wake] {
        world.backend.fail_next(method, Fault::Before);
        let started = world.engine.ensure(&ana, FREE, "", None).await.unwrap();
        assert_eq!(world.last(&ana, &started).await.phase, Phase::Failed);
        assert_eq!(world.state(&ana).await, BoxState::Hibernated);
    }
    world.running(&ana).await;
}

#[tokio::test]
async fn a_backend_in_the_dark_leaves_a_box_that_is_settled_later() {
    let (world, ana) = (World::new().await, user());
    let limits = Limits { max_boxes: None, max_running: Some(1), max_agent_boxes: None };
    world.running(&ana).await;
    world.backend.fail_next(Method::Hibernate, Fault::After);
    world.backend.fail_always(Method::Find, Some(Fault::Before));
    let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    assert_eq!(world.last(&ana, &started).await.phase, Phase::Failed);
    let record = world.first(&ana).await;
    assert!(record.state == BoxState::Failed && record.unsettled);
    // it may run, so it takes its place
    let refused = world.engine.create(&ana, limits, Some("b".parse().unwrap()), None, None).await;
    assert!(matches!(refused, Err(EngineError::TooManyRunning { .. })));
    assert!(matches!(world.engine.ensure(&ana, limits, "", None).await, Err(EngineError::Backend(_))));
    world.minutes(1).await;
    assert!(world.first(&ana).await.unsettled, "the backend is still dark");
    world.backend.fail_always(Method::Find, None);
    world.minutes(1).await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
    world.running(&ana).await;
}

#[tokio::test]
async fn a_sandbox_that_died_is_started_anew_from_its_files() {
    let (world, ana) = (World::new().await, user());
    let record = world.running(&ana).await;
    world.sandbox(&record).write("/a", b"1");
    let kill = || assert!(world.node.store().kill(record.sandbox.as_ref().unwrap(), "out of memory"));
    let whole = async || {
        let record = world.running(&ana).await;
        assert_eq!(world.sandbox(&record).read("/a").unwrap(), b"1");
        assert_eq!(world.sandbox(&record).processes(), (1, 0));
        assert_eq!(Some(world.identity(&record).wake_id), record.wake_id);
    };
    // ensure looks
    kill();
    whole().await;
    // so does the minute
    kill();
    world.minutes(1).await;
    let failed = world.first(&ana).await;
    assert_eq!((failed.state, failed.failure.as_deref()), (BoxState::Failed, Some("out of memory")));
    whole().await;
    // and so does a call that does not get through
    kill();
    let call = world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    assert!(matches!(call.connect(Target::Channel).await.err(), Some(EngineError::Backend(_))));
    assert_eq!(world.state(&ana).await, BoxState::Failed);
    let call = world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    assert!(call.connect(Target::Channel).await.is_ok());
    assert_eq!(world.node.find(&ClaimFilter::all()).await.unwrap().len(), 1);
}
