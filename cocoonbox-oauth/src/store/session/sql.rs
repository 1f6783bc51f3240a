use async_trait::async_trait;
use cocoonbox_core::{ConsoleSessionId, Timestamp, UserId};
use cocoonbox_db::{Tx, on, on_tx};

use super::{SESSIONS_MAX, SessionRecord, SessionStore};
use crate::store::sql::{UserRow, failed, read};
use crate::{PasswordHash, SqlUserStore, TokenHash, User, UserStoreError};

const PASSWORD: &str = "SELECT password_hash FROM users WHERE id = $1";
const SET_PASSWORD: &str = "UPDATE users SET password_hash = $1 WHERE id = $2";
const END_OTHERS: &str = "DELETE FROM console_sessions WHERE user_id = $1 AND id <> $2";
const DROP_OVER: &str = "DELETE FROM console_sessions WHERE user_id = $1 AND expires_at <= $2";
const DROP_OLDEST: &str = "DELETE FROM console_sessions WHERE user_id = $1 AND id IN \
     (SELECT id FROM console_sessions WHERE user_id = $1 ORDER BY created_at DESC, id DESC LIMIT 1000 OFFSET $2)";
const BEGIN: &str =
    "INSERT INTO console_sessions (id, user_id, hash, created_at, expires_at) VALUES ($1, $2, $3, $4, $5)";
const SESSION: &str = "SELECT s.id AS session_id, s.created_at AS session_created_at, s.expires_at, \
     u.id, u.name, u.admin, u.disabled, u.created_at, u.revision, u.max_agent_boxes \
     FROM console_sessions s JOIN users u ON u.id = s.user_id \
     WHERE s.hash = $1 AND s.expires_at > $2 AND NOT u.disabled";
const END: &str = "DELETE FROM console_sessions WHERE hash = $1";
const END_TOKENS: &str = "DELETE FROM user_tokens WHERE user_id = $1";

#[cfg(test)]
pub(in crate::store) const STATEMENTS: &[&str] =
    &[PASSWORD, SET_PASSWORD, END_OTHERS, DROP_OVER, DROP_OLDEST, BEGIN, SESSION, END, END_TOKENS];

#[derive(sqlx::FromRow)]
struct SessionRow {
    session_id: String,
    session_created_at: i64,
    expires_at: i64,
    #[sqlx(flatten)]
    user: UserRow,
}

/// Begins a session of a user that is locked.
async fn begin(tx: &mut Tx, session: &SessionRecord) -> Result<(), UserStoreError> {
    let user = session.user.as_str();
    on_tx!(tx, c => {
        match sqlx::query(DROP_OVER).bind(user).bind(session.created_at.micros()).execute(&mut *c).await {
            Ok(_) => sqlx::query(DROP_OLDEST).bind(user).bind(SESSIONS_MAX as i64 - 1).execute(c).await.map(drop),
            Err(error) => Err(error),
        }
    })
    .map_err(failed)?;
    on_tx!(tx, c => {
        sqlx::query(BEGIN)
            .bind(session.id.as_str())
            .bind(user)
            .bind(&session.hash.as_bytes()[..])
            .bind(session.created_at.micros())
            .bind(session.expires_at.micros())
            .execute(c)
            .await
            .map(drop)
    })
    .map_err(failed)
}

async fn put_password(
    tx: &mut Tx,
    user: &UserId,
    password: &PasswordHash,
    keep: Option<&ConsoleSessionId>,
) -> Result<(), UserStoreError> {
    let keep = keep.map_or("", |keep| keep.as_str());
    on_tx!(tx, c => {
        match sqlx::query(SET_PASSWORD).bind(password.as_str()).bind(user.as_str()).execute(&mut *c).await {
            Ok(_) => sqlx::query(END_OTHERS).bind(user.as_str()).bind(keep).execute(c).await.map(drop),
            Err(error) => Err(error),
        }
    })
    .map_err(failed)
}

#[async_trait]
impl SessionStore for SqlUserStore {
    async fn password(&self, user: &UserId) -> Result<Option<PasswordHash>, UserStoreError> {
        let row: Option<(Option<String>,)> =
            on!(self.db, pool => sqlx::query_as(PASSWORD).bind(user.as_str()).fetch_optional(pool).await)
                .map_err(failed)?;
        let (hash,) = row.ok_or_else(|| UserStoreError::NoUser { id: user.clone() })?;
        let broken = UserStoreError::Broken { reason: "users.password_hash is no hash", source: None };
        hash.map(|hash| PasswordHash::parse(&hash).ok_or(broken)).transpose()
    }

    async fn set_password(
        &self,
        user: &UserId,
        password: &PasswordHash,
        keep: Option<&ConsoleSessionId>,
    ) -> Result<(), UserStoreError> {
        let mut tx = self.db.begin().await?;
        Self::lock_known(&mut tx, user).await?;
        put_password(&mut tx, user, password, keep).await?;
        Ok(tx.commit().await?)
    }

    async fn redeem_link_with_password(
        &self,
        link: &TokenHash,
        password: &PasswordHash,
        session: &SessionRecord,
    ) -> Result<User, UserStoreError> {
        let mut tx = self.db.begin().await?;
        let user = Self::spend(&mut tx, link, session.created_at).await?;
        put_password(&mut tx, &user.id, password, None).await?;
        begin(&mut tx, &SessionRecord { user: user.id.clone(), ..session.clone() }).await?;
        tx.commit().await?;
        Ok(user)
    }

    async fn begin_session(&self, session: &SessionRecord) -> Result<(), UserStoreError> {
        let mut tx = self.db.begin().await?;
        Self::lock_known(&mut tx, &session.user).await?;
        begin(&mut tx, session).await?;
        Ok(tx.commit().await?)
    }

    async fn session(
        &self,
        hash: &TokenHash,
        now: Timestamp,
    ) -> Result<Option<(User, SessionRecord)>, UserStoreError> {
        let row: Option<SessionRow> = on!(self.db, pool => {
            sqlx::query_as(SESSION).bind(&hash.as_bytes()[..]).bind(now.micros()).fetch_optional(pool).await
        })
        .map_err(failed)?;
        let Some(row) = row else { return Ok(None) };
        let user = row.user.read()?;
        let session = SessionRecord {
            id: read(&row.session_id, "console_sessions.id is no id")?,
            user: user.id.clone(),
            hash: *hash,
            created_at: Timestamp::from_micros(row.session_created_at),
            expires_at: Timestamp::from_micros(row.expires_at),
        };
        Ok(Some((user, session)))
    }

    async fn end_session(&self, hash: &TokenHash) -> Result<(), UserStoreError> {
        on!(self.db, pool => sqlx::query(END).bind(&hash.as_bytes()[..]).execute(pool).await.map(drop))
            .map_err(failed)
    }

    async fn sign_out_everywhere(&self, user: &UserId) -> Result<(), UserStoreError> {
        let mut tx = self.db.begin().await?;
        Self::lock_known(&mut tx, user).await?;
        on_tx!(tx, c => {
            match sqlx::query(END_OTHERS).bind(user.as_str()).bind("").execute(&mut *c).await {
                Ok(_) => sqlx::query(END_TOKENS).bind(user.as_str()).execute(c).await.map(drop),
                Err(error) => Err(error),
            }
        })
        .map_err(failed)?;
        Self::finish(tx, user).await
    }
}
