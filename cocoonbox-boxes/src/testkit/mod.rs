//! The suite that every [`BoxStore`] passes.
//!
//! [`box_store_conformance!`](crate::box_store_conformance) turns the list into tests; a new store is done when they
//! pass. Each test uses owners and boxes of its own, so that they may share one store.

pub mod keeper;
pub mod usage;

use std::collections::BTreeSet;

use cocoonbox_core::machine::{
    BoxRecord, Command, Decision, Fresh, Limits, NewBox, OperationEvent, Tally, Write, decide,
};
use cocoonbox_core::{BoxId, GrantId, ImageName, OperationId, SystemEntropy, Timestamp, UserId, WakeId};
use futures::StreamExt as _;

use crate::store::{
    BoxStore, Change, Expect, Hint, KEY_LIFETIME, KeyedAnswer, Operation, StoreError, Stored,
};

/// Makes one test of each part of the suite; the expression makes an empty store, and may await and return.
///
/// `name => guard, store` keeps what the first expression makes (a temporary database) for as long as the store.
#[macro_export]
macro_rules! box_store_conformance {
    ($store:expr) => {
        $crate::box_store_conformance!(_guard => (), $store);
    };
    ($guard:ident => $made:expr, $store:expr) => {
        $crate::box_store_conformance!(@ $guard, $made, $store;
            a_change_is_read_back_whole
            a_stale_write_is_refused_and_changes_nothing
            of_two_that_create_the_same_box_one_wins
            a_name_is_taken_once_per_owner
            a_refused_name_changes_nothing
            admissions_that_rest_on_an_old_count_are_refused
            a_key_is_taken_once_a_day
            a_removed_box_leaves_its_operations
            which_grant_made_a_box_stays_with_it
            boxes_are_oldest_first_and_pages_are_whole
            events_keep_their_order_and_their_cursor
            only_what_is_over_and_old_is_pruned
            what_is_not_there_is_none
            a_commit_is_hinted
            of_many_concurrent_writers_each_write_counts_once
        );
    };
    (@ $guard:ident, $made:expr, $store:expr; $($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let $guard = $made;
            let store = $store;
            $crate::testkit::$name(&store).await;
        }
    )*};
}

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn owner() -> UserId {
    UserId::random(&SystemEntropy).expect("entropy")
}

fn fresh() -> Fresh {
    Fresh {
        operation: OperationId::random(&SystemEntropy).expect("entropy"),
        wake: WakeId::random(&SystemEntropy).expect("entropy"),
    }
}

fn created(owner: &UserId, name: &str, now: Timestamp) -> (BoxRecord, Change) {
    let id = BoxId::random(&SystemEntropy).expect("entropy");
    let new = NewBox {
        id,
        owner: owner.clone(),
        name: name.parse().expect("a box name"),
        image: ImageName::host(),
    };
    let (fresh, tally, limits) = (fresh(), Tally::default(), Limits::default());
    let command = Command::Create { new, fresh, tally, limits, agent: None };
    let decision = decide(None, command, now).expect("there are no limits");
    let record = decision.record(None).expect("a box is made").clone();
    let change = spelled(&record, Expect::Absent, decision, now);
    (record, change)
}

fn spelled(record: &BoxRecord, expect: Expect, decision: Decision, now: Timestamp) -> Change {
    let mut change = Change::new(record.id.clone(), record.owner.clone(), expect, decision.write)
        .with_events(decision.events);
    if let (Some(verb), Some(id)) = (decision.begins, decision.operation) {
        change =
            change.with_operation(Operation::new(id, record.id.clone(), record.owner.clone(), verb, now));
    }
    change
}

async fn add(store: &dyn BoxStore, owner: &UserId, name: &str, now: Timestamp) -> BoxRecord {
    let (record, change) = created(owner, name, now);
    assert_eq!(store.commit(change).await.expect("a new box is written"), 1);
    record
}

fn operation_of(record: &BoxRecord) -> OperationId {
    record.pending.as_ref().expect("an operation is under way").operation.clone()
}

fn put(record: &BoxRecord, revision: u64, next: BoxRecord) -> Change {
    Change::new(
        record.id.clone(),
        record.owner.clone(),
        Expect::Revision(revision),
        Write::Put(Box::new(next)),
    )
}

fn renamed(record: &BoxRecord, name: &str) -> BoxRecord {
    let mut next = record.clone();
    next.name = name.parse().expect("a box name");
    next
}

async fn events(store: &dyn BoxStore, id: &OperationId) -> Vec<OperationEvent> {
    store.operation(id, 0).await.expect("the store answers").expect("the operation is there").1
}

fn numbered(like: &OperationEvent, sequence: u64) -> OperationEvent {
    let mut event = like.clone();
    event.sequence = sequence;
    event.message = format!("event {sequence} ü");
    event
}

fn is_conflict<T>(result: Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Conflict { .. }))
}

/// A change's record, operation, events and key are read back as they were written.
pub async fn a_change_is_read_back_whole(store: &dyn BoxStore) {
    let owner = owner();
    let (record, change) = created(&owner, "main", NOW);
    let operation = operation_of(&record);
    let key = KeyedAnswer::new(
        owner.clone(),
        "k ~".to_owned(),
        "create main".to_owned(),
        record.id.clone(),
        Some(operation.clone()),
        NOW,
    );
    let written = change.events.clone();
    store.commit(change.with_key(key.clone())).await.expect("written");
    let stored = store.load(&record.id).await.expect("read").expect("there");
    assert_eq!((stored.record, stored.revision), (record.clone(), 1));
    let (head, log) = store.operation(&operation, 0).await.expect("read").expect("there");
    assert_eq!((head.box_id, head.owner, head.started_at), (record.id.clone(), owner.clone(), NOW));
    assert_eq!(log, written);
    let before = Timestamp::from_micros(NOW.micros() - 1);
    assert_eq!(store.keyed(&owner, "k ~", before).await.expect("read"), Some(key));
    assert_eq!(store.keyed(&owner, "k ~", NOW).await.expect("read"), None, "since is not included");
}

/// A write that expects another revision is a conflict, and none of its parts are written.
pub async fn a_stale_write_is_refused_and_changes_nothing(store: &dyn BoxStore) {
    let owner = owner();
    let record = add(store, &owner, "main", NOW).await;
    let next = renamed(&record, "other");
    assert_eq!(store.commit(put(&record, 1, next.clone())).await.expect("written"), 2);
    let event = events(store, &operation_of(&record)).await.remove(0);
    let second = numbered(&event, 2);
    let key = KeyedAnswer::new(owner.clone(), "k".to_owned(), String::new(), record.id.clone(), None, NOW);
    for expect in [Expect::Revision(1), Expect::Revision(3), Expect::Absent] {
        for write in [Write::Put(Box::new(record.clone())), Write::Remove, Write::Keep] {
            let stale = Change::new(record.id.clone(), owner.clone(), expect, write)
                .with_events(vec![second.clone()])
                .with_key(key.clone());
            assert!(is_conflict(store.commit(stale).await), "{expect:?}");
        }
    }
    let stored = store.load(&record.id).await.expect("read").expect("there");
    assert_eq!((stored.record, stored.revision), (next, 2));
    assert_eq!(events(store, &operation_of(&record)).await.len(), 1);
    assert_eq!(store.keyed(&owner, "k", Timestamp::default()).await.expect("read"), None);
}

/// Of two that write the same new box, one is refused.
pub async fn of_two_that_create_the_same_box_one_wins(store: &dyn BoxStore) {
    let (_, change) = created(&owner(), "main", NOW);
    let (first, second) = tokio::join!(store.commit(change.clone()), store.commit(change));
    assert_ne!(first.is_ok(), second.is_ok(), "{first:?} {second:?}");
    assert!(is_conflict(if first.is_ok() { second } else { first }));
}

/// A name is free for other owners, and for nobody else of the same.
pub async fn a_name_is_taken_once_per_owner(store: &dyn BoxStore) {
    let owner_one = owner();
    let record = add(store, &owner_one, "main", NOW).await;
    let (_, again) = created(&owner_one, "main", NOW);
    assert!(matches!(store.commit(again).await, Err(StoreError::NameTaken { name }) if name == record.name));
    add(store, &owner(), "main", NOW).await;
    // its own name is no obstacle
    assert_eq!(store.commit(put(&record, 1, record.clone())).await.expect("written"), 2);
}

/// A rename to a taken name leaves everything as it was.
pub async fn a_refused_name_changes_nothing(store: &dyn BoxStore) {
    let owner = owner();
    add(store, &owner, "main", NOW).await;
    let record = add(store, &owner, "second", NOW).await;
    let taken = put(&record, 1, renamed(&record, "main")).with_admits(0);
    assert!(matches!(store.commit(taken).await, Err(StoreError::NameTaken { .. })));
    let stored = store.load(&record.id).await.expect("read").expect("there");
    assert_eq!((stored.record.name, stored.revision), (record.name, 1));
    assert_eq!(store.owned(&owner).await.expect("read").admissions, 0);
}

/// Of two admissions that rest on the same count one is refused, also when they are about different boxes.
pub async fn admissions_that_rest_on_an_old_count_are_refused(store: &dyn BoxStore) {
    let owner = owner();
    for (round, admissions) in (0..3_u64).enumerate() {
        assert_eq!(store.owned(&owner).await.expect("read").admissions, admissions);
        let (_, one) = created(&owner, &format!("a{round}"), NOW);
        let (_, two) = created(&owner, &format!("b{round}"), NOW);
        let (one, two) = tokio::join!(
            store.commit(one.with_admits(admissions)),
            store.commit(two.with_admits(admissions))
        );
        assert_ne!(one.is_ok(), two.is_ok(), "{one:?} {two:?}");
        assert!(is_conflict(if one.is_ok() { two } else { one }));
    }
    assert_eq!(store.owned(&owner).await.expect("read").boxes.len(), 3);
}

/// A key is refused for 24 hours, together with everything that came with it, and free then.
pub async fn a_key_is_taken_once_a_day(store: &dyn BoxStore) {
    let owner = owner();
    let key = |at: Timestamp, id: &BoxId| {
        KeyedAnswer::new(owner.clone(), "k".to_owned(), "r".to_owned(), id.clone(), None, at)
    };
    let (first, change) = created(&owner, "one", NOW);
    store.commit(change.with_key(key(NOW, &first.id))).await.expect("written");
    let almost = Timestamp::from_micros(NOW.plus(KEY_LIFETIME).micros() - 1);
    let (second, change) = created(&owner, "two", almost);
    assert!(matches!(
        store.commit(change.with_key(key(almost, &second.id))).await,
        Err(StoreError::KeyTaken)
    ));
    assert_eq!(store.load(&second.id).await.expect("read"), None);
    let later = NOW.plus(KEY_LIFETIME);
    let (third, change) = created(&owner, "three", later);
    store.commit(change.with_key(key(later, &third.id))).await.expect("written");
    let answer = store.keyed(&owner, "k", Timestamp::default()).await.expect("read").expect("there");
    assert_eq!(answer.box_id, third.id);
}

/// A removed box is gone, and its operations can still be read.
pub async fn a_removed_box_leaves_its_operations(store: &dyn BoxStore) {
    let record = add(store, &owner(), "main", NOW).await;
    let remove = Change::new(record.id.clone(), record.owner.clone(), Expect::Revision(1), Write::Remove);
    assert_eq!(store.commit(remove.clone()).await.expect("removed"), 0);
    assert_eq!(store.load(&record.id).await.expect("read"), None);
    assert!(store.owned(&record.owner).await.expect("read").boxes.is_empty());
    assert_eq!(events(store, &operation_of(&record)).await.len(), 1);
    assert!(is_conflict(store.commit(remove).await));
}

/// Which grant made a box is read back with it, whatever is written later, and goes with the box.
pub async fn which_grant_made_a_box_stays_with_it(store: &dyn BoxStore) {
    let owner = owner();
    let [grant, other] = [0; 2].map(|_| GrantId::random(&SystemEntropy).expect("entropy"));
    let (record, change) = created(&owner, "agents", NOW);
    store.commit(change.with_grant(Some(grant.clone()))).await.expect("written");
    let own = add(store, &owner, "own", NOW).await;
    let later = put(&record, 1, renamed(&record, "later")).with_grant(Some(other));
    store.commit(later).await.expect("written");
    let grant_of = |stored: &Stored| (stored.record.id.clone(), stored.grant.clone());
    let expected = BTreeSet::from([(record.id.clone(), Some(grant)), (own.id.clone(), None)]);
    let owned = store.owned(&owner).await.expect("read");
    assert_eq!(owned.boxes.iter().map(grant_of).collect::<BTreeSet<_>>(), expected);
    for (id, _) in &expected {
        let loaded = store.load(id).await.expect("read").expect("there");
        assert!(expected.contains(&grant_of(&loaded)));
        let page = store.page(None, 10_000).await.expect("read");
        let paged = page.iter().find(|stored| stored.record.id == *id);
        assert!(paged.is_some_and(|stored| expected.contains(&grant_of(stored))));
    }
    let remove = Change::new(record.id.clone(), owner.clone(), Expect::Revision(2), Write::Remove);
    store.commit(remove).await.expect("removed");
    // the same id once more, of its owner's own
    let again = Change::new(record.id.clone(), owner, Expect::Absent, Write::Put(Box::new(record.clone())));
    store.commit(again).await.expect("written");
    assert_eq!(store.load(&record.id).await.expect("read").expect("there").grant, None);
}

/// An owner's boxes come by age, all boxes by id, page by page, each once.
pub async fn boxes_are_oldest_first_and_pages_are_whole(store: &dyn BoxStore) {
    let owner = owner();
    let mut made = Vec::new();
    for (name, second) in [("c", 3), ("a", 1), ("b", 2), ("d", 4), ("e", 5)] {
        made.push(add(store, &owner, name, Timestamp::from_millis(second * 1000)).await);
    }
    made.sort_by_key(|record| record.created_at);
    let owned = store.owned(&owner).await.expect("read");
    assert_eq!(owned.boxes.into_iter().map(|stored| stored.record).collect::<Vec<_>>(), made);
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.page(after.as_ref(), 2).await.expect("read");
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { break };
        after = Some(last.record.id.clone());
        seen.extend(page.into_iter().map(|stored| stored.record.id));
    }
    assert!(seen.is_sorted());
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len());
    assert!(made.iter().all(|record| distinct.contains(&record.id)));
}

/// Events come in their sequence, after the cursor, and no sequence comes twice.
pub async fn events_keep_their_order_and_their_cursor(store: &dyn BoxStore) {
    let record = add(store, &owner(), "main", NOW).await;
    let operation = operation_of(&record);
    let first = events(store, &operation).await.remove(0);
    let numbered = |sequence| numbered(&first, sequence);
    let keep = |revision| {
        Change::new(record.id.clone(), record.owner.clone(), Expect::Revision(revision), Write::Keep)
    };
    store.commit(keep(1).with_events((2..=12).map(numbered).collect())).await.expect("appended");
    let log = events(store, &operation).await;
    assert_eq!(log.iter().map(|event| event.sequence).collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
    assert_eq!(log[11], numbered(12));
    let (_, rest) = store.operation(&operation, 10).await.expect("read").expect("there");
    assert_eq!(rest.len(), 2);
    let (_, rest) = store.operation(&operation, u64::MAX).await.expect("read").expect("there");
    assert!(rest.is_empty());
    assert!(is_conflict(store.commit(keep(1).with_events(vec![numbered(12)])).await));
}

/// Pruning takes operations that ended before a time, and keys given before it.
pub async fn only_what_is_over_and_old_is_pruned(store: &dyn BoxStore) {
    let owner = owner();
    let later = NOW.plus(KEY_LIFETIME);
    let (mut kept, mut gone) = (Vec::new(), None);
    for (name, ended) in [("old", Some(NOW)), ("new", Some(later)), ("open", None)] {
        let record = add(store, &owner, name, NOW).await;
        let operation = operation_of(&record);
        if let Some(at) = ended {
            let command = Command::Claimed {
                operation: operation.clone(),
                sandbox: "sb_1".parse().expect("a sandbox id"),
            };
            let decision = decide(Some(&record), command, at).expect("the outcome fits");
            store.commit(spelled(&record, Expect::Revision(1), decision, at)).await.expect("written");
        }
        if ended == Some(NOW) { gone = Some(operation) } else { kept.push(operation) }
    }
    store.prune(Timestamp::from_micros(NOW.micros() + 1)).await.expect("pruned");
    for operation in kept {
        assert!(store.operation(&operation, 0).await.expect("read").is_some());
    }
    assert_eq!(store.operation(&gone.expect("one was old"), 0).await.expect("read"), None);
}

/// Reading what is not there answers nothing.
pub async fn what_is_not_there_is_none(store: &dyn BoxStore) {
    let (record, _) = created(&owner(), "main", NOW);
    assert_eq!(store.load(&record.id).await.expect("read"), None);
    assert_eq!(store.operation(&operation_of(&record), 0).await.expect("read"), None);
    assert_eq!(store.keyed(&record.owner, "k", NOW).await.expect("read"), None);
    let owned = store.owned(&record.owner).await.expect("read");
    assert!(owned.boxes.is_empty());
    assert_eq!(owned.admissions, 0);
}

/// One who listens hears of a commit, or that anything may have changed.
pub async fn a_commit_is_hinted(store: &dyn BoxStore) {
    let mut hints = store.hints().await.expect("hints");
    let record = add(store, &owner(), "main", NOW).await;
    loop {
        match hints.next().await.expect("hints do not end") {
            Hint::Box(id) if id != record.id => {}
            Hint::Box(_) | Hint::All => break,
        }
    }
}

/// Writers that read, change and write again when refused lose no change.
pub async fn of_many_concurrent_writers_each_write_counts_once(store: &dyn BoxStore) {
    const WRITERS: usize = 6;
    const WRITES: usize = 5;
    let record = add(store, &owner(), "main", NOW).await;
    let writers = (0..WRITERS).map(|_| async {
        let mut done = 0;
        while done < WRITES {
            let stored = store.load(&record.id).await.expect("read").expect("there");
            let mut next = stored.record;
            next.created_at = Timestamp::from_micros(next.created_at.micros() + 1);
            match store.commit(put(&record, stored.revision, next)).await {
                Ok(_) => done += 1,
                Err(StoreError::Conflict { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error:?}"),
            }
        }
    });
    futures::future::join_all(writers).await;
    let stored = store.load(&record.id).await.expect("read").expect("there");
    let written = (WRITERS * WRITES) as u64;
    assert_eq!(stored.revision, 1 + written);
    assert_eq!(stored.record.created_at.micros(), record.created_at.micros() + written as i64);
}
