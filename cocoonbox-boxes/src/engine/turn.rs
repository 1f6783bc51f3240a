//! Changes of one user's boxes take turns in this process: those that count the same things would undo each other.
//!
//! Another process on the same store takes no turn here; it is the store that finds out, and the loser tries again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cocoonbox_core::UserId;
use tokio::sync::OwnedMutexGuard;

/// Who has a turn or waits for one.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<UserId, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits for the turn of `owner`; it lasts until the answer is dropped. Turns come in the order of asking.
    pub(super) async fn of(&self, owner: &UserId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(turn) = turns.get(owner).and_then(Weak::upgrade) {
                turn
            } else {
                turns.retain(|_, turn| turn.strong_count() > 0);
                let turn = Arc::default();
                turns.insert(owner.clone(), Arc::downgrade(&turn));
                turn
            }
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_owner_takes_turns_and_two_do_not_wait() {
        let turns = Turns::default();
        let user = || UserId::random(&cocoonbox_core::SystemEntropy).unwrap();
        let (one, other) = (user(), user());
        let first = turns.of(&one).await;
        assert!(turns.of(&one).now_or_never().is_none());
        assert!(turns.of(&other).now_or_never().is_some());
        drop(first);
        assert!(turns.of(&one).now_or_never().is_some());
        drop(turns.of(&other).await);
        assert_eq!(turns.0.lock().unwrap().len(), 1, "who has no turn and waits for none is forgotten");
    }
}
