//! The store in SQLite or PostgreSQL.

use async_trait::async_trait;
use cocoonbox_core::machine::{BoxRecord, OperationEvent, Verb, Write};
use cocoonbox_core::{BoxId, OperationId, Timestamp, UserId};
use cocoonbox_db::sqlx;
use cocoonbox_db::{Db, DbError, Migration, Migrations, Notice, on, on_tx};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    BoxStore, Change, Expect, Hint, Hints, KEY_LIFETIME, KeyedAnswer, Operation, Owned, Revision, StoreError,
    Stored,
};

const CHANNEL: &str = "cocoonbox_boxes";

/// The tables of this crate.
pub const MIGRATIONS: Migrations =
    Migrations::new("boxes", &[Migration::new(1, "boxes", include_str!("../../migrations/0001_boxes.sql"))]);

const LOAD: &str = "SELECT record, revision FROM boxes WHERE id = $1";
const OWNED: &str = "SELECT record, revision FROM boxes WHERE owner = $1 ORDER BY created_at, id";
const ADMISSIONS: &str = "SELECT admissions FROM box_owners WHERE owner = $1";
const PAGE: &str = "SELECT record, revision FROM boxes WHERE id > $1 ORDER BY id LIMIT $2";
const INSERT: &str =
    "INSERT INTO boxes (id, owner, name, created_at, revision, record) VALUES ($1, $2, $3, $4, 1, $5)
    ON CONFLICT (id) DO NOTHING";
const UPDATE: &str =
    "UPDATE boxes SET name = $1, record = $2, revision = revision + 1 WHERE id = $3 AND revision = $4";
const TOUCH: &str = "UPDATE boxes SET revision = revision WHERE id = $1 AND revision = $2";
const REMOVE: &str = "DELETE FROM boxes WHERE id = $1 AND revision = $2";
const FIRST_ADMISSION: &str =
    "INSERT INTO box_owners (owner, admissions) VALUES ($1, 1) ON CONFLICT (owner) DO NOTHING";
const ADMIT: &str = "UPDATE box_owners SET admissions = admissions + 1 WHERE owner = $1 AND admissions = $2";
const BEGIN: &str =
    "INSERT INTO box_operations (id, box_id, owner, verb, started_at) VALUES ($1, $2, $3, $4, $5)";
const APPEND: &str = "INSERT INTO box_events (operation, sequence, event) VALUES ($1, $2, $3)";
const END: &str = "UPDATE box_operations SET ended_at = $1 WHERE id = $2";
const OPERATION: &str = "SELECT box_id, owner, verb, started_at FROM box_operations WHERE id = $1";
const EVENTS: &str = "SELECT event FROM box_events WHERE operation = $1 AND sequence > $2 ORDER BY sequence";
const REMEMBER: &str =
    "INSERT INTO box_keys (owner, key, request, box_id, operation, at) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (owner, key) DO UPDATE SET request = excluded.request, box_id = excluded.box_id,
    operation = excluded.operation, at = excluded.at WHERE box_keys.at <= $7";
const KEYED: &str =
    "SELECT request, box_id, operation, at FROM box_keys WHERE owner = $1 AND key = $2 AND at > $3";
const PRUNE_EVENTS: &str =
    "DELETE FROM box_events WHERE operation IN (SELECT id FROM box_operations WHERE ended_at < $1)";
const PRUNE_OPERATIONS: &str = "DELETE FROM box_operations WHERE ended_at < $1";
const PRUNE_KEYS: &str = "DELETE FROM box_keys WHERE at < $1";

/// Every statement, for a test that both engines take each.
pub const STATEMENTS: &[&str] = &[
    LOAD,
    OWNED,
    ADMISSIONS,
    PAGE,
    INSERT,
    UPDATE,
    TOUCH,
    REMOVE,
    FIRST_ADMISSION,
    ADMIT,
    BEGIN,
    APPEND,
    END,
    OPERATION,
    EVENTS,
    REMEMBER,
    KEYED,
    PRUNE_EVENTS,
    PRUNE_OPERATIONS,
    PRUNE_KEYS,
];

/// A [`BoxStore`] over [`Db`].
///
/// Hints reach every process on PostgreSQL, and this process alone on SQLite.
#[derive(Clone, Debug)]
pub struct SqlStore {
    db: Db,
}

impl SqlStore {
    /// Brings the tables forward, noting `now` as the time, and answers the store.
    ///
    /// # Errors
    /// What the database says, as [`StoreError::Unavailable`] or [`StoreError::Corrupt`].
    pub async fn open(db: Db, now: Timestamp) -> Result<Self, StoreError> {
        db.migrate(&MIGRATIONS, now).await?;
        Ok(Self { db })
    }
}

impl From<DbError> for StoreError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Corrupt { .. } | DbError::Migration(_) => {
                Self::Corrupt { what: "database", source: Some(Box::new(error)) }
            }
            DbError::Full { .. } => Self::Full { source: Box::new(error) },
            DbError::Interrupted { .. } => Self::Unknown { source: Box::new(error) },
            other => Self::Unavailable { source: Box::new(other) },
        }
    }
}

fn to_json(what: &'static str, value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Corrupt { what, source: Some(Box::new(error)) })
}

fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt { what, source: Some(Box::new(error)) })
}

fn parsed<T>(what: &'static str, text: &str) -> Result<T, StoreError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().map_err(|error: T::Err| StoreError::Corrupt { what, source: Some(Box::new(error)) })
}

fn stored((record, revision): (String, i64)) -> Result<Stored, StoreError> {
    Ok(Stored::new(from_json::<BoxRecord>("box", &record)?, revision as u64))
}

#[async_trait]
impl BoxStore for SqlStore {
    async fn load(&self, id: &BoxId) -> Result<Option<Stored>, StoreError> {
        let row: Option<(String, i64)> =
            on!(self.db, pool => sqlx::query_as(LOAD).bind(id.as_str()).fetch_optional(pool).await)
                .map_err(DbError::from)?;
        row.map(stored).transpose()
    }

    async fn owned(&self, owner: &UserId) -> Result<Owned, StoreError> {
        // the count first: an admission between the two reads then makes the count stale, never the boxes
        let admissions: Option<i64> =
            on!(self.db, pool => sqlx::query_scalar(ADMISSIONS).bind(owner.as_str()).fetch_optional(pool).await)
                .map_err(DbError::from)?;
        let rows: Vec<(String, i64)> =
            on!(self.db, pool => sqlx::query_as(OWNED).bind(owner.as_str()).fetch_all(pool).await)
                .map_err(DbError::from)?;
        let boxes = rows.into_iter().map(stored).collect::<Result<_, _>>()?;
        Ok(Owned::new(boxes, admissions.unwrap_or(0) as u64))
    }

    async fn page(&self, after: Option<&BoxId>, limit: u32) -> Result<Vec<Stored>, StoreError> {
        let after = after.map_or("", BoxId::as_str);
        let rows: Vec<(String, i64)> = on!(self.db, pool => {
            sqlx::query_as(PAGE).bind(after).bind(i64::from(limit)).fetch_all(pool).await
        })
        .map_err(DbError::from)?;
        rows.into_iter().map(stored).collect()
    }

    async fn commit(&self, change: Change) -> Result<Revision, StoreError> {
        let Change { box_id, owner, expect, admits, write, operation, events, key } = change;
        let conflict = || Err(StoreError::Conflict { id: box_id.clone() });
        let id = box_id.as_str();
        let mut tx = self.db.begin().await?;

        let held = match (&write, expect) {
            (Write::Put(record), Expect::Absent) => {
                let json = to_json("box", record)?;
                let done = on_tx!(tx, c => sqlx::query(INSERT)
                    .bind(id).bind(record.owner.as_str()).bind(record.name.as_str())
                    .bind(record.created_at.micros()).bind(json)
                    .execute(c).await.map(|done| done.rows_affected()));
                named(done, record)?
            }
            (Write::Put(record), Expect::Revision(revision)) => {
                let json = to_json("box", record)?;
                let done = on_tx!(tx, c => sqlx::query(UPDATE)
                    .bind(record.name.as_str()).bind(json).bind(id).bind(revision as i64)
                    .execute(c).await.map(|done| done.rows_affected()));
                named(done, record)?
            }
            (Write::Remove | Write::Keep, Expect::Revision(revision)) => {
                let statement = if write == Write::Remove { REMOVE } else { TOUCH };
                on_tx!(tx, c => sqlx::query(statement).bind(id).bind(revision as i64)
                    .execute(c).await.map(|done| done.rows_affected()))
                .map_err(DbError::from)?
            }
            (Write::Remove | Write::Keep, Expect::Absent) => {
                let row: Option<(String, i64)> =
                    on_tx!(tx, c => sqlx::query_as(LOAD).bind(id).fetch_optional(c).await)
                        .map_err(DbError::from)?;
                u64::from(row.is_none())
            }
        };
        if held == 0 {
            return conflict();
        }

        if let Some(admissions) = admits {
            let owner = owner.as_str();
            let counted = on_tx!(tx, c => if admissions == 0 {
                sqlx::query(FIRST_ADMISSION).bind(owner).execute(c).await.map(|done| done.rows_affected())
            } else {
                sqlx::query(ADMIT).bind(owner).bind(admissions as i64)
                    .execute(c).await.map(|done| done.rows_affected())
            })
            .map_err(DbError::from)?;
            if counted == 0 {
                return conflict();
            }
        }

        if let Some(key) = key {
            let oldest = key.at.micros().saturating_sub(KEY_LIFETIME.as_micros() as i64);
            let remembered = on_tx!(tx, c => sqlx::query(REMEMBER)
                .bind(key.owner.as_str()).bind(&key.key).bind(&key.request).bind(key.box_id.as_str())
                .bind(key.operation.as_ref().map(OperationId::as_str)).bind(key.at.micros()).bind(oldest)
                .execute(c).await.map(|done| done.rows_affected()))
            .map_err(DbError::from)?;
            if remembered == 0 {
                return Err(StoreError::KeyTaken);
            }
        }

        if let Some(operation) = operation {
            let verb = to_json("verb", &operation.verb)?;
            on_tx!(tx, c => sqlx::query(BEGIN)
                .bind(operation.id.as_str()).bind(operation.box_id.as_str()).bind(operation.owner.as_str())
                .bind(verb).bind(operation.started_at.micros())
                .execute(c).await.map(drop))
            .map_err(DbError::from)?;
        }

        for event in &events {
            let json = to_json("event", event)?;
            let appended = on_tx!(tx, c => sqlx::query(APPEND)
                .bind(event.operation.as_str()).bind(event.sequence as i64).bind(json)
                .execute(c).await.map(drop))
            .map_err(DbError::from);
            match appended {
                Err(DbError::UniqueViolation { .. }) => return conflict(),
                other => other?,
            }
            if event.phase.is_last() {
                on_tx!(tx, c => sqlx::query(END).bind(event.at.micros()).bind(event.operation.as_str())
                    .execute(c).await.map(drop))
                .map_err(DbError::from)?;
            }
        }

        tx.notify(CHANNEL, id).await?;
        tx.commit().await?;
        Ok(match (write, expect) {
            (Write::Put(_), Expect::Revision(revision)) => revision + 1,
            (Write::Put(_), Expect::Absent) => 1,
            (Write::Keep, Expect::Revision(revision)) => revision,
            (Write::Remove, _) | (Write::Keep, Expect::Absent) => 0,
        })
    }

    async fn operation(
        &self,
        id: &OperationId,
        after: u64,
    ) -> Result<Option<(Operation, Vec<OperationEvent>)>, StoreError> {
        let row: Option<(String, String, String, i64)> =
            on!(self.db, pool => sqlx::query_as(OPERATION).bind(id.as_str()).fetch_optional(pool).await)
                .map_err(DbError::from)?;
        let Some((box_id, owner, verb, started_at)) = row else { return Ok(None) };
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let rows: Vec<String> = on!(self.db, pool => {
            sqlx::query_scalar(EVENTS).bind(id.as_str()).bind(after).fetch_all(pool).await
        })
        .map_err(DbError::from)?;
        let operation = Operation::new(
            id.clone(),
            parsed("box id", &box_id)?,
            parsed("user id", &owner)?,
            from_json::<Verb>("verb", &verb)?,
            Timestamp::from_micros(started_at),
        );
        let events = rows.iter().map(|row| from_json("event", row)).collect::<Result<_, _>>()?;
        Ok(Some((operation, events)))
    }

    async fn keyed(
        &self,
        owner: &UserId,
        key: &str,
        since: Timestamp,
    ) -> Result<Option<KeyedAnswer>, StoreError> {
        let row: Option<(String, String, Option<String>, i64)> = on!(self.db, pool => {
            sqlx::query_as(KEYED).bind(owner.as_str()).bind(key).bind(since.micros()).fetch_optional(pool).await
        })
        .map_err(DbError::from)?;
        let Some((request, box_id, operation, at)) = row else { return Ok(None) };
        Ok(Some(KeyedAnswer::new(
            owner.clone(),
            key.to_owned(),
            request,
            parsed("box id", &box_id)?,
            operation.map(|text| parsed("operation id", &text)).transpose()?,
            Timestamp::from_micros(at),
        )))
    }

    async fn prune(&self, before: Timestamp) -> Result<u64, StoreError> {
        let before = before.micros();
        let mut tx = self.db.begin().await?;
        let pruned = on_tx!(tx, c => async {
            sqlx::query(PRUNE_EVENTS).bind(before).execute(&mut *c).await?;
            let operations = sqlx::query(PRUNE_OPERATIONS).bind(before).execute(&mut *c).await?.rows_affected();
            let keys = sqlx::query(PRUNE_KEYS).bind(before).execute(c).await?.rows_affected();
            Ok::<u64, sqlx::Error>(operations + keys)
        }.await).map_err(DbError::from)?;
        tx.commit().await?;
        Ok(pruned)
    }

    async fn hints(&self) -> Result<Hints, StoreError> {
        let listener = self.db.listen(CHANNEL).await?;
        Ok(Box::pin(futures::stream::unfold(listener, |mut listener| async move {
            let hint = match listener.next().await {
                Notice::Changed { payload } => payload.parse().map_or(Hint::All, Hint::Box),
                _ => Hint::All,
            };
            Some((hint, listener))
        })))
    }
}

/// Tells a name that is taken from other failures.
fn named(done: Result<u64, sqlx::Error>, record: &BoxRecord) -> Result<u64, StoreError> {
    match done.map_err(DbError::from) {
        Err(DbError::UniqueViolation { constraint }) if constraint.contains("name") => {
            Err(StoreError::NameTaken { name: record.name.clone() })
        }
        other => Ok(other?),
    }
}
