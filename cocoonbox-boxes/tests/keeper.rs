//! The keeper in memory passes the suite of every keeper.

use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_boxes::testkit::keeper::{KeptBox, KeptWorld};
use cocoonbox_boxes::{Guest, MemoryKeeper, StateKeeper};
use cocoonbox_core::{BoxId, SystemClock, SystemEntropy, UserId, WakeId};
use tokio::io::DuplexStream;
use tokio::sync::Mutex;

#[derive(Debug)]
struct Held {
    keeper: MemoryKeeper,
    owner: UserId,
    id: BoxId,
    /// The agent's ends of its connections.
    agent: Mutex<Vec<DuplexStream>>,
}

#[async_trait]
impl KeptBox for Held {
    fn owner(&self) -> UserId {
        self.owner.clone()
    }
    fn id(&self) -> BoxId {
        self.id.clone()
    }
    async fn guest(&self) -> Guest {
        let (ours, theirs) = tokio::io::duplex(64);
        self.agent.lock().await.push(theirs);
        let wake_id = WakeId::random(&SystemEntropy).expect("entropy");
        Guest {
            owner: self.owner.clone(),
            box_id: self.id.clone(),
            agent: false,
            wake_id,
            stream: Box::new(ours),
        }
    }
    async fn write(&self, path: &str, text: &str) {
        self.keeper.write(&self.id, path, text.as_bytes());
    }
    async fn read(&self, path: &str) -> Option<String> {
        self.keeper.read(&self.id, path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
    async fn restart(&self) {
        self.keeper.started(&self.id);
    }
}

#[derive(Debug)]
struct World(MemoryKeeper);

#[async_trait]
impl KeptWorld for World {
    fn keeper(&self) -> Arc<dyn StateKeeper> {
        Arc::new(self.0.clone())
    }
    async fn make(&self, owner: &UserId) -> Box<dyn KeptBox> {
        let id = BoxId::random(&SystemEntropy).expect("entropy");
        Box::new(Held { keeper: self.0.clone(), owner: owner.clone(), id, agent: Mutex::default() })
    }
}

cocoonbox_boxes::state_keeper_conformance!(World(MemoryKeeper::new(Arc::new(SystemClock))));
