use cocoonbox_boxes::{Confirm, EngineError, IdempotencyKey, KeeperError, SaveReason, Started};
use cocoonbox_core::backend::{HibernateTo, Method};
use cocoonbox_core::machine::{BoxRecord, BoxState, Phase};
use cocoonbox_core::{ImageName, UserId};

use crate::setup::{FREE, World, user};

const NOTE: &str = "/home/user/note";

fn full() -> KeeperError {
    KeeperError::Store { reason: "the store of objects has no room left".to_owned() }
}

async fn messages(world: &World, owner: &UserId, started: &Started) -> Vec<String> {
    use futures::StreamExt as _;
    let operation = started.operation.as_ref().unwrap();
    let events = world.engine.watch(owner, operation, 0).await.unwrap();
    events.map(|event| event.unwrap().message).collect().await
}

async fn saved(world: &World, owner: &UserId) -> String {
    let started = world.engine.save(owner, "", None).await.unwrap();
    assert_eq!(world.last(owner, &started).await.phase, Phase::Done);
    world.engine.saves(owner, "").await.unwrap()[0].id.clone()
}

async fn restored(world: &World, owner: &UserId, save: &str) -> BoxRecord {
    let started = world.engine.restore(owner, FREE, "", save, None).await.unwrap();
    assert_eq!(world.last(owner, &started).await.phase, Phase::Done);
    world.first(owner).await
}

#[tokio::test]
async fn a_box_is_saved_before_it_sleeps_and_sleeps_when_that_fails() {
    let ((world, keeper), ana) = (World::kept().await, user());
    let record = world.running(&ana).await;
    let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    world.last(&ana, &started).await;
    assert_eq!(keeper.reasons(&record.id), [SaveReason::Sleep]);
    assert!(world.first(&ana).await.last_saved_at.is_some());
    world.running(&ana).await;
    keeper.fail_next(full());
    let started = world.engine.hibernate(&ana, "", HibernateTo::Memory, None).await.unwrap();
    let told = messages(&world, &ana, &started).await;
    assert!(told.iter().any(|message| message == "save failed; hibernating it"), "{told:?}");
    assert_eq!(world.state(&ana).await, BoxState::Hibernated);
    assert_eq!(keeper.reasons(&record.id), [SaveReason::Sleep]);
}

#[tokio::test]
async fn a_save_that_lost_its_race_is_made_anew_and_not_for_ever() {
    let ((world, keeper), ana) = (World::kept().await, user());
    let record = world.running(&ana).await;
    keeper.fail_next(KeeperError::Raced);
    keeper.fail_next(KeeperError::Raced);
    saved(&world, &ana).await;
    for _ in 0..3 {
        keeper.fail_next(KeeperError::Raced);
    }
    let started = world.engine.save(&ana, "", None).await.unwrap();
    let last = world.last(&ana, &started).await;
    assert_eq!(last.phase, Phase::Failed, "{last:?}");
    assert!(last.message.contains("another save"), "{last:?}");
    assert_eq!(world.state(&ana).await, BoxState::Running);
    assert_eq!(keeper.reasons(&record.id), [SaveReason::Asked]);
    saved(&world, &ana).await;
}

#[tokio::test]
async fn what_a_restore_replaces_is_saved_first_and_without_it_nothing_is_replaced() {
    let ((world, keeper), ana) = (World::kept().await, user());
    let record = world.running(&ana).await;
    keeper.write(&record.id, NOTE, b"one");
    let first = saved(&world, &ana).await;
    keeper.write(&record.id, NOTE, b"two");
    keeper.fail_next(full());
    let started = world.engine.restore(&ana, FREE, "", &first, None).await.unwrap();
    assert_eq!(world.last(&ana, &started).await.phase, Phase::Failed);
    keeper.started(&record.id);
    assert_eq!(keeper.read(&record.id, NOTE).unwrap(), b"two");

    restored(&world, &ana, &first).await;
    keeper.started(&record.id);
    assert_eq!(keeper.read(&record.id, NOTE).unwrap(), b"one");
    assert_eq!(keeper.reasons(&record.id), [SaveReason::Asked, SaveReason::Restore]);
    // and what it replaced can be had again
    let replaced = world.engine.saves(&ana, "").await.unwrap()[0].id.clone();
    restored(&world, &ana, &replaced).await;
    keeper.started(&record.id);
    assert_eq!(keeper.read(&record.id, NOTE).unwrap(), b"two");
}

#[tokio::test]
async fn chosen_files_come_from_the_newest_save_there_was_and_what_they_replace_is_saved() {
    let ((world, keeper), ana) = (World::kept().await, user());
    let record = world.running(&ana).await;
    keeper.write(&record.id, NOTE, b"one");
    saved(&world, &ana).await;
    keeper.write(&record.id, NOTE, b"two");
    keeper.fail_next(full());
    let paths = || vec![NOTE.as_bytes().to_vec()];
    let started = world.engine.restore_files(&ana, FREE, "", "", paths(), None).await.unwrap();
    assert_eq!(world.last(&ana, &started).await.phase, Phase::Failed);
    assert_eq!(keeper.read(&record.id, NOTE).unwrap(), b"two");

    let key: IdempotencyKey = "restore-note".parse().unwrap();
    let started = world.engine.restore_files(&ana, FREE, "", "", paths(), Some(key.clone())).await.unwrap();
    assert_eq!(world.last(&ana, &started).await.phase, Phase::Done);
    assert_eq!(keeper.read(&record.id, NOTE).unwrap(), b"one");
    let again = world.engine.restore_files(&ana, FREE, "", "", paths(), Some(key)).await.unwrap();
    assert_eq!(again.operation, started.operation);
    restored(&world, &ana, "").await;
    keeper.started(&record.id);
    assert_eq!(keeper.read(&record.id, NOTE).unwrap(), b"two");
}

#[tokio::test]
async fn a_rebase_keeps_what_the_box_has_and_a_repeated_one_is_answered_as_the_first() {
    let ((world, keeper), ana) = (World::kept().await, user());
    let record = world.running(&ana).await;
    keeper.write(&record.id, NOTE, b"one");
    let image: ImageName = "debian:12".parse().unwrap();
    let key: IdempotencyKey = "to-debian".parse().unwrap();
    let rebase = |confirm, key| world.engine.rebase(&ana, FREE, "", Some(image.clone()), confirm, key);
    let unconfirmed = rebase(Confirm::No, Some(key.clone())).await;
    assert!(matches!(unconfirmed, Err(EngineError::Unconfirmed { .. })), "{unconfirmed:?}");

    let started = rebase(Confirm::Yes, Some(key.clone())).await.unwrap();
    assert_eq!(world.last(&ana, &started).await.phase, Phase::Done);
    let moved = world.first(&ana).await;
    assert_eq!((moved.state, &moved.image), (BoxState::Running, &image));
    assert_ne!(moved.sandbox, record.sandbox);
    assert!(world.node.store().sandbox(record.sandbox.as_ref().unwrap()).is_none(), "the old one is left");
    assert_eq!(keeper.reasons(&record.id), [SaveReason::Upgrade]);

    let again = rebase(Confirm::Yes, Some(key)).await.unwrap();
    assert_eq!(again.operation, started.operation);
    let same = rebase(Confirm::Yes, None).await;
    assert!(matches!(same, Err(EngineError::Invalid { field: "image", .. })), "{same:?}");
    assert_eq!(world.backend.calls(Method::Claim), 2);
}

#[tokio::test]
async fn a_rebase_that_fails_leaves_the_box_on_its_image_and_nothing_else() {
    let ((world, keeper), ana) = (World::kept().await, user());
    let record = world.running(&ana).await;
    let image: ImageName = "debian:12".parse().unwrap();
    // first its save fails, then what is brought back
    for skipped in [0, 1] {
        keeper.fail_later(skipped, full());
        let started =
            world.engine.rebase(&ana, FREE, "", Some(image.clone()), Confirm::Yes, None).await.unwrap();
        let last = world.last(&ana, &started).await;
        assert_eq!(last.phase, Phase::Failed, "{last:?}");
        assert!(last.message.contains("stays on image"), "{last:?}");
        let left = world.first(&ana).await;
        assert_eq!(
            (left.state, &left.image, &left.sandbox),
            (BoxState::Running, &record.image, &record.sandbox)
        );
        assert_eq!(world.node.store().live(), 1);
    }
}

#[tokio::test]
async fn a_deleted_box_is_forgotten() {
    let ((world, keeper), ana) = (World::kept().await, user());
    let record = world.running(&ana).await;
    saved(&world, &ana).await;
    let started = world.engine.delete(&ana, "main", Confirm::Yes, None).await.unwrap();
    world.last(&ana, &started).await;
    assert!(keeper.reasons(&record.id).is_empty());
}
