//! Who is let in, and when that ends.

use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::{SystemEntropy, Timestamp, TokenId};
use cocoonbox_db::testkit::TestDb;
use cocoonbox_oauth::testkit::{AT, Subject, token, user};
use cocoonbox_oauth::{
    AccessToken, AuthError, AuthorizedCaller, Credential, Fault, FaultyUserStore, MemoryUserStore, NewDevice,
    SqlUserStore, TokenClass, TokenIndex, User, UserStore, admin_link, ensure_admin, renew_admin,
    renew_personal_token, serve,
};
use tokio_util::sync::CancellationToken;

fn show(index: &TokenIndex, token: &AccessToken) -> Result<AuthorizedCaller, AuthError> {
    index.authenticate(Some(format!("Bearer {}", token.reveal()).as_bytes()), AT)
}

async fn with_device(store: &dyn UserStore) -> (User, AccessToken) {
    let user = user("jo");
    let (secret, record) = token(&user.id, TokenClass::Device);
    store.create_user(&user, &[Credential::Token(record)]).await.expect("a new user");
    (user, secret)
}

#[tokio::test]
async fn a_header_of_any_other_form_is_refused() {
    let store = MemoryUserStore::default();
    let (_, secret) = with_device(&store).await;
    let index = TokenIndex::load(&store).await.expect("the tokens");
    let text = secret.reveal();
    for (header, error) in [
        (None, AuthError::Missing),
        (Some(String::new()), AuthError::Malformed),
        (Some("Bearer".to_owned()), AuthError::Malformed),
        (Some(format!("Basic {text}")), AuthError::Malformed),
        (Some(text.to_owned()), AuthError::Malformed),
        (Some(format!("Bearer {text}0")), AuthError::Malformed),
        (Some(format!("Bearer {}", text.to_uppercase())), AuthError::Malformed),
        (Some(format!("Bearer {text}, Bearer {text}")), AuthError::Malformed),
        (Some(format!("Bearer cb_{}", "0".repeat(64))), AuthError::Unknown),
        (Some("Bearer ".to_owned() + &"a".repeat(100_000)), AuthError::Malformed),
    ] {
        assert_eq!(
            index.authenticate(header.as_ref().map(String::as_bytes), AT).err(),
            Some(error),
            "{header:?}"
        );
    }
    assert_eq!(index.authenticate(Some(b"Bearer \xff"), AT).err(), Some(AuthError::Malformed));
    let caller = index
        .authenticate(Some(format!("bearer  {text}").as_bytes()), AT)
        .expect("the scheme's case is free");
    assert_eq!((caller.name().as_str(), caller.admin(), caller.class()), ("jo", false, TokenClass::Device));
}

#[tokio::test]
async fn what_ends_a_token_ends_its_open_calls() {
    let store = MemoryUserStore::default();
    let (user, device) = with_device(&store).await;
    let personal = renew_personal_token(&store, &user.id, AT, &SystemEntropy).await.expect("a token");
    let index = TokenIndex::load(&store).await.expect("the tokens");
    let (on_device, on_personal) = (show(&index, &device).expect("in"), show(&index, &personal).expect("in"));

    // a new name and a reading that finds nothing new end nothing
    let renamed = User { name: "jona".parse().expect("a name"), ..user.clone() };
    store.save_user(&renamed).await.expect("fresh");
    index.reload(&store).await.expect("read");
    assert!(!on_device.ended().is_cancelled() && !on_personal.ended().is_cancelled());
    assert_eq!(show(&index, &device).expect("in").name().as_str(), "jona");

    let newer = renew_personal_token(&store, &user.id, AT, &SystemEntropy).await.expect("a token");
    index.reload(&store).await.expect("read");
    assert!(on_personal.ended().is_cancelled() && !on_device.ended().is_cancelled());
    assert_eq!(show(&index, &personal).err(), Some(AuthError::Unknown));

    // becoming an administrator is another caller
    store.save_user(&User { admin: true, revision: 2, ..renamed.clone() }).await.expect("fresh");
    index.reload(&store).await.expect("read");
    assert!(on_device.ended().is_cancelled());
    let on_device = show(&index, &device).expect("in");
    assert!(on_device.admin() && !on_device.ended().is_cancelled());

    store.revoke_token(&user.id, on_device.token()).await.expect("held");
    index.reload(&store).await.expect("read");
    assert!(on_device.ended().is_cancelled());

    let on_newer = show(&index, &newer).expect("in");
    store.save_user(&User { disabled: true, revision: 3, ..renamed }).await.expect("fresh");
    index.reload(&store).await.expect("read");
    assert!(on_newer.ended().is_cancelled());
    assert_eq!(show(&index, &newer).err(), Some(AuthError::Unknown));
    assert!(index.is_empty());
}

#[tokio::test]
async fn a_store_that_fails_leaves_the_index_as_it_was() {
    let store = FaultyUserStore::new(MemoryUserStore::default(), [(2, Fault::Before), (3, Fault::After)]);
    let (_, device) = with_device(&store).await;
    let index = TokenIndex::load(&store).await.expect("the tokens");
    let caller = show(&index, &device).expect("in");
    for _ in 0..2 {
        assert!(index.reload(&store).await.is_err());
        assert!(show(&index, &device).is_ok() && !caller.ended().is_cancelled());
    }
    index.reload(&store).await.expect("read");
    assert_eq!(store.calls(), 5);
}

#[tokio::test]
async fn a_start_that_does_not_learn_its_outcome_finds_admin_next_time() {
    let store = FaultyUserStore::new(MemoryUserStore::default(), [(1, Fault::After)]);
    assert!(ensure_admin(&store, AT, &SystemEntropy).await.is_err());
    assert!(ensure_admin(&store, AT, &SystemEntropy).await.expect("an answer").is_none());
    let name = "admin".parse().expect("a name");
    let admin = store.user(cocoonbox_oauth::UserKey::Name(&name)).await.expect("an answer").expect("made");
    let token = renew_personal_token(&store, &admin.id, AT, &SystemEntropy).await.expect("a token");
    let index = TokenIndex::load(&store).await.expect("the tokens");
    assert!(show(&index, &token).expect("in").admin());
}

#[tokio::test]
async fn a_first_start_that_nobody_saw_is_repeated_with_new_secrets() {
    let store = MemoryUserStore::default();
    assert!(renew_admin(&store, AT, &SystemEntropy).await.expect("an answer").is_none());
    assert!(admin_link(&store, AT, &SystemEntropy).await.expect("an answer").is_none());
    let lost = ensure_admin(&store, AT, &SystemEntropy).await.expect("a start").expect("the first");
    let again = renew_admin(&store, AT, &SystemEntropy).await.expect("a start").expect("there is admin");
    assert_eq!(again.user, lost.user);
    let index = TokenIndex::load(&store).await.expect("the tokens");
    assert!(show(&index, &lost.token).is_err());
    assert!(show(&index, &again.token).expect("in").admin());
    let link = admin_link(&store, AT, &SystemEntropy).await.expect("an answer").expect("a link");
    for link in [again.link, link] {
        let device = NewDevice {
            id: TokenId::random(&SystemEntropy).expect("random"),
            label: "a desk".parse().expect("a label"),
            hash: AccessToken::random(&SystemEntropy).expect("random").hash(),
        };
        let user = store.redeem_link(&link.hash(), &device, AT).await.expect("the link is good");
        assert_eq!(user, lost.user);
    }
}

async fn serving_follows_changes(Subject { store, changes }: Subject, other: Arc<dyn UserStore>) {
    let index = Arc::new(TokenIndex::load(&*store).await.expect("the tokens"));
    let shutdown = CancellationToken::new();
    let running = tokio::spawn({
        let (index, store, shutdown) = (Arc::clone(&index), Arc::clone(&store), shutdown.clone());
        async move { serve::run(&index, &*store, changes, shutdown).await }
    });
    let (user, device) = with_device(&*other).await;
    let caller = loop {
        if let Ok(caller) = show(&index, &device) {
            break caller;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    let late = AT.plus(Duration::from_secs(30));
    index.check(&device, late).expect("in");
    shutdown.cancel();
    running.await.expect("it ends");
    // the last use is written at the end
    let tokens = store.tokens(Some(&user.id), None, 10).await.expect("the tokens");
    assert_eq!(tokens[0].1.used_at, Some(late));
    assert!(!caller.ended().is_cancelled());
}

#[tokio::test]
async fn serving_follows_changes_in_memory() {
    let store = Arc::new(MemoryUserStore::default());
    let subject = Subject { store: store.clone(), changes: store.changes() };
    tokio::time::timeout(Duration::from_secs(30), serving_follows_changes(subject, store))
        .await
        .expect("in time");
}

/// Another server's changes, as PostgreSQL tells them, end calls here.
#[tokio::test(flavor = "multi_thread")]
async fn serving_follows_another_server() {
    let Some(db) = TestDb::postgres().await else { return };
    let here = SqlUserStore::open((*db).clone(), Timestamp::default()).await.expect("the tables");
    let there = SqlUserStore::open(db.reopen().await, Timestamp::default()).await.expect("the tables");
    let changes = here.changes().await.expect("its changes");
    let subject = Subject { store: Arc::new(here), changes };
    let story = serving_follows_changes(subject, Arc::new(there));
    tokio::time::timeout(Duration::from_secs(30), story).await.expect("in time");
}

#[tokio::test]
async fn a_check_does_not_reach_the_store() {
    let store = FaultyUserStore::new(MemoryUserStore::default(), []);
    let (_, device) = with_device(&store).await;
    let index = TokenIndex::load(&store).await.expect("the tokens");
    let calls = store.calls();
    for _ in 0..1000 {
        show(&index, &device).expect("in");
    }
    assert_eq!(store.calls(), calls);
}

mod agents {
    use std::sync::Arc;

    use cocoonbox_oauth::testkit::account::{access, grant};
    use cocoonbox_oauth::testkit::{AT, user};
    use cocoonbox_oauth::{AgentIndex, GrantStore as _, MemoryUserStore, OauthKey, UserStore as _};

    #[tokio::test]
    async fn readings_that_cross_leave_what_was_let_in_last() {
        let store = Arc::new(MemoryUserStore::default());
        let jo = user("jo");
        store.create_user(&jo, &[]).await.expect("a new name");
        let index = Arc::new(AgentIndex::load(&*store, AT).await.expect("grants"));
        let key = OauthKey::new("a key of tests".to_owned());
        // many readings of all, and grants that begin in the middle of them
        let mut readings = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (index, store) = (index.clone(), store.clone());
            readings.spawn(async move { index.reload(&*store, AT).await.expect("grants") });
        }
        let mut begun = Vec::new();
        for _ in 0..20 {
            let held = grant(&jo.id);
            store.begin_grant(&held, &access(&held.id, 1), AT).await.expect("room");
            index.reload_one(&*store, &held.id, AT).await.expect("the grant");
            begun.push(held);
        }
        readings.join_all().await;
        for held in begun {
            assert!(index.check(&key.access(&held.id, 1), AT).is_ok(), "{}", held.id);
        }
    }
}
