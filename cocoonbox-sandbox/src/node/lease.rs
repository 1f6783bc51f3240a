//! How long a claim is held, and what becomes of it then.

use std::time::Duration;

use cocoonbox_core::Timestamp;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// The lease of who asks for none.
pub const DEFAULT_LEASE: Duration = Duration::from_mins(5);
/// The longest lease.
pub const LONGEST_LEASE: Duration = Duration::from_hours(24);

/// How far the shown deadline may drift from the clock before it is told anew.
const DRIFT: Duration = Duration::from_secs(2);

/// What becomes of a claim whose lease is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnExpire {
    /// It is released.
    #[default]
    Destroy,
    /// It is stopped and its files are kept, without end.
    Archive,
}

/// Returns the lease that is granted for `asked` seconds: none or 0 is the default, more than the longest the longest.
pub(crate) fn grant(asked: Option<i64>) -> Result<Duration, Refusal> {
    match asked {
        None | Some(0) => Ok(DEFAULT_LEASE),
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) => Ok(Duration::from_secs(seconds).min(LONGEST_LEASE)),
            Err(_) => Err(Refusal::invalid("ttl_seconds is negative")),
        },
    }
}

/// A lease: it counts the time the node serves, and shows itself by the clock on the wall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lease {
    granted_seconds: u64,
    until_millis: u64,
    deadline: Timestamp,
}

impl Lease {
    pub(super) fn begin(granted: Duration, served: Duration, now: Timestamp) -> Self {
        Self {
            granted_seconds: granted.as_secs(),
            until_millis: u64::try_from((served + granted).as_millis()).unwrap_or(u64::MAX),
            deadline: now.plus(granted),
        }
    }

    pub(super) fn granted(&self) -> Duration {
        Duration::from_secs(self.granted_seconds)
    }

    pub(super) fn left(&self, served: Duration) -> Duration {
        Duration::from_millis(self.until_millis).saturating_sub(served)
    }

    /// Returns when it ends by the clock on the wall as it stands now.
    pub(super) fn deadline(&self, served: Duration, now: Timestamp) -> Timestamp {
        let true_end = now.plus(self.left(served));
        let drift = true_end.since(self.deadline).max(self.deadline.since(true_end));
        if drift > DRIFT { true_end } else { self.deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_has_a_default_and_a_ceiling() {
        for (asked, granted) in [
            (None, Some(300)),
            (Some(0), Some(300)),
            (Some(1), Some(1)),
            (Some(86_400), Some(86_400)),
            (Some(86_401), Some(86_400)),
            (Some(i64::MAX), Some(86_400)),
            (Some(-1), None),
            (Some(i64::MIN), None),
        ] {
            assert_eq!(grant(asked).ok().map(|span| span.as_secs()), granted, "{asked:?}");
        }
    }

    #[test]
    fn a_lease_counts_service_and_shows_the_wall() {
        let second = Duration::from_secs;
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let lease = Lease::begin(second(60), second(100), at(1_000_000));
        assert_eq!(lease.deadline(second(100), at(1_000_000)), at(1_000_060));
        // a second passes on both
        assert_eq!(lease.deadline(second(101), at(1_000_001)), at(1_000_060));
        // somebody sets the clock a day ahead, or back: the lease is as long as it was
        assert_eq!(lease.deadline(second(101), at(1_086_401)), at(1_086_460));
        assert_eq!(lease.deadline(second(101), at(913_601)), at(913_660));
        // the node was down for a weekend
        assert_eq!(lease.left(second(101)), second(59));
        assert_eq!(lease.left(second(161)), Duration::ZERO);
    }
}
