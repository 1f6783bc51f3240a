//! The store in SQLite or PostgreSQL.

use async_trait::async_trait;
use cocoonbox_core::machine::{BoxRecord, OperationEvent, Verb, Write};
use cocoonbox_core::{BoxId, OperationId, Timestamp, UserId};
use cocoonbox_db::sqlx;
use cocoonbox_db::{Batch, Db, DbError, Migration, Migrations, Notice, Value, on, on_tx};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    BoxStore, Change, Expect, Hint, Hints, KEY_LIFETIME, KeyedAnswer, Operation, Owned, Revision, StoreError,
    Stored,
};

const CHANNEL: &str = "cocoonbox_boxes";

/// The tables of this crate.
pub const MIGRATIONS: Migrations = Migrations::new(
    "boxes",
    &[
        Migration::new(1, "boxes", include_str!("../../migrations/0001_boxes.sql")),
        Migration::new(2, "agents", include_str!("../../migrations/0002_agents.sql")),
    ],
);

const LOAD: &str = "SELECT record, revision, grant_id FROM boxes
    LEFT JOIN oauth_boxes ON box_id = id WHERE id = $1";
const OWNED: &str = "SELECT box_owners.admissions, boxes.record, boxes.revision, oauth_boxes.grant_id
    FROM (SELECT CAST($1 AS TEXT) AS owner) AS asked
    LEFT JOIN box_owners ON box_owners.owner = asked.owner LEFT JOIN boxes ON boxes.owner = asked.owner
    LEFT JOIN oauth_boxes ON oauth_boxes.box_id = boxes.id
    ORDER BY boxes.created_at, boxes.id";
const PAGE: &str = "SELECT record, revision, grant_id FROM boxes
    LEFT JOIN oauth_boxes ON box_id = id WHERE id > $1 ORDER BY id LIMIT $2";
const INSERT: &str = "INSERT INTO boxes (id, owner, name, created_at, revision, record, agent)
    VALUES ($1, $2, $3, $4, 1, $5, CAST($6 AS BIGINT) <> 0) ON CONFLICT (id) DO NOTHING";
const GRANT: &str = "INSERT INTO oauth_boxes (box_id, grant_id) VALUES ($1, $2)";
const UPDATE: &str =
    "UPDATE boxes SET name = $1, record = $2, revision = revision + 1 WHERE id = $3 AND revision = $4";
const TOUCH: &str = "UPDATE boxes SET revision = revision WHERE id = $1 AND revision = $2";
const TOUCH_ANY: &str = "UPDATE boxes SET revision = revision WHERE id = $1";
const REMOVE: &str = "DELETE FROM boxes WHERE id = $1 AND revision = $2";
const FIRST_ADMISSION: &str =
    "INSERT INTO box_owners (owner, admissions) VALUES ($1, 1) ON CONFLICT (owner) DO NOTHING";
const ADMIT: &str = "UPDATE box_owners SET admissions = admissions + 1 WHERE owner = $1 AND admissions = $2";
const BEGIN: &str =
    "INSERT INTO box_operations (id, box_id, owner, verb, started_at) VALUES ($1, $2, $3, $4, $5)";
const APPEND: &str = "INSERT INTO box_events (operation, sequence, event) VALUES ($1, $2, $3)";
const END: &str = "UPDATE box_operations SET ended_at = $1 WHERE id = $2";
const OPERATION: &str = "SELECT box_id, owner, verb, started_at, event FROM box_operations
    LEFT JOIN box_events ON operation = id AND sequence > $2 WHERE id = $1 ORDER BY sequence";
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
    PAGE,
    INSERT,
    GRANT,
    UPDATE,
    TOUCH,
    TOUCH_ANY,
    REMOVE,
    FIRST_ADMISSION,
    ADMIT,
    BEGIN,
    APPEND,
    END,
    OPERATION,
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

fn stored((record, revision, grant): Row) -> Result<Stored, StoreError> {
    let grant = grant.map(|grant| parsed("grant id", &grant)).transpose()?;
    Ok(Stored::new(from_json::<BoxRecord>("box", &record)?, revision as u64).with_grant(grant))
}

/// A record, its revision and the grant that made it.
type Row = (String, i64, Option<String>);

#[async_trait]
impl BoxStore for SqlStore {
    async fn load(&self, id: &BoxId) -> Result<Option<Stored>, StoreError> {
        let row: Option<Row> =
            on!(self.db, pool => sqlx::query_as(LOAD).bind(id.as_str()).fetch_optional(pool).await)
                .map_err(DbError::from)?;
        row.map(stored).transpose()
    }

    async fn owned(&self, owner: &UserId) -> Result<Owned, StoreError> {
        let rows: Vec<(Option<i64>, Option<String>, Option<i64>, Option<String>)> =
            on!(self.db, pool => sqlx::query_as(OWNED).bind(owner.as_str()).fetch_all(pool).await)
                .map_err(DbError::from)?;
        let admissions = rows.first().and_then(|(admissions, ..)| *admissions).unwrap_or(0);
        // a user without boxes is one row without a box
        let boxes =
            rows.into_iter().filter_map(|(_, record, revision, grant)| Some((record?, revision?, grant)));
        Ok(Owned::new(boxes.map(stored).collect::<Result<_, _>>()?, admissions as u64))
    }

    async fn page(&self, after: Option<&BoxId>, limit: u32) -> Result<Vec<Stored>, StoreError> {
        let after = after.map_or("", BoxId::as_str);
        let rows: Vec<Row> = on!(self.db, pool => {
            sqlx::query_as(PAGE).bind(after).bind(i64::from(limit)).fetch_all(pool).await
        })
        .map_err(DbError::from)?;
        rows.into_iter().map(stored).collect()
    }

    async fn commit(&self, change: Change) -> Result<Revision, StoreError> {
        let Change { box_id, owner, expect, admits, write, grant, operation, events, key } = change;
        let id = box_id.as_str();
        let mut batch = Batch::new();
        // in the batch's order
        let mut promises = Vec::new();

        match (&write, expect) {
            (Write::Put(record), Expect::Absent) => {
                batch.push(
                    INSERT,
                    [
                        id.into(),
                        record.owner.as_str().into(),
                        record.name.as_str().into(),
                        record.created_at.micros().into(),
                        to_json("box", record)?.into(),
                        i64::from(record.agent).into(),
                    ],
                );
                promises.push(Promise::Current);
                if let Some(grant) = grant {
                    batch.push(GRANT, [id.into(), grant.as_str().into()]);
                    promises.push(Promise::None);
                }
            }
            (Write::Put(record), Expect::Revision(revision)) => {
                let json = to_json("box", record)?;
                let name = record.name.as_str();
                batch.push(UPDATE, [name.into(), json.into(), id.into(), (revision as i64).into()]);
                promises.push(Promise::Current);
            }
            (Write::Remove | Write::Keep, Expect::Revision(revision)) => {
                let statement = if write == Write::Remove { REMOVE } else { TOUCH };
                batch.push(statement, [id.into(), (revision as i64).into()]);
                promises.push(Promise::Current);
            }
            (Write::Remove | Write::Keep, Expect::Absent) => {
                batch.push(TOUCH_ANY, [id.into()]);
                promises.push(Promise::Absent);
            }
        }
        if let Some(admissions) = admits {
            let owner = Value::from(owner.as_str());
            match admissions {
                0 => batch.push(FIRST_ADMISSION, [owner]),
                admissions => batch.push(ADMIT, [owner, (admissions as i64).into()]),
            };
            promises.push(Promise::Current);
        }
        if let Some(key) = key {
            let oldest = key.at.micros().saturating_sub(KEY_LIFETIME.as_micros() as i64);
            batch.push(
                REMEMBER,
                [
                    key.owner.as_str().into(),
                    key.key.into(),
                    key.request.into(),
                    key.box_id.as_str().into(),
                    key.operation.as_ref().map(OperationId::as_str).into(),
                    key.at.micros().into(),
                    oldest.into(),
                ],
            );
            promises.push(Promise::KeyFree);
        }
        if let Some(operation) = operation {
            batch.push(
                BEGIN,
                [
                    operation.id.as_str().into(),
                    operation.box_id.as_str().into(),
                    operation.owner.as_str().into(),
                    to_json("verb", &operation.verb)?.into(),
                    operation.started_at.micros().into(),
                ],
            );
            promises.push(Promise::None);
        }
        for event in &events {
            let operation = event.operation.as_str();
            batch.push(
                APPEND,
                [operation.into(), (event.sequence as i64).into(), to_json("event", event)?.into()],
            );
            promises.push(Promise::Next);
            if event.phase.is_last() {
                batch.push(END, [event.at.micros().into(), operation.into()]);
                promises.push(Promise::None);
            }
        }

        let mut tx = self.db.begin().await?;
        let done = tx.run(batch).await;
        let conflict = || StoreError::Conflict { id: box_id.clone() };
        for (promise, rows) in promises.iter().zip(&done.rows) {
            match promise {
                Promise::Current if *rows == 0 => return Err(conflict()),
                Promise::Absent if *rows > 0 => return Err(conflict()),
                Promise::KeyFree if *rows == 0 => return Err(StoreError::KeyTaken),
                _ => {}
            }
        }
        if let Some(error) = done.failed {
            let promise = promises.get(done.rows.len()).unwrap_or(&Promise::None);
            return Err(match (error, promise, &write) {
                (DbError::UniqueViolation { constraint }, Promise::Current, Write::Put(record))
                    if constraint.contains("name") =>
                {
                    StoreError::NameTaken { name: record.name.clone() }
                }
                (DbError::UniqueViolation { .. }, Promise::Next, _) => conflict(),
                (error, ..) => error.into(),
            });
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
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let rows: Vec<(String, String, String, i64, Option<String>)> = on!(self.db, pool => {
            sqlx::query_as(OPERATION).bind(id.as_str()).bind(after).fetch_all(pool).await
        })
        .map_err(DbError::from)?;
        let Some((box_id, owner, verb, started_at, _)) = rows.first() else { return Ok(None) };
        let operation = Operation::new(
            id.clone(),
            parsed("box id", box_id)?,
            parsed("user id", owner)?,
            from_json::<Verb>("verb", verb)?,
            Timestamp::from_micros(*started_at),
        );
        let events = rows.iter().filter_map(|(.., event)| event.as_deref());
        let events = events.map(|event| from_json("event", event)).collect::<Result<_, _>>()?;
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

/// What a statement of a change rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// The row is as it was read: one row is touched.
    Current,
    /// There is no such row: none is touched.
    Absent,
    /// Nobody used the key lately: one row is touched.
    KeyFree,
    /// Nobody else wrote this event: the row's key is free.
    Next,
    /// On nothing.
    None,
}
