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
