//! The contract of sessions, grants and clients, on every store there is.

use std::future::{Ready, ready};
use std::sync::Arc;

use cocoonbox_core::Timestamp;
use cocoonbox_db::testkit::TestDb;
use cocoonbox_oauth::testkit::account::Accounts;
use cocoonbox_oauth::{FaultyUserStore, MemoryUserStore, SqlUserStore};

mod memory {
    use super::*;

    fn make() -> Ready<Option<(Accounts, ())>> {
        ready(Some((Arc::new(MemoryUserStore::default()), ())))
    }
    cocoonbox_oauth::account_store_suite!(make());
}

/// The wrapper with nothing on its schedule is the store itself.
mod faulty {
    use super::*;

    fn make() -> Ready<Option<(Accounts, ())>> {
        ready(Some((Arc::new(FaultyUserStore::new(MemoryUserStore::default(), [])), ())))
    }
    cocoonbox_oauth::account_store_suite!(make());
}

async fn over(db: TestDb) -> (Accounts, TestDb) {
    let store = SqlUserStore::open((*db).clone(), Timestamp::default()).await.expect("the tables");
    (Arc::new(store), db)
}

mod sqlite {
    use super::*;

    async fn make() -> Option<(Accounts, TestDb)> {
        Some(over(TestDb::sqlite().await).await)
    }
    cocoonbox_oauth::account_store_suite!(make());
}

mod postgres {
    use super::*;

    async fn make() -> Option<(Accounts, TestDb)> {
        match TestDb::postgres().await {
            Some(db) => Some(over(db).await),
            None => None,
        }
    }
    cocoonbox_oauth::account_store_suite!(make());
}
