//! The contract of [`UserStore`] as tests, for everybody who writes one.
//!
//! [`user_store_suite!`](crate::user_store_suite) turns the list into tests; each wants a fresh, empty store.

pub mod account;

use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::{Id, SystemEntropy, Timestamp, TokenId, UserId};

use crate::{
    AccessToken, Credential, DEVICES_MAX, LINKS_MAX, Label, LinkRecord, LinkToken, NewDevice, TokenClass,
    TokenHash, TokenRecord, User, UserChanges, UserKey, UserStore, UserStoreError, ensure_admin,
};

/// A fresh, empty store and its changes.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "implementors build it")]
pub struct Subject {
    /// The store.
    pub store: Arc<dyn UserStore>,
    /// What tells of its changes.
    pub changes: Box<dyn UserChanges>,
}

/// The time of most of what the kit makes.
pub const AT: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// Makes a user record that no store has yet.
pub fn user(name: &str) -> User {
    User {
        id: Id::random(&SystemEntropy).expect("randomness"),
        name: name.parse().expect("a name"),
        admin: false,
        disabled: false,
        max_agent_boxes: None,
        created_at: AT,
        revision: 1,
    }
}

/// Makes a token record of `user` that no store has yet.
pub fn token(user: &UserId, class: TokenClass) -> (AccessToken, TokenRecord) {
    let token = AccessToken::random(&SystemEntropy).expect("randomness");
    let record = TokenRecord {
        id: Id::random(&SystemEntropy).expect("randomness"),
        user: user.clone(),
        class,
        label: "a device".parse().expect("a label"),
        client: None,
        hash: token.hash(),
        created_at: AT,
        used_at: None,
    };
    (token, record)
}

/// Makes a link record of `user` that lives ten minutes from [`AT`] on.
pub fn link(user: &UserId) -> (LinkToken, LinkRecord) {
    let link = LinkToken::random(&SystemEntropy).expect("randomness");
    let record = LinkRecord {
        id: Id::random(&SystemEntropy).expect("randomness"),
        user: user.clone(),
        hash: link.hash(),
        created_at: AT,
        expires_at: AT.plus(Duration::from_mins(10)),
    };
    (link, record)
}

/// Makes a device that no store has yet.
pub fn device() -> NewDevice {
    NewDevice {
        id: Id::random(&SystemEntropy).expect("randomness"),
        label: "laptop".parse::<Label>().expect("a label"),
        hash: AccessToken::random(&SystemEntropy).expect("randomness").hash(),
    }
}

async fn made(store: &dyn UserStore, name: &str) -> User {
    let user = user(name);
    store.create_user(&user, &[]).await.expect("a new user");
    user
}

async fn all(store: &dyn UserStore, of: Option<&UserId>) -> Vec<TokenRecord> {
    store.tokens(of, None, 1000).await.expect("the tokens").into_iter().map(|(_, token)| token).collect()
}

async fn heard(changes: &mut dyn UserChanges) {
    tokio::time::timeout(Duration::from_secs(20), changes.next()).await.expect("a change is told");
}

/// A user reads back whole, by id and by name.
pub async fn a_user_reads_back(Subject { store, .. }: Subject) {
    let user = User { admin: true, ..user("jo") };
    let (_, personal) = token(&user.id, TokenClass::Personal);
    let credentials = [Credential::Token(personal.clone()), Credential::Link(link(&user.id).1)];
    store.create_user(&user, &credentials).await.expect("a new user");
    assert_eq!(store.user(UserKey::Id(&user.id)).await.expect("an answer").as_ref(), Some(&user));
    assert_eq!(store.user(UserKey::Name(&user.name)).await.expect("an answer").as_ref(), Some(&user));
    assert_eq!(store.tokens(None, None, 10).await.expect("the tokens"), [(user, personal)]);
    let (nobody, nameless) = (self::user("nobody"), "none".parse().expect("a name"));
    assert_eq!(store.user(UserKey::Id(&nobody.id)).await.expect("an answer"), None);
    assert_eq!(store.user(UserKey::Name(&nameless)).await.expect("an answer"), None);
}

/// A name has one owner; the loser leaves nothing behind.
pub async fn a_name_is_taken_once(Subject { store, .. }: Subject) {
    made(&*store, "jo").await;
    let other = user("jo");
    let (_, personal) = token(&other.id, TokenClass::Personal);
    let error = store.create_user(&other, &[Credential::Token(personal)]).await.expect_err("taken");
    assert!(matches!(error, UserStoreError::NameTaken { name } if name == other.name));
    assert_eq!(store.user(UserKey::Id(&other.id)).await.expect("an answer"), None);
    assert_eq!(all(&*store, None).await, []);
}

/// A refused credential undoes the user it came with.
pub async fn a_user_is_made_whole_or_not_at_all(Subject { store, .. }: Subject) {
    let first = made(&*store, "first").await;
    let (_, held) = token(&first.id, TokenClass::Device);
    store.issue(&Credential::Token(held.clone())).await.expect("room");
    let second = user("second");
    let (_, fresh) = token(&second.id, TokenClass::Personal);
    let twin =
        TokenRecord { hash: held.hash, class: TokenClass::Device, ..token(&second.id, TokenClass::Device).1 };
    let error = store.create_user(&second, &[Credential::Token(fresh), Credential::Token(twin)]).await;
    assert!(matches!(error, Err(UserStoreError::Taken)), "{error:?}");
    assert_eq!(store.user(UserKey::Id(&second.id)).await.expect("an answer"), None);
    assert_eq!(all(&*store, None).await, [held]);
}

/// A save that read an older revision is refused and changes nothing.
pub async fn a_stale_save_is_refused(Subject { store, .. }: Subject) {
    let user = made(&*store, "jo").await;
    let renamed = User { name: "jona".parse().expect("a name"), ..user.clone() };
    assert_eq!(store.save_user(&renamed).await.expect("fresh"), 2);
    let error = store.save_user(&User { admin: true, ..user.clone() }).await.expect_err("stale");
    assert!(matches!(error, UserStoreError::Stale { id } if id == user.id));
    let held = store.user(UserKey::Id(&user.id)).await.expect("an answer");
    assert_eq!(held, Some(User { revision: 2, ..renamed.clone() }));
    let error = store.save_user(&self::user("nobody")).await.expect_err("nobody");
    assert!(matches!(error, UserStoreError::NoUser { .. }), "{error:?}");
    let other = made(&*store, "other").await;
    let error = store.save_user(&User { name: renamed.name, ..other }).await.expect_err("taken");
    assert!(matches!(error, UserStoreError::NameTaken { .. }), "{error:?}");
}

/// Of saves at once on one revision exactly one succeeds.
pub async fn one_of_many_saves_wins(Subject { store, .. }: Subject) {
    let user = made(&*store, "jo").await;
    let mut saves = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (store, user) = (Arc::clone(&store), user.clone());
        saves.spawn(async move { store.save_user(&User { admin: true, ..user }).await });
    }
    let outcomes = saves.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    assert!(
        outcomes
            .iter()
            .filter_map(|outcome| outcome.as_ref().err())
            .all(|e| matches!(e, UserStoreError::Stale { .. }))
    );
}

/// A user has one personal token; a new one replaces it.
pub async fn a_personal_token_replaces_the_one_before(Subject { store, .. }: Subject) {
    let (user, other) = (made(&*store, "jo").await, made(&*store, "other").await);
    for user in [&user, &other, &user] {
        store.issue(&Credential::Token(token(&user.id, TokenClass::Personal).1)).await.expect("room");
    }
    let (_, last) = token(&user.id, TokenClass::Personal);
    store.issue(&Credential::Token(last.clone())).await.expect("room");
    assert_eq!(all(&*store, Some(&user.id)).await, [last]);
    assert_eq!(all(&*store, None).await.len(), 2);
    let error = store.issue(&Credential::Token(token(&self::user("nobody").id, TokenClass::Device).1)).await;
    assert!(matches!(error, Err(UserStoreError::NoUser { .. })), "{error:?}");
}

/// A link works once.
pub async fn a_link_works_once(Subject { store, .. }: Subject) {
    let user = made(&*store, "jo").await;
    let (secret, record) = link(&user.id);
    store.issue(&Credential::Link(record)).await.expect("room");
    let device = device();
    assert_eq!(store.redeem_link(&secret.hash(), &device, AT).await.expect("a fresh link"), user);
    let error = store.redeem_link(&secret.hash(), &self::device(), AT).await.expect_err("spent");
    assert!(matches!(error, UserStoreError::LinkRefused), "{error:?}");
    let tokens = all(&*store, Some(&user.id)).await;
    assert_eq!(tokens.len(), 1);
    assert_eq!(
        (&tokens[0].id, &tokens[0].hash, tokens[0].class),
        (&device.id, &device.hash, TokenClass::Device)
    );
    assert_eq!((tokens[0].created_at, tokens[0].used_at), (AT, None));
}

/// Of callers that race for one link exactly one gets in.
pub async fn a_raced_link_works_once(Subject { store, .. }: Subject) {
    let user = made(&*store, "jo").await;
    for _ in 0..5 {
        let (secret, record) = link(&user.id);
        store.issue(&Credential::Link(record)).await.expect("room");
        let hash: TokenHash = secret.hash();
        let mut race = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let store = Arc::clone(&store);
            race.spawn(async move { store.redeem_link(&hash, &device(), AT).await.is_ok() });
        }
        assert_eq!(race.join_all().await.into_iter().filter(|won| *won).count(), 1);
    }
    assert_eq!(all(&*store, None).await.len(), 5);
}

/// A link that is unknown, too old, or of a user who is shut out, is refused.
pub async fn a_link_that_is_not_good_is_refused(Subject { store, .. }: Subject) {
    let user = made(&*store, "jo").await;
    let (secret, record) = link(&user.id);
    let expires_at = record.expires_at;
    store.issue(&Credential::Link(record)).await.expect("room");
    let refused = async |hash: &TokenHash, now| {
        matches!(store.redeem_link(hash, &device(), now).await, Err(UserStoreError::LinkRefused))
    };
    assert!(refused(&link(&user.id).0.hash(), AT).await, "unknown");
    assert!(refused(&secret.hash(), expires_at).await, "too old");
    store.save_user(&User { disabled: true, ..user.clone() }).await.expect("fresh");
    assert!(refused(&secret.hash(), AT).await, "shut out");
    assert_eq!(all(&*store, None).await, []);
    store.save_user(&User { revision: 2, ..user }).await.expect("fresh");
    let just_in_time = Timestamp::from_micros(expires_at.micros() - 1);
    store.redeem_link(&secret.hash(), &device(), just_in_time).await.expect("refusals do not spend it");
}

/// Devices and open links have limits; expired links do not count.
pub async fn devices_and_links_have_limits(Subject { store, .. }: Subject) {
    let user = made(&*store, "jo").await;
    let (secret, record) = link(&user.id);
    store.issue(&Credential::Link(record)).await.expect("room");
    for _ in 0..DEVICES_MAX {
        store.issue(&Credential::Token(token(&user.id, TokenClass::Device).1)).await.expect("room");
    }
    let error =
        store.issue(&Credential::Token(token(&user.id, TokenClass::Device).1)).await.expect_err("full");
    assert!(matches!(error, UserStoreError::TooMany { limit: DEVICES_MAX, .. }), "{error:?}");
    let error = store.redeem_link(&secret.hash(), &device(), AT).await.expect_err("full");
    assert!(matches!(error, UserStoreError::TooMany { .. }), "{error:?}");
    store.issue(&Credential::Token(token(&user.id, TokenClass::Personal).1)).await.expect("no device");
    store
        .revoke_token(
            &user.id,
            &all(&*store, None).await.iter().find(|t| t.class == TokenClass::Device).expect("one").id,
        )
        .await
        .expect("held");
    store.redeem_link(&secret.hash(), &device(), AT).await.expect("the link was not spent");

    for _ in 0..LINKS_MAX {
        store.issue(&Credential::Link(link(&user.id).1)).await.expect("room");
    }
    let error = store.issue(&Credential::Link(link(&user.id).1)).await.expect_err("full");
    assert!(matches!(error, UserStoreError::TooMany { limit: LINKS_MAX, .. }), "{error:?}");
    let (_, later) = link(&user.id);
    let later =
        LinkRecord { created_at: later.expires_at, expires_at: Timestamp::from_micros(i64::MAX), ..later };
    store.issue(&Credential::Link(later)).await.expect("the others are too old to count");
}

/// A token is removed by its owner alone.
pub async fn a_token_is_revoked_by_its_owner_alone(Subject { store, .. }: Subject) {
    let (user, other) = (made(&*store, "jo").await, made(&*store, "other").await);
    let (_, device) = token(&user.id, TokenClass::Device);
    store.issue(&Credential::Token(device.clone())).await.expect("room");
    for _ in 0..2 {
        let error = store.revoke_token(&other.id, &device.id).await.expect_err("another's");
        assert!(matches!(error, UserStoreError::NoToken { .. }), "{error:?}");
    }
    store.revoke_token(&user.id, &device.id).await.expect("held");
    assert!(matches!(store.revoke_token(&user.id, &device.id).await, Err(UserStoreError::NoToken { .. })));
    assert_eq!(all(&*store, None).await, []);
}

/// Pages hold every token once.
pub async fn pages_hold_every_token_once(Subject { store, .. }: Subject) {
    let (user, other) = (made(&*store, "jo").await, made(&*store, "other").await);
    let mut expected = Vec::new();
    for owner in [&user, &other, &user, &user, &other, &user, &user] {
        let (_, record) = token(&owner.id, TokenClass::Device);
        store.issue(&Credential::Token(record.clone())).await.expect("room");
        expected.push(record.id);
    }
    for limit in [0, 1, 2, 3, 7, 8] {
        let (mut seen, mut after) = (Vec::<TokenId>::new(), None);
        loop {
            let page = store.tokens(None, after.as_ref(), limit).await.expect("a page");
            seen.extend(page.iter().map(|(_, token)| token.id.clone()));
            if page.len() < limit.max(1) {
                break;
            }
            after = seen.last().cloned();
        }
        assert_eq!(seen.len(), 7, "limit {limit}");
        assert!(expected.iter().all(|id| seen.contains(id)));
    }
    assert_eq!(all(&*store, Some(&other.id)).await.len(), 2);
}

/// The time of a use never goes back, and unknown tokens are passed over.
pub async fn a_use_never_goes_back(Subject { store, .. }: Subject) {
    let user = made(&*store, "jo").await;
    let (_, device) = token(&user.id, TokenClass::Device);
    store.issue(&Credential::Token(device.clone())).await.expect("room");
    let late = AT.plus(Duration::from_mins(1));
    let (_, gone) = token(&user.id, TokenClass::Device);
    for used in [vec![(device.id.clone(), late), (gone.id, late)], vec![(device.id.clone(), AT)], vec![]] {
        store.touch(&used).await.expect("written");
    }
    assert_eq!(all(&*store, None).await, [TokenRecord { used_at: Some(late), ..device }]);
}

/// Each change is told.
pub async fn each_change_is_told(Subject { store, mut changes }: Subject) {
    let user = made(&*store, "jo").await;
    heard(&mut *changes).await;
    let (_, device) = token(&user.id, TokenClass::Device);
    store.issue(&Credential::Token(device.clone())).await.expect("room");
    heard(&mut *changes).await;
    store.save_user(&User { disabled: true, ..user.clone() }).await.expect("fresh");
    heard(&mut *changes).await;
    store.revoke_token(&user.id, &device.id).await.expect("held");
    heard(&mut *changes).await;
}

/// Of servers that start at once exactly one makes the first user.
pub async fn one_of_many_first_starts_wins(Subject { store, .. }: Subject) {
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let store = Arc::clone(&store);
        starts.spawn(async move { ensure_admin(&*store, AT, &SystemEntropy).await.expect("a start") });
    }
    let firsts: Vec<_> = starts.join_all().await.into_iter().flatten().collect();
    assert_eq!(firsts.len(), 1);
    assert_eq!(all(&*store, None).await.len(), 1);
    let user = store.redeem_link(&firsts[0].link.hash(), &device(), AT).await.expect("its link works");
    assert!(user.admin);
    assert!(ensure_admin(&*store, AT, &SystemEntropy).await.expect("a later start").is_none());
}

/// Declares a test for each line of the contract: `user_store_suite! { async expression }`.
///
/// The expression makes an `Option<(Subject, guard)>`; none skips, and the guard lives as long as the test. Needs
/// `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! user_store_suite {
    ($make:expr) => {
        $crate::user_store_suite! { @each $make;
            a_user_reads_back
            a_name_is_taken_once
            a_user_is_made_whole_or_not_at_all
            a_stale_save_is_refused
            one_of_many_saves_wins
            a_personal_token_replaces_the_one_before
            a_link_works_once
            a_raced_link_works_once
            a_link_that_is_not_good_is_refused
            devices_and_links_have_limits
            a_token_is_revoked_by_its_owner_alone
            pages_hold_every_token_once
            a_use_never_goes_back
            each_change_is_told
            one_of_many_first_starts_wins
        }
    };
    (@each $make:expr; $($name:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if let Some((subject, _guard)) = $make.await {
                $crate::testkit::$name(subject).await;
            }
        })*
    };
}
