//! Boxes' saves: the store, the keys, and how boxes reach them.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use cocoonbox_boxes::KeeperError;
use cocoonbox_boxes::state::{SealedKeeper, SqlCatalog, StateDoor, StateKeys};
use cocoonbox_client::cli::StateStore;
use cocoonbox_core::{Clock, Entropy, UserId};
use cocoonbox_db::Db;
use cocoonbox_oauth::{SqlUserStore, StateKeyStore, UserStoreError};
use cocoonbox_seal::Key;
use cocoonbox_state::{
    Account, FolderObjects, Label, Objects, S3Config, S3Objects, S3Secret, StateKey, open_account,
    seal_account,
};
use ed25519_dalek::SigningKey;
use tokio::sync::Mutex;

use crate::data::read_secret;
use crate::{DataDir, rotate};

/// The key under which users' state keys are sealed.
pub(crate) const MASTER: &str = "master.key";
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
    known: Mutex<HashMap<UserId, Account>>,
}

impl SealedKeys {
    /// Makes sure that a name in the store is nobody else's: who has it writes beside their saves.
    async fn is_free(&self, owner: &UserId, account: &Account) -> Result<(), KeeperError> {
        let reason = "that name in the store is another user's on this server";
        let taken = || KeeperError::Held { reason: reason.to_owned() };
        if let Ok(user) = account.uid.as_str().parse::<UserId>()
            && user != *owner
        {
            match self.users.sealed_state_key(&user).await {
                Ok(_) => return Err(taken()),
                Err(UserStoreError::NoUser { .. }) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        for other in self.owners().await? {
            if other != *owner && self.of(&other).await?.uid == account.uid {
                return Err(taken());
            }
        }
        Ok(())
    }
}

fn failed(error: &UserStoreError) -> KeeperError {
    KeeperError::Store { reason: error.to_string() }
}

fn damaged(_: cocoonbox_state::KeyError) -> KeeperError {
    KeeperError::Damaged {
        reason: "the user's state key does not open: is master.key the one that it was sealed with?"
            .to_owned(),
    }
}

fn drawn(error: cocoonbox_core::EntropyError) -> KeeperError {
    KeeperError::Store { reason: error.to_string() }
}

#[async_trait]
impl StateKeys for SealedKeys {
    async fn of(&self, owner: &UserId) -> Result<Account, KeeperError> {
        let mut known = self.known.lock().await;
        if let Some(account) = known.get(owner) {
            return Ok(account.clone());
        }
        let label = Label::from(owner);
        let account = loop {
            if let Some(sealed) = self.users.sealed_state_key(owner).await.map_err(|error| failed(&error))? {
                break open_account(&self.master, &label, &sealed).map_err(damaged)?;
            }
            let key = StateKey::generate(self.entropy.as_ref()).map_err(drawn)?;
            let account = Account { uid: label.clone(), key };
            let sealed =
                seal_account(&self.master, &label, &account, self.entropy.as_ref()).map_err(drawn)?;
            // whoever was first, in whichever process, made the key
            if self.users.put_sealed_state_key(owner, &sealed, None).await.map_err(|error| failed(&error))? {
                break account;
            }
        };
        known.insert(owner.clone(), account.clone());
        Ok(account)
    }

    async fn replace(&self, owner: &UserId, account: &Account) -> Result<(), KeeperError> {
        self.is_free(owner, account).await?;
        let mut known = self.known.lock().await;
        known.remove(owner);
        let label = Label::from(owner);
        let sealed = seal_account(&self.master, &label, account, self.entropy.as_ref()).map_err(drawn)?;
        let before = self.users.sealed_state_key(owner).await.map_err(|error| failed(&error))?;
        let put = self.users.put_sealed_state_key(owner, &sealed, before.as_deref()).await;
        if put.map_err(|error| failed(&error))? { Ok(()) } else { Err(KeeperError::Raced) }
    }

    async fn owners(&self) -> Result<Vec<UserId>, KeeperError> {
        let mut owners: Vec<UserId> = Vec::new();
        loop {
            let page =
                self.users.users_with_state_keys(owners.last()).await.map_err(|error| failed(&error))?;
            if page.is_empty() {
                return Ok(owners);
            }
            owners.extend(page);
        }
    }
}

/// Opens where objects are kept.
fn objects(data: &DataDir, store: &StateStore) -> anyhow::Result<Arc<dyn Objects>> {
    match store {
        StateStore::Folder(folder) => {
            let folder = folder.clone().unwrap_or_else(|| data.join(FOLDER));
            let objects = FolderObjects::open(&folder);
            Ok(Arc::new(objects.with_context(|| format!("{} cannot be used", folder.display()))?))
        }
        StateStore::S3 { bucket, endpoint, region, key_file } => {
            let shown = key_file.display();
            let words = read_secret(key_file)?.with_context(|| format!("{shown} is missing"))?;
            let words =
                std::str::from_utf8(&words).ok().map(|text| text.split_whitespace().collect::<Vec<_>>());
            let Some([id, secret]) = words.as_deref() else {
                bail!("{shown} does not hold two words: the key id and the secret of the bucket's account");
            };
            let secret = S3Secret::new((*secret).to_owned());
            let mut config = S3Config::new(endpoint.clone(), bucket.clone(), (*id).to_owned(), secret);
            config.region.clone_from(region);
            Ok(Arc::new(S3Objects::open(&config).with_context(|| format!("s3://{bucket} cannot be used"))?))
        }
    }
}

/// What a state store is opened with.
pub(crate) struct Parts<'a> {
    pub(crate) data: &'a DataDir,
    pub(crate) store: &'a StateStore,
    pub(crate) db: &'a Db,
    pub(crate) users: Arc<SqlUserStore>,
    pub(crate) call_key: Arc<SigningKey>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) entropy: &'a Arc<dyn Entropy>,
}

/// Opens the state store: the keeper for the engine, and the door for boxes.
pub(crate) async fn open(parts: Parts<'_>) -> anyhow::Result<(Arc<SealedKeeper>, StateDoor)> {
    let Parts { data, store, db, users, call_key, clock, entropy } = parts;
    let objects = objects(data, store)?;
    let url_key = Key::new(*data.secret_key(DOOR, entropy.as_ref())?);
    let door = StateDoor::new(Arc::clone(&objects), &url_key, Arc::clone(clock));
    let catalog = SqlCatalog::open(db.clone(), clock.now()).await.context("the table of saves")?;
    rotate::go_on(data, users.as_ref(), entropy.as_ref()).await?;
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
        (Arc::clone(clock), Arc::clone(entropy)),
    );
    Ok((Arc::new(keeper), door))
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::{SystemClock, SystemEntropy};
    use cocoonbox_db::{DatabaseUrl, DbOptions};
    use cocoonbox_oauth::{SqlUserStore, User, UserStore as _};

    use super::*;

    #[tokio::test]
    async fn nobody_takes_a_name_in_the_store_that_is_anothers() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let url = DatabaseUrl::sqlite(folder.path().join("db"));
        let db = Db::open(&url, &DbOptions::default()).await?;
        let users = Arc::new(SqlUserStore::open(db, SystemClock.now()).await?);
        let mut ids = Vec::new();
        for name in ["ana", "bob", "eve"] {
            let id = UserId::random(&SystemEntropy)?;
            let (name, created_at) = (name.parse()?, SystemClock.now());
            let user = User {
                id: id.clone(),
                name,
                admin: false,
                disabled: false,
                max_agent_boxes: None,
                created_at,
                revision: 1,
            };
            users.create_user(&user, &[]).await?;
            ids.push(id);
        }
        let keys = SealedKeys {
            master: Key::new([1; 32]),
            users,
            entropy: Arc::new(SystemEntropy),
            known: Mutex::default(),
        };
        let [ana, bob, eve] = [&ids[0], &ids[1], &ids[2]];
        let named = |uid: &str| -> anyhow::Result<Account> {
            Ok(Account { uid: uid.parse()?, key: StateKey::new([7; 32]) })
        };
        // one that nobody has here, then the same for another; one of a user who never saved; one's own again
        keys.replace(ana, &named("us_elsewhere")?).await?;
        assert_eq!(keys.of(ana).await?.uid.as_str(), "us_elsewhere");
        for (who, uid) in [(eve, "us_elsewhere"), (eve, bob.as_str()), (eve, ana.as_str())] {
            assert!(matches!(keys.replace(who, &named(uid)?).await, Err(KeeperError::Held { .. })), "{uid}");
        }
        keys.replace(ana, &named("us_elsewhere")?).await?;
        keys.replace(eve, &named(eve.as_str())?).await?;
        Ok(())
    }
}
