//! A process that dies at any step of save, commit, restore and prune leaves the old state or the new one.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use cocoonbox_core::{Clock, ManualClock, SystemClock, SystemEntropy, Timestamp};
use cocoonbox_state::{
    CRASH_POINTS, Depth, FolderObjects, KeepRule, ObjectCatalog, Objects, RestoreOptions, SWEEP_WAIT,
    StateKey, Vault, arm_crash_point,
};

use common::{Outcome, label, plant, save};

const CHILD: &str = "COCOONBOX_STATE_CRASH_CHILD";

fn open(work: &Path, clock: Arc<dyn Clock>) -> std::io::Result<Vault> {
    let objects: Arc<dyn Objects> = Arc::new(FolderObjects::open(&work.join("store"))?);
    let key = StateKey::new([7; 32]);
    let catalog = ObjectCatalog::new(Arc::clone(&objects), key.clone(), Arc::new(SystemEntropy));
    Ok(Vault::new(objects, Arc::new(catalog), key, label("us_test"), clock, Arc::new(SystemEntropy)))
}

/// Saves, restores and prunes; what the parent armed kills it somewhere.
async fn all_of_it(work: &Path) -> Outcome {
    let clock = Arc::new(ManualClock::new(SystemClock.now().plus(Duration::from_hours(24 * 300))));
    let vault = open(work, Arc::<ManualClock>::clone(&clock))?;
    let keys = vault.keys(&label("cb-test"));
    let saved = save(&vault, &keys, &work.join("root")).await?;
    vault.restore(&keys, &saved.id, &work.join("out"), &RestoreOptions::default()).await?;
    if vault.catalog().load(keys.uid()).await?.0.mark.is_none() {
        let plan = vault.plan_prune(&KeepRule::default()).await?;
        vault.mark(&plan).await?;
    }
    clock.advance(SWEEP_WAIT);
    vault.sweep().await?;
    Ok(())
}

/// Does nothing unless the parent asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() -> Outcome {
    let Ok(asked) = env::var(CHILD) else { return Ok(()) };
    let mut words = asked.splitn(3, '|');
    let (Some(work), Some(nth), Some(name)) = (words.next(), words.next(), words.next()) else {
        return Err("the parent asks otherwise".into());
    };
    arm_crash_point(name, nth.parse()?);
    all_of_it(Path::new(work)).await
}

fn command(work: &Path, nth: u32, name: &str) -> Result<Command, std::io::Error> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, format!("{}|{nth}|{name}", work.display()));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Looks at what a dead process left: every save that counts is whole, and the next run does all of it.
async fn is_old_or_new(work: &Path, first: &str) -> Outcome {
    let vault = open(work, Arc::new(SystemClock))?;
    let keys = vault.keys(&label("cb-test"));
    let saves = vault.saves(keys.box_label()).await?;
    assert!(!saves.is_empty());
    for entry in &saves {
        let report = vault.check(&keys, &entry.id, Depth::All).await?;
        assert!(report.damages.is_empty(), "{:?}", report.damages);
    }
    // all of it goes on from what was left: a restore into the half-filled folder, a sweep of the mark
    fs::remove_dir_all(work.join("out")).ok();
    all_of_it(work).await?;
    let saves = vault.saves(keys.box_label()).await?;
    let newest = saves.last().ok_or("no save")?;
    assert_ne!(newest.root_hash.to_string(), first);
    let out = work.join("after");
    let restored = vault.restore(&keys, &newest.id, &out, &RestoreOptions::default()).await?;
    assert_eq!(restored.root_hash, Some(newest.root_hash));
    fs::remove_dir_all(out)?;
    Ok(())
}

async fn prepare(work: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let long_ago = Arc::new(ManualClock::new(Timestamp::from_millis(1_600_000_000_000)));
    let vault = open(work, Arc::<ManualClock>::clone(&long_ago))?;
    plant(&work.join("root"), 1)?;
    save(&vault, &vault.keys(&label("cb-test")), &work.join("root")).await?;
    long_ago.advance(Duration::from_hours(24));
    plant(&work.join("root"), 100)?;
    let first = save(&vault, &vault.keys(&label("cb-test")), &work.join("root")).await?;
    plant(&work.join("root"), 200)?;
    Ok(first.root_hash.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_at_any_step_leaves_the_old_state_or_the_new() -> Outcome {
    let mut died = 0;
    for name in CRASH_POINTS {
        let work = tempfile::tempdir()?;
        let first = prepare(work.path()).await?;
        let status = command(work.path(), 1, name)?.status()?;
        assert!(!status.success(), "nothing came to {name}");
        died += 1;
        is_old_or_new(work.path(), &first).await.map_err(|error| format!("{name}: {error:?}"))?;
    }
    assert_eq!(died, CRASH_POINTS.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_anywhere_leaves_the_old_state_or_the_new() -> Outcome {
    // in a debug build each round takes long and shows no more
    let rounds = if env::var_os("COCOONBOX_SOAK").is_some() && !cfg!(debug_assertions) { 200 } else { 8 };
    for round in 0..rounds {
        let work = tempfile::tempdir()?;
        let first = prepare(work.path()).await?;
        let mut child = command(work.path(), 1, "nowhere")?.spawn()?;
        tokio::time::sleep(Duration::from_millis(20 + round % 20 * 25)).await;
        let _ = child.kill();
        child.wait()?;
        is_old_or_new(work.path(), &first).await.map_err(|error| format!("round {round}: {error:?}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_goes_on_where_a_dead_one_stopped() -> Outcome {
    let work = tempfile::tempdir()?;
    prepare(work.path()).await?;
    let status = command(work.path(), 2, "restore: after a group was written")?.status()?;
    assert!(!status.success());
    let vault = open(work.path(), Arc::new(SystemClock))?;
    let keys = vault.keys(&label("cb-test"));
    let newest = vault.saves(keys.box_label()).await?.pop().ok_or("no save")?;
    let restored =
        vault.restore(&keys, &newest.id, &work.path().join("out"), &RestoreOptions::default()).await?;
    assert!(restored.resumed > 0);
    assert_eq!(restored.root_hash, Some(newest.root_hash));
    Ok(())
}
