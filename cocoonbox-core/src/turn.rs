//! Work on one thing takes turns.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Above this many, those that nobody uses are forgotten.
const TIDY_ABOVE: usize = 256;

/// One turn for each thing that is worked on, by its key. It holds for this process alone.
#[derive(Debug)]
pub struct Turns<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> Turns<K> {
    /// Waits for the caller's turn, which lasts until the guard is dropped. Turns come in the order of asking.
    pub async fn take(&self, key: &K) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if turns.len() > TIDY_ABOVE {
                turns.retain(|_, turn| turn.strong_count() > 0);
            }
            let known = turns.get(key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::default();
                turns.insert(key.clone(), Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_thing_is_one_turn_and_others_are_their_own() {
        let turns = Turns::default();
        let held = at_once(turns.take(&"one")).expect("it is free");
        assert!(at_once(turns.take(&"one")).is_none());
        assert!(at_once(turns.take(&"other")).is_some());
        drop(held);
        assert!(at_once(turns.take(&"one")).is_some());
    }

    #[test]
    fn what_nobody_uses_is_forgotten() {
        let turns = Turns::default();
        for nth in 0..10_000 {
            at_once(turns.take(&nth)).expect("it is free");
        }
        assert!(turns.0.lock().unwrap().len() <= TIDY_ABOVE + 1);
    }
}
