//! What holds on both engines.

use std::time::Duration;

use cocoonbox_core::{Retry, Timestamp};
use cocoonbox_db::testkit::{TestDb, statements_are_taken};
use cocoonbox_db::{
    Batch, DatabaseUrl, Db, DbError, DbOptions, Migration, MigrationError, Migrations, Notice, Use, on,
    on_tx, sqlx,
};

const JARS: &str = "CREATE TABLE jars (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, n BIGINT NOT NULL CHECK (n >= 0), \
     data BYTEA, full_up BOOLEAN NOT NULL DEFAULT FALSE, UNIQUE (name, n)); \
     CREATE TABLE lids (id TEXT PRIMARY KEY, jar TEXT NOT NULL REFERENCES jars (id))";
const STEPS: Migrations = Migrations::new("jar", &[Migration::new(1, "jars", JARS)]);
const INSERT: &str = "INSERT INTO jars (id, name, n, data) VALUES ($1, $2, $3, $4)";
const COUNT: &str = "SELECT COUNT(*) FROM jars";
const AT: Timestamp = Timestamp::from_millis(1);

cocoonbox_db::both_engines! {
    what_is_written_reads_back
    each_failure_is_told_by_its_kind
    a_dropped_transaction_is_undone
    a_batch_tells_what_each_statement_did
    a_batch_ends_at_the_first_failure
    a_transaction_that_undid_itself_spoils_no_connection
    a_wrong_statement_is_found_by_the_guard
    steps_are_applied_once
    two_programs_may_start_at_once
    a_newer_database_is_refused
    a_changed_step_is_refused
    a_failed_step_leaves_nothing
    a_notice_is_published_by_the_commit_alone
    a_listener_that_lags_is_told_to_read_again
    writers_wait_for_one_another
    a_closed_database_is_unavailable
    no_error_tells_a_value
    a_name_is_held_alone_or_shared
}

async fn jars(db: &Db) {
    db.migrate(&STEPS, AT).await.expect("the tables");
}

async fn insert(db: &Db, id: &str, name: &str, n: i64) -> Result<(), DbError> {
    on!(db, pool => sqlx::query(INSERT).bind(id).bind(name).bind(n).bind(vec![0_u8, 255]).execute(pool).await?.rows_affected());
    Ok(())
}

async fn count(db: &Db) -> i64 {
    on!(db, pool => sqlx::query_scalar(COUNT).fetch_one(pool).await).expect("a count")
}

async fn a_batch_tells_what_each_statement_did(db: &TestDb) {
    jars(db).await;
    const FILL: &str = "INSERT INTO jars (id, name, n) VALUES ($1, $1, $2), ($3, $3, $2)";
    const SHIFT: &str = "UPDATE jars SET n = n + $2 WHERE id = $1";
    const COVER: &str = "INSERT INTO lids (id, jar) VALUES ($2, $1)";
    // more than once: the second time its statements are known already
    for (round, n) in [("a", 1), ("b", 2), ("c", 3)] {
        let (first, second) = (format!("{round}1"), format!("{round}2"));
        let mut batch = Batch::new();
        batch.push(FILL, [first.as_str().into(), 5.into(), second.as_str().into()]);
        batch.push(SHIFT, [second.as_str().into(), n.into()]);
        batch.push(SHIFT, ["none".into(), 1.into()]);
        batch.push(COVER, [first.as_str().into(), format!("lid {round}").into()]);
        let mut tx = db.begin().await.expect("a transaction");
        let done = tx.run(batch).await;
        assert!(done.failed.is_none(), "{done:?}");
        assert_eq!(done.rows, [2, 1, 0, 1]);
        tx.commit().await.expect("room");
        let sums: (i64, i64) = on!(db, pool => {
            sqlx::query_as("SELECT a.n, b.n FROM jars a, jars b WHERE a.id = $1 AND b.id = $2")
                .bind(&first).bind(&second).fetch_one(pool).await
        })
        .expect("both rows");
        assert_eq!(sums, (5, 5 + n));
    }
    let mut tx = db.begin().await.expect("a transaction");
    let done = tx.run(Batch::new()).await;
    assert!(done.failed.is_none() && done.rows.is_empty(), "{done:?}");
}

async fn a_batch_ends_at_the_first_failure(db: &TestDb) {
    jars(db).await;
    const FILL: &str = "INSERT INTO jars (id, name, n) VALUES ($1, $1, 1)";
    let mut batch = Batch::new();
    for id in ["a", "b", "a", "c"] {
        batch.push(FILL, [id.into()]);
    }
    let mut tx = db.begin().await.expect("a transaction");
    let done = tx.run(batch).await;
    assert_eq!(done.rows, [1, 1]);
    assert!(matches!(done.failed, Some(DbError::UniqueViolation { .. })), "{done:?}");
    drop(tx);
    assert_eq!(count(db).await, 0);
}

async fn what_is_written_reads_back(db: &TestDb) {
    jars(db).await;
    insert(db, "a", "x", i64::MAX).await.expect("room");
    let row: (String, i64, Vec<u8>, bool) =
        on!(db, pool => sqlx::query_as("SELECT name, n, data, full_up FROM jars").fetch_one(pool).await)
            .expect("a row");
    assert_eq!(row, ("x".to_owned(), i64::MAX, vec![0, 255], false));
    db.ping().await.expect("an answer");
}

async fn each_failure_is_told_by_its_kind(db: &TestDb) {
    jars(db).await;
    insert(db, "a", "x", 1).await.expect("room");
    let error = insert(db, "a", "y", 1).await.expect_err("the id is taken");
    assert!(error.violates("jars_pkey"), "{error:?}");
    assert_eq!(error.retry(), Retry::Reread);
    let error = insert(db, "b", "x", 2).await.expect_err("the name is taken");
    assert!(error.violates("jars_name_key"), "{error:?}");
    let error = insert(db, "b", "y", -1).await.expect_err("below zero");
    assert!(matches!(error, DbError::ConstraintViolation { .. }), "{error:?}");
    let lid = on!(db, pool => sqlx::query("INSERT INTO lids (id, jar) VALUES ('l', 'none')").execute(pool).await.map(drop));
    let error = DbError::from(lid.expect_err("no such jar"));
    assert!(matches!(error, DbError::ConstraintViolation { .. }), "{error:?}");
    let none = on!(db, pool => sqlx::query("SELECT nothing FROM jars").execute(pool).await.map(drop));
    let error = DbError::from(none.expect_err("no such column"));
    assert!(matches!(&error, DbError::Misuse { message, .. } if message.contains("nothing")), "{error:?}");
    let wrong: Result<(i64,), _> =
        on!(db, pool => sqlx::query_as("SELECT name FROM jars").fetch_one(pool).await);
    let error = DbError::from(wrong.expect_err("a text is no number"));
    assert!(matches!(error, DbError::Corrupt { .. }), "{error:?}");
}

async fn a_dropped_transaction_is_undone(db: &TestDb) {
    jars(db).await;
    let mut tx = db.begin().await.expect("a transaction");
    on_tx!(tx, c => sqlx::query(INSERT).bind("a").bind("x").bind(1_i64).bind(vec![1_u8]).execute(c).await.map(drop))
        .expect("room");
    drop(tx);
    assert_eq!(count(db).await, 0);
    let mut tx = db.begin().await.expect("a transaction");
    on_tx!(tx, c => sqlx::query(INSERT).bind("a").bind("x").bind(1_i64).bind(vec![1_u8]).execute(c).await.map(drop))
        .expect("room");
    tx.commit().await.expect("a commit");
    assert_eq!(count(db).await, 1);
}

async fn a_transaction_that_undid_itself_spoils_no_connection(db: &TestDb) {
    jars(db).await;
    // as many as there are connections, whichever is taken next
    for _ in 0..DbOptions::default().max_connections {
        let mut tx = db.begin().await.expect("a transaction");
        // what SQLite does when a commit finds no room
        on_tx!(tx, c => sqlx::query("ROLLBACK").execute(c).await.map(drop)).expect("undone");
        drop(tx);
        db.begin().await.expect("a transaction").rollback().await.expect("undone");
    }
}

async fn a_wrong_statement_is_found_by_the_guard(db: &TestDb) {
    jars(db).await;
    statements_are_taken(db, &[INSERT, COUNT]).await;
    let db = (**db).clone();
    let guard = tokio::spawn(async move { statements_are_taken(&db, &["SELECT nothing FROM jars"]).await });
    assert!(guard.await.expect_err("a panic").is_panic());
}

async fn steps_are_applied_once(db: &TestDb) {
    const MORE: Migrations = Migrations::new(
        "jar",
        &[
            Migration::new(1, "jars", JARS),
            Migration::new(3, "size", "ALTER TABLE jars ADD COLUMN size BIGINT"),
        ],
    );
    assert_eq!(db.migrate(&STEPS, AT).await.expect("the tables"), 1);
    assert_eq!(db.migrate(&STEPS, AT).await.expect("nothing to do"), 0);
    assert_eq!(db.migrate(&MORE, AT).await.expect("one more"), 1);
    let rows: Vec<(i64, String, i64)> = on!(db, pool => {
        sqlx::query_as("SELECT version, name, applied_at FROM jar_schema_migrations ORDER BY version").fetch_all(pool).await
    })
    .expect("the records");
    assert_eq!(rows, [(1, "jars".to_owned(), 1000), (3, "size".to_owned(), 1000)]);
}

async fn two_programs_may_start_at_once(db: &TestDb) {
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let db = db.reopen().await;
        starts.spawn(async move {
            let done = db.migrate(&STEPS, AT).await;
            db.close().await;
            done
        });
    }
    let done: Vec<_> = starts.join_all().await.into_iter().map(|done| done.expect("a start")).collect();
    assert_eq!(done.iter().sum::<usize>(), 1, "{done:?}");
}

async fn a_newer_database_is_refused(db: &TestDb) {
    const NONE: Migrations = Migrations::new("jar", &[]);
    const OTHER: Migrations =
        Migrations::new("jar", &[Migration::new(2, "other", "CREATE TABLE other (id BIGINT PRIMARY KEY)")]);
    jars(db).await;
    let error = db.migrate(&NONE, AT).await.expect_err("newer");
    assert!(
        matches!(error, DbError::Migration(MigrationError::Newer { owner: "jar", found: 1, known: 0 })),
        "{error:?}"
    );
    let error = db.migrate(&OTHER, AT).await.expect_err("another history");
    assert!(matches!(error, DbError::Migration(MigrationError::Diverged { version: 1, .. })), "{error:?}");
    assert_eq!(error.retry(), Retry::Never);
}

async fn a_changed_step_is_refused(db: &TestDb) {
    const CHANGED: Migrations =
        Migrations::new("jar", &[Migration::new(1, "jars", "CREATE TABLE jars (id TEXT PRIMARY KEY)")]);
    jars(db).await;
    let error = db.migrate(&CHANGED, AT).await.expect_err("changed");
    assert!(matches!(error, DbError::Migration(MigrationError::Changed { version: 1, .. })), "{error:?}");
}

async fn a_failed_step_leaves_nothing(db: &TestDb) {
    const BROKEN: Migrations = Migrations::new(
        "jar",
        &[
            Migration::new(1, "jars", JARS),
            Migration::new(2, "oops", "CREATE TABLE more (id BIGINT); SELECT no_such()"),
        ],
    );
    assert!(matches!(db.migrate(&BROKEN, AT).await, Err(DbError::Misuse { .. })));
    assert_eq!(db.migrate(&STEPS, AT).await.expect("as if nothing had been"), 1);
}

async fn a_notice_is_published_by_the_commit_alone(db: &TestDb) {
    let mut listener = db.listen("jars").await.expect("a listener");
    let mut undone = db.begin().await.expect("a transaction");
    undone.notify("jars", "never").await.expect("a notice");
    undone.rollback().await.expect("undone");
    let mut tx = db.begin().await.expect("a transaction");
    tx.notify("jars", "one").await.expect("a notice");
    tx.commit().await.expect("a commit");
    db.notify("lids", "elsewhere").await.expect("a notice");
    db.reopen().await.notify("jars", "two").await.expect("a notice");
    for expected in ["one", "two"] {
        let notice = tokio::time::timeout(Duration::from_secs(10), listener.next()).await.expect("in time");
        assert_eq!(notice, Notice::Changed { payload: expected.to_owned() });
    }
    assert!(matches!(db.notify("Jars", "").await, Err(DbError::InvalidNotice { .. })));
    assert!(matches!(db.listen("").await, Err(DbError::InvalidNotice { .. })));
}

async fn a_listener_that_lags_is_told_to_read_again(db: &TestDb) {
    let mut listener = db.listen("jars").await.expect("a listener");
    for at in 0..600 {
        db.notify("jars", &at.to_string()).await.expect("a notice");
    }
    // PostgreSQL queues them all; in one process the oldest give way to one Rescan
    let expected = db.pick(Notice::Rescan, Notice::Changed { payload: "0".to_owned() });
    assert_eq!(listener.next().await, expected);
}

async fn writers_wait_for_one_another(db: &TestDb) {
    jars(db).await;
    insert(db, "a", "x", 0).await.expect("room");
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let db = db.reopen().await;
        writers.spawn(async move {
            for _ in 0..10 {
                let mut tx = db.begin().await?;
                let lock = tx.pick("SELECT n FROM jars WHERE id = 'a'", "SELECT n FROM jars WHERE id = 'a' FOR UPDATE");
                let n: i64 = on_tx!(tx, c => sqlx::query_scalar(lock).fetch_one(c).await?);
                on_tx!(tx, c => {
                    sqlx::query("UPDATE jars SET n = $1 WHERE id = 'a'").bind(n + 1).execute(c).await.map(drop)?;
                });
                tx.commit().await?;
            }
            db.close().await;
            Ok::<_, DbError>(())
        });
    }
    for outcome in writers.join_all().await {
        outcome.expect("no writer is turned away");
    }
    let n: i64 =
        on!(db, pool => sqlx::query_scalar("SELECT n FROM jars").fetch_one(pool).await).expect("a row");
    assert_eq!(n, 40);
}

async fn a_closed_database_is_unavailable(db: &TestDb) {
    let db = db.reopen().await;
    db.close().await;
    let error = db.ping().await.expect_err("closed");
    assert!(matches!(error, DbError::Unavailable { .. }), "{error:?}");
    assert_eq!(error.retry(), Retry::Later);
}

async fn no_error_tells_a_value(db: &TestDb) {
    jars(db).await;
    insert(db, "canary", "canary", 1).await.expect("room");
    let mut errors = vec![
        insert(db, "canary", "other", 1).await.expect_err("taken"),
        insert(db, "b", "canary", 2).await.expect_err("taken"),
        insert(db, "canary2", "canary2", -1).await.expect_err("below zero"),
    ];
    let wrong: Result<(i64,), _> =
        on!(db, pool => sqlx::query_as("SELECT name FROM jars").fetch_one(pool).await);
    errors.push(wrong.expect_err("a text is no number").into());
    let cast = db.pick(
        "SELECT abs(-9223372036854775808) FROM jars WHERE name = $1",
        "SELECT CAST(name AS BIGINT) FROM jars WHERE name = $1",
    );
    let wrong = on!(db, pool => sqlx::query(cast).bind("canary").execute(pool).await.map(drop));
    errors.push(wrong.expect_err("no number").into());
    for error in errors {
        let mut text = format!("{error} {error:?}");
        let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text} {error} {error:?}");
            cause = error.source();
        }
        assert!(!text.contains("canary"), "{text}");
    }
    assert!(!format!("{db:?} {:?} {:?}", **db, db.pools()).contains("canary"));
}

#[tokio::test]
async fn postgresql_cuts_a_listener_off_and_it_comes_back() {
    let Some(db) = TestDb::postgres().await else { return };
    let mut listener = db.listen("jars").await.expect("a listener");
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    on!(db, pool => sqlx::query(cut).execute(pool).await.map(drop)).expect("the other connections are cut");
    let notice = tokio::time::timeout(Duration::from_secs(20), listener.next()).await.expect("in time");
    assert_eq!(notice, Notice::Rescan);
    db.notify("jars", "again").await.expect("a notice");
    let notice = tokio::time::timeout(Duration::from_secs(20), listener.next()).await.expect("in time");
    assert_eq!(notice, Notice::Changed { payload: "again".to_owned() });
}

#[tokio::test]
async fn sqlite_files_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.db");
    std::fs::write(&path, "").expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let db = Db::open(&DatabaseUrl::sqlite(&path), &DbOptions::default()).await.expect("it opens");
    jars(&db).await;
    for entry in std::fs::read_dir(folder.path()).expect("the folder") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("its mode").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{:?}", entry.path());
    }
}

#[tokio::test]
async fn what_is_no_database_is_refused_by_kind() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("noise.db");
    std::fs::write(&path, vec![b'x'; 8192]).expect("a file");
    let open = async |url: DatabaseUrl| {
        Db::open(&url, &DbOptions::default().with_patience(Duration::from_millis(500)))
            .await
            .expect_err("no database")
    };
    assert!(matches!(open(DatabaseUrl::sqlite(&path)).await, DbError::Corrupt { .. }));
    let missing = open(DatabaseUrl::sqlite(folder.path().join("no/such.db"))).await;
    assert!(matches!(missing, DbError::Unavailable { .. }), "{missing:?}");
    let silent = open("postgres://canary:canary@127.0.0.1:1/canary".parse().expect("a URL")).await;
    assert!(matches!(silent, DbError::Unavailable { .. }), "{silent:?}");
    assert!(!format!("{silent} {silent:?}").contains("canary"), "{silent:?}");
}

async fn a_name_is_held_alone_or_shared(db: &TestDb) {
    let other = db.reopen().await;
    let first = db.hold("node", Use::Alone).await.expect("an answer");
    assert!(first.is_some());
    for share in [Use::Alone, Use::Shared] {
        assert!(other.hold("node", share).await.expect("an answer").is_none(), "{share:?}");
    }
    assert!(other.hold("edge", Use::Alone).await.expect("an answer").is_some(), "another name is free");
    drop(first);
    // PostgreSQL takes a moment to see that a session is over
    let retaken = async {
        loop {
            if let Some(hold) = other.hold("node", Use::Shared).await.expect("an answer") {
                return hold;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let shared = tokio::time::timeout(Duration::from_secs(10), retaken).await.expect("it is free again");
    let also = db.hold("node", Use::Shared).await.expect("an answer");
    assert!(also.is_some(), "those who share do not exclude one another");
    assert!(db.hold("node", Use::Alone).await.expect("an answer").is_none());
    drop((shared, also));
}
