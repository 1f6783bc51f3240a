//! Writers in processes of their own, and their sudden death.
//!
//! The test binary runs itself again as a writer, which makes boxes in the name of one user and starts each: two
//! steps, each of a record, an operation, an event and, for the first, a key and an admission. After each step it says
//! so. The oracle: what was said is stored, and no step is stored in part.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use cocoonbox_boxes::store::{BoxStore as _, Change, Expect, KeyedAnswer, Operation, SqlStore, StoreError};
use cocoonbox_core::machine::{BoxState, Command as Verb, Decision, Fresh, Limits, NewBox, Tally, decide};
use cocoonbox_core::{BoxId, ImageName, OperationId, SystemEntropy, Timestamp, UserId, WakeId};
use cocoonbox_db::testkit::TestDb;
use cocoonbox_db::{Db, DbOptions};

const WRITER: &str = "COCOONBOX_BOXES_TEST_WRITER";
const PLACE: &str = "COCOONBOX_BOXES_TEST_PLACE";
const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

cocoonbox_db::both_engines! {
    two_processes_write_at_once
    a_killed_writer_leaves_whole_steps
}

fn owner() -> UserId {
    format!("us_{}", "a".repeat(16)).parse().expect("a user id")
}

/// Not a test by itself: the body of the other process.
#[tokio::test]
async fn writer() {
    let (Ok(spec), Ok(place)) = (std::env::var(WRITER), std::env::var(PLACE)) else { return };
    let (writer, count) = spec.split_once(':').expect("writer:count");
    let count: u32 = count.parse().expect("a number");
    let db = Db::open(&place.parse().expect("a place"), &DbOptions::default()).await.expect("it opens");
    let store = SqlStore::open(db, NOW).await.expect("the tables");
    for n in 0..count {
        create(&store, &format!("{writer}-{n}")).await;
    }
}

fn change(id: &BoxId, expect: Expect, decision: &Decision) -> Change {
    let mut change =
        Change::new(id.clone(), owner(), expect, decision.write.clone()).with_events(decision.events.clone());
    if let (Some(verb), Some(operation)) = (decision.begins, &decision.operation) {
        change = change.with_operation(Operation::new(operation.clone(), id.clone(), owner(), verb, NOW));
    }
    change
}

async fn create(store: &SqlStore, name: &str) {
    let id = BoxId::random(&SystemEntropy).expect("entropy");
    let record = loop {
        let owned = store.owned(&owner()).await.expect("read");
        let fresh = Fresh {
            operation: OperationId::random(&SystemEntropy).expect("entropy"),
            wake: WakeId::random(&SystemEntropy).expect("entropy"),
        };
        let new = NewBox {
            id: id.clone(),
            owner: owner(),
            name: name.parse().expect("a name"),
            image: ImageName::host(),
        };
        let tally = Tally::of(owned.boxes.iter().map(|stored| &stored.record));
        let verb = Verb::Create { new, fresh, tally, limits: Limits::default(), agent: None };
        let decision = decide(None, verb, NOW).expect("no limits");
        let key = KeyedAnswer::new(
            owner(),
            name.to_owned(),
            name.to_owned(),
            id.clone(),
            decision.operation.clone(),
            NOW,
        );
        let change = change(&id, Expect::Absent, &decision).with_admits(owned.admissions).with_key(key);
        match store.commit(change).await {
            Ok(_) => break decision.record(None).expect("a box").clone(),
            // who was second, or did not hear in time that the lock is free, tries again
            Err(StoreError::Conflict { .. } | StoreError::Unavailable { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    };
    say("made", name);
    let operation = record.pending.as_ref().expect("a start").operation.clone();
    let claimed = Verb::Claimed { operation, sandbox: "sb_1".parse().expect("an id") };
    let decision = decide(Some(&record), claimed, NOW).expect("it is starting");
    while let Err(error) = store.commit(change(&id, Expect::Revision(1), &decision)).await {
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    }
    say("runs", name);
}

/// Says it at once: the other side counts on what it hears.
fn say(word: &str, name: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word} {name}").and_then(|()| out.flush()).expect("the other side reads");
}

fn start(db: &TestDb, writer: &str, count: u32) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "writer", "--nocapture", "--test-threads=1"])
        .env(WRITER, format!("{writer}:{count}"))
        .env(PLACE, db.url())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("a process")
}

/// Reads what a writer said, until it ends or has said `enough`.
fn said(lines: &mut impl Iterator<Item = std::io::Result<String>>, enough: usize) -> Vec<(String, String)> {
    let mut said = Vec::new();
    while said.len() < enough {
        let Some(Ok(line)) = lines.next() else { break };
        // the harness prints on the same line before the first
        for word in ["made", "runs"] {
            if let Some((_, name)) = line.split_once(&format!("{word} ")) {
                said.push((word.to_owned(), name.trim().to_owned()));
            }
        }
    }
    said
}

/// Checks that every step is whole and that everything that was said is so; returns how many boxes there are.
async fn check(store: &SqlStore, said: &[(String, String)]) -> usize {
    let owned = store.owned(&owner()).await.expect("read");
    assert_eq!(owned.admissions, owned.boxes.len() as u64, "an admission without its box, or the reverse");
    for stored in &owned.boxes {
        let name = stored.record.name.as_str();
        let key = store.keyed(&owner(), name, Timestamp::default()).await.expect("read").expect("the key");
        assert_eq!(key.box_id, stored.record.id);
        let operation = key.operation.expect("its operation");
        let (_, events) = store.operation(&operation, 0).await.expect("read").expect("the operation");
        let runs = stored.record.state == BoxState::Running;
        assert_eq!((stored.revision, events.len()), if runs { (2, 2) } else { (1, 1) }, "{name}");
        assert_eq!(events.last().expect("an event").phase.is_last(), runs, "{name}");
    }
    for (word, name) in said {
        let stored = owned.boxes.iter().find(|stored| stored.record.name.as_str() == name);
        let stored = stored.unwrap_or_else(|| panic!("{name} was made and is lost"));
        assert!(word == "made" || stored.record.state == BoxState::Running, "{name} was running");
    }
    owned.boxes.len()
}

async fn two_processes_write_at_once(db: &TestDb) {
    let mut writers = [start(db, "a", 25), start(db, "b", 25)];
    let mut all = Vec::new();
    for child in &mut writers {
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        all.extend(said(&mut lines, usize::MAX));
        assert!(child.wait().expect("its end").success());
    }
    let store = SqlStore::open(db.reopen().await, NOW).await.expect("the tables");
    assert_eq!(all.len(), 100);
    assert_eq!(check(&store, &all).await, 50);
}

async fn a_killed_writer_leaves_whole_steps(db: &TestDb) {
    let store = SqlStore::open(db.reopen().await, NOW).await.expect("the tables");
    let mut all = Vec::new();
    for round in 0..8_usize {
        let mut child = start(db, &format!("r{round}"), 100_000);
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        all.extend(said(&mut lines, 5 + round * 3));
        child.kill().expect("SIGKILL");
        // what it still said before it died was so, too
        all.extend(said(&mut lines, usize::MAX));
        child.wait().expect("its end");
        check(&store, &all).await;
    }
    assert!(all.len() > 8 * 5);
}
