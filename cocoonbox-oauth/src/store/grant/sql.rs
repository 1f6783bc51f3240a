use std::collections::{HashMap, VecDeque};

use async_trait::async_trait;
use cocoonbox_core::{GrantId, Timestamp, UserId};
use cocoonbox_db::{Listener, Notice, Tx, on, on_tx};
use serde::{Deserialize, Serialize};

use super::{
    CodeRecord, GrantChange, GrantChanges, GrantStore, LivingGrant, Promise, SPENT_FOR, Spent, Which,
};
use crate::grant::ENDED_FOR;
use crate::store::sql::{UserRow, failed, read};
use crate::{AccessRecord, GRANTS_MAX, GrantRecord, PAGE_MAX, SqlUserStore, TokenHash, User, UserStoreError};

/// The channel on which changes of grants are told.
pub const GRANT_CHANNEL: &str = "cocoonbox_grants";

const DROP_CODES: &str = "DELETE FROM oauth_codes WHERE expires_at <= $1";
const PUT_CODE: &str = "INSERT INTO oauth_codes \
     (hash, client, user_id, redirect_uri, challenge, promise, spent, expires_at) \
     VALUES ($1, $2, $3, $4, $5, $6, FALSE, $7)";
const SPEND_CODE: &str = "UPDATE oauth_codes SET spent = TRUE WHERE hash = $1 AND NOT spent AND expires_at > $2 \
     RETURNING client, user_id, redirect_uri, challenge, promise, expires_at";
const SPENT_CODE: &str = "SELECT client, user_id, redirect_uri, challenge, promise, expires_at \
     FROM oauth_codes WHERE hash = $1 AND spent";
const DROP_GRANTS: &str =
    "DELETE FROM oauth_grants WHERE user_id = $1 AND (expires_at <= $2 OR ended_at <= $2)";
const COUNT_GRANTS: &str =
    "SELECT COUNT(*) FROM oauth_grants WHERE user_id = $1 AND ended_at IS NULL AND expires_at > $2";
const BEGIN_GRANT: &str = "INSERT INTO oauth_grants (id, user_id, client, client_name, client_host, resource, \
     max_boxes, max_running, approved_at, expires_at, seen, generation) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
const GRANT: &str = "SELECT g.id AS grant_id, g.client, g.client_name, g.client_host, g.resource, g.max_boxes, \
     g.max_running, g.approved_at, g.expires_at, g.used_at, g.seen, g.generation, g.ended_at, \
     u.id, u.name, u.admin, u.disabled, u.created_at, u.revision, u.max_agent_boxes \
     FROM oauth_grants g JOIN users u ON u.id = g.user_id WHERE g.id = $1";
const LIVING: &str = "SELECT g.id AS grant_id, g.client, g.client_name, g.client_host, g.resource, g.max_boxes, \
     g.max_running, g.approved_at, g.expires_at, g.used_at, g.seen, g.generation, g.ended_at, \
     u.id, u.name, u.admin, u.disabled, u.created_at, u.revision, u.max_agent_boxes \
     FROM oauth_grants g JOIN users u ON u.id = g.user_id \
     WHERE g.id > $1 AND g.ended_at IS NULL AND g.expires_at > $2 AND (g.id = $3 OR g.user_id = $4 OR $5) \
     ORDER BY g.id LIMIT $6";
const LIVING_ACCESS: &str = "SELECT t.hash, t.grant_id, t.generation, t.expires_at FROM oauth_tokens t \
     JOIN oauth_grants g ON g.id = t.grant_id \
     WHERE t.grant_id >= $1 AND t.grant_id <= $2 AND t.expires_at > $3 AND (g.id = $4 OR g.user_id = $5 OR $6) \
     ORDER BY t.generation";
const PUT_ACCESS: &str =
    "INSERT INTO oauth_tokens (hash, grant_id, generation, expires_at) VALUES ($1, $2, $3, $4)";
const END_GRANT: &str =
    "UPDATE oauth_grants SET ended_at = $1 WHERE id = $2 AND ended_at IS NULL AND expires_at > $1";
const END_GRANT_OF: &str = "UPDATE oauth_grants SET ended_at = $1 WHERE id = $2 AND user_id = $3 \
     AND ended_at IS NULL AND expires_at > $1";
const END_GRANTS: &str = "UPDATE oauth_grants SET ended_at = $1 WHERE user_id = $2 AND ended_at IS NULL \
     AND expires_at > $1 RETURNING id";
const END_ACCESS: &str = "DELETE FROM oauth_tokens WHERE grant_id = $1";
const SEE: &str = "UPDATE oauth_grants SET seen = TRUE WHERE user_id = $1 AND NOT seen";
const TOUCH: &str =
    "UPDATE oauth_grants SET used_at = $1 WHERE id = $2 AND (used_at IS NULL OR used_at < $1)";

#[cfg(test)]
pub(in crate::store) const STATEMENTS: &[&str] = &[
    DROP_CODES,
    PUT_CODE,
    SPEND_CODE,
    SPENT_CODE,
    DROP_GRANTS,
    COUNT_GRANTS,
    BEGIN_GRANT,
    GRANT,
    LIVING,
    LIVING_ACCESS,
    PUT_ACCESS,
    END_GRANT,
    END_GRANT_OF,
    END_GRANTS,
    END_ACCESS,
    SEE,
    TOUCH,
];

/// A promise as it is stored: JSON, of which the code's row holds the user.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum StoredPromise {
    Device {
        token: String,
        label: String,
    },
    Grant {
        grant: String,
        client_name: String,
        client_host: Option<String>,
        resource: String,
        max_boxes: u32,
        max_running: u32,
        approved_at: i64,
        expires_at: i64,
    },
}

#[derive(sqlx::FromRow)]
struct CodeRow {
    client: String,
    user_id: String,
    redirect_uri: String,
    challenge: String,
    promise: String,
    expires_at: i64,
}

#[derive(sqlx::FromRow)]
struct GrantRow {
    grant_id: String,
    client: String,
    client_name: String,
    client_host: Option<String>,
    resource: String,
    max_boxes: i64,
    max_running: i64,
    approved_at: i64,
    expires_at: i64,
    used_at: Option<i64>,
    seen: bool,
    generation: i64,
    ended_at: Option<i64>,
    #[sqlx(flatten)]
    user: UserRow,
}

#[derive(sqlx::FromRow)]
struct AccessRow {
    hash: Vec<u8>,
    grant_id: String,
    generation: i64,
    expires_at: i64,
}

const fn broken(reason: &'static str) -> UserStoreError {
    UserStoreError::Broken { reason, source: None }
}

fn store_promise(promise: &Promise) -> Result<String, UserStoreError> {
    let stored = match promise {
        Promise::Device { token, label } => {
            StoredPromise::Device { token: token.to_string(), label: label.to_string() }
        }
        Promise::Grant(grant) => StoredPromise::Grant {
            grant: grant.id.to_string(),
            client_name: grant.client_name.clone(),
            client_host: grant.client_host.clone(),
            resource: grant.resource.clone(),
            max_boxes: grant.max_boxes,
            max_running: grant.max_running,
            approved_at: grant.approved_at.micros(),
            expires_at: grant.expires_at.micros(),
        },
    };
    serde_json::to_string(&stored).map_err(|_| broken("a promise cannot be written"))
}

impl CodeRow {
    fn read(self, hash: &TokenHash) -> Result<CodeRecord, UserStoreError> {
        const REASON: &str = "oauth_codes.promise is no promise";
        let user: UserId = read(&self.user_id, "oauth_codes.user_id is no id")?;
        let client = read(&self.client, "oauth_codes.client is no client")?;
        let stored = serde_json::from_str(&self.promise).map_err(|_| broken(REASON))?;
        let promise = match stored {
            StoredPromise::Device { token, label } => {
                Promise::Device { token: read(&token, REASON)?, label: read(&label, REASON)? }
            }
            StoredPromise::Grant {
                grant,
                client_name,
                client_host,
                resource,
                max_boxes,
                max_running,
                approved_at,
                expires_at,
            } => Promise::Grant(Box::new(GrantRecord {
                id: read(&grant, REASON)?,
                user: user.clone(),
                client: read(&self.client, "oauth_codes.client is no client")?,
                client_name,
                client_host,
                resource,
                max_boxes,
                max_running,
                approved_at: Timestamp::from_micros(approved_at),
                expires_at: Timestamp::from_micros(expires_at),
                used_at: None,
                seen: false,
                generation: 1,
                ended_at: None,
            })),
        };
        Ok(CodeRecord {
            hash: *hash,
            client,
            user,
            redirect_uri: self.redirect_uri,
            challenge: self.challenge,
            promise,
            expires_at: Timestamp::from_micros(self.expires_at),
        })
    }
}

impl GrantRow {
    fn read(self) -> Result<(User, GrantRecord), UserStoreError> {
        let user = self.user.read()?;
        let count = |value: i64| u32::try_from(value).map_err(|_| broken("a grant's cap is no count"));
        let grant = GrantRecord {
            id: read(&self.grant_id, "oauth_grants.id is no id")?,
            user: user.id.clone(),
            client: read(&self.client, "oauth_grants.client is no client")?,
            client_name: self.client_name,
            client_host: self.client_host,
            resource: self.resource,
            max_boxes: count(self.max_boxes)?,
            max_running: count(self.max_running)?,
            approved_at: Timestamp::from_micros(self.approved_at),
            expires_at: Timestamp::from_micros(self.expires_at),
            used_at: self.used_at.map(Timestamp::from_micros),
            seen: self.seen,
            generation: self.generation,
            ended_at: self.ended_at.map(Timestamp::from_micros),
        };
        Ok((user, grant))
    }
}

impl AccessRow {
    fn read(self) -> Result<AccessRecord, UserStoreError> {
        Ok(AccessRecord {
            grant: read(&self.grant_id, "oauth_tokens.grant_id is no id")?,
            generation: self.generation,
            hash: TokenHash::from_bytes(&self.hash).ok_or(broken("oauth_tokens.hash is no hash"))?,
            expires_at: Timestamp::from_micros(self.expires_at),
        })
    }
}

async fn put_access(tx: &mut Tx, access: &AccessRecord) -> Result<(), UserStoreError> {
    on_tx!(tx, c => {
        sqlx::query(PUT_ACCESS)
            .bind(&access.hash.as_bytes()[..])
            .bind(access.grant.as_str())
            .bind(access.generation)
            .bind(access.expires_at.micros())
            .execute(c)
            .await
            .map(drop)
    })
    .map_err(failed)
}

async fn finish(mut tx: Tx, id: &GrantId) -> Result<(), UserStoreError> {
    tx.notify(GRANT_CHANNEL, id.as_str()).await?;
    Ok(tx.commit().await?)
}

/// Returns a time `span` before `at`.
fn before(at: Timestamp, span: std::time::Duration) -> i64 {
    at.micros().saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX))
}

#[async_trait]
impl GrantStore for SqlUserStore {
    async fn put_code(&self, code: &CodeRecord, now: Timestamp) -> Result<(), UserStoreError> {
        let promise = store_promise(&code.promise)?;
        let mut tx = self.db.begin().await?;
        Self::lock_known(&mut tx, &code.user).await?;
        on_tx!(tx, c => sqlx::query(DROP_CODES).bind(before(now, SPENT_FOR)).execute(c).await.map(drop))
            .map_err(failed)?;
        on_tx!(tx, c => {
            sqlx::query(PUT_CODE)
                .bind(&code.hash.as_bytes()[..])
                .bind(code.client.as_str())
                .bind(code.user.as_str())
                .bind(&code.redirect_uri)
                .bind(&code.challenge)
                .bind(&promise)
                .bind(code.expires_at.micros())
                .execute(c)
                .await
                .map(drop)
        })
        .map_err(failed)?;
        Ok(tx.commit().await?)
    }

    async fn spend_code(&self, hash: &TokenHash, now: Timestamp) -> Result<Spent, UserStoreError> {
        let key = &hash.as_bytes()[..];
        let row: Option<CodeRow> = on!(self.db, pool => {
            sqlx::query_as(SPEND_CODE).bind(key).bind(now.micros()).fetch_optional(pool).await
        })
        .map_err(failed)?;
        if let Some(row) = row {
            return Ok(Spent::First(Box::new(row.read(hash)?)));
        }
        let row: Option<CodeRow> =
            on!(self.db, pool => sqlx::query_as(SPENT_CODE).bind(key).fetch_optional(pool).await)
                .map_err(failed)?;
        Ok(match row {
            Some(row) => Spent::Again(Box::new(row.read(hash)?)),
            None => Spent::Unknown,
        })
    }

    async fn begin_grant(
        &self,
        grant: &GrantRecord,
        access: &AccessRecord,
        now: Timestamp,
    ) -> Result<(), UserStoreError> {
        let user = grant.user.as_str();
        let mut tx = self.db.begin().await?;
        if Self::lock_known(&mut tx, &grant.user).await?.disabled {
            return Err(UserStoreError::NoUser { id: grant.user.clone() });
        }
        let standing: i64 = on_tx!(tx, c => {
            match sqlx::query(DROP_GRANTS).bind(user).bind(before(now, ENDED_FOR)).execute(&mut *c).await {
                Ok(_) => sqlx::query_scalar(COUNT_GRANTS).bind(user).bind(now.micros()).fetch_one(c).await,
                Err(error) => Err(error),
            }
        })
        .map_err(failed)?;
        if standing >= GRANTS_MAX as i64 {
            return Err(UserStoreError::TooMany { what: "agents", limit: GRANTS_MAX });
        }
        on_tx!(tx, c => {
            sqlx::query(BEGIN_GRANT)
                .bind(grant.id.as_str())
                .bind(user)
                .bind(grant.client.as_str())
                .bind(&grant.client_name)
                .bind(grant.client_host.as_deref())
                .bind(&grant.resource)
                .bind(i64::from(grant.max_boxes))
                .bind(i64::from(grant.max_running))
                .bind(grant.approved_at.micros())
                .bind(grant.expires_at.micros())
                .bind(grant.seen)
                .bind(grant.generation)
                .execute(c)
                .await
                .map(drop)
        })
        .map_err(failed)?;
        put_access(&mut tx, access).await?;
        finish(tx, &grant.id).await
    }

    async fn grant(&self, id: &GrantId) -> Result<Option<(User, GrantRecord)>, UserStoreError> {
        let row: Option<GrantRow> =
            on!(self.db, pool => sqlx::query_as(GRANT).bind(id.as_str()).fetch_optional(pool).await)
                .map_err(failed)?;
        row.map(GrantRow::read).transpose()
    }

    async fn put_access(&self, access: &AccessRecord, now: Timestamp) -> Result<bool, UserStoreError> {
        self.move_grant(access, now).await
    }

    async fn end_grant(
        &self,
        id: &GrantId,
        of: Option<&UserId>,
        now: Timestamp,
    ) -> Result<bool, UserStoreError> {
        let mut tx = self.db.begin().await?;
        let ended = on_tx!(tx, c => match of {
            Some(of) => {
                sqlx::query(END_GRANT_OF).bind(now.micros()).bind(id.as_str()).bind(of.as_str())
                    .execute(c).await.map(|done| done.rows_affected())
            }
            None => {
                sqlx::query(END_GRANT).bind(now.micros()).bind(id.as_str())
                    .execute(c).await.map(|done| done.rows_affected())
            }
        })
        .map_err(failed)?;
        if ended == 0 {
            return Ok(false);
        }
        on_tx!(tx, c => sqlx::query(END_ACCESS).bind(id.as_str()).execute(c).await.map(drop))
            .map_err(failed)?;
        finish(tx, id).await?;
        Ok(true)
    }

    async fn end_grants(&self, of: &UserId, now: Timestamp) -> Result<(), UserStoreError> {
        let mut tx = self.db.begin().await?;
        let ended: Vec<String> = on_tx!(tx, c => {
            sqlx::query_scalar(END_GRANTS).bind(now.micros()).bind(of.as_str()).fetch_all(c).await
        })
        .map_err(failed)?;
        for id in &ended {
            on_tx!(tx, c => sqlx::query(END_ACCESS).bind(id).execute(c).await.map(drop)).map_err(failed)?;
            tx.notify(GRANT_CHANNEL, id).await?;
        }
        Ok(tx.commit().await?)
    }

    async fn living(
        &self,
        which: Which<'_>,
        after: Option<&GrantId>,
        now: Timestamp,
    ) -> Result<Vec<LivingGrant>, UserStoreError> {
        let (one, of, all) = match which {
            Which::All => ("", "", true),
            Which::Of(user) => ("", user.as_str(), false),
            Which::One(id) => (id.as_str(), "", false),
        };
        let (after, now) = (after.map_or("", |after| after.as_str()), now.micros());
        let rows: Vec<GrantRow> = on!(self.db, pool => {
            sqlx::query_as(LIVING).bind(after).bind(now).bind(one).bind(of).bind(all).bind(PAGE_MAX as i64)
                .fetch_all(pool).await
        })
        .map_err(failed)?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(Vec::new()) };
        let access: Vec<AccessRow> = on!(self.db, pool => {
            sqlx::query_as(LIVING_ACCESS).bind(&first.grant_id).bind(&last.grant_id).bind(now)
                .bind(one).bind(of).bind(all).fetch_all(pool).await
        })
        .map_err(failed)?;
        let mut tokens: HashMap<GrantId, Vec<AccessRecord>> = HashMap::new();
        for row in access {
            let access = row.read()?;
            tokens.entry(access.grant.clone()).or_default().push(access);
        }
        rows.into_iter()
            .map(|row| {
                let (user, grant) = row.read()?;
                let access = tokens.remove(&grant.id).unwrap_or_default();
                Ok(LivingGrant { user, grant, access })
            })
            .collect()
    }

    async fn see_grants(&self, of: &UserId) -> Result<(), UserStoreError> {
        on!(self.db, pool => sqlx::query(SEE).bind(of.as_str()).execute(pool).await.map(drop)).map_err(failed)
    }

    async fn touch_grants(&self, used: &[(GrantId, Timestamp)]) -> Result<(), UserStoreError> {
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

    async fn grant_changes(&self) -> Result<Box<dyn GrantChanges>, UserStoreError> {
        Ok(Box::new(SqlGrantChanges(self.db.listen(GRANT_CHANNEL).await?, VecDeque::new())))
    }
}

/// Hears of changes; of moves that were told together one after the other.
#[derive(Debug)]
struct SqlGrantChanges(Listener, VecDeque<GrantChange>);

#[async_trait]
impl GrantChanges for SqlGrantChanges {
    async fn next(&mut self) -> Option<GrantChange> {
        if let Some(change) = self.1.pop_front() {
            return Some(change);
        }
        let Notice::Changed { payload } = self.0.next().await else { return None };
        for told in payload.split(',') {
            let (grant, generation) = told.split_once(' ').unwrap_or((told, ""));
            // what cannot be read is as if anything had changed
            let change = GrantChange { grant: grant.parse().ok()?, generation: generation.parse().ok() };
            self.1.push_back(change);
        }
        self.1.pop_front()
    }
}
