//! The suite that every [`StateKeeper`] passes, over boxes that its tests can write to and start anew.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_core::{BoxId, UserId};
use tokio::sync::watch;

use crate::{Guest, KeeperError, Moved, SaveInfo, SaveReason, StateKeeper};

/// A running box that is kept.
#[async_trait]
pub trait KeptBox: fmt::Debug + Send + Sync {
    /// Returns whose it is.
    fn owner(&self) -> UserId;
    /// Returns which.
    fn id(&self) -> BoxId;
    /// Opens a connection to its agent.
    async fn guest(&self) -> Guest;
    /// Writes a file, its folders included.
    async fn write(&self, path: &str, text: &str);
    /// Reads a file; none when there is no such file.
    async fn read(&self, path: &str) -> Option<String>;
    /// Ends what runs in it and starts it anew.
    async fn restart(&self);
}

/// A keeper, and boxes that it keeps.
#[async_trait]
pub trait KeptWorld: fmt::Debug + Send + Sync {
    /// Returns the keeper.
    fn keeper(&self) -> Arc<dyn StateKeeper>;
    /// Makes a box of a user's; each has a home and a workspace.
    async fn make(&self, owner: &UserId) -> Box<dyn KeptBox>;
}

/// Makes one test of each part of the suite; the expression makes a [`KeptWorld`], and may await.
#[macro_export]
macro_rules! state_keeper_conformance {
    ($world:expr) => {
        $crate::state_keeper_conformance!(@ $world;
            a_save_is_listed_before_those_that_are_older
            what_was_saved_comes_back_whole_at_the_next_start
            a_box_comes_back_with_what_it_had_last
            chosen_files_come_back_and_the_others_stay
            a_save_is_looked_into
            a_file_of_a_save_is_read
            what_is_not_there_is_said_and_changes_nothing
            a_save_that_fails_leaves_the_ones_before
            a_forgotten_box_has_no_saves
        );
    };
    (@ $world:expr; $($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let world = $world;
            $crate::testkit::keeper::$name(&world).await;
        }
    )*};
}

const NOTE: &str = "/home/user/note";
const PLAN: &str = "/workspace/project/plan";

fn progress() -> watch::Sender<Moved> {
    watch::Sender::new(Moved::default())
}

async fn user(world: &dyn KeptWorld) -> Box<dyn KeptBox> {
    world.make(&super::owner()).await
}

async fn saved(world: &dyn KeptWorld, kept: &dyn KeptBox, reason: SaveReason) -> SaveInfo {
    world.keeper().save(kept.guest().await, reason, progress()).await.expect("a box that runs is saved")
}

async fn back(world: &dyn KeptWorld, kept: &dyn KeptBox, save: &str) {
    world.keeper().stage(kept.guest().await, save, progress()).await.expect("a save is brought back");
    kept.restart().await;
}

async fn ids(world: &dyn KeptWorld, kept: &dyn KeptBox) -> Vec<String> {
    let saves = world.keeper().saves(&kept.owner(), &kept.id()).await.expect("saves are listed");
    saves.into_iter().map(|save| save.id).collect()
}

/// A save is listed from then on, the newest first, and its hash tells whether anything changed.
pub async fn a_save_is_listed_before_those_that_are_older(world: &dyn KeptWorld) {
    let (kept, other) = (user(world).await, user(world).await);
    assert!(ids(world, &*kept).await.is_empty());
    kept.write(NOTE, "one").await;
    let tell = progress();
    let seen = tell.subscribe();
    let first = world.keeper().save(kept.guest().await, SaveReason::Asked, tell).await.expect("it is saved");
    assert!(seen.borrow().bytes.done <= seen.borrow().bytes.total);
    let same = saved(world, &*kept, SaveReason::Sleep).await;
    kept.write(NOTE, "other").await;
    let third = saved(world, &*kept, SaveReason::Upgrade).await;
    assert_eq!(first.root_hash, same.root_hash);
    assert_ne!(first.root_hash, third.root_hash);
    assert!(first.files >= 1 && first.bytes >= 3 && !third.kept.is_empty(), "{first:?} {third:?}");
    assert!(first.at <= third.at);
    assert_eq!(ids(world, &*kept).await, [third.id, same.id, first.id]);
    assert!(ids(world, &*other).await.is_empty());
}

/// What was staged is not there before the box starts anew, and then all of it is, and nothing else.
pub async fn what_was_saved_comes_back_whole_at_the_next_start(world: &dyn KeptWorld) {
    let kept = user(world).await;
    kept.write(NOTE, "one").await;
    kept.write(PLAN, "first").await;
    let first = saved(world, &*kept, SaveReason::Asked).await;
    kept.write(NOTE, "two").await;
    kept.write("/workspace/project/draft", "later").await;
    let done = world.keeper().stage(kept.guest().await, &first.id, progress()).await.expect("it is staged");
    assert_eq!((done.files, done.bytes), (first.files, first.bytes));
    assert_eq!(kept.read(NOTE).await.as_deref(), Some("two"));
    kept.restart().await;
    assert_eq!(kept.read(NOTE).await.as_deref(), Some("one"));
    assert_eq!(kept.read(PLAN).await.as_deref(), Some("first"));
    assert_eq!(kept.read("/workspace/project/draft").await, None);
    assert_eq!(saved(world, &*kept, SaveReason::Asked).await.root_hash, first.root_hash);
}

/// Without an id it is the newest save that counts: not what a restore replaced, but what it brought.
pub async fn a_box_comes_back_with_what_it_had_last(world: &dyn KeptWorld) {
    let kept = user(world).await;
    kept.write(NOTE, "one").await;
    let first = saved(world, &*kept, SaveReason::Asked).await;
    kept.write(NOTE, "two").await;
    saved(world, &*kept, SaveReason::Sleep).await;
    back(world, &*kept, "").await;
    assert_eq!(kept.read(NOTE).await.as_deref(), Some("two"));
    kept.write(NOTE, "three").await;
    saved(world, &*kept, SaveReason::Restore).await;
    back(world, &*kept, &first.id).await;
    back(world, &*kept, "").await;
    assert_eq!(kept.read(NOTE).await.as_deref(), Some("one"));
    kept.write(NOTE, "four").await;
    saved(world, &*kept, SaveReason::Asked).await;
    kept.write(NOTE, "five").await;
    back(world, &*kept, "").await;
    assert_eq!(kept.read(NOTE).await.as_deref(), Some("four"));
}

/// Files and folders come back one by one, at once.
pub async fn chosen_files_come_back_and_the_others_stay(world: &dyn KeptWorld) {
    let kept = user(world).await;
    kept.write(NOTE, "one").await;
    kept.write(PLAN, "first").await;
    kept.write("/workspace/other", "kept").await;
    let first = saved(world, &*kept, SaveReason::Asked).await;
    kept.write(NOTE, "two").await;
    kept.write(PLAN, "second").await;
    kept.write("/workspace/other", "changed").await;
    let paths = [b"/workspace/project".to_vec(), NOTE.as_bytes().to_vec()];
    let keeper = world.keeper();
    let done = keeper.restore_files(kept.guest().await, &first.id, &paths, progress()).await;
    assert_eq!(done.expect("chosen files are brought back").files, 2);
    assert_eq!(kept.read(NOTE).await.as_deref(), Some("one"));
    assert_eq!(kept.read(PLAN).await.as_deref(), Some("first"));
    assert_eq!(kept.read("/workspace/other").await.as_deref(), Some("changed"));
}

/// A save's folders are listed without a box.
pub async fn a_save_is_looked_into(world: &dyn KeptWorld) {
    let kept = user(world).await;
    kept.write(PLAN, "first").await;
    let first = saved(world, &*kept, SaveReason::Asked).await;
    let (keeper, owner, id) = (world.keeper(), kept.owner(), kept.id());
    let listed = keeper.browse(&owner, &id, &first.id, b"workspace").await.expect("a folder is listed");
    let project = listed.iter().find(|entry| entry.name == b"project").expect("the folder is there");
    assert_eq!(project.kind, "directory");
    let listed = keeper.browse(&owner, &id, "", b"/workspace/project").await.expect("a folder is listed");
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].name.as_slice(), listed[0].kind, listed[0].bytes), (&b"plan"[..], "file", 5));
    let wrong = keeper.browse(&owner, &id, "", PLAN.as_bytes()).await;
    assert!(matches!(wrong, Err(KeeperError::Invalid { .. })), "{wrong:?}");
    let wrong = keeper.browse(&owner, &id, "", b"/workspace/../home").await;
    assert!(matches!(wrong, Err(KeeperError::Invalid { .. })), "{wrong:?}");
    let none = keeper.browse(&owner, &id, "", b"/workspace/nothing").await;
    assert!(matches!(none, Err(KeeperError::NotFound { .. })), "{none:?}");
}

/// A save's files are read without a box, part by part.
pub async fn a_file_of_a_save_is_read(world: &dyn KeptWorld) {
    let kept = user(world).await;
    let text = "0123456789".repeat(10_000);
    kept.write(PLAN, &text).await;
    saved(world, &*kept, SaveReason::Asked).await;
    kept.write(PLAN, "changed").await;
    let (keeper, owner, id) = (world.keeper(), kept.owner(), kept.id());
    let file = keeper.open(&owner, &id, "", PLAN.as_bytes()).await.expect("a file is opened");
    assert_eq!((file.entry().name.as_slice(), file.entry().bytes), (&b"plan"[..], 100_000));
    let mut read = Vec::new();
    loop {
        let part = file.read(read.len() as u64, 33_333).await.expect("a part is read");
        if part.is_empty() {
            break;
        }
        assert!(part.len() <= 33_333);
        read.extend(part);
    }
    assert!(read == text.as_bytes(), "{} bytes", read.len());
    assert!(file.read(u64::MAX, u64::MAX).await.expect("nothing is read").is_empty());
    let folder = keeper.open(&owner, &id, "", b"/workspace/project").await;
    assert!(matches!(folder, Err(KeeperError::Invalid { .. })), "{folder:?}");
    let none = keeper.open(&owner, &id, "", b"/workspace/nothing").await;
    assert!(matches!(none, Err(KeeperError::NotFound { .. })), "{none:?}");
}

/// Saves, boxes' and paths that are not there are named as such.
pub async fn what_is_not_there_is_said_and_changes_nothing(world: &dyn KeptWorld) {
    let kept = user(world).await;
    kept.write(NOTE, "one").await;
    let keeper = world.keeper();
    let none = keeper.stage(kept.guest().await, "", progress()).await;
    assert!(matches!(none, Err(KeeperError::NotFound { .. })), "{none:?}");
    saved(world, &*kept, SaveReason::Asked).await;
    for save in ["0", &"f".repeat(32), "../x"] {
        let none = keeper.stage(kept.guest().await, save, progress()).await;
        assert!(matches!(none, Err(KeeperError::NotFound { .. })), "{none:?}");
    }
    let paths = [b"/home/user/nothing".to_vec()];
    let none = keeper.restore_files(kept.guest().await, "", &paths, progress()).await;
    assert!(none.is_err(), "{none:?}");
    kept.restart().await;
    assert_eq!(kept.read(NOTE).await.as_deref(), Some("one"));
}

/// A box that hangs up is not saved, and what was saved before is.
pub async fn a_save_that_fails_leaves_the_ones_before(world: &dyn KeptWorld) {
    let kept = user(world).await;
    kept.write(NOTE, "one").await;
    let first = saved(world, &*kept, SaveReason::Asked).await;
    kept.write(NOTE, "two").await;
    let mut guest = kept.guest().await;
    guest.stream = Box::new(tokio::io::duplex(64).0);
    let failed = world.keeper().save(guest, SaveReason::Asked, progress()).await;
    assert!(matches!(failed, Err(KeeperError::Guest { .. })), "{failed:?}");
    assert_eq!(ids(world, &*kept).await, [first.id]);
    back(world, &*kept, "").await;
    assert_eq!(kept.read(NOTE).await.as_deref(), Some("one"));
}

/// A box's saves go with it, and nobody else's.
pub async fn a_forgotten_box_has_no_saves(world: &dyn KeptWorld) {
    let owner = super::owner();
    let (gone, stays) = (world.make(&owner).await, world.make(&owner).await);
    for kept in [&gone, &stays] {
        kept.write(NOTE, "same").await;
        saved(world, &**kept, SaveReason::Asked).await;
    }
    world.keeper().forget(&owner, &gone.id()).await.expect("it is forgotten");
    world.keeper().forget(&owner, &gone.id()).await.expect("it is forgotten already");
    assert!(ids(world, &*gone).await.is_empty());
    let none = world.keeper().stage(gone.guest().await, "", progress()).await;
    assert!(matches!(none, Err(KeeperError::NotFound { .. })), "{none:?}");
    stays.write(NOTE, "changed").await;
    back(world, &*stays, "").await;
    assert_eq!(stays.read(NOTE).await.as_deref(), Some("same"));
}
