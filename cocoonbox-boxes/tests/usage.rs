//! The ledger's suite on every store that there is.

use cocoonbox_boxes::usage::{MemoryUsageStore, STATEMENTS, SqlUsageStore};
use cocoonbox_core::{Clock as _, SystemClock};
use cocoonbox_db::testkit::{TestDb, statements_are_taken};

async fn open(db: &TestDb) -> SqlUsageStore {
    SqlUsageStore::open(db.reopen().await, SystemClock.now()).await.expect("the tables are made")
}

mod memory {
    use super::*;
    cocoonbox_boxes::usage_store_conformance!(MemoryUsageStore::default());
}

mod sqlite {
    use super::*;
    cocoonbox_boxes::usage_store_conformance!(db => TestDb::sqlite().await, open(&db).await);

    #[tokio::test]
    async fn every_statement_is_taken() {
        let db = TestDb::sqlite().await;
        open(&db).await;
        statements_are_taken(&db, STATEMENTS).await;
    }
}

mod postgres {
    use super::*;
    cocoonbox_boxes::usage_store_conformance!(db =>
        match TestDb::postgres().await { Some(db) => db, None => return },
        open(&db).await
    );

    #[tokio::test]
    async fn every_statement_is_taken() {
        let Some(db) = TestDb::postgres().await else { return };
        open(&db).await;
        statements_are_taken(&db, STATEMENTS).await;
    }
}
