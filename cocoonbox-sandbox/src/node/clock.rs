//! Time that counts for leases: how long the node has served, whatever was done to the machine's clock.

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

/// Counts time that nobody sets.
///
/// # Behavior
/// - `elapsed` never goes back while the machine is up; where it starts is of no meaning.
pub trait BootClock: fmt::Debug + Send + Sync + 'static {
    /// Returns the time since the machine booted, time asleep included.
    fn elapsed(&self) -> Duration;
}

/// The machine's own count, `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemBootClock;

impl BootClock for SystemBootClock {
    fn elapsed(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

/// A count that stands until it is moved, for tests.
#[derive(Debug, Default)]
pub struct ManualBootClock(Mutex<Duration>);

impl ManualBootClock {
    /// Moves the count forward.
    pub fn advance(&self, span: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += span;
    }
}

impl BootClock for ManualBootClock {
    fn elapsed(&self) -> Duration {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time that the node has served, over all its starts: it stands while the node is down.
#[derive(Debug)]
pub(super) struct ServiceClock {
    clock: std::sync::Arc<dyn BootClock>,
    started: Duration,
    before: Duration,
}

impl ServiceClock {
    /// Goes on from what the starts before counted.
    pub(super) fn resume(clock: std::sync::Arc<dyn BootClock>, before: Duration) -> Self {
        Self { started: clock.elapsed(), clock, before }
    }

    pub(super) fn now(&self) -> Duration {
        self.before + self.clock.elapsed().saturating_sub(self.started)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn time_counts_on_from_where_the_last_start_left_it() {
        let boot = Arc::new(ManualBootClock::default());
        boot.advance(Duration::from_secs(1000));
        let clock = ServiceClock::resume(boot.clone(), Duration::from_secs(7));
        assert_eq!(clock.now(), Duration::from_secs(7));
        boot.advance(Duration::from_secs(5));
        assert_eq!(clock.now(), Duration::from_secs(12));
        assert!(SystemBootClock.elapsed() > Duration::ZERO);
    }
}
