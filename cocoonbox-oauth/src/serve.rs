//! What keeps an index true while a server runs: this module waits and has a timer.

use std::time::Duration;

use cocoonbox_core::{Clock, GrantId, TokenId};
use tokio::time::{self, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::{AgentIndex, GrantChanges, GrantStore, TokenIndex, UserChanges, UserStore, UserStoreError};

/// How often uses are written, and tokens are read anew without a notice.
const ROUND: Duration = Duration::from_mins(1);
/// Notices that come this close together cost one reading.
const GATHER: Duration = Duration::from_millis(5);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Keeps `index` true until `shutdown`, then writes the last uses and returns.
///
/// # Behavior
/// - Reads the store at once, on each change, and once a minute for what no notice told (another process on the same
///   SQLite file). A reading that fails is tried again with pauses up to 10 s; the index stays as it was meanwhile.
/// - Writes when tokens were used once a minute, so never on the path of a call.
pub async fn run(
    index: &TokenIndex,
    store: &dyn UserStore,
    mut changes: Box<dyn UserChanges>,
    shutdown: CancellationToken,
) {
    let mut round = time::interval(ROUND);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            _ = round.tick() => write_uses(index, store).await,
            () = changes.next() => gather(&mut *changes).await,
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = reload(index, store) => {}
        }
    }
    write_uses(index, store).await;
}

/// Keeps `index` true until `shutdown`, then writes the last uses and returns.
///
/// # Behavior
/// - Reads one grant when a notice names it, all on each change of `users` (one may have been shut out), when notices
///   may have been lost, and once a minute. A reading that fails is tried again with pauses up to 10 s.
/// - Writes when grants were used once a minute.
pub async fn run_agents(
    index: &AgentIndex,
    store: &dyn GrantStore,
    clock: &dyn Clock,
    mut users: Box<dyn UserChanges>,
    mut grants: Box<dyn GrantChanges>,
    shutdown: CancellationToken,
) {
    let mut round = time::interval(ROUND);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let changed = tokio::select! {
            () = shutdown.cancelled() => break,
            _ = round.tick() => {
                write_agent_uses(index, store).await;
                None
            }
            () = users.next() => {
                gather(&mut *users).await;
                None
            }
            changed = grants.next() => match changed {
                Some(change) if index.knows(&change) => continue,
                changed => changed.map(|change| vec![change.grant]),
            },
            left = index.left() => Some(left),
        };
        let mut pause = FIRST_PAUSE;
        loop {
            let Err(error) = read(index, store, clock, changed.as_deref()).await else { break };
            tracing::warn!(%error, cause = cause(&error), "grants are not read; the ones known go on");
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }
    write_agent_uses(index, store).await;
}

async fn read(
    index: &AgentIndex,
    store: &dyn GrantStore,
    clock: &dyn Clock,
    changed: Option<&[GrantId]>,
) -> Result<(), UserStoreError> {
    let Some(changed) = changed else { return index.reload(store, clock.now()).await };
    for id in changed {
        index.reload_one(store, id, clock.now()).await?;
    }
    Ok(())
}

async fn write_agent_uses(index: &AgentIndex, store: &dyn GrantStore) {
    let uses = index.unwritten();
    for uses in uses.chunks(1000) {
        match store.touch_grants(uses).await {
            Ok(()) => index.written(uses),
            Err(error) => {
                tracing::warn!(%error, cause = cause(&error), "uses of grants are not written; next minute again");
                return;
            }
        }
    }
}

async fn gather(changes: &mut dyn UserChanges) {
    for _ in 0..100 {
        if time::timeout(GATHER, changes.next()).await.is_err() {
            return;
        }
    }
}

async fn reload(index: &TokenIndex, store: &dyn UserStore) {
    let mut pause = FIRST_PAUSE;
    while let Err(error) = index.reload(store).await {
        tracing::warn!(%error, cause = cause(&error), "tokens are not read; the ones known go on");
        time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn write_uses(index: &TokenIndex, store: &dyn UserStore) {
    let uses: Vec<(TokenId, _)> = index.unwritten();
    for uses in uses.chunks(1000) {
        match store.touch(uses).await {
            Ok(()) => index.written(uses),
            Err(error) => {
                tracing::warn!(%error, cause = cause(&error), "uses of tokens are not written; next minute again");
                return;
            }
        }
    }
}

fn cause(error: &dyn std::error::Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}
