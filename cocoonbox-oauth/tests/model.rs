//! Whatever callers do in whatever order: the SQL store answers as the memory store does.

use std::time::Duration;

use cocoonbox_core::{Id, SeededEntropy, Timestamp, TokenId, UserId};
use cocoonbox_db::testkit::TestDb;
use cocoonbox_oauth::testkit::AT;
use cocoonbox_oauth::{
    AccessToken, Credential, Label, LinkRecord, MemoryUserStore, NewDevice, SqlUserStore, TokenClass,
    TokenHash, TokenRecord, User, UserKey, UserStore, UserStoreError,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

/// Numbers stand for ids, hashes and names, so that they meet again and again.
#[derive(Clone, Debug)]
enum Call {
    Create { user: u8, name: u8, token: u8 },
    Save { user: u8, name: u8, admin: bool, disabled: bool, revision: i64 },
    Issue { user: u8, token: u8, hash: u8, personal: bool },
    Link { user: u8, link: u8, at: u8 },
    Redeem { link: u8, token: u8, at: u8 },
    Revoke { user: u8, token: u8 },
    Touch { token: u8, at: u8 },
}

fn call() -> impl Strategy<Value = Call> {
    let small = 0..4_u8;
    prop_oneof![
        3 => (small.clone(), small.clone(), 0..6_u8).prop_map(|(user, name, token)| Call::Create { user, name, token }),
        2 => (small.clone(), small.clone(), any::<bool>(), prop::bool::weighted(0.3), 1..4_i64).prop_map(
            |(user, name, admin, disabled, revision)| Call::Save { user, name, admin, disabled, revision }
        ),
        3 => (small.clone(), 0..6_u8, 0..6_u8, any::<bool>())
            .prop_map(|(user, token, hash, personal)| Call::Issue { user, token, hash, personal }),
        3 => (small.clone(), small.clone(), 0..30_u8).prop_map(|(user, link, at)| Call::Link { user, link, at }),
        3 => (small.clone(), 0..6_u8, 0..30_u8).prop_map(|(link, token, at)| Call::Redeem { link, token, at }),
        1 => (small, 0..6_u8).prop_map(|(user, token)| Call::Revoke { user, token }),
        1 => (0..6_u8, 0..30_u8).prop_map(|(token, at)| Call::Touch { token, at }),
    ]
}

fn user_id(n: u8) -> UserId {
    Id::random(&SeededEntropy::new(u64::from(n))).expect("an id")
}
fn token_id(n: u8) -> TokenId {
    Id::random(&SeededEntropy::new(u64::from(n))).expect("an id")
}
fn hash(n: u8) -> TokenHash {
    AccessToken::random(&SeededEntropy::new(u64::from(n))).expect("a token").hash()
}
fn minute(n: u8) -> Timestamp {
    AT.plus(Duration::from_mins(u64::from(n)))
}

async fn make(store: &dyn UserStore, call: &Call) -> Result<String, UserStoreError> {
    let record = |user: u8, token: u8, hashed: u8, class| TokenRecord {
        id: token_id(token),
        user: user_id(user),
        class,
        label: Label::personal(),
        client: None,
        hash: hash(hashed),
        created_at: AT,
        used_at: None,
    };
    let user = |user: u8, name: u8| User {
        id: user_id(user),
        name: format!("name{name}").parse().expect("a name"),
        admin: false,
        disabled: false,
        max_agent_boxes: None,
        created_at: AT,
        revision: 1,
    };
    Ok(match *call {
        Call::Create { user: id, name, token } => {
            let personal = record(id, token, token, TokenClass::Personal);
            format!("{:?}", store.create_user(&user(id, name), &[Credential::Token(personal)]).await?)
        }
        Call::Save { user: id, name, admin, disabled, revision } => {
            let user = User { admin, disabled, revision, ..user(id, name) };
            format!("{:?}", store.save_user(&user).await?)
        }
        Call::Issue { user, token, hash, personal } => {
            let class = if personal { TokenClass::Personal } else { TokenClass::Device };
            format!("{:?}", store.issue(&Credential::Token(record(user, token, hash, class))).await?)
        }
        Call::Link { user, link, at } => {
            let link = LinkRecord {
                id: Id::random(&SeededEntropy::new(u64::from(link))).expect("an id"),
                user: user_id(user),
                hash: hash(100 + link),
                created_at: minute(at),
                expires_at: minute(at + 10),
            };
            format!("{:?}", store.issue(&Credential::Link(link)).await?)
        }
        Call::Redeem { link, token, at } => {
            let device = NewDevice { id: token_id(token), label: Label::personal(), hash: hash(token) };
            format!("{:?}", store.redeem_link(&hash(100 + link), &device, minute(at)).await?)
        }
        Call::Revoke { user, token } => {
            format!("{:?}", store.revoke_token(&user_id(user), &token_id(token)).await?)
        }
        Call::Touch { token, at } => format!("{:?}", store.touch(&[(token_id(token), minute(at))]).await?),
    })
}

/// Everything that can be read.
async fn everything(store: &dyn UserStore) -> (Vec<Option<User>>, Vec<(User, TokenRecord)>) {
    let mut users = Vec::new();
    for n in 0..4 {
        users.push(store.user(UserKey::Id(&user_id(n))).await.expect("an answer"));
    }
    (users, store.tokens(None, None, 1000).await.expect("the tokens"))
}

async fn answers_alike(db: &TestDb, calls: &[Call]) {
    let (memory, sql) = (
        MemoryUserStore::default(),
        SqlUserStore::open((**db).clone(), Timestamp::default()).await.expect("the tables"),
    );
    for (at, call) in calls.iter().enumerate() {
        let (expected, found) = (make(&memory, call).await, make(&sql, call).await);
        let text =
            |outcome: Result<String, UserStoreError>| outcome.unwrap_or_else(|error| format!("{error:?}"));
        assert_eq!(text(found), text(expected), "call {at} of {calls:?}");
        assert_eq!(everything(&sql).await, everything(&memory).await, "after call {at} of {calls:?}");
    }
}

cocoonbox_db::both_engines! { any_order_of_calls_answers_as_in_memory }

async fn any_order_of_calls_answers_as_in_memory(first: &TestDb) {
    let mut runner = TestRunner::default();
    for case in 0..4 {
        let calls = vec(call(), 40).new_tree(&mut runner).expect("a case").current();
        match (case, first.engine()) {
            (0, _) => answers_alike(first, &calls).await,
            (_, cocoonbox_db::Engine::Sqlite) => answers_alike(&TestDb::sqlite().await, &calls).await,
            (_, cocoonbox_db::Engine::Postgres) => {
                answers_alike(&TestDb::postgres().await.expect("as the first"), &calls).await;
            }
        }
    }
}
