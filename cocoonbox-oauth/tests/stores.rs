//! The contract of `UserStore`, on every store there is.

use std::future::{Ready, ready};

use cocoonbox_core::Timestamp;
use cocoonbox_db::testkit::TestDb;
use cocoonbox_oauth::testkit::Subject;
use cocoonbox_oauth::{FaultyUserStore, MemoryUserStore, SqlUserStore};

mod memory {
    use super::*;

    fn make() -> Ready<Option<(Subject, ())>> {
        let store = MemoryUserStore::default();
        let changes = store.changes();
        ready(Some((Subject { store: std::sync::Arc::new(store), changes }, ())))
    }
    cocoonbox_oauth::user_store_suite!(make());
}

/// The wrapper with nothing on its schedule is the store itself.
mod faulty {
    use super::*;

    fn make() -> Ready<Option<(Subject, ())>> {
        let store = MemoryUserStore::default();
        let changes = store.changes();
        ready(Some((Subject { store: std::sync::Arc::new(FaultyUserStore::new(store, [])), changes }, ())))
    }
    cocoonbox_oauth::user_store_suite!(make());
}

async fn over(db: TestDb) -> (Subject, TestDb) {
    let store = SqlUserStore::open((*db).clone(), Timestamp::default()).await.expect("the tables");
    let changes = store.changes().await.expect("its changes");
    (Subject { store: std::sync::Arc::new(store), changes }, db)
}

mod sqlite {
    use super::*;

    async fn make() -> Option<(Subject, TestDb)> {
        Some(over(TestDb::sqlite().await).await)
    }
    cocoonbox_oauth::user_store_suite!(make());
}

mod postgres {
    use super::*;

    async fn make() -> Option<(Subject, TestDb)> {
        match TestDb::postgres().await {
            Some(db) => Some(over(db).await),
            None => None,
        }
    }
    cocoonbox_oauth::user_store_suite!(make());
}

/// State keys, on every store.
mod state_keys {
    use cocoonbox_oauth::{StateKeyStore, UserStore, UserStoreError};

    use super::*;

    async fn a_key_is_put_once_and_replaced_by_who_knows_it<S: UserStore + StateKeyStore>(store: &S) {
        let ana = cocoonbox_oauth::testkit::user("ana");
        let none = store.sealed_state_key(&ana.id).await;
        assert!(matches!(none, Err(UserStoreError::NoUser { .. })), "{none:?}");
        assert!(store.put_sealed_state_key(&ana.id, b"a", None).await.is_err());
        store.create_user(&ana, &[]).await.expect("room");
        assert_eq!(store.sealed_state_key(&ana.id).await.expect("a user"), None);
        assert!(!store.put_sealed_state_key(&ana.id, b"b", Some(b"a")).await.expect("a user"));
        let (one, two) = tokio::join!(
            store.put_sealed_state_key(&ana.id, b"a", None),
            store.put_sealed_state_key(&ana.id, b"a", None)
        );
        assert_ne!(one.expect("a user"), two.expect("a user"), "one of two first keys is it");
        assert!(store.put_sealed_state_key(&ana.id, b"b", Some(b"a")).await.expect("a user"));
        assert!(!store.put_sealed_state_key(&ana.id, b"c", Some(b"a")).await.expect("a user"));
        assert_eq!(store.sealed_state_key(&ana.id).await.expect("a user").as_deref(), Some(&b"b"[..]));
        let ben = cocoonbox_oauth::testkit::user("ben");
        store.create_user(&ben, &[]).await.expect("room");
        assert_eq!(store.users_with_state_keys(None).await.expect("a page"), std::slice::from_ref(&ana.id));
        assert_eq!(store.users_with_state_keys(Some(&ana.id)).await.expect("a page"), []);
    }

    #[tokio::test]
    async fn in_memory() {
        a_key_is_put_once_and_replaced_by_who_knows_it(&MemoryUserStore::default()).await;
    }

    cocoonbox_db::both_engines! { in_a_database }

    async fn in_a_database(db: &TestDb) {
        let store = SqlUserStore::open((**db).clone(), Timestamp::default()).await.expect("the tables");
        a_key_is_put_once_and_replaced_by_who_knows_it(&store).await;
    }
}
