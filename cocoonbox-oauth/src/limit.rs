//! How many wrong answers one address, or one user, may give at a door.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cocoonbox_core::Timestamp;

/// Keys that are counted one by one; more share one count.
const KEYS_MAX: usize = 4096;

/// How many wrong answers are taken at a door from one address, or for one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoorLimits {
    /// The most failures within the window; 20 unless told.
    pub failures: u32,
    /// The window, which starts with the first failure; 15 minutes unless told.
    pub window: Duration,
}

impl Default for DoorLimits {
    fn default() -> Self {
        Self { failures: 20, window: Duration::from_mins(15) }
    }
}

impl DoorLimits {
    /// Takes both.
    pub const fn new(failures: u32, window: Duration) -> Self {
        Self { failures, window }
    }
}

#[derive(Clone, Copy, Debug)]
struct Count {
    since: Timestamp,
    failures: u32,
}

/// Counts failures by key; those without one share a count.
#[derive(Debug)]
pub(crate) struct Limiter<K> {
    limits: DoorLimits,
    counts: Mutex<HashMap<Option<K>, Count>>,
}

impl<K: Clone + Eq + Hash> Limiter<K> {
    pub(crate) fn new(limits: DoorLimits) -> Self {
        Self { limits, counts: Mutex::default() }
    }

    /// Takes one attempt beforehand, so that attempts made at once count too; answers how long to wait
    /// when there are none left.
    pub(crate) fn take(&self, mut from: Option<K>, now: Timestamp) -> Result<Attempt<'_, K>, Duration> {
        let window = self.limits.window;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        // a clock that was set back starts a window anew
        counts.retain(|_, count| now.since(count.since) < window && count.since <= now);
        if !counts.contains_key(&from) && counts.len() >= KEYS_MAX {
            from = None;
        }
        let count = counts.entry(from.clone()).or_insert(Count { since: now, failures: 0 });
        if count.failures >= self.limits.failures {
            return Err(window.saturating_sub(now.since(count.since)));
        }
        count.failures += 1;
        Ok(Attempt { limiter: self, from })
    }
}

/// An attempt that counts as a failure unless it is given back.
#[derive(Debug)]
pub(crate) struct Attempt<'a, K> {
    limiter: &'a Limiter<K>,
    from: Option<K>,
}

impl<K: Eq + Hash> Attempt<'_, K> {
    pub(crate) fn give_back(self) {
        let mut counts = self.limiter.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.from) {
            count.failures = count.failures.saturating_sub(1);
        }
    }
}

/// Returns what is counted of an address: one subscriber has a whole /64 of IPv6.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & (u128::MAX << 64)).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_run_out_and_come_back() {
        let limiter = Limiter::new(DoorLimits::new(2, Duration::from_mins(1)));
        let (a, b) = (Some(IpAddr::from([10, 0, 0, 1])), Some(IpAddr::from([10, 0, 0, 2])));
        let at = Timestamp::from_millis(0);
        limiter.take(a, at).expect("a first").give_back();
        assert!(limiter.take(a, at).is_ok());
        assert!(limiter.take(a, at).is_ok());
        assert_eq!(limiter.take(a, at.plus(Duration::from_secs(20))).err(), Some(Duration::from_secs(40)));
        assert!(limiter.take(b, at).is_ok());
        assert!(limiter.take(a, at.plus(Duration::from_mins(1))).is_ok());
    }

    #[test]
    fn neighbours_in_one_network_share_a_count() {
        let limiter = Limiter::new(DoorLimits::new(1, Duration::from_mins(1)));
        let [a, b] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().ok().map(network));
        assert!(limiter.take(a, Timestamp::default()).is_ok());
        assert!(limiter.take(b, Timestamp::default()).is_err());
    }

    #[test]
    fn a_crowd_of_addresses_shares_one_count() {
        let limiter = Limiter::new(DoorLimits::new(1, Duration::from_mins(1)));
        let address = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        for n in 0..KEYS_MAX as u32 {
            assert!(limiter.take(address(n), Timestamp::default()).is_ok());
        }
        assert!(limiter.take(address(70_000), Timestamp::default()).is_ok());
        assert!(limiter.take(address(70_001), Timestamp::default()).is_err());
    }
}
