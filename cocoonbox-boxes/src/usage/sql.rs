//! The ledger in SQLite or PostgreSQL.

use async_trait::async_trait;
use cocoonbox_core::{Timestamp, UserId};
use cocoonbox_db::sqlx;
use cocoonbox_db::{Db, DbError, Migration, Migrations, on};

use super::{Day, ModelCall, Spent, UsageStore};
use crate::store::StoreError;

/// The tables of the ledger.
pub const MIGRATIONS: Migrations =
    Migrations::new("usage", &[Migration::new(1, "usage", include_str!("../../migrations/0001_usage.sql"))]);

const RECORD: &str = "INSERT INTO model_usage
    (user_id, day, model, calls, input_tokens, output_tokens, cost_micros) VALUES ($1, $2, $3, 1, $4, $5, $6)
    ON CONFLICT (user_id, day, model) DO UPDATE SET calls = model_usage.calls + 1,
    input_tokens = model_usage.input_tokens + excluded.input_tokens,
    output_tokens = model_usage.output_tokens + excluded.output_tokens,
    cost_micros = model_usage.cost_micros + excluded.cost_micros";
const SPENT: &str = "SELECT CAST(COALESCE(SUM(calls), 0) AS BIGINT),
    CAST(COALESCE(SUM(input_tokens), 0) AS BIGINT), CAST(COALESCE(SUM(output_tokens), 0) AS BIGINT),
    CAST(COALESCE(SUM(cost_micros), 0) AS BIGINT)
    FROM model_usage WHERE user_id = $1 AND day >= $2 AND day <= $3";
const CAP: &str = "SELECT daily_micros FROM model_caps WHERE user_id = $1";
const PUT_CAP: &str = "INSERT INTO model_caps (user_id, daily_micros) VALUES ($1, $2)
    ON CONFLICT (user_id) DO UPDATE SET daily_micros = excluded.daily_micros";
const TAKE_CAP: &str = "DELETE FROM model_caps WHERE user_id = $1";

/// Every statement, for a test that both engines take each.
pub const STATEMENTS: &[&str] = &[RECORD, SPENT, CAP, PUT_CAP, TAKE_CAP];

/// A [`UsageStore`] over [`Db`].
#[derive(Clone, Debug)]
pub struct SqlUsageStore {
    db: Db,
}

impl SqlUsageStore {
    /// Brings the tables forward, noting `now` as the time, and answers the store.
    ///
    /// # Errors
    /// What the database says, as [`StoreError::Unavailable`] or [`StoreError::Corrupt`].
    pub async fn open(db: Db, now: Timestamp) -> Result<Self, StoreError> {
        db.migrate(&MIGRATIONS, now).await?;
        Ok(Self { db })
    }
}

/// What a column can hold of a count.
fn column(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn count(column: i64) -> u64 {
    u64::try_from(column).unwrap_or(0)
}

#[async_trait]
impl UsageStore for SqlUsageStore {
    async fn record(&self, call: &ModelCall) -> Result<(), StoreError> {
        on!(self.db, pool => sqlx::query(RECORD)
            .bind(call.user.as_str())
            .bind(Day::of(call.at).number())
            .bind(call.model.as_str())
            .bind(column(call.input_tokens))
            .bind(column(call.output_tokens))
            .bind(column(call.cost_micros))
            .execute(pool).await.map(drop))
        .map_err(DbError::from)?;
        Ok(())
    }

    async fn spent(&self, user: &UserId, first: Day, last: Day) -> Result<Spent, StoreError> {
        let (calls, input, output, cost): (i64, i64, i64, i64) = on!(self.db, pool => {
            sqlx::query_as(SPENT).bind(user.as_str()).bind(first.number()).bind(last.number()).fetch_one(pool).await
        })
        .map_err(DbError::from)?;
        Ok(Spent {
            calls: count(calls),
            input_tokens: count(input),
            output_tokens: count(output),
            cost_micros: count(cost),
        })
    }

    async fn cap(&self, user: &UserId) -> Result<Option<u64>, StoreError> {
        let cap: Option<(i64,)> =
            on!(self.db, pool => sqlx::query_as(CAP).bind(user.as_str()).fetch_optional(pool).await)
                .map_err(DbError::from)?;
        Ok(cap.map(|(cap,)| count(cap)))
    }

    async fn put_cap(&self, user: &UserId, daily_micros: Option<u64>) -> Result<(), StoreError> {
        on!(self.db, pool => match daily_micros {
            Some(cap) => sqlx::query(PUT_CAP).bind(user.as_str()).bind(column(cap)).execute(pool).await.map(drop),
            None => sqlx::query(TAKE_CAP).bind(user.as_str()).execute(pool).await.map(drop),
        })
        .map_err(DbError::from)?;
        Ok(())
    }
}
