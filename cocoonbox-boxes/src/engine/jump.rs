//! Jumps of the wall clock, seen by a clock that never jumps.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cocoonbox_core::{Clock, Timestamp};

/// What two clocks that are read one after the other may differ by, and what a clock is set by that is well kept.
const SLACK: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Seen {
    last: Option<(Timestamp, Duration)>,
    jumped_at: Option<Timestamp>,
}

/// Watches over both clocks.
#[derive(Debug, Default)]
pub(super) struct Jumps(Mutex<Seen>);

impl Jumps {
    /// Compares the clocks; returns by how many microseconds the wall clock jumped since the last look.
    pub(super) fn look(&self, clock: &dyn Clock) -> Option<i64> {
        let (now, steady) = (clock.now(), clock.steady());
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, since) = seen.last.replace((now, steady))?;
        let expected = before.plus(steady.saturating_sub(since));
        let by = now.micros().saturating_sub(expected.micros());
        if by.unsigned_abs() <= SLACK.as_micros() as u64 {
            return None;
        }
        tracing::warn!(seconds = by / 1_000_000, "the wall clock jumped: idle boxes are counted from now on");
        seen.jumped_at = Some(now);
        Some(by)
    }

    /// Returns when the wall clock was last seen to have jumped.
    pub(super) fn jumped_at(&self) -> Option<Timestamp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).jumped_at
    }

    /// Returns the time before which something is older than `span`, whatever the wall clock did.
    pub(super) fn older_than(&self, clock: &dyn Clock, span: Duration) -> Timestamp {
        let now = clock.now();
        if self.jumped_at().is_some_and(|jumped| now.since(jumped) < span) {
            return Timestamp::from_micros(0);
        }
        let span = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(now.micros().saturating_sub(span))
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::ManualClock;

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn time_that_goes_by_is_no_jump_and_a_set_clock_is() {
        let (clock, jumps) = (ManualClock::new(Timestamp::from_millis(1_000_000_000)), Jumps::default());
        assert_eq!(jumps.look(&clock), None);
        clock.advance(DAY);
        assert_eq!(jumps.look(&clock), None);
        clock.set(clock.now().plus(Duration::from_secs(5)));
        assert_eq!((jumps.look(&clock), jumps.jumped_at()), (None, None));
        let now = clock.now();
        clock.set(now.plus(DAY));
        assert_eq!(jumps.look(&clock), Some(86_400_000_000));
        assert_eq!(jumps.older_than(&clock, DAY), Timestamp::from_micros(0));
        clock.set(now);
        assert_eq!(jumps.look(&clock), Some(-86_400_000_000));
        assert_eq!((jumps.look(&clock), jumps.jumped_at()), (None, Some(now)));
        clock.advance(DAY);
        assert_eq!(jumps.older_than(&clock, DAY), now);
    }
}
