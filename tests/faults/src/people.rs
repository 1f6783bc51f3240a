//! Users of a server, made in its database.

use std::error::Error;
use std::path::Path;

use cocoonbox_core::{Clock as _, Id, SystemClock, SystemEntropy};
use cocoonbox_db::{DatabaseUrl, Db, DbOptions};
use cocoonbox_oauth::{SqlUserStore, User, UserStore as _, renew_personal_token};

/// A user and the token that it calls with.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a name and a token that nobody prints")]
pub struct Person {
    /// The user's id, which claims carry as their tenant.
    pub id: String,
    /// Its token.
    pub token: String,
}

/// Makes `count` users in the database of a server that does not run.
///
/// # Errors
/// The database does not open.
pub fn add_users(data: &Path, count: usize) -> Result<Vec<Person>, Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (now, url) = (SystemClock.now(), DatabaseUrl::sqlite(data.join("cocoonbox.db")));
        let db = Db::open(&url, &DbOptions::default()).await?;
        let store = SqlUserStore::open(db.clone(), now).await?;
        let mut people = Vec::new();
        for number in 0..count {
            let user = User {
                id: Id::random(&SystemEntropy)?,
                name: format!("user-{number}").parse()?,
                admin: false,
                disabled: false,
                max_agent_boxes: None,
                created_at: now,
                revision: 1,
            };
            store.create_user(&user, &[]).await?;
            let token = renew_personal_token(&store, &user.id, now, &SystemEntropy).await?;
            people.push(Person { id: user.id.to_string(), token: token.reveal().to_owned() });
        }
        db.close().await;
        Ok(people)
    })
}
