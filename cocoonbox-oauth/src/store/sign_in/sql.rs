use async_trait::async_trait;
use cocoonbox_core::{SignInId, Timestamp, UserId};
use cocoonbox_db::{on, on_tx};

use super::{Door, SIGN_INS_FOR, SIGN_INS_MAX, SignInRecord, SignInStore};
use crate::store::page;
use crate::store::sql::{failed, read};
use crate::{SqlUserStore, UserStoreError};

const DROP_OLD: &str = "DELETE FROM sign_ins WHERE at <= $1";
const DROP_OLDEST: &str = "DELETE FROM sign_ins WHERE id IN \
     (SELECT id FROM sign_ins WHERE user_id = $1 ORDER BY at DESC, id DESC LIMIT 1000 OFFSET $2)";
const DROP_OLDEST_OF_NOBODY: &str = "DELETE FROM sign_ins WHERE id IN \
     (SELECT id FROM sign_ins WHERE user_id IS NULL ORDER BY at DESC, id DESC LIMIT 1000 OFFSET $1)";
const REMEMBER: &str = "INSERT INTO sign_ins (id, user_id, at, door, let_in, from_address, what) \
     VALUES ($1, $2, $3, $4, $5, $6, $7)";
const ALL: &str = "SELECT id, user_id, at, door, let_in, from_address, what FROM sign_ins \
     WHERE at < $1 OR (at = $1 AND id < $2) ORDER BY at DESC, id DESC LIMIT $3";
const OF: &str = "SELECT id, user_id, at, door, let_in, from_address, what FROM sign_ins \
     WHERE user_id = $4 AND (at < $1 OR (at = $1 AND id < $2)) ORDER BY at DESC, id DESC LIMIT $3";

#[cfg(test)]
pub(in crate::store) const STATEMENTS: &[&str] =
    &[DROP_OLD, DROP_OLDEST, DROP_OLDEST_OF_NOBODY, REMEMBER, ALL, OF];

#[derive(sqlx::FromRow)]
struct SignInRow {
    id: String,
    user_id: Option<String>,
    at: i64,
    door: String,
    let_in: bool,
    from_address: Option<String>,
    what: String,
}

impl SignInRow {
    fn read(self) -> Result<SignInRecord, UserStoreError> {
        let door = Door::ALL.into_iter().find(|door| door.as_str() == self.door);
        let broken = || UserStoreError::Broken { reason: "sign_ins.door is no door", source: None };
        Ok(SignInRecord {
            id: read(&self.id, "sign_ins.id is no id")?,
            user: self.user_id.map(|id| read(&id, "sign_ins.user_id is no id")).transpose()?,
            at: Timestamp::from_micros(self.at),
            door: door.ok_or_else(broken)?,
            let_in: self.let_in,
            from: self
                .from_address
                .map(|from| read(&from, "sign_ins.from_address is no address"))
                .transpose()?,
            what: self.what,
        })
    }
}

#[async_trait]
impl SignInStore for SqlUserStore {
    async fn remember_sign_in(&self, sign_in: &SignInRecord) -> Result<(), UserStoreError> {
        let kept_for = i64::try_from(SIGN_INS_FOR.as_micros()).unwrap_or(i64::MAX);
        let room = SIGN_INS_MAX as i64 - 1;
        let mut tx = self.db.begin().await?;
        if let Some(user) = &sign_in.user {
            Self::lock_known(&mut tx, user).await?;
        }
        on_tx!(tx, c => {
            let old = sqlx::query(DROP_OLD).bind(sign_in.at.micros().saturating_sub(kept_for));
            match (old.execute(&mut *c).await, &sign_in.user) {
                (Err(error), _) => Err(error),
                (Ok(_), Some(user)) => {
                    sqlx::query(DROP_OLDEST).bind(user.as_str()).bind(room).execute(c).await.map(drop)
                }
                (Ok(_), None) => sqlx::query(DROP_OLDEST_OF_NOBODY).bind(room).execute(c).await.map(drop),
            }
        })
        .map_err(failed)?;
        on_tx!(tx, c => {
            sqlx::query(REMEMBER)
                .bind(sign_in.id.as_str())
                .bind(sign_in.user.as_ref().map(UserId::as_str))
                .bind(sign_in.at.micros())
                .bind(sign_in.door.as_str())
                .bind(sign_in.let_in)
                .bind(sign_in.from.map(|from| from.to_string()))
                .bind(&sign_in.what)
                .execute(c)
                .await
                .map(drop)
        })
        .map_err(failed)?;
        Ok(tx.commit().await?)
    }

    async fn sign_ins(
        &self,
        of: Option<&UserId>,
        before: Option<(Timestamp, &SignInId)>,
        limit: usize,
    ) -> Result<Vec<SignInRecord>, UserStoreError> {
        let (at, id) = before.map_or((i64::MAX, ""), |(at, id)| (at.micros(), id.as_str()));
        let limit = page(limit) as i64;
        let rows: Vec<SignInRow> = match of {
            None => on!(self.db, pool => {
                sqlx::query_as(ALL).bind(at).bind(id).bind(limit).fetch_all(pool).await
            }),
            Some(user) => on!(self.db, pool => {
                sqlx::query_as(OF).bind(at).bind(id).bind(limit).bind(user.as_str()).fetch_all(pool).await
            }),
        }
        .map_err(failed)?;
        rows.into_iter().map(SignInRow::read).collect()
    }
}
