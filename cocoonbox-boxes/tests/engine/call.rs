use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cocoonbox_boxes::{BeforeSleep, CallUse, Confirm, EngineError, Limits};
use cocoonbox_core::backend::{
    ClaimFilter, ClaimState, Fault, HibernateTo, MemoryBackend, Method, SandboxBackend as _, Target,
};
use cocoonbox_core::machine::BoxState;
use cocoonbox_core::{BoxId, WakeId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::setup::{FREE, World, not_found, user};

#[tokio::test]
async fn a_call_wakes_the_box_and_reaches_it() {
    let (world, ana) = (World::new().await, user());
    not_found(world.engine.open_call(&ana, FREE, None, CallUse::Use).await);
    let record = world.running(&ana).await;
    let started = world.engine.hibernate(&ana, "", HibernateTo::Disk, None).await.unwrap();
    world.last(&ana, &started).await;
    let call = world.engine.open_call(&ana, FREE, Some("main"), CallUse::Use).await.unwrap();
    assert_eq!((&call.box_id, Some(&call.sandbox)), (&record.id, record.sandbox.as_ref()));
    assert_ne!(Some(&call.wake_id), record.wake_id.as_ref());
    assert_eq!(world.identity(&world.first(&ana).await).wake_id, call.wake_id);
    let mut stream = call.connect(Target::Channel).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"hello");
    for hint in [record.id.as_str(), "main"] {
        not_found(world.engine.open_call(&user(), FREE, Some(hint), CallUse::Use).await);
        not_found(world.engine.open_call(&user(), FREE, Some(hint), CallUse::Watch).await);
    }
}

#[tokio::test]
async fn a_call_keeps_to_the_limits() {
    let (world, ana) = (World::new().await, user());
    let limits = Limits { max_boxes: None, max_running: Some(1), max_agent_boxes: None };
    world.running(&ana).await;
    let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    world.last(&ana, &started).await;
    world.clock.advance(std::time::Duration::from_secs(1));
    world.engine.create(&ana, limits, Some("other".parse().unwrap()), None, None).await.unwrap();
    let refused = world.engine.open_call(&ana, limits, Some("main"), CallUse::Use).await;
    assert!(matches!(refused, Err(EngineError::TooManyRunning { have: 1, max: 1 })), "{refused:?}");
}

#[tokio::test]
async fn a_call_into_a_box_that_does_not_start_says_why() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    let started = world.engine.hibernate(&ana, "", HibernateTo::Disk, None).await.unwrap();
    world.last(&ana, &started).await;
    world.backend.fail_next(Method::Wake, Fault::Before);
    let failed = world.engine.open_call(&ana, FREE, None, CallUse::Use).await;
    assert!(matches!(failed, Err(EngineError::OperationFailed { .. })), "{failed:?}");
    world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
}

#[tokio::test]
async fn a_call_waits_for_a_sleep_and_wakes_the_box_again() {
    let (world, ana) = (World::new().await, user());
    let first = world.running(&ana).await;
    let sleep = world.engine.hibernate(&ana, "", HibernateTo::Memory, None);
    let call = async {
        tokio::task::yield_now().await;
        world.engine.open_call(&ana, FREE, None, CallUse::Use).await
    };
    let (slept, _call) = tokio::join!(sleep, call);
    slept.unwrap();
    // the person's sleep goes on although a call is open; the next call wakes the box
    world.engine.drained().await;
    let call = world.engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    assert_ne!(Some(call.wake_id), first.wake_id);
    world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    world.engine.drained().await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
}

#[derive(Debug)]
struct Told {
    node: Arc<MemoryBackend>,
    told: Mutex<Vec<(BoxId, WakeId, bool)>>,
}

#[async_trait]
impl BeforeSleep for Told {
    async fn box_sleeps(&self, box_id: &BoxId, wake_id: &WakeId) {
        let claims = self.node.find(&ClaimFilter::all()).await.unwrap();
        let runs = claims.iter().any(|claim| claim.state == ClaimState::Running);
        self.told.lock().unwrap().push((box_id.clone(), wake_id.clone(), runs));
    }
}

#[tokio::test]
async fn hooks_are_told_before_a_sandbox_sleeps_or_goes() {
    let (world, ana) = (World::new().await, user());
    let told = Arc::new(Told { node: world.node.clone(), told: Mutex::default() });
    let engine = world.engine.clone().with_before_sleep(told.clone());
    let first = world.running(&ana).await;
    engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    engine.drained().await;
    // no wake ends when sleeping memory goes to disk
    engine.hibernate(&ana, "", HibernateTo::Disk, None).await.unwrap();
    engine.drained().await;
    let second = world.running(&ana).await;
    engine.delete(&ana, "main", Confirm::Yes, None).await.unwrap();
    engine.drained().await;
    let expected = [first, second].map(|record| (record.id, record.wake_id.unwrap(), true));
    assert_eq!(*told.told.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_watcher_of_a_sleeping_box_hears_that_it_is_deleted() {
    let (world, ana) = (World::new().await, user());
    world.running(&ana).await;
    world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    world.engine.drained().await;
    let watch = world.engine.open_call(&ana, FREE, None, CallUse::Watch);
    let delete = async {
        tokio::task::yield_now().await;
        world.engine.delete(&ana, "main", Confirm::Yes, None).await.unwrap();
    };
    let (watched, ()) = tokio::join!(watch, delete);
    not_found(watched);
}
