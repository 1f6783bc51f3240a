//! Who may call: one lookup in memory.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwap;
use cocoonbox_core::{Timestamp, TokenId, UserId, UserName};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::secret::HashMapByToken;
use crate::{AccessToken, PAGE_MAX, TokenClass, TokenHash, TokenRecord, User, UserStore, UserStoreError};

/// No use yet.
const NEVER: i64 = i64::MIN;

/// Why a caller is not let in. The two that a stranger could tell apart by trying are told in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The call shows no token.
    #[error("no token: send `authorization: Bearer cb_…`")]
    Missing,
    /// What it shows is no token.
    #[error("not a token: send `authorization: Bearer cb_` and 64 hex digits")]
    Malformed,
    /// The token is unknown, was revoked, or its user is shut out.
    #[error("the token is not valid any more, or never was: sign in again")]
    Unknown,
}

/// Proof that a call showed a valid token; only [`TokenIndex`] makes one.
#[derive(Clone)]
pub struct AuthorizedCaller {
    user: UserId,
    name: UserName,
    admin: bool,
    token: TokenId,
    class: TokenClass,
    ended: CancellationToken,
}

impl AuthorizedCaller {
    /// Returns who calls.
    pub const fn user(&self) -> &UserId {
        &self.user
    }

    /// Returns the caller's name.
    pub const fn name(&self) -> &UserName {
        &self.name
    }

    /// Returns whether the caller may administer the server.
    pub const fn admin(&self) -> bool {
        self.admin
    }

    /// Returns which token was shown.
    pub const fn token(&self) -> &TokenId {
        &self.token
    }

    /// Returns the class of the token.
    pub const fn class(&self) -> TokenClass {
        self.class
    }

    /// Returns what is cancelled when the token ends; open calls end with it.
    pub const fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}

impl fmt::Debug for AuthorizedCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizedCaller")
            .field("user", &self.user)
            .field("name", &self.name)
            .field("admin", &self.admin)
            .field("token", &self.token)
            .field("class", &self.class)
            .field("ended", &self.ended.is_cancelled())
            .finish()
    }
}

#[derive(Debug)]
struct Entry {
    caller: AuthorizedCaller,
    uses: Arc<Uses>,
}

#[derive(Debug)]
struct Uses {
    seen: AtomicI64,
    written: AtomicI64,
}

/// All valid tokens by their hash.
///
/// # Behavior
/// - A check is one lookup, with no lock, no IO and no waiting; a token is hashed before it is looked up, so the time
///   a wrong guess takes tells nothing about how close it was.
/// - A token that is gone, replaced, or whose user was shut out or gained or lost administration, ends: its
///   [`AuthorizedCaller::ended`] is cancelled by the reload that notices.
/// - While the store cannot be read, what was read last goes on.
#[derive(Debug, Default)]
pub struct TokenIndex {
    entries: ArcSwap<HashMapByToken<Entry>>,
    reloading: Mutex<()>,
}

impl TokenIndex {
    /// Reads all tokens of a store.
    ///
    /// # Errors
    /// What the store says.
    pub async fn load(store: &dyn UserStore) -> Result<Self, UserStoreError> {
        let index = Self::default();
        index.reload(store).await?;
        Ok(index)
    }

    /// Lets a caller in by the value of its `authorization` header, and remembers the time.
    ///
    /// # Errors
    /// [`AuthError`].
    pub fn authenticate(&self, header: Option<&[u8]>, now: Timestamp) -> Result<AuthorizedCaller, AuthError> {
        let header = header.ok_or(AuthError::Missing)?;
        let header = std::str::from_utf8(header).map_err(|_| AuthError::Malformed)?;
        let (scheme, token) = header.split_once(' ').ok_or(AuthError::Malformed)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(AuthError::Malformed);
        }
        let token = AccessToken::parse(token.trim_matches(' ')).map_err(|_| AuthError::Malformed)?;
        self.check(&token, now)
    }

    /// Lets a caller in by a token, and remembers the time.
    ///
    /// # Errors
    /// [`AuthError::Unknown`].
    pub fn check(&self, token: &AccessToken, now: Timestamp) -> Result<AuthorizedCaller, AuthError> {
        let entries = self.entries.load();
        let entry = entries.get(&token.hash()).ok_or(AuthError::Unknown)?;
        entry.uses.seen.fetch_max(now.micros(), Ordering::Relaxed);
        Ok(entry.caller.clone())
    }

    /// Returns how many tokens are valid.
    pub fn len(&self) -> usize {
        self.entries.load().len()
    }

    /// Returns whether no token is valid.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads all tokens anew and ends those that are gone. Calls take turns; what was committed before a call is seen
    /// by it.
    ///
    /// # Errors
    /// What the store says; the index is then as it was.
    pub async fn reload(&self, store: &dyn UserStore) -> Result<(), UserStoreError> {
        let _turn = self.reloading.lock().await;
        let old = self.entries.load_full();
        let mut next = HashMapByToken::with_capacity_and_hasher(old.len(), BuildHasherDefault::new());
        let mut after: Option<TokenId> = None;
        loop {
            let page = store.tokens(None, after.as_ref(), PAGE_MAX).await?;
            let more = page.len() == PAGE_MAX;
            after = page.last().map(|(_, token)| token.id.clone());
            for (user, token) in page {
                if !user.disabled {
                    let (hash, entry) = entry(user, token, &old);
                    next.insert(hash, entry);
                }
            }
            if !more {
                break;
            }
        }
        let next = Arc::new(next);
        self.entries.store(Arc::clone(&next));
        // after the swap: who is let in meanwhile is let in by the new map
        for (hash, entry) in old.iter() {
            let goes_on = next.get(hash).is_some_and(|kept| Arc::ptr_eq(&kept.uses, &entry.uses));
            if !goes_on {
                entry.caller.ended.cancel();
            }
        }
        Ok(())
    }

    /// Returns when a token was last used in this process.
    pub fn used_at(&self, hash: &TokenHash) -> Option<Timestamp> {
        let entries = self.entries.load();
        let seen = entries.get(hash)?.uses.seen.load(Ordering::Relaxed);
        (seen != NEVER).then(|| Timestamp::from_micros(seen))
    }

    /// Takes the uses that are not written yet.
    pub(crate) fn unwritten(&self) -> Vec<(TokenId, Timestamp)> {
        let entries = self.entries.load();
        let unwritten = entries.values().filter_map(|entry| {
            let seen = entry.uses.seen.load(Ordering::Relaxed);
            (entry.uses.written.load(Ordering::Relaxed) < seen)
                .then(|| (entry.caller.token.clone(), Timestamp::from_micros(seen)))
        });
        unwritten.collect()
    }

    /// Remembers that uses were written.
    pub(crate) fn written(&self, uses: &[(TokenId, Timestamp)]) {
        let entries = self.entries.load();
        let uses: HashMap<&TokenId, i64> = uses.iter().map(|(id, at)| (id, at.micros())).collect();
        for entry in entries.values() {
            if let Some(at) = uses.get(&entry.caller.token) {
                entry.uses.written.fetch_max(*at, Ordering::Relaxed);
            }
        }
    }
}

/// Makes a token's entry, which goes on with what is open on the entry before it unless the caller is another now.
fn entry(user: User, token: TokenRecord, old: &HashMapByToken<Entry>) -> (TokenHash, Entry) {
    let stored = token.used_at.map_or(NEVER, Timestamp::micros);
    let before = old.get(&token.hash).filter(|before| {
        before.caller.token == token.id && before.caller.user == user.id && before.caller.admin == user.admin
    });
    let (ended, uses) = if let Some(before) = before {
        (before.caller.ended.clone(), Arc::clone(&before.uses))
    } else {
        let uses = Uses { seen: AtomicI64::new(stored), written: AtomicI64::new(stored) };
        (CancellationToken::new(), Arc::new(uses))
    };
    let caller = AuthorizedCaller {
        user: user.id,
        name: user.name,
        admin: user.admin,
        token: token.id,
        class: token.class,
        ended,
    };
    (token.hash, Entry { caller, uses })
}
