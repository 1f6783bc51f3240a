//! Grants that move to their next generation go to the database together: a commit waits for the disk, however many
//! moves are in it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use cocoonbox_core::{GrantId, Timestamp};
use cocoonbox_db::sqlx::AssertSqlSafe;
use cocoonbox_db::{Engine, on, on_tx};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::sql::GRANT_CHANNEL;
use crate::store::sql::failed;
use crate::{AccessRecord, SqlUserStore, UserStoreError};

/// The most grants that one commit moves.
const AT_ONCE: usize = 32;

/// Those that wait for whoever writes next. There is no task of its own: of the callers whoever has the turn writes for all.
#[derive(Debug, Default)]
pub(in crate::store) struct Moves {
    waiting: Mutex<Vec<Waiting>>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Waiting {
    access: AccessRecord,
    now: Timestamp,
    moved: oneshot::Sender<bool>,
}

/// A grant that is moved, and all who wait for it.
#[derive(Debug)]
struct Move {
    access: AccessRecord,
    moved: Vec<oneshot::Sender<bool>>,
}

impl Moves {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next moves, in the order of their grants, in which every process locks their rows. Those to one
    /// generation are one; of those to different ones the later wait.
    fn take(&self) -> (BTreeMap<GrantId, Move>, Timestamp) {
        let mut waiting = self.lock();
        let (mut taken, mut latest): (BTreeMap<GrantId, Move>, _) = (BTreeMap::new(), Timestamp::default());
        let mut left = Vec::new();
        for one in waiting.drain(..) {
            let full = taken.len() >= AT_ONCE;
            match taken.entry(one.access.grant.clone()) {
                Entry::Occupied(mut held) if held.get().access.generation == one.access.generation => {
                    let held = held.get_mut();
                    held.access.expires_at = held.access.expires_at.max(one.access.expires_at);
                    held.moved.push(one.moved);
                }
                Entry::Vacant(place) if !full => {
                    place.insert(Move { access: one.access, moved: vec![one.moved] });
                }
                _ => {
                    left.push(one);
                    continue;
                }
            }
            latest = latest.max(one.now);
        }
        *waiting = left;
        (taken, latest)
    }
}

impl SqlUserStore {
    /// Moves a grant; see [`GrantStore::put_access`](super::GrantStore::put_access).
    ///
    /// A write that fails, or whose caller gives up, answers nobody: each of its moves is then written by itself, which
    /// changes nothing where it was written already.
    pub(super) async fn move_grant(
        &self,
        access: &AccessRecord,
        now: Timestamp,
    ) -> Result<bool, UserStoreError> {
        let (moved, mut answer) = oneshot::channel();
        self.moves.lock().push(Waiting { access: access.clone(), now, moved });
        let _turn = self.moves.turn.lock().await;
        loop {
            match answer.try_recv() {
                Ok(moved) => return Ok(moved),
                Err(TryRecvError::Closed) => break,
                Err(TryRecvError::Empty) => {}
            }
            let (moves, latest) = self.moves.take();
            let records: Vec<&AccessRecord> = moves.values().map(|one| &one.access).collect();
            let Ok(done) = self.write(&records, latest).await else { continue };
            for (id, one) in moves {
                let done = done.contains(&id);
                for waiting in one.moved {
                    // who gave up needs no answer
                    let _ = waiting.send(done);
                }
            }
        }
        Ok(!self.write(&[access], now).await?.is_empty())
    }

    /// Moves grants, each at most once, in one commit; returns which it moved.
    async fn write(&self, moves: &[&AccessRecord], now: Timestamp) -> Result<Vec<GrantId>, UserStoreError> {
        let Some(last) = moves.last() else { return Ok(Vec::new()) };
        // few sizes, so that each statement is prepared once: the last one is repeated
        let count = moves.len().next_power_of_two();
        let rows: Vec<&AccessRecord> =
            moves.iter().chain(std::iter::repeat(last)).take(count).copied().collect();
        let moved = match self.db.engine() {
            Engine::Sqlite => self.write_step_by_step(&rows, now).await?,
            Engine::Postgres => self.write_at_once(&rows, now).await?,
        };
        let moved = |id: &GrantId| moved.iter().any(|moved| moved == id.as_str());
        Ok(moves.iter().map(|access| &access.grant).filter(|id| moved(id)).cloned().collect())
    }

    /// One statement: each is a way to the server and back.
    async fn write_at_once(
        &self,
        rows: &[&AccessRecord],
        now: Timestamp,
    ) -> Result<Vec<String>, UserStoreError> {
        let text = all_at_once(rows.len());
        on!(self.db, pool => {
            let mut query = sqlx::query_scalar(AssertSqlSafe(text)).bind(now.micros());
            for access in rows {
                query = query
                    .bind(access.grant.as_str())
                    .bind(access.generation)
                    .bind(&access.hash.as_bytes()[..])
                    .bind(access.expires_at.micros());
            }
            query.fetch_all(pool).await
        })
        .map_err(failed)
    }

    /// Three statements: SQLite writes one table in each.
    async fn write_step_by_step(
        &self,
        rows: &[&AccessRecord],
        now: Timestamp,
    ) -> Result<Vec<String>, UserStoreError> {
        let mut tx = self.db.begin().await?;
        let text = advance(rows.len());
        let moved: Vec<String> = on_tx!(tx, c => {
            let mut query = sqlx::query_scalar(AssertSqlSafe(text)).bind(now.micros());
            for access in rows {
                query = query.bind(access.grant.as_str()).bind(access.generation);
            }
            query.fetch_all(c).await
        })
        .map_err(failed)?;
        if moved.is_empty() {
            return Ok(moved);
        }
        let text = drop_access(rows.len());
        on_tx!(tx, c => {
            let mut query = sqlx::query(AssertSqlSafe(text));
            for access in rows {
                query = query.bind(access.grant.as_str());
            }
            query.execute(c).await.map(drop)
        })
        .map_err(failed)?;
        let text = put_access(rows.len());
        on_tx!(tx, c => {
            let mut query = sqlx::query(AssertSqlSafe(text)).bind(now.micros());
            for access in rows {
                query = query
                    .bind(access.grant.as_str())
                    .bind(access.generation)
                    .bind(&access.hash.as_bytes()[..])
                    .bind(access.expires_at.micros());
            }
            query.execute(c).await.map(drop)
        })
        .map_err(failed)?;
        let mut told: Vec<String> = rows
            .iter()
            .filter(|access| moved.iter().any(|moved| moved == access.grant.as_str()))
            .map(|access| format!("{} {}", access.grant, access.generation))
            .collect();
        told.dedup();
        tx.notify(GRANT_CHANNEL, &told.join(",")).await?;
        tx.commit().await?;
        Ok(moved)
    }
}

/// Writes `count` rows of placeholders of these types; `$1` is taken.
fn rows(count: usize, types: &[&str]) -> String {
    let mut text = String::new();
    let mut number = 1;
    for row in 0..count {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for (column, kind) in types.iter().enumerate() {
            number += 1;
            let comma = if column == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}CAST(${number} AS {kind})");
        }
        text.push(')');
    }
    text
}

/// Moves grants that stand, of users that are not shut out, by one generation or none.
const ADVANCE: &str = "UPDATE oauth_grants SET generation = m.next FROM moves m \
     WHERE oauth_grants.id = m.grant_id AND m.next BETWEEN oauth_grants.generation AND oauth_grants.generation + 1 \
     AND ended_at IS NULL AND expires_at > $1 \
     AND EXISTS (SELECT 1 FROM users u WHERE u.id = oauth_grants.user_id AND NOT u.disabled)";

/// All of it, for PostgreSQL; returns the ids of the grants that were moved.
fn all_at_once(count: usize) -> String {
    format!(
        "WITH moves (grant_id, next, hash, until) AS (VALUES {}), \
         moved AS ({ADVANCE} RETURNING oauth_grants.id, m.next, m.hash, m.until), \
         gone AS (DELETE FROM oauth_tokens t USING moved WHERE t.grant_id = moved.id AND t.generation < moved.next - 1), \
         put AS (INSERT INTO oauth_tokens (hash, grant_id, generation, expires_at) \
         SELECT hash, id, next, until FROM moved ON CONFLICT (hash) DO UPDATE SET expires_at = excluded.expires_at), \
         told AS (SELECT pg_notify('{GRANT_CHANNEL}', string_agg(id || ' ' || next, ',')) FROM moved HAVING COUNT(*) > 0) \
         SELECT moved.id FROM moved, told",
        rows(count, &["TEXT", "BIGINT", "BYTEA", "BIGINT"])
    )
}

/// Moves grants; returns the ids of those that were moved.
fn advance(count: usize) -> String {
    let rows = rows(count, &["TEXT", "BIGINT"]);
    format!("WITH moves (grant_id, next) AS (VALUES {rows}) {ADVANCE} RETURNING id")
}

/// Removes the access tokens of grants that are two generations back.
fn drop_access(count: usize) -> String {
    let ids: Vec<String> = (1..=count).map(|number| format!("${number}")).collect();
    format!(
        "DELETE FROM oauth_tokens WHERE grant_id IN ({}) AND generation < \
         (SELECT g.generation - 1 FROM oauth_grants g WHERE g.id = oauth_tokens.grant_id)",
        ids.join(", ")
    )
}

/// Adds the access tokens of the grants that were moved.
fn put_access(count: usize) -> String {
    format!(
        "WITH moves (grant_id, next, hash, until) AS (VALUES {}) \
         INSERT INTO oauth_tokens (hash, grant_id, generation, expires_at) \
         SELECT DISTINCT m.hash, m.grant_id, m.next, m.until FROM moves m \
         JOIN oauth_grants g ON g.id = m.grant_id AND g.generation = m.next \
         JOIN users u ON u.id = g.user_id AND NOT u.disabled \
         WHERE g.ended_at IS NULL AND g.expires_at > $1 \
         ON CONFLICT (hash) DO UPDATE SET expires_at = excluded.expires_at",
        rows(count, &["TEXT", "BIGINT", "BLOB", "BIGINT"])
    )
}

#[cfg(test)]
mod tests {
    use cocoonbox_db::testkit::TestDb;

    use super::*;
    use crate::testkit::account::{access, grant};
    use crate::testkit::{AT, user};
    use crate::{GrantStore as _, UserStore as _, Which};

    cocoonbox_db::both_engines! { many_grants_are_moved_by_one_commit a_writer_that_gives_up_takes_nobody_with_it }

    /// Makes a store with as many grants.
    async fn store(db: &TestDb, count: usize) -> (SqlUserStore, Vec<GrantId>) {
        let store = SqlUserStore::open((**db).clone(), AT).await.expect("the tables");
        let jo = user("jo");
        store.create_user(&jo, &[]).await.expect("a new name");
        let mut grants = Vec::new();
        for _ in 0..count {
            let grant = grant(&jo.id);
            store.begin_grant(&grant, &access(&grant.id, 1), AT).await.expect("room");
            grants.push(grant.id);
        }
        (store, grants)
    }

    async fn generations(store: &SqlUserStore) -> Vec<(i64, Vec<i64>)> {
        let living = store.living(Which::All, None, AT).await.expect("grants");
        living
            .iter()
            .map(|one| (one.grant.generation, one.access.iter().map(|access| access.generation).collect()))
            .collect()
    }

    async fn many_grants_are_moved_by_one_commit(db: &TestDb) {
        // more than one commit takes
        let (store, grants) = store(db, AT_ONCE + 15).await;
        store.end_grant(&grants[3], None, AT).await.expect("ended");
        let turn = store.moves.turn.lock().await;
        let mut moves = tokio::task::JoinSet::new();
        for id in grants.iter().flat_map(|id| [id, id]) {
            let (store, access) = (store.clone(), access(id, 2));
            moves.spawn(async move { store.put_access(&access, AT).await.expect("asked") });
        }
        // one that goes too far is not taken along
        let (far, too_far) = (store.clone(), access(&grants[0], 3));
        moves.spawn(async move { far.put_access(&too_far, AT).await.expect("asked") });
        while store.moves.lock().len() < 2 * grants.len() + 1 {
            tokio::task::yield_now().await;
        }
        drop(turn);
        let done = moves.join_all().await;
        let moved = done.iter().filter(|done| **done).count();
        // whether the step from 1 to 3 comes after the one to 2 is the order of asking
        let far = generations(&store).await.iter().filter(|(generation, _)| *generation == 3).count();
        assert_eq!(moved, 2 * (grants.len() - 1) + far, "{done:?}");
        for (generation, tokens) in generations(&store).await {
            assert_eq!(tokens, [generation - 1, generation]);
        }
    }

    async fn a_writer_that_gives_up_takes_nobody_with_it(db: &TestDb) {
        let (store, grants) = store(db, 2).await;
        let turn = store.moves.turn.lock().await;
        let (first, second) = (access(&grants[0], 2), access(&grants[1], 2));
        let mut writer = Box::pin(store.put_access(&first, AT));
        assert!(poll_once(&mut writer).is_none());
        let mut follower = Box::pin(store.put_access(&second, AT));
        assert!(poll_once(&mut follower).is_none());
        drop(turn);
        // it has taken both, and is dropped in its write
        assert!(poll_once(&mut writer).is_none());
        assert!(store.moves.lock().is_empty(), "it took both");
        drop(writer);
        assert!(follower.await.expect("asked"));
        assert!(store.put_access(&first, AT).await.expect("asked"));
        assert_eq!(generations(&store).await, [(2, vec![1, 2]), (2, vec![1, 2])]);
    }

    fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        }
    }
}
