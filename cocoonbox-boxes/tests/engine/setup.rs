use std::sync::Arc;
use std::time::Duration;

use cocoonbox_boxes::store::{BoxStore as _, FaultyStore, MemoryStore};
use cocoonbox_boxes::{Engine, EngineConfig, EngineError, Limits, MemoryKeeper, Started};
use cocoonbox_core::backend::{
    BoxedDuplex, FaultyBackend, HostFileName, MemoryBackend, MemoryOptions, MemorySandbox, Target, guest_fn,
};
use cocoonbox_core::machine::{BoxRecord, BoxState, OperationEvent};
use cocoonbox_core::{ImageName, ManualClock, SystemEntropy, Timestamp, UserId};
use cocoonbox_wire::AGENT_PORT;
use cocoonbox_wire::identity::Identity;

pub(crate) type Store = FaultyStore<MemoryStore>;
pub(crate) type Backend = FaultyBackend<Arc<MemoryBackend>>;

/// No limits.
pub(crate) const FREE: Limits = Limits { max_boxes: None, max_running: None, max_agent_boxes: None };

/// A noon that is no special day anywhere.
pub(crate) const NOON: Timestamp = Timestamp::from_millis(1_780_315_200_000);

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) store: Arc<Store>,
    pub(crate) backend: Arc<Backend>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) tables: MemoryStore,
    pub(crate) node: Arc<MemoryBackend>,
    config: EngineConfig,
}

pub(crate) fn config() -> EngineConfig {
    let key = ed25519_dalek::SigningKey::from_bytes(&[7; 32]).verifying_key();
    EngineConfig::new(ImageName::host(), key)
}

pub(crate) fn user() -> UserId {
    UserId::random(&SystemEntropy).unwrap()
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(config()).await
    }

    pub(crate) async fn with(config: EngineConfig) -> Self {
        let clock = Arc::new(ManualClock::new(NOON));
        let node = Arc::new(MemoryBackend::new(clock.clone(), Arc::new(SystemEntropy)));
        let world = Self::on(MemoryStore::default(), node, clock, config);
        world.engine.start().await.unwrap();
        world
    }

    pub(crate) fn on(
        tables: MemoryStore,
        node: Arc<MemoryBackend>,
        clock: Arc<ManualClock>,
        config: EngineConfig,
    ) -> Self {
        let store = Arc::new(FaultyStore::new(tables.clone()));
        let backend = Arc::new(FaultyBackend::new(node.clone()));
        let engine = Engine::new(
            store.clone(),
            backend.clone(),
            clock.clone(),
            Arc::new(SystemEntropy),
            config.clone(),
        );
        Self { engine, store, backend, clock, tables, node, config }
    }

    /// A world whose boxes are saved, by a keeper in memory that listens when they start.
    pub(crate) async fn kept() -> (Self, MemoryKeeper) {
        let clock = Arc::new(ManualClock::new(NOON));
        let agent = guest_fn(|_, target| {
            let (ours, theirs) = tokio::io::duplex(64);
            // an agent that never says anything
            std::mem::forget(theirs);
            (target == Target::Port(AGENT_PORT.try_into().ok()?)).then(|| Box::new(ours) as BoxedDuplex)
        });
        let node = MemoryBackend::new(clock.clone(), Arc::new(SystemEntropy)).with_guest(agent);
        let images = MemoryOptions::default().with_image("debian:12".parse().unwrap());
        let node = Arc::new(node.with_options(images));
        let mut world = Self::on(MemoryStore::default(), node, clock.clone(), config());
        let keeper = MemoryKeeper::new(clock);
        world.engine = world.engine.clone().with_keeper(Arc::new(keeper.clone()));
        world.engine.start().await.unwrap();
        (world, keeper)
    }

    /// The same data in a new process; the old one can no longer reach the node.
    pub(crate) fn restarted(&self) -> Self {
        let node = Arc::new(self.node.reopen());
        Self::on(self.tables.clone(), node, self.clock.clone(), self.config.clone())
    }

    pub(crate) async fn last(&self, owner: &UserId, started: &Started) -> OperationEvent {
        self.engine.last_event(owner, started.operation.as_ref().expect("an operation")).await.unwrap()
    }

    /// Ensures the user's first box and waits for it.
    pub(crate) async fn running(&self, owner: &UserId) -> BoxRecord {
        let started = self.engine.ensure(owner, FREE, "", None).await.unwrap();
        if started.operation.is_some() {
            self.last(owner, &started).await;
        }
        self.first(owner).await
    }

    pub(crate) async fn first(&self, owner: &UserId) -> BoxRecord {
        self.engine.get(owner, "").await.unwrap().expect("a box")
    }

    pub(crate) async fn state(&self, owner: &UserId) -> BoxState {
        self.first(owner).await.state
    }

    pub(crate) fn sandbox(&self, record: &BoxRecord) -> MemorySandbox {
        self.node.store().sandbox(record.sandbox.as_ref().expect("a sandbox")).expect("it is there")
    }

    pub(crate) fn identity(&self, record: &BoxRecord) -> Identity {
        Identity::parse(&self.sandbox(record).host_file(&HostFileName::identity()).expect("a file")).unwrap()
    }

    pub(crate) fn machine_id(&self, record: &BoxRecord) -> String {
        String::from_utf8(self.sandbox(record).host_file(&HostFileName::machine_id()).expect("a file"))
            .unwrap()
    }

    pub(crate) fn clock_now(&self) -> Timestamp {
        cocoonbox_core::Clock::now(self.clock.as_ref())
    }

    /// Lets minutes go by one by one, as the engine would see them.
    pub(crate) async fn minutes(&self, minutes: u64) {
        for _ in 0..minutes {
            self.clock.advance(Duration::from_mins(1));
            self.engine.tick().await.unwrap();
            self.engine.drained().await;
        }
    }

    /// Every operation of every box that was ever seen has ended.
    pub(crate) async fn nothing_is_under_way(&self) {
        for stored in self.tables.page(None, 1000).await.unwrap() {
            assert!(stored.record.pending.is_none(), "{:?}", stored.record);
            assert!(!stored.record.state.is_between(), "{:?}", stored.record);
            assert!(!stored.record.unsettled, "{:?}", stored.record);
        }
    }
}

pub(crate) fn not_found<T: std::fmt::Debug>(result: Result<T, EngineError>) {
    assert!(matches!(result, Err(EngineError::NotFound { .. })), "{result:?}");
}
