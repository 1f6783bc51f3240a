//! The contract of [`SessionStore`](crate::SessionStore), [`GrantStore`](crate::GrantStore),
//! [`ClientStore`](crate::ClientStore) and [`SignInStore`](crate::SignInStore), and of their place beside users.

use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::{ConsoleSessionId, GrantId, Id, SignInId, SystemEntropy, Timestamp, TokenId, UserId};

use super::{AT, link, token, user};
use crate::{
    AccessRecord, AccountStore, AuthorizationCode, CLIENTS_MAX, Client, ClientKind, CodeRecord, Credential,
    Door, GRANTS_MAX, GrantChange, GrantRecord, OauthKey, PAGE_MAX, Password, PasswordHash, Promise,
    SESSIONS_MAX, SIGN_INS_FOR, SIGN_INS_MAX, SessionRecord, SessionToken, SignInRecord, Spent, TokenClass,
    User, UserKey, UserStoreError, Which,
};

/// A store without users.
pub type Accounts = Arc<dyn AccountStore>;

async fn made(store: &Accounts, name: &str) -> User {
    let user = user(name);
    store.create_user(&user, &[]).await.expect("a new name");
    user
}

fn later(minutes: u64) -> Timestamp {
    AT.plus(Duration::from_mins(minutes))
}

fn hash(text: &str) -> PasswordHash {
    Password::new(text.to_owned()).hash(&SystemEntropy).expect("a hash")
}

/// Makes a session record of `user` that lives an hour from `at` on.
pub fn session(user: &UserId, at: Timestamp) -> SessionRecord {
    SessionRecord {
        id: ConsoleSessionId::random(&SystemEntropy).expect("randomness"),
        user: user.clone(),
        hash: SessionToken::random(&SystemEntropy).expect("randomness").hash(),
        created_at: at,
        expires_at: at.plus(Duration::from_hours(1)),
    }
}

/// Makes a grant of `user` that lives a day from [`AT`] on.
pub fn grant(user: &UserId) -> GrantRecord {
    GrantRecord {
        id: GrantId::random(&SystemEntropy).expect("randomness"),
        user: user.clone(),
        client: "cbo_1".parse().expect("a client id"),
        client_name: "An agent".to_owned(),
        client_host: Some("agent.example".to_owned()),
        resource: "http://127.0.0.1:1/cocoonbox.mcp".to_owned(),
        max_boxes: 2,
        max_running: 1,
        approved_at: AT,
        expires_at: AT.plus(Duration::from_hours(24)),
        used_at: None,
        seen: false,
        generation: 1,
        ended_at: None,
    }
}

/// Makes the access token of a grant's generation.
pub fn access(grant: &GrantId, generation: i64) -> AccessRecord {
    let key = OauthKey::new("a key of tests".to_owned());
    AccessRecord {
        grant: grant.clone(),
        generation,
        hash: key.access(grant, generation).hash(),
        expires_at: AT.plus(Duration::from_hours(1)),
    }
}

/// Makes a code of `user` that lives a minute from [`AT`] on.
pub fn code(user: &UserId, promise: Promise) -> CodeRecord {
    CodeRecord {
        hash: AuthorizationCode::random(&SystemEntropy).expect("randomness").hash(),
        client: "cbo_1".parse().expect("a client id"),
        user: user.clone(),
        redirect_uri: "http://127.0.0.1:5/cb".to_owned(),
        challenge: "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM".to_owned(),
        promise,
        expires_at: later(1),
    }
}

async fn begun(store: &Accounts, user: &User) -> GrantRecord {
    let grant = grant(&user.id);
    store.begin_grant(&grant, &access(&grant.id, 1), AT).await.expect("room");
    grant
}

async fn living(store: &Accounts, which: Which<'_>) -> Vec<GrantRecord> {
    store.living(which, None, AT).await.expect("grants").into_iter().map(|living| living.grant).collect()
}

/// A password reads back, and a new one ends the other sessions.
pub async fn a_password_reads_back_and_ends_other_sessions(store: Accounts) {
    let (jo, other) = (made(&store, "jo").await, made(&store, "other").await);
    assert_eq!(store.password(&jo.id).await.expect("a user"), None);
    let (mine, yours, theirs) = (session(&jo.id, AT), session(&jo.id, AT), session(&other.id, AT));
    for session in [&mine, &yours, &theirs] {
        store.begin_session(session).await.expect("room");
    }
    let first = hash("a good password");
    store.set_password(&jo.id, &first, Some(&mine.id)).await.expect("a user");
    assert_eq!(store.password(&jo.id).await.expect("a user"), Some(first));
    for (session, there) in [(&mine, true), (&yours, false), (&theirs, true)] {
        assert_eq!(store.session(&session.hash, AT).await.expect("asked").is_some(), there);
    }
    store.set_password(&jo.id, &hash("a better password"), None).await.expect("a user");
    assert_eq!(store.session(&mine.hash, AT).await.expect("asked"), None);
    let nobody = user("nobody").id;
    for refused in [
        store.password(&nobody).await.map(drop),
        store.set_password(&nobody, &hash("whatever it is"), None).await,
        store.begin_session(&session(&nobody, AT)).await,
        store.sign_out_everywhere(&nobody).await,
    ] {
        assert!(matches!(refused, Err(UserStoreError::NoUser { .. })), "{refused:?}");
    }
}

/// A session lives until it is over, is ended, or its user is shut out.
pub async fn a_session_lives_until_it_ends(store: Accounts) {
    let jo = made(&store, "jo").await;
    let held = session(&jo.id, AT);
    store.begin_session(&held).await.expect("room");
    assert!(matches!(store.begin_session(&held).await, Err(UserStoreError::Taken)));
    let found = store.session(&held.hash, later(59)).await.expect("asked");
    assert_eq!(found.map(|(user, session)| (user.name, session)), Some((jo.name.clone(), held.clone())));
    assert_eq!(store.session(&held.hash, later(60)).await.expect("asked"), None);
    let shut_out = User { disabled: true, ..jo.clone() };
    let revision = store.save_user(&shut_out).await.expect("fresh");
    assert_eq!(store.session(&held.hash, AT).await.expect("asked"), None);
    store.save_user(&User { revision, ..jo }).await.expect("fresh");
    assert!(store.session(&held.hash, AT).await.expect("asked").is_some());
    store.end_session(&held.hash).await.expect("ended");
    store.end_session(&held.hash).await.expect("ended already");
    assert_eq!(store.session(&held.hash, AT).await.expect("asked"), None);
}

/// Of more sessions than there may be the oldest ends.
pub async fn the_oldest_of_too_many_sessions_ends(store: Accounts) {
    let jo = made(&store, "jo").await;
    let sessions: Vec<_> =
        (0..=SESSIONS_MAX as u64).map(|n| session(&jo.id, AT.plus(Duration::from_secs(n)))).collect();
    for session in &sessions {
        store.begin_session(session).await.expect("room is made");
    }
    for (number, session) in sessions.iter().enumerate() {
        let there = store.session(&session.hash, later(1)).await.expect("asked").is_some();
        assert_eq!(there, number > 0, "{number}");
    }
}

/// A link sets its user's password once, whoever races, and begins a session.
pub async fn a_link_sets_a_password_once(store: Accounts) {
    let (link, record) = link(&user("nobody").id);
    let jo = user("jo");
    let record = crate::LinkRecord { user: jo.id.clone(), ..record };
    store.create_user(&jo, &[Credential::Link(record)]).await.expect("a new name");
    let before = session(&jo.id, AT);
    store.begin_session(&before).await.expect("room");
    let mut tries = tokio::task::JoinSet::new();
    for number in 0..4 {
        let (store, link) = (Arc::clone(&store), link.hash());
        let session = session(&user("nobody").id, AT);
        tries.spawn(async move {
            let password = hash(&format!("password {number}"));
            let done = store.redeem_link_with_password(&link, &password, &session).await;
            (done, password, session)
        });
    }
    let (won, lost): (Vec<_>, Vec<_>) =
        tries.join_all().await.into_iter().partition(|(done, ..)| done.is_ok());
    assert_eq!((won.len(), lost.len()), (1, 3));
    assert!(lost.iter().all(|(done, ..)| matches!(done, Err(UserStoreError::LinkRefused))));
    let (_, password, session) = &won[0];
    assert_eq!(store.password(&jo.id).await.expect("a user").as_ref(), Some(password));
    let found = store.session(&session.hash, AT).await.expect("asked");
    assert_eq!(found.map(|(user, _)| user.id), Some(jo.id.clone()));
    assert_eq!(store.session(&before.hash, AT).await.expect("asked"), None);
}

/// After signing out everywhere no session and no token is left, and others keep theirs.
pub async fn signing_out_everywhere_leaves_nothing(store: Accounts) {
    let (jo, other) = (made(&store, "jo").await, made(&store, "other").await);
    for user in [&jo, &other] {
        store.begin_session(&session(&user.id, AT)).await.expect("room");
        for class in [TokenClass::Personal, TokenClass::Device] {
            store.issue(&Credential::Token(token(&user.id, class).1)).await.expect("room");
        }
        begun(&store, user).await;
    }
    let held = session(&jo.id, AT);
    store.begin_session(&held).await.expect("room");
    store.end_grants(&jo.id, AT).await.expect("ended");
    store.sign_out_everywhere(&jo.id).await.expect("signed out");
    assert_eq!(store.session(&held.hash, AT).await.expect("asked"), None);
    assert_eq!(store.tokens(Some(&jo.id), None, PAGE_MAX).await.expect("tokens"), []);
    assert_eq!(living(&store, Which::Of(&jo.id)).await, []);
    assert_eq!(store.tokens(Some(&other.id), None, PAGE_MAX).await.expect("tokens").len(), 2);
    assert_eq!(living(&store, Which::Of(&other.id)).await.len(), 1);
}

/// A code is spent by one of those that race for it; later uses are told apart from guesses.
pub async fn a_code_is_spent_once(store: Accounts) {
    let jo = made(&store, "jo").await;
    let grant = grant(&jo.id);
    let device = Promise::Device {
        token: TokenId::random(&SystemEntropy).expect("randomness"),
        label: "a laptop".parse().expect("a label"),
    };
    for promise in [Promise::Grant(Box::new(grant)), device] {
        let code = code(&jo.id, promise);
        store.put_code(&code, AT).await.expect("kept");
        assert!(matches!(store.put_code(&code, AT).await, Err(UserStoreError::Taken)));
        let mut tries = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let (store, hash) = (Arc::clone(&store), code.hash);
            tries.spawn(async move { store.spend_code(&hash, AT).await.expect("asked") });
        }
        let (first, again): (Vec<_>, Vec<_>) =
            tries.join_all().await.into_iter().partition(|spent| matches!(spent, Spent::First(_)));
        assert_eq!(first, [Spent::First(Box::new(code.clone()))]);
        assert_eq!(again, vec![Spent::Again(Box::new(code.clone())); 5]);
    }
    let late = code(&jo.id, Promise::Grant(Box::new(super::account::grant(&jo.id))));
    store.put_code(&late, AT).await.expect("kept");
    assert_eq!(store.spend_code(&late.hash, late.expires_at).await.expect("asked"), Spent::Unknown);
    let nobody = code(&user("nobody").id, Promise::Grant(Box::new(super::account::grant(&jo.id))));
    assert!(matches!(store.put_code(&nobody, AT).await, Err(UserStoreError::NoUser { .. })));
    assert_eq!(store.spend_code(&nobody.hash, AT).await.expect("asked"), Spent::Unknown);
}

/// A spent code is remembered for ten minutes after its time, and then forgotten.
pub async fn a_spent_code_is_forgotten_in_time(store: Accounts) {
    let jo = made(&store, "jo").await;
    let fresh = || code(&jo.id, Promise::Grant(Box::new(grant(&jo.id))));
    let first = fresh();
    store.put_code(&first, AT).await.expect("kept");
    assert!(matches!(store.spend_code(&first.hash, AT).await, Ok(Spent::First(_))));
    store.put_code(&fresh(), later(10)).await.expect("kept");
    assert!(matches!(store.spend_code(&first.hash, later(10)).await, Ok(Spent::Again(_))));
    store.put_code(&fresh(), later(12)).await.expect("kept");
    assert_eq!(store.spend_code(&first.hash, later(12)).await.expect("asked"), Spent::Unknown);
}

/// A grant goes from one generation to the next, its newest token may be renewed, and nothing else is done.
pub async fn a_grant_moves_one_generation_at_a_time(store: Accounts) {
    let jo = made(&store, "jo").await;
    let held = begun(&store, &jo).await;
    for (generation, done) in [(3, false), (2, true), (2, true), (1, false), (3, true), (1, false), (4, true)]
    {
        let put = store.put_access(&access(&held.id, generation), AT).await.expect("asked");
        assert_eq!(put, done, "{generation}");
    }
    let (_, now) = store.grant(&held.id).await.expect("asked").expect("there");
    assert_eq!(now, GrantRecord { generation: 4, ..held.clone() });
    let one = store.living(Which::One(&held.id), None, AT).await.expect("asked");
    let generations: Vec<i64> = one[0].access.iter().map(|access| access.generation).collect();
    assert_eq!(generations, [3, 4], "two generations back are gone");
    let unknown = access(&grant(&jo.id).id, 1);
    assert!(!store.put_access(&unknown, AT).await.expect("asked"));
    assert!(!store.put_access(&access(&held.id, 5), held.expires_at).await.expect("asked"), "it is over");
    store.save_user(&User { disabled: true, ..jo }).await.expect("fresh");
    assert!(!store.put_access(&access(&held.id, 5), AT).await.expect("asked"), "its user is shut out");
}

/// Many that move a grant at once move it by one.
pub async fn raced_moves_move_a_grant_once(store: Accounts) {
    let jo = made(&store, "jo").await;
    let held = begun(&store, &jo).await;
    let mut moves = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (store, access) = (Arc::clone(&store), access(&held.id, 2));
        moves.spawn(async move { store.put_access(&access, AT).await.expect("asked") });
    }
    assert_eq!(moves.join_all().await, [true; 20], "the same successor for all");
    let (_, now) = store.grant(&held.id).await.expect("asked").expect("there");
    assert_eq!(now.generation, 2);
}

/// An ended grant stays ended: nothing moves it, and it is in no list.
pub async fn an_ended_grant_stays_ended(store: Accounts) {
    let (jo, other) = (made(&store, "jo").await, made(&store, "other").await);
    let held = begun(&store, &jo).await;
    assert!(!store.end_grant(&held.id, Some(&other.id), AT).await.expect("asked"), "it is another's");
    assert!(store.end_grant(&held.id, Some(&jo.id), AT).await.expect("asked"));
    assert!(!store.end_grant(&held.id, None, AT).await.expect("asked"), "it has ended");
    assert!(!store.put_access(&access(&held.id, 2), AT).await.expect("asked"));
    assert_eq!(living(&store, Which::All).await, []);
    let (_, ended) = store.grant(&held.id).await.expect("asked").expect("remembered");
    assert_eq!(ended.ended_at, Some(AT));
    assert!(matches!(store.begin_grant(&held, &access(&held.id, 1), AT).await, Err(UserStoreError::Taken)));
}

/// Grants have a limit for each user, to which those that are over do not count.
pub async fn grants_have_a_limit(store: Accounts) {
    let (jo, other) = (made(&store, "jo").await, made(&store, "other").await);
    let mut all = Vec::new();
    for _ in 0..GRANTS_MAX {
        all.push(begun(&store, &jo).await);
    }
    let more = grant(&jo.id);
    let refused = store.begin_grant(&more, &access(&more.id, 1), AT).await;
    assert!(matches!(refused, Err(UserStoreError::TooMany { .. })), "{refused:?}");
    begun(&store, &other).await;
    store.end_grant(&all[0].id, None, AT).await.expect("ended");
    store.begin_grant(&more, &access(&more.id, 1), later(10)).await.expect("room");
    assert_eq!(store.grant(&all[0].id).await.expect("asked"), None, "forgotten after ten minutes");
    let nobody = grant(&user("nobody").id);
    let refused = store.begin_grant(&nobody, &access(&nobody.id, 1), AT).await;
    assert!(matches!(refused, Err(UserStoreError::NoUser { .. })), "{refused:?}");
}

/// Grants are found by user, by id and in pages, with the tokens of theirs that are not over.
pub async fn living_grants_are_found(store: Accounts) {
    let (jo, other) = (made(&store, "jo").await, made(&store, "other").await);
    let mut own: Vec<GrantRecord> = Vec::new();
    for _ in 0..3 {
        own.push(begun(&store, &jo).await);
    }
    let foreign = begun(&store, &other).await;
    own.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(living(&store, Which::Of(&jo.id)).await, own);
    assert_eq!(living(&store, Which::One(&foreign.id)).await, [foreign]);
    assert_eq!(living(&store, Which::All).await.len(), 4);
    let rest = store.living(Which::Of(&jo.id), Some(&own[0].id), AT).await.expect("asked");
    assert_eq!(
        rest.iter().map(|living| &living.grant).collect::<Vec<_>>(),
        own[1..].iter().collect::<Vec<_>>()
    );
    let late = store.living(Which::Of(&jo.id), None, later(60)).await.expect("asked");
    assert_eq!((late.len(), late[0].access.len()), (3, 0), "their tokens are over, they are not");
    assert_eq!(late[0].user.id, jo.id);
    assert_eq!(store.living(Which::All, None, own[0].expires_at).await.expect("asked"), []);
    store.see_grants(&jo.id).await.expect("noted");
    assert!(living(&store, Which::Of(&jo.id)).await.iter().all(|grant| grant.seen));
    assert!(living(&store, Which::Of(&other.id)).await.iter().all(|grant| !grant.seen));
    let id = own[0].id.clone();
    for (at, seen) in [(later(5), later(5)), (later(3), later(5)), (later(6), later(6))] {
        store.touch_grants(&[(id.clone(), at), (grant(&jo.id).id, at)]).await.expect("noted");
        let (_, now) = store.grant(&id).await.expect("asked").expect("there");
        assert_eq!(now.used_at, Some(seen));
    }
}

/// Each change of a grant is told by its id, and a mere move by its generation.
pub async fn each_change_of_a_grant_is_told(store: Accounts) {
    let jo = made(&store, "jo").await;
    let mut changes = store.grant_changes().await.expect("a listener");
    let held = begun(&store, &jo).await;
    let next = async |changes: &mut Box<dyn crate::GrantChanges>| {
        tokio::time::timeout(Duration::from_secs(10), changes.next()).await.expect("a notice")
    };
    assert_eq!(next(&mut changes).await, Some(GrantChange { grant: held.id.clone(), generation: None }));
    assert!(store.put_access(&access(&held.id, 2), AT).await.expect("asked"));
    assert_eq!(next(&mut changes).await, Some(GrantChange { grant: held.id.clone(), generation: Some(2) }));
    store.end_grants(&jo.id, AT).await.expect("ended");
    assert_eq!(next(&mut changes).await, Some(GrantChange { grant: held.id.clone(), generation: None }));
}

/// Registered clients are bounded: unused ones go after a day, and the oldest of them when there are too many.
pub async fn registered_clients_are_bounded(store: Accounts) {
    let client = |number: usize| Client {
        id: format!("cbo_{number:032x}").parse().expect("an id"),
        name: "An agent".to_owned(),
        kind: ClientKind::Registered,
        redirect_uris: vec!["http://127.0.0.1/cb".parse().expect("a URI")],
    };
    let at = |number: usize| AT.plus(Duration::from_secs(number as u64));
    for number in 0..CLIENTS_MAX {
        store.register_client(&client(number), at(number)).await.expect("room");
    }
    assert!(matches!(store.register_client(&client(1), AT).await, Err(UserStoreError::Taken)));
    let found = async |number: usize| store.client(&client(number).id).await.expect("asked");
    assert_eq!(found(0).await, Some(client(0)));
    store.allow_client(&client(0).id, AT).await.expect("noted");
    store.register_client(&client(CLIENTS_MAX), at(CLIENTS_MAX)).await.expect("room is made");
    assert!(found(0).await.is_some(), "it is in use");
    assert_eq!(found(1).await, None, "the oldest that is not");
    let next_day = at(2 * CLIENTS_MAX).plus(crate::UNUSED_FOR);
    store.register_client(&client(CLIENTS_MAX + 1), next_day).await.expect("room");
    for (number, there) in [(0, true), (2, false), (CLIENTS_MAX, false), (CLIENTS_MAX + 1, true)] {
        assert_eq!(found(number).await.is_some(), there, "{number}");
    }
}

/// Users are listed, and a user goes with all that is theirs.
pub async fn a_removed_user_leaves_nothing(store: Accounts) {
    let mut jo = made(&store, "jo").await;
    let other = made(&store, "other").await;
    let mut ids: Vec<UserId> =
        store.users(None).await.expect("users").into_iter().map(|user| user.id).collect();
    let mut both = vec![jo.id.clone(), other.id.clone()];
    both.sort();
    assert_eq!(ids, both);
    assert_eq!(store.users(Some(&both[0])).await.expect("users").len(), 1);
    jo.max_agent_boxes = Some(3);
    jo.revision = store.save_user(&jo).await.expect("fresh");
    assert_eq!(store.user(UserKey::Id(&jo.id)).await.expect("asked"), Some(jo.clone()));
    store.set_password(&jo.id, &hash("a good password"), None).await.expect("a user");
    let (held, theirs) = (session(&jo.id, AT), begun(&store, &jo).await);
    store.begin_session(&held).await.expect("room");
    store.issue(&Credential::Token(token(&jo.id, TokenClass::Device).1)).await.expect("room");
    let stale = store.remove_user(&jo.id, jo.revision - 1).await;
    assert!(matches!(stale, Err(UserStoreError::Stale { .. })), "{stale:?}");
    store.remove_user(&jo.id, jo.revision).await.expect("there");
    ids = store.users(None).await.expect("users").into_iter().map(|user| user.id).collect();
    assert_eq!(ids, [other.id]);
    assert_eq!(store.session(&held.hash, AT).await.expect("asked"), None);
    assert_eq!(store.grant(&theirs.id).await.expect("asked"), None);
    assert_eq!(store.tokens(None, None, PAGE_MAX).await.expect("tokens"), []);
    let gone = store.remove_user(&jo.id, jo.revision).await;
    assert!(matches!(gone, Err(UserStoreError::NoUser { .. })), "{gone:?}");
    let id: Id<_> = jo.id;
    assert!(store.user(UserKey::Id(&id)).await.expect("asked").is_none());
}

/// Makes a sign-in of `user`, or of nobody.
pub fn sign_in(user: Option<&UserId>, at: Timestamp) -> SignInRecord {
    SignInRecord {
        id: SignInId::random(&SystemEntropy).expect("randomness"),
        user: user.cloned(),
        at,
        door: Door::Device,
        let_in: true,
        from: Some([192, 0, 2, 1].into()),
        what: "a laptop".to_owned(),
    }
}

/// Sign-ins read back as they were, the newest first, page by page.
pub async fn sign_ins_read_back_newest_first(store: Accounts) {
    let (jo, other) = (made(&store, "jo").await, made(&store, "other").await);
    let mut own = Vec::new();
    for (number, door) in Door::ALL.into_iter().enumerate() {
        let from = (number % 2 == 0).then(|| [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into());
        // two of one moment are told apart by their ids
        let at = later(number as u64 / 2);
        let one = SignInRecord { door, from, let_in: number > 0, ..sign_in(Some(&jo.id), at) };
        store.remember_sign_in(&one).await.expect("kept");
        own.push(one);
    }
    store.remember_sign_in(&sign_in(Some(&other.id), AT)).await.expect("kept");
    store.remember_sign_in(&sign_in(None, AT)).await.expect("kept");
    own.sort_by(|a, b| (b.at, &b.id).cmp(&(a.at, &a.id)));
    let mut paged: Vec<SignInRecord> = Vec::new();
    loop {
        let before = paged.last().map(|last| (last.at, &last.id));
        let page = store.sign_ins(Some(&jo.id), before, 3).await.expect("asked");
        let last = page.len() < 3;
        paged.extend(page);
        if last {
            break;
        }
    }
    assert_eq!(paged, own);
    let all = store.sign_ins(None, None, PAGE_MAX).await.expect("asked");
    assert_eq!((all.len(), all.iter().filter(|one| one.user.is_none()).count()), (6, 1));
    assert!(matches!(store.remember_sign_in(&own[0]).await, Err(UserStoreError::Taken)));
    let nobody = sign_in(Some(&user("nobody").id), AT);
    assert!(matches!(store.remember_sign_in(&nobody).await, Err(UserStoreError::NoUser { .. })));
    store.remove_user(&jo.id, jo.revision).await.expect("fresh");
    assert_eq!(store.sign_ins(None, None, PAGE_MAX).await.expect("asked").len(), 2);
}

/// Of too many sign-ins the oldest go, and none is remembered for ever.
pub async fn sign_ins_are_bounded(store: Accounts) {
    let (jo, other) = (made(&store, "jo").await, made(&store, "other").await);
    store.remember_sign_in(&sign_in(Some(&other.id), AT)).await.expect("kept");
    for user in [Some(&jo.id), None] {
        for number in 0..=SIGN_INS_MAX as u64 {
            let one = sign_in(user, AT.plus(Duration::from_secs(number)));
            store.remember_sign_in(&one).await.expect("kept");
        }
    }
    let own = store.sign_ins(Some(&jo.id), None, PAGE_MAX).await.expect("asked");
    assert_eq!(
        (own.len(), own.last().map(|last| last.at)),
        (SIGN_INS_MAX, Some(AT.plus(Duration::from_secs(1))))
    );
    let count = async |of| store.sign_ins(of, None, PAGE_MAX).await.expect("asked").len();
    assert_eq!(count(None).await, PAGE_MAX, "as many of nobody, and the other's");
    assert_eq!(count(Some(&other.id)).await, 1);
    store.remember_sign_in(&sign_in(None, AT.plus(SIGN_INS_FOR))).await.expect("kept");
    assert_eq!(count(Some(&other.id)).await, 0, "its time is over");
}

/// Declares a test for each line of the contract: `account_store_suite! { async expression }`.
///
/// The expression makes an `Option<(Accounts, guard)>`; none skips, and the guard lives as long as the test. Needs
/// `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! account_store_suite {
    ($make:expr) => {
        $crate::account_store_suite! { @each $make;
            a_password_reads_back_and_ends_other_sessions
            a_session_lives_until_it_ends
            the_oldest_of_too_many_sessions_ends
            a_link_sets_a_password_once
            signing_out_everywhere_leaves_nothing
            a_code_is_spent_once
            a_spent_code_is_forgotten_in_time
            a_grant_moves_one_generation_at_a_time
            raced_moves_move_a_grant_once
            an_ended_grant_stays_ended
            grants_have_a_limit
            living_grants_are_found
            each_change_of_a_grant_is_told
            registered_clients_are_bounded
            sign_ins_read_back_newest_first
            sign_ins_are_bounded
            a_removed_user_leaves_nothing
        }
    };
    (@each $make:expr; $($name:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if let Some((store, _guard)) = $make.await {
                $crate::testkit::account::$name(store).await;
            }
        })*
    };
}
