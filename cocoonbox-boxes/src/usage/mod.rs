//! What model calls cost: a ledger by user, day and model.

mod memory;
#[cfg(feature = "sql")]
mod sql;

use std::fmt;

use async_trait::async_trait;
use chrono::{DateTime, Datelike as _, Days, Utc};
use cocoonbox_core::{Timestamp, UserId};

pub use memory::MemoryUsageStore;
#[cfg(feature = "sql")]
pub use sql::{MIGRATIONS, STATEMENTS, SqlUsageStore};

use crate::store::StoreError;

const DAY_MICROS: i64 = 86_400_000_000;

/// A day, from midnight to midnight UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(i64);

impl Day {
    /// Returns the day that `at` lies in.
    pub const fn of(at: Timestamp) -> Self {
        Self(at.micros().div_euclid(DAY_MICROS))
    }

    /// Returns the first day of its month.
    pub fn first_of_month(self) -> Self {
        let date = DateTime::<Utc>::from_timestamp_micros(self.0.saturating_mul(DAY_MICROS));
        let before = date.map_or(0, |date| date.day0());
        // a date that a calendar knows has its month's first day in it
        let first = date.and_then(|date| date.checked_sub_days(Days::new(before.into())));
        first.map_or(self, |first| Self::of(Timestamp::from_micros(first.timestamp_micros())))
    }

    /// Returns how many days after the first of 1970 it is.
    pub const fn number(self) -> i64 {
        self.0
    }
}

/// One call of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a row of the ledger, built by whoever meters calls")]
pub struct ModelCall {
    /// Who pays.
    pub user: UserId,
    /// Which model, by the name that its price is listed under.
    pub model: String,
    /// Tokens that it read.
    pub input_tokens: u64,
    /// Tokens that it wrote.
    pub output_tokens: u64,
    /// What it cost, in millionths of a dollar.
    pub cost_micros: u64,
    /// When.
    pub at: Timestamp,
}

/// What calls come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "four sums")]
pub struct Spent {
    /// How many there were.
    pub calls: u64,
    /// Tokens that models read.
    pub input_tokens: u64,
    /// Tokens that models wrote.
    pub output_tokens: u64,
    /// What they cost, in millionths of a dollar.
    pub cost_micros: u64,
}

impl Spent {
    /// Adds one call.
    pub const fn with(self, call: &ModelCall) -> Self {
        self.and(Self {
            calls: 1,
            input_tokens: call.input_tokens,
            output_tokens: call.output_tokens,
            cost_micros: call.cost_micros,
        })
    }

    const fn and(self, more: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(more.calls),
            input_tokens: self.input_tokens.saturating_add(more.input_tokens),
            output_tokens: self.output_tokens.saturating_add(more.output_tokens),
            cost_micros: self.cost_micros.saturating_add(more.cost_micros),
        }
    }
}

/// What a user's model calls come to, and may come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelUsage {
    /// Since midnight UTC.
    pub today: Spent,
    /// Since the first of the month, UTC.
    pub month: Spent,
    /// What a day's calls may cost, in millionths of a dollar; 0 is no cap.
    pub daily_cap_micros: u64,
    /// Whether the cap is the one for everybody, rather than the user's own.
    pub default_cap: bool,
}

impl ModelUsage {
    /// Reads a user's account at `now`; `default_cap` holds for those without a cap of their own.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn read(
        store: &dyn UsageStore,
        user: &UserId,
        default_cap: u64,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let today = Day::of(now);
        let own = store.cap(user).await?;
        Ok(Self {
            today: store.spent(user, today, today).await?,
            month: store.spent(user, today.first_of_month(), today).await?,
            daily_cap_micros: own.unwrap_or(default_cap),
            default_cap: own.is_none(),
        })
    }

    /// Returns an account that nothing was spent from.
    pub fn none(default_cap: u64) -> Self {
        Self { daily_cap_micros: default_cap, default_cap: true, ..Self::default() }
    }

    /// Returns what today's calls may still cost; 0 without a cap.
    pub const fn remaining_today_micros(&self) -> u64 {
        self.daily_cap_micros.saturating_sub(self.today.cost_micros)
    }
}

/// Where it is kept what model calls cost. Who meters them writes it; nothing in this crate does.
///
/// # Behavior
/// - A call that [`record`](Self::record) answered for is in every later sum, once, in the day that it was made.
/// - [`StoreError::Unknown`] leaves open whether it was written.
/// - A user that nothing is known of has spent nothing and has no cap of their own.
#[async_trait]
pub trait UsageStore: fmt::Debug + Send + Sync + 'static {
    /// Adds one call.
    async fn record(&self, call: &ModelCall) -> Result<(), StoreError>;

    /// Returns what a user's calls come to, from the day `first` to the day `last`.
    async fn spent(&self, user: &UserId, first: Day, last: Day) -> Result<Spent, StoreError>;

    /// Returns a user's own daily cap in millionths of a dollar, 0 for none at all; nothing where the one for everybody holds.
    async fn cap(&self, user: &UserId) -> Result<Option<u64>, StoreError>;

    /// Sets or takes away a user's own daily cap.
    async fn put_cap(&self, user: &UserId, daily_micros: Option<u64>) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> Day {
        let at: DateTime<Utc> = text.parse().unwrap();
        Day::of(Timestamp::from_micros(at.timestamp_micros()))
    }

    #[test]
    fn a_month_begins_on_its_first_day() {
        for (now, first) in [
            ("2028-02-29T23:59:59Z", "2028-02-01T00:00:00Z"),
            ("2026-12-01T00:00:00Z", "2026-12-01T12:00:00Z"),
            ("1969-12-31T23:00:00Z", "1969-12-01T00:00:00Z"),
        ] {
            assert_eq!(day(now).first_of_month(), day(first), "{now}");
        }
        assert_eq!(Day(i64::MAX).first_of_month(), Day(i64::MAX));
    }

    #[test]
    fn what_remains_is_the_cap_less_what_was_spent() {
        for (cap, cost, remains) in [(0, 7, 0), (10, 0, 10), (10, 7, 3), (10, 11, 0)] {
            let usage = ModelUsage {
                today: Spent { cost_micros: cost, ..Spent::default() },
                ..ModelUsage::none(cap)
            };
            assert_eq!(usage.remaining_today_micros(), remains, "{cap} {cost}");
        }
    }
}
