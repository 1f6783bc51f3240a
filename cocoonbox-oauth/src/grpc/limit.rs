//! How many wrong links one address may try.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cocoonbox_core::Timestamp;

/// Addresses that are counted one by one; more share one count.
const ADDRESSES_MAX: usize = 4096;

/// How many wrong links are taken from one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedeemLimits {
    /// The most failures within the window; 20 unless told.
    pub failures: u32,
    /// The window, which starts with the first failure; 15 minutes unless told.
    pub window: Duration,
}

impl Default for RedeemLimits {
    fn default() -> Self {
        Self { failures: 20, window: Duration::from_mins(15) }
    }
}

impl RedeemLimits {
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

#[derive(Debug)]
pub(super) struct Limiter {
    limits: RedeemLimits,
    counts: Mutex<HashMap<Option<IpAddr>, Count>>,
}

impl Limiter {
    pub(super) fn new(limits: RedeemLimits) -> Self {
        Self { limits, counts: Mutex::default() }
    }

    /// Takes one attempt from an address beforehand, so that attempts made at once count too; answers how long to wait
    /// when there are none left.
    pub(super) fn take(&self, from: Option<IpAddr>, now: Timestamp) -> Result<Attempt<'_>, Duration> {
        let window = self.limits.window;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        // a clock that was set back starts a window anew
        counts.retain(|_, count| now.since(count.since) < window && count.since <= now);
        let mut from = from.map(network);
        if !counts.contains_key(&from) && counts.len() >= ADDRESSES_MAX {
            from = None;
        }
        let count = counts.entry(from).or_insert(Count { since: now, failures: 0 });
        if count.failures >= self.limits.failures {
            return Err(window.saturating_sub(now.since(count.since)));
        }
        count.failures += 1;
        Ok(Attempt { limiter: self, from })
    }
}

/// An attempt that counts as a failure unless it is given back.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    limiter: &'a Limiter,
    from: Option<IpAddr>,
}

impl Attempt<'_> {
    pub(super) fn give_back(self) {
        let mut counts = self.limiter.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.from) {
            count.failures = count.failures.saturating_sub(1);
        }
    }
}

/// One subscriber has a whole /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
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
        let limiter = Limiter::new(RedeemLimits::new(2, Duration::from_mins(1)));
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
        let limiter = Limiter::new(RedeemLimits::new(1, Duration::from_mins(1)));
        let (a, b) = ("2001:db8::1".parse().ok(), "2001:db8::2".parse().ok());
        assert!(limiter.take(a, Timestamp::default()).is_ok());
        assert!(limiter.take(b, Timestamp::default()).is_err());
    }

    #[test]
    fn a_crowd_of_addresses_shares_one_count() {
        let limiter = Limiter::new(RedeemLimits::new(1, Duration::from_mins(1)));
        let address = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        for n in 0..ADDRESSES_MAX as u32 {
            assert!(limiter.take(address(n), Timestamp::default()).is_ok());
        }
        assert!(limiter.take(address(70_000), Timestamp::default()).is_ok());
        assert!(limiter.take(address(70_001), Timestamp::default()).is_err());
    }
}
