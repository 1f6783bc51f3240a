//! Writers in processes of their own, and their sudden death.
//!
//! The test binary runs itself again as a writer. Each of its writes is one transaction over two rows; after the
//! commit it prints the write's number. The oracle: every number that was printed is stored, and no number has one
//! row alone.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cocoonbox_core::Timestamp;
use cocoonbox_db::testkit::TestDb;
use cocoonbox_db::{Db, DbError, DbOptions, Migration, Migrations, on, on_tx, sqlx};

const WRITER: &str = "COCOONBOX_DB_TEST_WRITER";
const PLACE: &str = "COCOONBOX_DB_TEST_PLACE";
const STEPS: Migrations = Migrations::new(
    "ledger",
    &[Migration::new(
        1,
        "ledger",
        "CREATE TABLE ledger (writer BIGINT NOT NULL, n BIGINT NOT NULL, half BIGINT NOT NULL, PRIMARY KEY (writer, n, half)); \
         CREATE TABLE total (id BIGINT PRIMARY KEY, n BIGINT NOT NULL); INSERT INTO total (id, n) VALUES (1, 0)",
    )],
);
const HALF: &str = "INSERT INTO ledger (writer, n, half) VALUES ($1, $2, $3)";

cocoonbox_db::both_engines! {
    two_processes_write_at_once
    a_killed_writer_loses_nothing_it_acknowledged
}

/// Not a test by itself: the body of the other process.
#[tokio::test]
async fn writer() {
    let (Ok(spec), Ok(place)) = (std::env::var(WRITER), std::env::var(PLACE)) else { return };
    let (writer, count) = spec.split_once(':').expect("writer:count");
    let (writer, count): (i64, i64) = (writer.parse().expect("a number"), count.parse().expect("a number"));
    let options = DbOptions::default().with_patience(Duration::from_mins(1));
    let db = Db::open(&place.parse().expect("a place"), &options).await.expect("it opens");
    // both processes also start at once, on empty tables
    db.migrate(&STEPS, Timestamp::from_millis(0)).await.expect("the tables");
    for n in 0..count {
        write(&db, writer, n).await.expect("a write");
        println!("ack {n}");
    }
    db.close().await;
}

async fn write(db: &Db, writer: i64, n: i64) -> Result<(), DbError> {
    let mut tx = db.begin().await?;
    on_tx!(tx, c => {
        sqlx::query(HALF).bind(writer).bind(n).bind(0_i64).execute(&mut *c).await?;
        sqlx::query("UPDATE total SET n = n + 1 WHERE id = 1").execute(&mut *c).await?;
        sqlx::query(HALF).bind(writer).bind(n).bind(1_i64).execute(c).await?;
    });
    tx.commit().await
}

fn start(db: &TestDb, writer: i64, count: i64) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "writer", "--nocapture", "--test-threads=1"])
        .env(WRITER, format!("{writer}:{count}"))
        .env(PLACE, db.url())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("a process")
}

/// Reads acknowledgements until the process ends, or `enough` were read.
fn acknowledged(lines: &mut impl Iterator<Item = std::io::Result<String>>, enough: usize) -> Vec<i64> {
    let mut seen = Vec::new();
    while seen.len() < enough {
        let Some(Ok(line)) = lines.next() else { break };
        // the harness prints on the same line before the first
        if let Some((_, n)) = line.split_once("ack ") {
            seen.push(n.trim().parse().expect("a number"));
        }
    }
    seen
}

/// Checks that there is no half write and returns the whole writes of `writer`.
async fn stored(db: &Db, writer: i64) -> Vec<i64> {
    let rows: Vec<(i64, i64)> = on!(db, pool => {
        sqlx::query_as("SELECT n, COUNT(*) FROM ledger WHERE writer = $1 GROUP BY n ORDER BY n").bind(writer).fetch_all(pool).await
    })
    .expect("the ledger");
    assert!(rows.iter().all(|(_, halves)| *halves == 2), "half a write: {rows:?}");
    rows.into_iter().map(|(n, _)| n).collect()
}

async fn check_total(db: &Db) {
    let (total, rows): (i64, i64) = on!(db, pool => {
        sqlx::query_as("SELECT n, (SELECT COUNT(*) FROM ledger) FROM total").fetch_one(pool).await
    })
    .expect("the total");
    assert_eq!(total * 2, rows);
    if let cocoonbox_db::Pools::Sqlite(pool) = db.pools() {
        let check: String =
            sqlx::query_scalar("PRAGMA integrity_check").fetch_one(pool).await.expect("a check");
        assert_eq!(check, "ok");
    }
}

async fn two_processes_write_at_once(db: &TestDb) {
    let mut writers = [start(db, 1, 40), start(db, 2, 40)];
    for child in &mut writers {
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert_eq!(acknowledged(&mut lines, usize::MAX).len(), 40);
        assert!(child.wait().expect("its end").success());
    }
    assert_eq!((stored(db, 1).await.len(), stored(db, 2).await.len()), (40, 40));
    check_total(db).await;
}

async fn a_killed_writer_loses_nothing_it_acknowledged(db: &TestDb) {
    for round in 0..6_i64 {
        let mut child = start(db, round, i64::MAX);
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut seen = acknowledged(&mut lines, 5);
        assert_eq!(seen.len(), 5, "the writer ended by itself");
        // somewhere inside a later write
        tokio::time::sleep(Duration::from_micros(700 * round as u64 + 1)).await;
        child.kill().expect("SIGKILL");
        child.wait().expect("its end");
        seen.extend(acknowledged(&mut lines, usize::MAX));

        // another program goes on at once
        let after = db.reopen().await;
        write(&after, 1000 + round, 0).await.expect("the next writer is not held up");
        let stored = stored(&after, round).await;
        let last = i64::try_from(seen.len()).expect("few");
        assert_eq!(seen, (0..last).collect::<Vec<_>>());
        // at most the write that was under way is there without its acknowledgement
        assert!(
            stored.len() == seen.len() || stored.len() == seen.len() + 1,
            "{} {}",
            stored.len(),
            seen.len()
        );
        assert_eq!(stored, (0..i64::try_from(stored.len()).expect("few")).collect::<Vec<_>>());
        check_total(&after).await;
        after.close().await;
    }
}
