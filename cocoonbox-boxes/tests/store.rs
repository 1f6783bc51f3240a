//! The store's suite on every store that there is.

use std::sync::Arc;

use cocoonbox_boxes::store::{MemoryStore, STATEMENTS, SqlStore};
use cocoonbox_boxes::{AgentGrant, Engine, EngineConfig, Limits};
use cocoonbox_core::backend::MemoryBackend;
use cocoonbox_core::{Clock as _, GrantId, ImageName, SystemClock, SystemEntropy, UserId};
use cocoonbox_db::testkit::{TestDb, statements_are_taken};
use cocoonbox_db::{on, sqlx};

async fn open(db: &TestDb) -> SqlStore {
    SqlStore::open(db.reopen().await, SystemClock.now()).await.expect("the tables are made")
}

/// Makes a box of a user's own and one of an agent's; returns what the database holds of each, by name.
async fn marks(db: &TestDb) -> Vec<(String, bool, bool)> {
    let store = Arc::new(open(db).await);
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let backend = Arc::new(MemoryBackend::new(clock.clone(), entropy.clone()));
    let key = ed25519_dalek::SigningKey::from_bytes(&[7; 32]).verifying_key();
    let config = EngineConfig::new(ImageName::host(), key);
    let engine = Engine::new(store, backend, clock, entropy.clone(), config);
    let owner = UserId::random(entropy.as_ref()).expect("entropy");
    let id = GrantId::random(entropy.as_ref()).expect("entropy");
    let agent = engine.acting_for(Some(&AgentGrant { id, max_boxes: 1, max_running: 1 }));
    for engine in [&engine, &agent] {
        engine.ensure(&owner, Limits::default(), "", None).await.expect("a box is made");
    }
    // what came of it is written, too, and changes nothing
    engine.drained().await;
    let db = db.reopen().await;
    let statement = "SELECT name, agent, grant_id IS NOT NULL FROM boxes
        LEFT JOIN oauth_boxes ON box_id = id ORDER BY name";
    on!(db, pool => sqlx::query_as(statement).fetch_all(pool).await).expect("read")
}

fn expected_marks() -> Vec<(String, bool, bool)> {
    vec![("agent".to_owned(), true, true), ("main".to_owned(), false, false)]
}

mod memory {
    use super::*;
    cocoonbox_boxes::box_store_conformance!(MemoryStore::default());
}

mod sqlite {
    use super::*;
    cocoonbox_boxes::box_store_conformance!(db => TestDb::sqlite().await, open(&db).await);

    #[tokio::test]
    async fn an_agents_box_is_marked_in_a_column_and_its_grant_is_beside_it() {
        assert_eq!(marks(&TestDb::sqlite().await).await, expected_marks());
    }

    #[tokio::test]
    async fn every_statement_is_taken() {
        let db = TestDb::sqlite().await;
        open(&db).await;
        statements_are_taken(&db, STATEMENTS).await;
    }
}

mod postgres {
    use super::*;
    cocoonbox_boxes::box_store_conformance!(db =>
        match TestDb::postgres().await { Some(db) => db, None => return },
        open(&db).await
    );

    #[tokio::test]
    async fn an_agents_box_is_marked_in_a_column_and_its_grant_is_beside_it() {
        let Some(db) = TestDb::postgres().await else { return };
        assert_eq!(marks(&db).await, expected_marks());
    }

    #[tokio::test]
    async fn every_statement_is_taken() {
        let Some(db) = TestDb::postgres().await else { return };
        open(&db).await;
        statements_are_taken(&db, STATEMENTS).await;
    }
}
