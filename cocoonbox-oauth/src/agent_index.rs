//! Which outside agents may call: one lookup in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cocoonbox_core::{GrantId, Timestamp, UserId};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::grant::ENDED_FOR;
use crate::secret::HashMapByToken;
use crate::{
    AccessRecord, AgentToken, AuthError, GrantChange, GrantRecord, GrantStore, LivingGrant, User,
    UserStoreError, Which,
};

/// No use yet.
const NEVER: i64 = i64::MIN;

/// Proof that a call showed a valid agent token; only [`AgentIndex`] makes one.
#[derive(Clone)]
pub struct AuthorizedAgent(Arc<Held>);

impl AuthorizedAgent {
    /// Returns who gave the grant.
    pub fn user(&self) -> &User {
        &self.0.user
    }

    /// Returns the grant.
    pub fn grant(&self) -> &GrantRecord {
        &self.0.grant
    }

    /// Returns what is cancelled when the grant ends; open calls end with it. The end of one access token does not
    /// cancel it: a call that was let in may go on.
    pub fn ended(&self) -> &CancellationToken {
        &self.0.ended
    }
}

impl fmt::Debug for AuthorizedAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizedAgent")
            .field("user", &self.0.user.id)
            .field("grant", &self.0.grant.id)
            .field("ended", &self.0.ended.is_cancelled())
            .finish()
    }
}

/// A grant as it was read: all that a check needs lies together.
#[derive(Debug)]
struct Held {
    user: Arc<User>,
    grant: GrantRecord,
    ended: CancellationToken,
    uses: Arc<Uses>,
}

#[derive(Debug)]
struct Entry {
    held: Arc<Held>,
    access: Vec<AccessRecord>,
}

#[derive(Debug)]
struct Uses {
    seen: AtomicI64,
    written: AtomicI64,
}

#[derive(Debug, Default)]
struct Map {
    tokens: HashMapByToken<(Arc<Held>, Timestamp)>,
    grants: HashMap<GrantId, Entry>,
    /// Grants that ended, and when: a reading that began before cannot bring one back.
    ended: HashMap<GrantId, Timestamp>,
}

/// All grants that stand, by the hashes of their access tokens.
///
/// # Behavior
/// - A check is one lookup behind a lock that readers share: no IO and no waiting for any; a token is hashed before it
///   is looked up, so the time a wrong guess takes tells nothing about how close it was.
/// - A grant that ended is let in no more for ten minutes, whatever a reading says that began before it ended, and its
///   [`AuthorizedAgent::ended`] is cancelled.
/// - While the store cannot be read, what was read last goes on, until it expires.
#[derive(Debug, Default)]
pub struct AgentIndex {
    map: RwLock<Map>,
    /// Readings take turns: one that began earlier must not undo what a later one saw.
    reading: Mutex<()>,
    own: Own,
}

/// Moves of this process: whoever makes one takes it in, so that its notice has nothing to tell.
#[derive(Debug, Default)]
struct Own {
    under_way: std::sync::Mutex<HashMap<GrantId, Vec<i64>>>,
    /// Those that nobody took in.
    left: std::sync::Mutex<Vec<GrantId>>,
    told: Notify,
}

/// A move that this process makes. Dropped before it was taken in, it has its grant read.
#[derive(Debug)]
pub(crate) struct OwnMove<'a> {
    own: &'a Own,
    grant: GrantId,
    generation: i64,
    taken_in: bool,
}

impl OwnMove<'_> {
    pub(crate) fn taken_in(mut self) {
        self.taken_in = true;
    }
}

impl Drop for OwnMove<'_> {
    fn drop(&mut self) {
        let mut under_way = self.own.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(generations) = under_way.get_mut(&self.grant) {
            if let Some(place) = generations.iter().position(|generation| *generation == self.generation) {
                generations.swap_remove(place);
            }
            if generations.is_empty() {
                under_way.remove(&self.grant);
            }
        }
        drop(under_way);
        if !self.taken_in {
            self.own.left.lock().unwrap_or_else(PoisonError::into_inner).push(self.grant.clone());
            self.own.told.notify_one();
        }
    }
}

impl AgentIndex {
    /// Reads all grants of a store.
    ///
    /// # Errors
    /// What the store says.
    pub async fn load(store: &dyn GrantStore, now: Timestamp) -> Result<Self, UserStoreError> {
        let index = Self::default();
        index.reload(store, now).await?;
        Ok(index)
    }

    /// Makes an index of grants that are known, for who keeps them elsewhere.
    pub fn of(living: Vec<LivingGrant>, now: Timestamp) -> Self {
        let index = Self::default();
        let mut map = index.map.write().unwrap_or_else(PoisonError::into_inner);
        for grant in living {
            map.put(grant, now);
        }
        drop(map);
        index
    }

    /// Lets an agent in by its access token, and remembers the time.
    ///
    /// # Errors
    /// [`AuthError::Unknown`]: unknown, over, or of a grant that ended.
    pub fn check(&self, token: &AgentToken, now: Timestamp) -> Result<AuthorizedAgent, AuthError> {
        let hash = token.hash();
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let (held, until) = map.tokens.get(&hash).ok_or(AuthError::Unknown)?;
        if now >= *until || !held.grant.lives(now) {
            return Err(AuthError::Unknown);
        }
        held.uses.seen.fetch_max(now.micros(), Ordering::Relaxed);
        Ok(AuthorizedAgent(Arc::clone(held)))
    }

    /// Returns a grant as it was read last, and who gave it. Another process may have moved or ended it since.
    pub(crate) fn standing(&self, id: &GrantId) -> Option<AuthorizedAgent> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.grants.get(id).map(|entry| AuthorizedAgent(Arc::clone(&entry.held)))
    }

    /// Takes in an access token that the store has; returns whether its grant was known, so that nothing must be read.
    pub(crate) fn advance(&self, access: &AccessRecord) -> bool {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = map.grants.get(&access.grant) else { return false };
        let held = Arc::clone(&entry.held);
        let mut tokens = entry.access.clone();
        tokens.retain(|token| token.hash != access.hash && token.generation >= access.generation - 1);
        tokens.push(access.clone());
        let generation = held.grant.generation.max(access.generation);
        let grant = GrantRecord { generation, ..held.grant.clone() };
        let (user, ended, uses) = (Arc::clone(&held.user), held.ended.clone(), Arc::clone(&held.uses));
        map.enter(Arc::new(Held { user, grant, ended, uses }), tokens);
        true
    }

    /// Says that this process is about to move a grant, and takes the new token in itself.
    pub(crate) fn own_move(&self, access: &AccessRecord) -> OwnMove<'_> {
        let (grant, generation) = (access.grant.clone(), access.generation);
        let mut under_way = self.own.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.entry(grant.clone()).or_default().push(generation);
        drop(under_way);
        OwnMove { own: &self.own, grant, generation, taken_in: false }
    }

    /// Waits for moves of this process that nobody took in, and returns their grants. Safe to cancel.
    pub(crate) async fn left(&self) -> Vec<GrantId> {
        loop {
            let left = std::mem::take(&mut *self.own.left.lock().unwrap_or_else(PoisonError::into_inner));
            if !left.is_empty() {
                return left;
            }
            self.own.told.notified().await;
        }
    }

    /// Returns whether a change is one that is known already, or will be in a moment.
    pub(crate) fn knows(&self, change: &GrantChange) -> bool {
        let Some(generation) = change.generation else { return false };
        let under_way = self.own.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if under_way.get(&change.grant).is_some_and(|own| own.iter().any(|own| generation <= *own)) {
            return true;
        }
        drop(under_way);
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.grants.get(&change.grant).is_some_and(|entry| generation <= entry.held.grant.generation)
    }

    /// Returns how many access tokens are known.
    pub fn len(&self) -> usize {
        self.map.read().unwrap_or_else(PoisonError::into_inner).tokens.len()
    }

    /// Returns whether no access token is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads all grants anew and ends those that are gone.
    ///
    /// # Errors
    /// What the store says; the index is then as it was.
    pub async fn reload(&self, store: &dyn GrantStore, now: Timestamp) -> Result<(), UserStoreError> {
        let _turn = self.reading.lock().await;
        let mut living: Vec<LivingGrant> = Vec::new();
        loop {
            let after = living.last().map(|last| last.grant.id.clone());
            let page = store.living(Which::All, after.as_ref(), now).await?;
            let more = page.len() == crate::PAGE_MAX;
            living.extend(page);
            if !more {
                break;
            }
        }
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let known: Vec<GrantId> = map.grants.keys().cloned().collect();
        for id in known {
            if living.binary_search_by(|held| held.grant.id.cmp(&id)).is_err() {
                map.drop_entry(&id);
            }
        }
        for grant in living {
            map.put(grant, now);
        }
        map.ended.retain(|_, at| now.since(*at) < ENDED_FOR);
        Ok(())
    }

    /// Reads one grant anew, or ends it when it does not stand.
    ///
    /// # Errors
    /// What the store says; the index is then as it was.
    pub async fn reload_one(
        &self,
        store: &dyn GrantStore,
        id: &GrantId,
        now: Timestamp,
    ) -> Result<(), UserStoreError> {
        let _turn = self.reading.lock().await;
        let living = store.living(Which::One(id), None, now).await?.pop();
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        match living {
            Some(living) => map.put(living, now),
            None => map.end(id, now),
        }
        Ok(())
    }

    /// Lets a grant in no more, from now on and whatever is read meanwhile; what is open on it ends.
    pub fn end(&self, id: &GrantId, now: Timestamp) {
        self.map.write().unwrap_or_else(PoisonError::into_inner).end(id, now);
    }

    /// Ends all grants of a user that this process knows.
    pub fn end_all(&self, user: &UserId, now: Timestamp) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let own = map.grants.iter().filter(|(_, entry)| entry.held.user.id == *user);
        let own: Vec<GrantId> = own.map(|(id, _)| id.clone()).collect();
        for id in &own {
            map.end(id, now);
        }
    }

    /// Returns when a grant was last used in this process.
    pub fn used_at(&self, id: &GrantId) -> Option<Timestamp> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let seen = map.grants.get(id)?.held.uses.seen.load(Ordering::Relaxed);
        (seen != NEVER).then(|| Timestamp::from_micros(seen))
    }

    /// Takes the uses that are not written yet.
    pub(crate) fn unwritten(&self) -> Vec<(GrantId, Timestamp)> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let unwritten = map.grants.iter().filter_map(|(id, entry)| {
            let seen = entry.held.uses.seen.load(Ordering::Relaxed);
            (entry.held.uses.written.load(Ordering::Relaxed) < seen)
                .then(|| (id.clone(), Timestamp::from_micros(seen)))
        });
        unwritten.collect()
    }

    /// Remembers that uses were written.
    pub(crate) fn written(&self, uses: &[(GrantId, Timestamp)]) {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        for (id, at) in uses {
            if let Some(entry) = map.grants.get(id) {
                entry.held.uses.written.fetch_max(at.micros(), Ordering::Relaxed);
            }
        }
    }
}

impl Map {
    fn put(&mut self, living: LivingGrant, now: Timestamp) {
        let LivingGrant { user, grant, access } = living;
        let id = grant.id.clone();
        if self.ended.contains_key(&id) {
            return;
        }
        if user.disabled {
            // not for ten minutes: the user may be let in again
            self.drop_entry(&id);
            return;
        }
        let before = self.grants.get(&id);
        if before.is_some_and(|before| before.held.grant.generation > grant.generation) {
            // it was moved after this was read
            return;
        }
        let stored = grant.used_at.map_or(NEVER, Timestamp::micros);
        let fresh = || Arc::new(Uses { seen: AtomicI64::new(stored), written: AtomicI64::new(stored) });
        let (ended, uses) = match before {
            Some(before) => (before.held.ended.clone(), Arc::clone(&before.held.uses)),
            None => (CancellationToken::new(), fresh()),
        };
        let access = access.into_iter().filter(|token| now < token.expires_at).collect();
        self.enter(Arc::new(Held { user: Arc::new(user), grant, ended, uses }), access);
    }

    /// Puts a grant and its tokens in the place of what there was of it.
    fn enter(&mut self, held: Arc<Held>, access: Vec<AccessRecord>) {
        let before = self.grants.get(&held.grant.id);
        for token in before.iter().flat_map(|before| &before.access) {
            self.tokens.remove(&token.hash);
        }
        for token in &access {
            self.tokens.insert(token.hash, (Arc::clone(&held), token.expires_at));
        }
        self.grants.insert(held.grant.id.clone(), Entry { held, access });
    }

    fn end(&mut self, id: &GrantId, now: Timestamp) {
        self.drop_entry(id);
        self.ended.insert(id.clone(), now);
    }

    fn drop_entry(&mut self, id: &GrantId) {
        if let Some(entry) = self.grants.remove(id) {
            entry.access.iter().for_each(|token| drop(self.tokens.remove(&token.hash)));
            entry.held.ended.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OauthKey;
    use crate::testkit::account::{access, grant};
    use crate::testkit::{AT, user};

    #[tokio::test]
    async fn what_this_process_moves_is_known_and_what_it_leaves_is_read() {
        let jo = user("jo");
        let held = grant(&jo.id);
        let id = held.id.clone();
        let living = LivingGrant { user: jo, access: vec![access(&id, 1)], grant: held };
        let index = AgentIndex::of(vec![living.clone()], AT);
        let moved = |generation| GrantChange { grant: id.clone(), generation: Some(generation) };
        let knows = |generation| index.knows(&moved(generation));
        assert_eq!((knows(1), knows(2)), (true, false));
        assert!(!index.knows(&GrantChange { grant: id.clone(), generation: None }), "it may have ended");

        let own = index.own_move(&access(&id, 2));
        let again = index.own_move(&access(&id, 2));
        assert_eq!((knows(2), knows(3)), (true, false));
        assert!(index.advance(&access(&id, 2)));
        own.taken_in();
        again.taken_in();
        assert_eq!((knows(2), knows(3)), (true, false));
        let key = OauthKey::new("a key of tests".to_owned());
        let good = |generation| index.check(&key.access(&id, generation), AT).is_ok();
        assert!(good(1) && good(2));
        // what was read before the move does not undo it
        index.map.write().expect("no panic").put(living, AT);
        assert!(good(2));
        assert!(index.advance(&access(&id, 3)) && !good(1), "two generations back is over");

        drop(index.own_move(&access(&id, 4)));
        assert!(!knows(4));
        assert_eq!(index.left().await, std::slice::from_ref(&id));
        index.end(&id, AT);
        assert!(!index.advance(&access(&id, 4)) && !good(3), "it stays ended");
    }
}
