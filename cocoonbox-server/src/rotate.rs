//! Another master key: every user's state key is sealed anew under it.
//!
//! The new key is written beside the old one first; then each user's key is sealed anew, one by one; then the new file
//! takes the old one's name. Whatever breaks off in between is gone on with: a key opens under one of the two.

use anyhow::Context as _;
use cocoonbox_client::cli::ServerConfig;
use cocoonbox_core::{Clock as _, Entropy, SystemClock, SystemEntropy};
use cocoonbox_db::{Db, DbOptions, Use};
use cocoonbox_oauth::{SqlUserStore, StateKeyStore};
use cocoonbox_seal::Key;
use cocoonbox_state::{Label, open_account, seal_account};

use crate::DataDir;
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
    users: &dyn StateKeyStore,
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
    data.rename(NEXT, MASTER)?;
    Ok(count)
}
