//! The store over SQLite and PostgreSQL.

use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_core::{Timestamp, TokenId, UserId};
use cocoonbox_db::{Db, DbError, Listener, Migration, Migrations, Tx, on, on_tx};

use super::grant::Moves;
use super::{
    Credential, DEVICES_MAX, LINKS_MAX, LinkRecord, NewDevice, OauthKeyStore, PAGE_MAX, StateKeyStore,
    TokenClass, TokenRecord, User, UserChanges, UserKey, UserStore, UserStoreError, page,
};
use crate::{ClientId, TokenHash};

/// The channel on which changes of users and tokens are told.
pub const CHANNEL: &str = "cocoonbox_users";

const STEPS: Migrations = Migrations::new(
    "oauth",
    &[
        Migration::new(1, "users", include_str!("0001_users.sql")),
        Migration::new(2, "state keys", include_str!("0002_state_keys.sql")),
        Migration::new(3, "sign-in", include_str!("0003_sign_in.sql")),
        Migration::new(4, "sign-ins", include_str!("0004_sign_ins.sql")),
    ],
);

const INSERT_USER: &str = "INSERT INTO users (id, name, admin, disabled, created_at, max_agent_boxes, revision) VALUES ($1, $2, $3, $4, $5, $6, 1) \
     ON CONFLICT DO NOTHING";
const USER_BY_ID: &str =
    "SELECT id, name, admin, disabled, created_at, revision, max_agent_boxes FROM users WHERE id = $1";
const USER_BY_NAME: &str =
    "SELECT id, name, admin, disabled, created_at, revision, max_agent_boxes FROM users WHERE name = $1";
const LOCK_USER: &str = "SELECT id, name, admin, disabled, created_at, revision, max_agent_boxes FROM users WHERE id = $1 FOR UPDATE";
const SAVE_USER: &str = "UPDATE users SET name = $1, admin = $2, disabled = $3, max_agent_boxes = $4, revision = revision + 1 \
     WHERE id = $5 AND revision = $6";
const USERS: &str = "SELECT id, name, admin, disabled, created_at, revision, max_agent_boxes FROM users WHERE id > $1 \
     ORDER BY id LIMIT $2";
const REMOVE_USER: &str = "DELETE FROM users WHERE id = $1";
const DROP_PERSONAL: &str = "DELETE FROM user_tokens WHERE user_id = $1 AND personal";
const COUNT_DEVICES: &str = "SELECT COUNT(*) FROM user_tokens WHERE user_id = $1 AND NOT personal";
const INSERT_TOKEN: &str = "INSERT INTO user_tokens (id, user_id, personal, label, hash, created_at, used_at, client) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
const DROP_STALE_LINKS: &str = "DELETE FROM sign_in_links WHERE user_id = $1 AND expires_at <= $2";
const COUNT_LINKS: &str = "SELECT COUNT(*) FROM sign_in_links WHERE user_id = $1";
const INSERT_LINK: &str =
    "INSERT INTO sign_in_links (id, user_id, hash, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)";
const SPEND_LINK: &str = "DELETE FROM sign_in_links WHERE hash = $1 AND expires_at > $2 RETURNING user_id";
const REVOKE: &str = "DELETE FROM user_tokens WHERE id = $1 AND user_id = $2";
const TOKENS: &str = "SELECT u.id AS user_id, u.name, u.admin, u.disabled, u.created_at AS user_created_at, u.revision, \
     u.max_agent_boxes, t.id, t.personal, t.label, t.client, t.hash, t.created_at, t.used_at \
     FROM user_tokens t JOIN users u ON u.id = t.user_id WHERE t.id > $1 ORDER BY t.id LIMIT $2";
const TOKENS_OF: &str = "SELECT u.id AS user_id, u.name, u.admin, u.disabled, u.created_at AS user_created_at, u.revision, \
     u.max_agent_boxes, t.id, t.personal, t.label, t.client, t.hash, t.created_at, t.used_at \
     FROM user_tokens t JOIN users u ON u.id = t.user_id WHERE t.id > $1 AND t.user_id = $3 ORDER BY t.id LIMIT $2";
const TOUCH: &str = "UPDATE user_tokens SET used_at = $1 WHERE id = $2 AND (used_at IS NULL OR used_at < $1)";
const STATE_KEY: &str = "SELECT state_key_sealed FROM users WHERE id = $1";
const PUT_STATE_KEY: &str = "UPDATE users SET state_key_sealed = $1 WHERE id = $2 AND state_key_sealed = $3";
const FIRST_STATE_KEY: &str =
    "UPDATE users SET state_key_sealed = $1 WHERE id = $2 AND state_key_sealed IS NULL";
const WITH_STATE_KEYS: &str =
    "SELECT id FROM users WHERE id > $1 AND state_key_sealed IS NOT NULL ORDER BY id LIMIT $2";

const OAUTH_KEY: &str = "SELECT sealed FROM oauth_key WHERE id = 1";
const PUT_OAUTH_KEY: &str = "UPDATE oauth_key SET sealed = $1 WHERE id = 1 AND sealed = $2";
const FIRST_OAUTH_KEY: &str = "INSERT INTO oauth_key (id, sealed) VALUES (1, $1) ON CONFLICT DO NOTHING";

/// Users in a SQL database.
#[derive(Clone, Debug)]
pub struct SqlUserStore {
    pub(super) db: Db,
    pub(super) moves: Arc<Moves>,
}

#[derive(sqlx::FromRow)]
pub(super) struct UserRow {
    id: String,
    name: String,
    admin: bool,
    disabled: bool,
    created_at: i64,
    revision: i64,
    max_agent_boxes: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct TokenRow {
    user_id: String,
    name: String,
    admin: bool,
    disabled: bool,
    user_created_at: i64,
    revision: i64,
    max_agent_boxes: Option<i64>,
    id: String,
    personal: bool,
    label: String,
    client: String,
    hash: Vec<u8>,
    created_at: i64,
    used_at: Option<i64>,
}

pub(super) fn read<T: std::str::FromStr>(text: &str, column: &'static str) -> Result<T, UserStoreError> {
    text.parse().map_err(|_| UserStoreError::Broken { reason: column, source: None })
}

impl UserRow {
    pub(super) fn read(self) -> Result<User, UserStoreError> {
        Ok(User {
            id: read(&self.id, "users.id is no id")?,
            name: read(&self.name, "users.name is no name")?,
            admin: self.admin,
            disabled: self.disabled,
            max_agent_boxes: self.max_agent_boxes.map(u32::try_from).transpose().map_err(|_| {
                UserStoreError::Broken { reason: "users.max_agent_boxes is no count", source: None }
            })?,
            created_at: Timestamp::from_micros(self.created_at),
            revision: self.revision,
        })
    }
}

impl TokenRow {
    fn read(self) -> Result<(User, TokenRecord), UserStoreError> {
        let hash = TokenHash::from_bytes(&self.hash);
        let token = TokenRecord {
            id: read(&self.id, "user_tokens.id is no id")?,
            user: read(&self.user_id, "user_tokens.user_id is no id")?,
            class: if self.personal { TokenClass::Personal } else { TokenClass::Device },
            label: read(&self.label, "user_tokens.label is no label")?,
            client: match &*self.client {
                "" => None,
                client => Some(read(client, "user_tokens.client is no client")?),
            },
            hash: hash
                .ok_or(UserStoreError::Broken { reason: "user_tokens.hash is no hash", source: None })?,
            created_at: Timestamp::from_micros(self.created_at),
            used_at: self.used_at.map(Timestamp::from_micros),
        };
        let user = UserRow {
            id: self.user_id,
            name: self.name,
            admin: self.admin,
            disabled: self.disabled,
            created_at: self.user_created_at,
            revision: self.revision,
            max_agent_boxes: self.max_agent_boxes,
        };
        Ok((user.read()?, token))
    }
}

impl From<DbError> for UserStoreError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Unavailable { .. } | DbError::Busy { .. } | DbError::Full { .. } => {
                Self::Unavailable { source: error.into() }
            }
            DbError::Interrupted { .. } => Self::Uncertain { source: error.into() },
            // names are looked at where they are written; what is left are ids and hashes
            DbError::UniqueViolation { .. } => Self::Taken,
            other => Self::Broken { reason: "the database refuses", source: Some(other.into()) },
        }
    }
}

pub(super) fn failed(error: sqlx::Error) -> UserStoreError {
    DbError::from(error).into()
}

/// As [`failed`], for a change of a user's name.
fn name_failed(user: &User) -> impl Fn(sqlx::Error) -> UserStoreError + '_ {
    |error| match DbError::from(error) {
        error if error.violates("users_name_key") => UserStoreError::NameTaken { name: user.name.clone() },
        error => error.into(),
    }
}

impl SqlUserStore {
    /// Takes a database and brings its tables forward.
    ///
    /// # Errors
    /// What the database says, and [`DbError::Migration`].
    pub async fn open(db: Db, now: Timestamp) -> Result<Self, DbError> {
        db.migrate(&STEPS, now).await?;
        Ok(Self { db, moves: Arc::default() })
    }

    /// Starts to hear changes.
    ///
    /// # Errors
    /// What the database says.
    pub async fn changes(&self) -> Result<Box<dyn UserChanges>, DbError> {
        Ok(Box::new(SqlChanges(self.db.listen(CHANNEL).await?)))
    }

    /// Reads a user and, on PostgreSQL, holds it until the transaction ends; SQLite holds everything anyway.
    async fn lock(tx: &mut Tx, id: &str) -> Result<Option<User>, UserStoreError> {
        let statement = tx.pick(USER_BY_ID, LOCK_USER);
        let row: Option<UserRow> =
            on_tx!(tx, c => sqlx::query_as(statement).bind(id).fetch_optional(c).await).map_err(failed)?;
        row.map(UserRow::read).transpose()
    }

    /// As [`Self::lock`], for a user that there must be.
    pub(super) async fn lock_known(tx: &mut Tx, user: &UserId) -> Result<User, UserStoreError> {
        Self::lock(tx, user.as_str()).await?.ok_or_else(|| UserStoreError::NoUser { id: user.clone() })
    }

    /// Spends a link and returns its user, locked.
    pub(super) async fn spend(tx: &mut Tx, link: &TokenHash, now: Timestamp) -> Result<User, UserStoreError> {
        // the delete is the race's referee: exactly one caller gets the row
        let owner: Option<String> = on_tx!(tx, c => {
            sqlx::query_scalar(SPEND_LINK).bind(&link.as_bytes()[..]).bind(now.micros()).fetch_optional(c).await
        })
        .map_err(failed)?;
        let Some(owner) = owner else { return Err(UserStoreError::LinkRefused) };
        let user = Self::lock(tx, &owner).await?.filter(|user| !user.disabled);
        user.ok_or(UserStoreError::LinkRefused)
    }

    /// Adds a credential to a user that is locked, or was made by the same transaction.
    async fn add(tx: &mut Tx, credential: &Credential) -> Result<(), UserStoreError> {
        match credential {
            Credential::Token(token) => Self::add_token(tx, token).await,
            Credential::Link(link) => Self::add_link(tx, link).await,
        }
    }

    async fn add_token(tx: &mut Tx, token: &TokenRecord) -> Result<(), UserStoreError> {
        let user = token.user.as_str();
        let personal = token.class == TokenClass::Personal;
        if personal {
            on_tx!(tx, c => sqlx::query(DROP_PERSONAL).bind(user).execute(c).await.map(drop))
                .map_err(failed)?;
        } else {
            let count: i64 = on_tx!(tx, c => sqlx::query_scalar(COUNT_DEVICES).bind(user).fetch_one(c).await)
                .map_err(failed)?;
            if count >= DEVICES_MAX as i64 {
                return Err(UserStoreError::TooMany { what: "devices", limit: DEVICES_MAX });
            }
        }
        on_tx!(tx, c => {
            sqlx::query(INSERT_TOKEN)
                .bind(token.id.as_str())
                .bind(user)
                .bind(personal)
                .bind(token.label.as_str())
                .bind(&token.hash.as_bytes()[..])
                .bind(token.created_at.micros())
                .bind(token.used_at.map(Timestamp::micros))
                .bind(token.client.as_ref().map_or("", ClientId::as_str))
                .execute(c)
                .await
                .map(drop)
        })
        .map_err(failed)
    }

    async fn add_link(tx: &mut Tx, link: &LinkRecord) -> Result<(), UserStoreError> {
        let user = link.user.as_str();
        let count: i64 = on_tx!(tx, c => {
            match sqlx::query(DROP_STALE_LINKS).bind(user).bind(link.created_at.micros()).execute(&mut *c).await {
                Ok(_) => sqlx::query_scalar(COUNT_LINKS).bind(user).fetch_one(c).await,
                Err(error) => Err(error),
            }
        })
        .map_err(failed)?;
        if count >= LINKS_MAX as i64 {
            return Err(UserStoreError::TooMany { what: "open sign-in links", limit: LINKS_MAX });
        }
        on_tx!(tx, c => {
            sqlx::query(INSERT_LINK)
                .bind(link.id.as_str())
                .bind(user)
                .bind(&link.hash.as_bytes()[..])
                .bind(link.created_at.micros())
                .bind(link.expires_at.micros())
                .execute(c)
                .await
                .map(drop)
        })
        .map_err(failed)
    }

    pub(super) async fn finish(mut tx: Tx, user: &UserId) -> Result<(), UserStoreError> {
        tx.notify(CHANNEL, user.as_str()).await?;
        Ok(tx.commit().await?)
    }
}

#[async_trait]
impl UserStore for SqlUserStore {
    async fn create_user(&self, user: &User, credentials: &[Credential]) -> Result<(), UserStoreError> {
        let mut tx = self.db.begin().await?;
        let made = on_tx!(tx, c => {
            sqlx::query(INSERT_USER)
                .bind(user.id.as_str())
                .bind(user.name.as_str())
                .bind(user.admin)
                .bind(user.disabled)
                .bind(user.created_at.micros())
                .bind(user.max_agent_boxes.map(i64::from))
                .execute(c)
                .await
                .map(|done| done.rows_affected())
        })
        .map_err(failed)?;
        if made == 0 {
            // which of two constraints an engine names when both stand against it differs, so it is looked up
            let name = user.name.as_str();
            let taken: Option<UserRow> =
                on_tx!(tx, c => sqlx::query_as(USER_BY_NAME).bind(name).fetch_optional(c).await)
                    .map_err(failed)?;
            return Err(match taken {
                Some(_) => UserStoreError::NameTaken { name: user.name.clone() },
                None => UserStoreError::Taken,
            });
        }
        for credential in credentials {
            if *credential.user() != user.id
                && Self::lock(&mut tx, credential.user().as_str()).await?.is_none()
            {
                return Err(UserStoreError::NoUser { id: credential.user().clone() });
            }
            Self::add(&mut tx, credential).await?;
        }
        Self::finish(tx, &user.id).await
    }

    async fn user(&self, key: UserKey<'_>) -> Result<Option<User>, UserStoreError> {
        let (statement, value) = match key {
            UserKey::Id(id) => (USER_BY_ID, id.as_str()),
            UserKey::Name(name) => (USER_BY_NAME, name.as_str()),
        };
        let row: Option<UserRow> =
            on!(self.db, pool => sqlx::query_as(statement).bind(value).fetch_optional(pool).await)
                .map_err(failed)?;
        row.map(UserRow::read).transpose()
    }

    async fn save_user(&self, user: &User) -> Result<i64, UserStoreError> {
        let mut tx = self.db.begin().await?;
        let saved = on_tx!(tx, c => {
            sqlx::query(SAVE_USER)
                .bind(user.name.as_str())
                .bind(user.admin)
                .bind(user.disabled)
                .bind(user.max_agent_boxes.map(i64::from))
                .bind(user.id.as_str())
                .bind(user.revision)
                .execute(c)
                .await
                .map(|done| done.rows_affected())
        })
        .map_err(name_failed(user))?;
        if saved == 0 {
            let id = user.id.clone();
            return Err(match Self::lock(&mut tx, id.as_str()).await? {
                Some(_) => UserStoreError::Stale { id },
                None => UserStoreError::NoUser { id },
            });
        }
        Self::finish(tx, &user.id).await?;
        Ok(user.revision + 1)
    }

    async fn issue(&self, credential: &Credential) -> Result<(), UserStoreError> {
        let user = credential.user();
        let mut tx = self.db.begin().await?;
        Self::lock_known(&mut tx, user).await?;
        Self::add(&mut tx, credential).await?;
        Self::finish(tx, user).await
    }

    async fn redeem_link(
        &self,
        link: &TokenHash,
        device: &NewDevice,
        now: Timestamp,
    ) -> Result<User, UserStoreError> {
        let mut tx = self.db.begin().await?;
        let user = Self::spend(&mut tx, link, now).await?;
        Self::add_token(&mut tx, &device.record(&user.id, now)).await?;
        Self::finish(tx, &user.id).await?;
        Ok(user)
    }

    async fn revoke_token(&self, user: &UserId, token: &TokenId) -> Result<(), UserStoreError> {
        let mut tx = self.db.begin().await?;
        let gone = on_tx!(tx, c => {
            sqlx::query(REVOKE).bind(token.as_str()).bind(user.as_str()).execute(c).await.map(|done| done.rows_affected())
        })
        .map_err(failed)?;
        if gone == 0 {
            return Err(UserStoreError::NoToken { id: token.clone() });
        }
        Self::finish(tx, user).await
    }

    async fn tokens(
        &self,
        of: Option<&UserId>,
        after: Option<&TokenId>,
        limit: usize,
    ) -> Result<Vec<(User, TokenRecord)>, UserStoreError> {
        let (after, limit) = (after.map_or("", |after| after.as_str()), page(limit) as i64);
        let rows: Vec<TokenRow> = match of {
            None => {
                on!(self.db, pool => sqlx::query_as(TOKENS).bind(after).bind(limit).fetch_all(pool).await)
            }
            Some(user) => on!(self.db, pool => {
                sqlx::query_as(TOKENS_OF).bind(after).bind(limit).bind(user.as_str()).fetch_all(pool).await
            }),
        }
        .map_err(failed)?;
        rows.into_iter().map(TokenRow::read).collect()
    }

    async fn touch(&self, used: &[(TokenId, Timestamp)]) -> Result<(), UserStoreError> {
        if used.is_empty() {
            return Ok(());
        }
        // in one order in every process, so that two of them cannot wait for each other
        let mut used: Vec<_> = used.iter().collect();
        used.sort();
        let mut tx = self.db.begin().await?;
        for (id, at) in used {
            on_tx!(tx, c => sqlx::query(TOUCH).bind(at.micros()).bind(id.as_str()).execute(c).await.map(drop))
                .map_err(failed)?;
        }
        Ok(tx.commit().await?)
    }

    async fn users(&self, after: Option<&UserId>) -> Result<Vec<User>, UserStoreError> {
        let (after, limit) = (after.map_or("", UserId::as_str), PAGE_MAX as i64);
        let rows: Vec<UserRow> =
            on!(self.db, pool => sqlx::query_as(USERS).bind(after).bind(limit).fetch_all(pool).await)
                .map_err(failed)?;
        rows.into_iter().map(UserRow::read).collect()
    }

    async fn remove_user(&self, user: &UserId, revision: i64) -> Result<(), UserStoreError> {
        let mut tx = self.db.begin().await?;
        if Self::lock_known(&mut tx, user).await?.revision != revision {
            return Err(UserStoreError::Stale { id: user.clone() });
        }
        on_tx!(tx, c => sqlx::query(REMOVE_USER).bind(user.as_str()).execute(c).await.map(drop))
            .map_err(failed)?;
        Self::finish(tx, user).await
    }
}

#[derive(Debug)]
struct SqlChanges(Listener);

#[async_trait]
impl UserChanges for SqlChanges {
    async fn next(&mut self) {
        // what changed does not matter: the index is read anew
        let _ = self.0.next().await;
    }
}

#[async_trait]
impl StateKeyStore for SqlUserStore {
    async fn sealed_state_key(&self, user: &UserId) -> Result<Option<Vec<u8>>, UserStoreError> {
        let row: Option<(Option<Vec<u8>>,)> =
            on!(self.db, pool => sqlx::query_as(STATE_KEY).bind(user.as_str()).fetch_optional(pool).await)
                .map_err(DbError::from)?;
        row.map(|(sealed,)| sealed).ok_or_else(|| UserStoreError::NoUser { id: user.clone() })
    }

    async fn put_sealed_state_key(
        &self,
        user: &UserId,
        sealed: &[u8],
        before: Option<&[u8]>,
    ) -> Result<bool, UserStoreError> {
        let put = on!(self.db, pool => match before {
            Some(before) => {
                sqlx::query(PUT_STATE_KEY).bind(sealed).bind(user.as_str()).bind(before)
                    .execute(pool).await.map(|done| done.rows_affected())
            }
            None => {
                sqlx::query(FIRST_STATE_KEY).bind(sealed).bind(user.as_str())
                    .execute(pool).await.map(|done| done.rows_affected())
            }
        })
        .map_err(DbError::from)?;
        if put == 0 {
            // told apart from a user that is not there
            self.sealed_state_key(user).await?;
        }
        Ok(put == 1)
    }

    async fn users_with_state_keys(&self, after: Option<&UserId>) -> Result<Vec<UserId>, UserStoreError> {
        let after = after.map_or("", UserId::as_str);
        let rows: Vec<String> = on!(self.db, pool => {
            sqlx::query_scalar(WITH_STATE_KEYS).bind(after).bind(PAGE_MAX as i64).fetch_all(pool).await
        })
        .map_err(DbError::from)?;
        rows.iter().map(|id| read(id, "users.id is no id")).collect()
    }
}

#[async_trait]
impl OauthKeyStore for SqlUserStore {
    async fn sealed_oauth_key(&self) -> Result<Option<Vec<u8>>, UserStoreError> {
        on!(self.db, pool => sqlx::query_scalar(OAUTH_KEY).fetch_optional(pool).await).map_err(failed)
    }

    async fn put_sealed_oauth_key(
        &self,
        sealed: &[u8],
        before: Option<&[u8]>,
    ) -> Result<bool, UserStoreError> {
        let put = on!(self.db, pool => match before {
            Some(before) => {
                sqlx::query(PUT_OAUTH_KEY).bind(sealed).bind(before)
                    .execute(pool).await.map(|done| done.rows_affected())
            }
            None => {
                sqlx::query(FIRST_OAUTH_KEY).bind(sealed).execute(pool).await.map(|done| done.rows_affected())
            }
        })
        .map_err(failed)?;
        Ok(put == 1)
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_db::testkit::{TestDb, statements_are_taken};

    use super::*;

    const BOTH: &[&str] = &[
        INSERT_USER,
        USER_BY_ID,
        USER_BY_NAME,
        SAVE_USER,
        USERS,
        REMOVE_USER,
        OAUTH_KEY,
        PUT_OAUTH_KEY,
        FIRST_OAUTH_KEY,
        DROP_PERSONAL,
        COUNT_DEVICES,
        INSERT_TOKEN,
        DROP_STALE_LINKS,
        COUNT_LINKS,
        INSERT_LINK,
        SPEND_LINK,
        REVOKE,
        TOKENS,
        TOKENS_OF,
        TOUCH,
        STATE_KEY,
        PUT_STATE_KEY,
        FIRST_STATE_KEY,
        WITH_STATE_KEYS,
    ];

    cocoonbox_db::both_engines! { every_statement_is_taken a_damaged_row_is_told_and_not_repeated }

    async fn every_statement_is_taken(db: &TestDb) {
        SqlUserStore::open((**db).clone(), Timestamp::default()).await.expect("the tables");
        statements_are_taken(db, BOTH).await;
        statements_are_taken(db, super::super::session::STATEMENTS).await;
        statements_are_taken(db, super::super::grant::STATEMENTS).await;
        statements_are_taken(db, super::super::client::STATEMENTS).await;
        statements_are_taken(db, super::super::sign_in::STATEMENTS).await;
        statements_are_taken(db, db.pick(&[], &[LOCK_USER])).await;
    }

    async fn a_damaged_row_is_told_and_not_repeated(db: &TestDb) {
        let store = SqlUserStore::open((**db).clone(), Timestamp::default()).await.expect("the tables");
        on!(db, pool => {
            sqlx::query(INSERT_USER).bind("canary").bind("canary").bind(true).bind(false).bind(0_i64).bind(None::<i64>).execute(pool).await.map(drop)
        })
        .expect("room");
        let error = store.user(UserKey::Name(&"canary".parse().expect("a name"))).await.expect_err("no id");
        assert!(matches!(error, UserStoreError::Broken { .. }));
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}
