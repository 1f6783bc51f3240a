//! Time, as a seam.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point in time: whole microseconds since the Unix epoch, UTC.
///
/// The unit is what both databases store without loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Makes a timestamp from microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Makes a timestamp from milliseconds since the Unix epoch, saturating.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// Returns microseconds since the Unix epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Returns whole milliseconds since the Unix epoch, rounded down.
    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Returns this time plus `span`, saturating at the end of time.
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Returns how long `earlier` lies before this time; zero when it does not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(i64::try_from(after.as_micros()).unwrap_or(i64::MAX)),
            Err(before) => {
                Self(i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros))
            }
        }
    }
}

/// Tells the time.
///
/// # Behavior
/// - `now` is wall-clock time and may jump either way; callers compare, they do not count on order.
/// - `steady` never jumps and never runs backward; whether it counts while the machine is suspended is not said.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the present time.
    fn now(&self) -> Timestamp;
    /// Returns how much time went by since a moment that stays the same for the life of the process.
    fn steady(&self) -> Duration;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }

    fn steady(&self) -> Duration {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        FIRST.get_or_init(Instant::now).elapsed()
    }
}

/// A clock that stands until it is moved, for tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicI64,
    steady: AtomicU64,
}

impl ManualClock {
    /// Makes a clock that shows `at`.
    pub const fn new(at: Timestamp) -> Self {
        Self { wall: AtomicI64::new(at.micros()), steady: AtomicU64::new(0) }
    }

    /// Lets `span` go by.
    pub fn advance(&self, span: Duration) {
        self.steady.fetch_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX), Ordering::SeqCst);
        self.set(self.now().plus(span));
    }

    /// Sets the wall clock, backward too, while no time goes by.
    pub fn set(&self, to: Timestamp) {
        self.wall.store(to.micros(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.wall.load(Ordering::SeqCst))
    }

    fn steady(&self) -> Duration {
        Duration::from_micros(self.steady.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_before_the_epoch_round_down() {
        assert_eq!(Timestamp::from_micros(-1).millis(), -1);
        assert_eq!(Timestamp::from_micros(1_999).millis(), 1);
    }

    #[test]
    fn a_span_never_runs_backward_or_over() {
        let (early, late) = (Timestamp::from_millis(1), Timestamp::from_millis(3));
        assert_eq!(late.since(early), Duration::from_millis(2));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(Timestamp::from_micros(i64::MAX).plus(Duration::MAX).micros(), i64::MAX);
    }
}
