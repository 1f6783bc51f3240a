//! Boxes' saves: the store, the keys, and how boxes reach them.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use cocoonbox_boxes::KeeperError;
use cocoonbox_boxes::state::{SealedKeeper, SqlCatalog, StateDoor, StateKeys};
use cocoonbox_core::{Clock, Entropy, UserId};
use cocoonbox_db::Db;
use cocoonbox_oauth::{StateKeyStore, UserStoreError};
use cocoonbox_seal::Key;
use cocoonbox_state::{FolderObjects, Label, Objects, StateKey, open_state_key, seal_state_key};
use ed25519_dalek::SigningKey;
use tokio::sync::Mutex;

use crate::DataDir;

/// The key under which users' state keys are sealed.
const MASTER: &str = "master.key";
/// The key that signs URLs to objects.
const DOOR: &str = "state-url.key";
/// Where objects are, unless they are kept elsewhere.
const FOLDER: &str = "state";

/// Users' state keys, sealed under the master key beside their users.
#[derive(Debug)]
struct SealedKeys {
    master: Key,
    users: Arc<dyn StateKeyStore>,
    entropy: Arc<dyn Entropy>,
    known: Mutex<HashMap<UserId, StateKey>>,
}

fn failed(error: &UserStoreError) -> KeeperError {
    KeeperError::Store { reason: error.to_string() }
}

#[async_trait]
impl StateKeys for SealedKeys {
    async fn of(&self, owner: &UserId) -> Result<StateKey, KeeperError> {
        let mut known = self.known.lock().await;
        if let Some(key) = known.get(owner) {
            return Ok(key.clone());
        }
        let label = Label::from(owner);
        let damaged = |_| KeeperError::Damaged {
            reason: "the user's state key does not open: is master.key the one that it was sealed with?"
                .to_owned(),
        };
        let drawn = |error: cocoonbox_core::EntropyError| KeeperError::Store { reason: error.to_string() };
        let key = loop {
            if let Some(sealed) = self.users.sealed_state_key(owner).await.map_err(|error| failed(&error))? {
                break open_state_key(&self.master, &label, &sealed).map_err(damaged)?;
            }
            let key = StateKey::generate(self.entropy.as_ref()).map_err(drawn)?;
            let sealed = seal_state_key(&self.master, &label, &key, self.entropy.as_ref()).map_err(drawn)?;
            // whoever was first, in whichever process, made the key
            if self.users.put_sealed_state_key(owner, &sealed, None).await.map_err(|error| failed(&error))? {
                break key;
            }
        };
        known.insert(owner.clone(), key.clone());
        Ok(key)
    }
}

/// Opens the state store: the keeper for the engine, and the door for boxes.
pub(crate) async fn open(
    data: &DataDir,
    db: &Db,
    users: Arc<dyn StateKeyStore>,
    call_key: Arc<SigningKey>,
    clock: &Arc<dyn Clock>,
    entropy: &Arc<dyn Entropy>,
) -> anyhow::Result<(SealedKeeper, StateDoor)> {
    let folder = data.join(FOLDER);
    let objects =
        FolderObjects::open(&folder).with_context(|| format!("{} cannot be used", folder.display()))?;
    let objects: Arc<dyn Objects> = Arc::new(objects);
    let url_key = Key::new(*data.secret_key(DOOR, entropy.as_ref())?);
    let door = StateDoor::new(Arc::clone(&objects), &url_key, Arc::clone(clock));
    let catalog = SqlCatalog::open(db.clone(), clock.now()).await.context("the table of saves")?;
    let keys = SealedKeys {
        master: Key::new(*data.secret_key(MASTER, entropy.as_ref())?),
        users,
        entropy: Arc::clone(entropy),
        known: Mutex::default(),
    };
    let keeper = SealedKeeper::new(
        objects,
        Arc::new(door.clone()),
        Arc::new(catalog),
        Arc::new(keys),
        call_key,
        Arc::clone(clock),
    );
    Ok((keeper, door))
}
