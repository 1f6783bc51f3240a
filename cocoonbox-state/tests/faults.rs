//! A store that fails: no save reports success that it does not have, no restore hands out wrong bytes, the last good
//! save stays restorable.

mod common;

use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::{Clock, ManualClock, SystemClock, Timestamp};
use cocoonbox_state::{
    Depth, FaultyObjects, KeepRule, MemoryCatalog, MemoryObjects, ObjectCall, ObjectFault, ObjectKey,
    Objects, Prefix, PruneError, RestoreOptions, SWEEP_WAIT,
};

use common::{Outcome, plant, save, vault};

const FAULTS: [ObjectFault; 7] = [
    ObjectFault::Unavailable,
    ObjectFault::UnavailableAfter,
    ObjectFault::Lose,
    ObjectFault::Truncate,
    ObjectFault::Flip,
    ObjectFault::Foreign,
    ObjectFault::Delay(Duration::from_millis(20)),
];

#[tokio::test]
async fn whatever_the_store_does_a_save_that_succeeds_is_there_and_others_change_nothing() -> Outcome {
    let mut outcomes = (0, 0);
    for fault in FAULTS {
        for (call, nth) in
            [(ObjectCall::Put, 1), (ObjectCall::Put, 2), (ObjectCall::Get, 1), (ObjectCall::Look, 1)]
        {
            let work = tempfile::tempdir()?;
            let root = work.path().join("root");
            let clock: Arc<dyn Clock> = Arc::new(SystemClock);
            let faulty = Arc::new(FaultyObjects::new(MemoryObjects::new(Arc::clone(&clock))));
            faulty.skew(300_000_000);
            let objects: Arc<dyn Objects> = Arc::<FaultyObjects<MemoryObjects>>::clone(&faulty);
            let (vault, keys) = vault(objects, Arc::new(MemoryCatalog::default()), clock);
            plant(&root, 1)?;
            let good = save(&vault, &keys, &root).await?;
            plant(&root, 50)?;
            faulty.fail(call, nth, fault);
            let second = save(&vault, &keys, &root).await;
            let saves = vault.saves(keys.box_label()).await?;
            let (expected, root_hash) = match &second {
                Ok(second) => (second.id, second.root_hash),
                Err(_) => (good.id, good.root_hash),
            };
            assert_eq!(saves.last().map(|save| save.id), Some(expected), "{fault:?} {call:?}");
            outcomes =
                if second.is_ok() { (outcomes.0 + 1, outcomes.1) } else { (outcomes.0, outcomes.1 + 1) };
            let restored =
                vault.restore(&keys, &expected, &work.path().join("out"), &RestoreOptions::default()).await;
            // bytes that a store bends while it takes them are noticed when they are read, and never handed out
            let bent = call == ObjectCall::Put && matches!(fault, ObjectFault::Flip | ObjectFault::Foreign);
            match restored {
                Ok(restored) => assert_eq!(restored.root_hash, Some(root_hash)),
                Err(error) => assert!(bent, "{fault:?} {call:?} {nth}: {error:?}"),
            }
            let first = vault
                .restore(&keys, &good.id, &work.path().join("first"), &RestoreOptions::default())
                .await?;
            assert_eq!(first.root_hash, Some(good.root_hash));
        }
    }
    assert!(outcomes.0 > 5 && outcomes.1 > 2, "both happen: {outcomes:?}");
    Ok(())
}

#[tokio::test]
async fn a_restore_from_a_failing_store_is_right_or_fails_and_goes_on_later() -> Outcome {
    for fault in FAULTS {
        for nth in 1..=3 {
            let work = tempfile::tempdir()?;
            let clock: Arc<dyn Clock> = Arc::new(SystemClock);
            let faulty = Arc::new(FaultyObjects::new(MemoryObjects::new(Arc::clone(&clock))));
            let objects: Arc<dyn Objects> = Arc::<FaultyObjects<MemoryObjects>>::clone(&faulty);
            let (vault, keys) = vault(objects, Arc::new(MemoryCatalog::default()), clock);
            plant(&work.path().join("root"), 1)?;
            let good = save(&vault, &keys, &work.path().join("root")).await?;
            faulty.fail(ObjectCall::Get, nth, fault);
            let target = work.path().join("out");
            let restored = vault.restore(&keys, &good.id, &target, &RestoreOptions::default()).await;
            if let Ok(restored) = &restored {
                assert_eq!(restored.root_hash, Some(good.root_hash));
            }
            let again = vault.restore(&keys, &good.id, &target, &RestoreOptions::default()).await?;
            assert_eq!(again.root_hash, Some(good.root_hash), "{fault:?} {nth}");
            if restored.is_ok() {
                assert_eq!((again.resumed, again.bytes), (22, 0));
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_check_names_what_is_damaged_and_the_next_save_puts_it_again() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let memory = MemoryObjects::new(Arc::clone(&clock));
    let (vault, keys) = vault(Arc::new(memory.clone()), Arc::new(MemoryCatalog::default()), clock);
    plant(&root, 1)?;
    let good = save(&vault, &keys, &root).await?;
    let report = vault.check(&keys, &good.id, Depth::All).await?;
    assert!(report.damages.is_empty() && report.groups > 1);
    let pack = good.packs.keys().next().ok_or("no pack")?;
    let key = ObjectKey::pack(keys.uid(), keys.domain(), pack);
    memory.tamper(&key, |mut bytes| {
        bytes[100] ^= 1;
        bytes
    });
    let report = vault.check(&keys, &good.id, Depth::All).await?;
    assert_eq!(report.damages.len(), 1);
    assert!(!report.damages[0].paths.is_empty() && !report.damages[0].missing);
    assert!(!format!("{report:?}").contains("file-"));
    // a pack that is gone: the next save does not rest on it
    vault.objects().delete(&key).await?;
    assert!(vault.check(&keys, &good.id, Depth::All).await?.damages[0].missing);
    let next = save(&vault, &keys, &root).await?;
    assert!(next.record.stats.new_bytes > 3_000_000 && !next.delta);
    assert!(vault.check(&keys, &next.id, Depth::All).await?.damages.is_empty());
    vault.restore(&keys, &next.id, &work.path().join("out"), &RestoreOptions::default()).await?;
    Ok(())
}

#[tokio::test]
async fn a_prune_takes_what_nobody_needs_and_no_save_that_began_before_slips_through() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_000_000_000)));
    let memory = MemoryObjects::new(Arc::<ManualClock>::clone(&clock));
    let (vault, keys) =
        vault(Arc::new(memory), Arc::new(MemoryCatalog::default()), Arc::<ManualClock>::clone(&clock));
    plant(&root, 1)?;
    let old = save(&vault, &keys, &root).await?;
    clock.advance(Duration::from_hours(24 * 200));
    plant(&root, 1000)?;
    let new = save(&vault, &keys, &root).await?;
    let plan = vault.plan_prune(&KeepRule::default()).await?;
    assert_eq!(plan.forget, [(keys.box_label().clone(), old.id)]);
    assert!(!new.delta && plan.manifests == plan.forget);
    assert_eq!(plan, vault.plan_prune(&KeepRule::default()).await?, "a plan changes nothing");

    // a save that begins before the mark, and one that is committed before the sweep
    let (ledger, _) = vault.catalog().load(keys.uid()).await?;
    let mut options = common::options(&root);
    options.base = ledger.head(keys.box_label());
    options.view =
        Some(cocoonbox_state::pack_view(&**vault.objects(), &ledger, keys.uid(), keys.domain()).await?);
    let context = cocoonbox_state::SaveContext::new(
        Arc::new(Arc::clone(vault.objects())),
        Arc::new(Arc::clone(vault.objects())),
        Arc::<ManualClock>::clone(&clock),
        Arc::new(cocoonbox_core::SystemEntropy),
    );
    let slow = cocoonbox_state::save(&keys, &options, &context).await?;
    vault.mark(&plan).await?;
    assert!(matches!(vault.mark(&plan).await, Err(PruneError::UnderWay)));
    assert!(matches!(vault.sweep().await, Err(PruneError::TooEarly { .. })));
    clock.advance(SWEEP_WAIT);
    let swept = vault.sweep().await?;
    assert_eq!(swept.packs, plan.packs.len());
    let late = cocoonbox_state::commit(&**vault.objects(), &**vault.catalog(), &slow, None).await;
    assert!(late.is_err(), "it began before the mark");
    vault.restore(&keys, &new.id, &work.path().join("out"), &RestoreOptions::default()).await?;
    let next = save(&vault, &keys, &root).await?;
    vault.restore(&keys, &next.id, &work.path().join("next"), &RestoreOptions::default()).await?;
    // what the late save left is found by the next prune
    let plan = vault.plan_prune(&KeepRule::default()).await?;
    assert!(plan.manifests.iter().any(|(_, id)| *id == slow.id));
    assert!(!vault.objects().list(&Prefix::all_packs(keys.uid())).await?.is_empty());
    Ok(())
}
