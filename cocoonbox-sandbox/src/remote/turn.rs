//! Calls on one claim take turns, those included that nobody waits for any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cocoonbox_core::backend::SandboxId;
use tokio::sync::OwnedMutexGuard;

/// Above this many, those that nobody uses are forgotten.
const TIDY_ABOVE: usize = 256;

/// One turn for each claim that is being called on.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<SandboxId, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits for the caller's turn on a claim, which lasts until the guard is dropped.
    pub(super) async fn take(&self, id: &SandboxId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if turns.len() > TIDY_ABOVE {
                turns.retain(|_, turn| turn.strong_count() > 0);
            }
            let known = turns.get(id).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::default();
                turns.insert(id.clone(), Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn one_claim_is_one_turn_and_others_are_their_own() {
        let turns = Turns::default();
        let (one, other) = ("sb_one".parse().unwrap(), "sb_other".parse().unwrap());
        let held = turns.take(&one).now_or_never().expect("it is free");
        assert!(turns.take(&one).now_or_never().is_none());
        assert!(turns.take(&other).now_or_never().is_some());
        drop(held);
        assert!(turns.take(&one).now_or_never().is_some());
    }

    #[test]
    fn what_nobody_uses_is_forgotten() {
        let turns = Turns::default();
        for nth in 0..10_000 {
            let id = format!("sb_{nth}").parse().unwrap();
            turns.take(&id).now_or_never().expect("it is free");
        }
        assert!(turns.0.lock().unwrap().len() <= TIDY_ABOVE + 1);
    }
}
