//! The catalog of saves keeps the contract of `Catalog` on both engines.

use cocoonbox_boxes::state::{STATEMENTS, SqlCatalog};
use cocoonbox_core::Timestamp;
use cocoonbox_db::testkit::{TestDb, statements_are_taken};
use cocoonbox_state::catalog_testkit;

cocoonbox_db::both_engines! {
    it_holds_the_contract
    every_statement_is_taken
}

async fn open(db: &TestDb) -> SqlCatalog {
    SqlCatalog::open((**db).clone(), Timestamp::default()).await.expect("the table")
}

async fn it_holds_the_contract(db: &TestDb) {
    catalog_testkit::holds_the_contract(&open(db).await).await;
}

async fn every_statement_is_taken(db: &TestDb) {
    open(db).await;
    statements_are_taken(db, STATEMENTS).await;
}
