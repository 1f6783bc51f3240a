//! Another master key: every user's state key is sealed anew under it.
//!
//! The new key is written beside the old one first; then each user's key is sealed anew, one by one; then the new file
//! takes the old one's name. Whatever breaks off in between is gone on with: a key opens under one of the two.

use anyhow::Context as _;
use cocoonbox_client::cli::ServerConfig;
use cocoonbox_core::{Clock as _, Entropy, SystemClock, SystemEntropy};
use cocoonbox_db::{Db, DbOptions, Use};
use cocoonbox_oauth::{OauthKeyStore, SqlUserStore, StateKeyStore};
use cocoonbox_seal::Key;
use cocoonbox_state::{Label, open_account, seal_account};

use crate::DataDir;
use crate::account::{open_key, seal_key};
use crate::serve::database;
use crate::state::MASTER;

/// The key that takes the master key's place once all is sealed under it.
const NEXT: &str = "master.key.next";

/// Gives a server that is stopped another master key; returns how many users' keys were sealed anew.
///
/// # Errors
/// The server runs, its database cannot be reached, or a user's key opens under neither key.
pub async fn rotate_master_key(config: &ServerConfig) -> anyhow::Result<u64> {
    let entropy = SystemEntropy;
    let data = DataDir::open(&config.data)?;
    let db = Db::open(&database(config, &data)?, &DbOptions::default()).await;
    let db = db.context("the database cannot be opened")?;
    let hold = db.hold("node", Use::Alone).await.context("the database cannot be taken")?;
    let hold = hold.context("another server uses this database: stop it first")?;
    let users = SqlUserStore::open(db.clone(), SystemClock.now()).await.context("the table of users")?;
    // one that broke off comes to its end first
    go_on(&data, &users, &entropy).await?;
    data.secret_key(MASTER, &entropy)?;
    data.secret_key(NEXT, &entropy)?;
    let sealed = go_on(&data, &users, &entropy).await?;
    drop(hold);
    db.close().await;
    Ok(sealed)
}

/// Brings a rotation that broke off to its end; without one it does nothing.
pub(crate) async fn go_on(
    data: &DataDir,
    users: &(impl StateKeyStore + OauthKeyStore),
    entropy: &dyn Entropy,
) -> anyhow::Result<u64> {
    let Some(next) = data.held_key(NEXT)? else { return Ok(0) };
    let next = Key::new(*next);
    // without one before, whatever was sealed was sealed under the next
    let Some(before) = data.held_key(MASTER)? else { return data.rename(NEXT, MASTER).map(|()| 0) };
    let before = Key::new(*before);
    let (mut after, mut count) = (None, 0);
    loop {
        let page = users.users_with_state_keys(after.as_ref()).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        for user in &page {
            let label = Label::from(user);
            while let Some(sealed) = users.sealed_state_key(user).await? {
                if open_account(&next, &label, &sealed).is_ok() {
                    break;
                }
                let account = open_account(&before, &label, &sealed)
                    .with_context(|| format!("the state key of {user} opens under neither master key"))?;
                let anew = seal_account(&next, &label, &account, entropy)?;
                if users.put_sealed_state_key(user, &anew, Some(&sealed)).await? {
                    count += 1;
                    break;
                }
            }
        }
    }
    while let Some(sealed) = users.sealed_oauth_key().await? {
        if open_key(&next, &sealed).is_ok() {
            break;
        }
        let key =
            open_key(&before, &sealed).context("the key of agents' tokens opens under neither master key")?;
        if users.put_sealed_oauth_key(&seal_key(&next, &key, entropy)?, Some(&sealed)).await? {
            break;
        }
    }
    data.rename(NEXT, MASTER)?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use cocoonbox_client::cli::{Environment, UpArgs};
    use cocoonbox_core::UserId;
    use cocoonbox_oauth::{User, UserStore as _};
    use cocoonbox_state::{Account, StateKey};

    use super::*;

    type Outcome = anyhow::Result<()>;
    const FOLDER: &str = "COCOONBOX_TEST_ROTATE";
    const USERS: usize = 60;

    fn config(folder: &Path) -> anyhow::Result<ServerConfig> {
        let mut flags = UpArgs::default();
        flags.data = Some(folder.to_owned());
        flags.agent = Some(folder.join("none"));
        let none: Vec<(std::ffi::OsString, std::ffi::OsString)> = Vec::new();
        let settings = crate::settings(&flags, &Environment::new(none, ""))?;
        Ok(ServerConfig::read(&settings, &flags)?)
    }

    async fn users(config: &ServerConfig, data: &DataDir) -> anyhow::Result<(Db, SqlUserStore)> {
        let db = Db::open(&database(config, data)?, &DbOptions::default()).await?;
        let users = SqlUserStore::open(db.clone(), SystemClock.now()).await?;
        Ok((db, users))
    }

    /// Opens every user's account under the one master key that there is when no rotation is under way.
    async fn opened(folder: &Path) -> anyhow::Result<BTreeMap<UserId, String>> {
        let config = config(folder)?;
        let data = DataDir::open(folder)?;
        let (db, users) = users(&config, &data).await?;
        go_on(&data, &users, &SystemEntropy).await?;
        assert!(data.held_key(NEXT)?.is_none(), "it came to its end");
        let master = Key::new(*data.held_key(MASTER)?.context("a master key")?);
        let mut found = BTreeMap::new();
        loop {
            let page = users.users_with_state_keys(found.keys().next_back()).await?;
            if page.is_empty() {
                break;
            }
            for user in page {
                let sealed = users.sealed_state_key(&user).await?.context("a key")?;
                let account = open_account(&master, &Label::from(&user), &sealed)?;
                found.insert(user, account.export().reveal().to_owned());
            }
        }
        db.close().await;
        Ok(found)
    }

    #[tokio::test]
    #[ignore = "a part of the test below, which kills it"]
    async fn rotates() -> Outcome {
        let folder = std::env::var_os(FOLDER).context("the folder")?;
        loop {
            rotate_master_key(&config(Path::new(&folder))?).await?;
        }
    }

    #[tokio::test]
    async fn a_rotation_that_is_killed_anywhere_loses_nobodys_key() -> Outcome {
        let folder = tempfile::tempdir()?;
        let config = config(folder.path())?;
        let data = DataDir::open(folder.path())?;
        let master = Key::new(*data.secret_key(MASTER, &SystemEntropy)?);
        let (db, users) = users(&config, &data).await?;
        for number in 0..USERS {
            let id = UserId::random(&SystemEntropy)?;
            let user = User {
                id: id.clone(),
                name: format!("user{number}").parse()?,
                admin: false,
                disabled: false,
                max_agent_boxes: None,
                created_at: SystemClock.now(),
                revision: 1,
            };
            users.create_user(&user, &[]).await?;
            let account = Account { uid: Label::from(&id), key: StateKey::generate(&SystemEntropy)? };
            let sealed = seal_account(&master, &account.uid, &account, &SystemEntropy)?;
            assert!(users.put_sealed_state_key(&id, &sealed, None).await?);
        }
        db.close().await;
        drop(data);
        let before = opened(folder.path()).await?;
        assert_eq!(before.len(), USERS);
        let (mut masters, mut halves) = (BTreeSet::new(), 0);
        for round in 0..16_u64 {
            let mut child = Command::new(std::env::current_exe()?)
                .args(["rotate::tests::rotates", "--exact", "--ignored", "--nocapture"])
                .env(FOLDER, folder.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            std::thread::sleep(Duration::from_millis(40 + round * 37));
            child.kill()?;
            child.wait()?;
            halves += u32::from(folder.path().join(NEXT).exists());
            assert_eq!(opened(folder.path()).await?, before, "round {round}");
            masters.insert(std::fs::read(folder.path().join(MASTER))?);
        }
        assert!(masters.len() > 1, "no rotation came as far as the first key");
        assert!(halves > 0, "none was killed half-way");
        Ok(())
    }
}
