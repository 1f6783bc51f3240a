//! Each user's share of the edge's connections, so that no user takes them all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cocoonbox_core::UserId;

/// The most connections that calls of one user come over at once.
pub const MAX_USER_CONNECTIONS: u32 = 512;

/// How many connections each user has.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<HashMap<UserId, u32>>);

/// One connection; it counts for each user whose calls came over it, until it ends.
#[derive(Debug)]
pub(crate) struct Seat {
    shares: Arc<Shares>,
    users: Mutex<Vec<UserId>>,
}

impl Shares {
    fn counts(&self) -> MutexGuard<'_, HashMap<UserId, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in, which counts for nobody yet.
    pub(super) fn seat(self: &Arc<Self>) -> Arc<Seat> {
        Arc::new(Seat { shares: Arc::clone(self), users: Mutex::default() })
    }
}

impl Seat {
    /// Counts the connection for `user`; false when that user has as many as one may.
    pub(crate) fn admit(&self, user: &UserId) -> bool {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.contains(user) {
            return true;
        }
        let mut counts = self.shares.counts();
        let count = counts.entry(user.clone()).or_default();
        if *count >= MAX_USER_CONNECTIONS {
            return false;
        }
        *count += 1;
        users.push(user.clone());
        true
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let users = std::mem::take(self.users.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut counts = self.shares.counts();
        for user in users {
            if let Some(count) = counts.get_mut(&user) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&user);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::SeededEntropy;

    use super::*;

    #[test]
    fn a_user_has_a_share_and_gets_back_what_ended() {
        let entropy = SeededEntropy::new(1);
        let user = || UserId::random(&entropy).unwrap();
        let (anna, bert, shares) = (user(), user(), Arc::new(Shares::default()));
        let mut seats: Vec<_> = (0..MAX_USER_CONNECTIONS).map(|_| shares.seat()).collect();
        for seat in &seats {
            assert!(seat.admit(&anna) && seat.admit(&anna));
        }
        let more = shares.seat();
        assert!(!more.admit(&anna), "one more than there may be");
        assert!(more.admit(&bert), "another user's share is its own");
        assert!(seats[0].admit(&anna), "a connection that counts already is not counted again");
        seats.pop();
        assert!(more.admit(&anna));
        drop((seats, more));
        assert!(shares.counts().is_empty());
    }
}
