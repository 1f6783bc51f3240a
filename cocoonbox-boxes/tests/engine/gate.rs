use async_trait::async_trait;
use cocoonbox_boxes::CallUse;
use cocoonbox_boxes::store::{
    BoxStore, Change, Hints, KeyedAnswer, MemoryStore, Operation, Owned, Revision, StoreError, Stored,
};
use cocoonbox_boxes::{Engine, EngineConfig};
use cocoonbox_core::machine::{BoxState, FailureKind, OperationEvent, Write};
use cocoonbox_core::{BoxId, OperationId, SystemEntropy, Timestamp, UserId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

use crate::setup::{FREE, World, config, user};

/// A store that stops before it writes that a box goes to sleep.
#[derive(Debug)]
struct Gate {
    inner: MemoryStore,
    reached: Semaphore,
    go: Semaphore,
}

#[async_trait]
impl BoxStore for Gate {
    async fn load(&self, id: &BoxId) -> Result<Option<Stored>, StoreError> {
        self.inner.load(id).await
    }
    async fn owned(&self, owner: &UserId) -> Result<Owned, StoreError> {
        self.inner.owned(owner).await
    }
    async fn page(&self, after: Option<&BoxId>, limit: u32) -> Result<Vec<Stored>, StoreError> {
        self.inner.page(after, limit).await
    }
    async fn commit(&self, change: Change) -> Result<Revision, StoreError> {
        if matches!(&change.write, Write::Put(record) if record.state == BoxState::Hibernating) {
            self.reached.add_permits(1);
            self.go.acquire().await.expect("it stays open").forget();
        }
        self.inner.commit(change).await
    }
    async fn operation(
        &self,
        id: &OperationId,
        after: u64,
    ) -> Result<Option<(Operation, Vec<OperationEvent>)>, StoreError> {
        self.inner.operation(id, after).await
    }
    async fn keyed(
        &self,
        owner: &UserId,
        key: &str,
        since: Timestamp,
    ) -> Result<Option<KeyedAnswer>, StoreError> {
        self.inner.keyed(owner, key, since).await
    }
    async fn prune(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.inner.prune(before).await
    }
    async fn hints(&self) -> Result<Hints, StoreError> {
        self.inner.hints().await
    }
}

async fn gated(config: EngineConfig) -> (World, Arc<Gate>, Engine) {
    let world = World::with(config.clone()).await;
    let gate =
        Arc::new(Gate { inner: world.tables.clone(), reached: Semaphore::new(0), go: Semaphore::new(0) });
    let engine = Engine::new(
        gate.clone(),
        world.backend.clone(),
        world.clock.clone(),
        Arc::new(SystemEntropy),
        config,
    );
    engine.start().await.unwrap();
    (world, gate, engine)
}

/// The tightest race: the sleep is decided, the call comes, finds the box running, and only then the sleep is written.
#[tokio::test]
async fn a_sleep_that_was_decided_before_a_call_gives_way_to_it() {
    let (world, gate, engine) = gated(config()).await;
    let ana = user();
    world.running(&ana).await;
    engine.set_schedule(&ana, "", "1 14 * * *", "Europe/Berlin", Duration::from_mins(1)).await.unwrap();
    world.clock.advance(Duration::from_mins(1));
    engine.tick().await.unwrap();
    world.clock.advance(Duration::from_mins(2));
    // so that the call has no use to write, and nothing else stands in the sleep's way
    drop(engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap());

    let ticking = engine.clone();
    let tick = tokio::spawn(async move { ticking.tick().await });
    gate.reached.acquire().await.unwrap().forget();
    let call = engine.open_call(&ana, FREE, None, CallUse::Use).await.unwrap();
    gate.go.add_permits(1);
    tick.await.unwrap().unwrap();
    let cut = world.first(&ana).await;
    engine.drained().await;
    let record = world.first(&ana).await;
    assert_eq!((record.state, record.wake_id.as_ref()), (BoxState::Running, Some(&call.wake_id)));
    assert_eq!(world.sandbox(&record).processes(), (1, 0), "it never slept");
    if let Some(pending) = cut.pending {
        let last = world.engine.last_event(&ana, &pending.operation).await.unwrap();
        assert_eq!(last.failure, Some(FailureKind::GaveWay));
    }

    // the same minute without the call puts it to sleep
    drop(call);
    gate.go.add_permits(1);
    engine.tick().await.unwrap();
    engine.drained().await;
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
}
