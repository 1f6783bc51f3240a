//! Saves that rest on each other, on those of other boxes, and on packs that a prune is after.

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cocoonbox_core::{Clock, ManualClock, SystemClock, Timestamp};
use cocoonbox_state::{
    BoxKeys, CHAIN_MAX, CommitError, Depth, Fetch, Keep, KeepRule, MemoryCatalog, MemoryObjects, ObjectKey,
    Objects, PreparedSave, RestoreOptions, SWEEP_WAIT, SaveId, TreePath, Vault, load_neighbours,
};

use common::{Outcome, label, options, plant, random, save, vault};

fn memory(clock: Arc<dyn Clock>) -> (MemoryObjects, Vault, BoxKeys) {
    let objects = MemoryObjects::new(Arc::clone(&clock));
    let (vault, keys) = vault(Arc::new(objects.clone()), Arc::new(MemoryCatalog::default()), clock);
    (objects, vault, keys)
}

async fn restores(vault: &Vault, keys: &BoxKeys, saved: &PreparedSave, work: &Path) -> Outcome {
    let target = work.join(saved.id.to_string());
    let restored = vault.restore(keys, &saved.id, &target, &RestoreOptions::default()).await?;
    assert_eq!(restored.root_hash, Some(saved.root_hash));
    fs::remove_dir_all(target)?;
    Ok(())
}

#[tokio::test]
async fn chunks_of_another_box_are_opened_before_a_save_rests_on_them() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    let (objects, vault, one) = memory(Arc::new(SystemClock));
    plant(&root, 1)?;
    let first = save(&vault, &one, &root).await?;
    let all = first.record.stats.new_bytes;
    let other = vault.keys(&label("cb-other"));
    let second = save(&vault, &other, &root).await?;
    assert_eq!((second.record.stats.new_bytes, second.packs.len()), (0, 0));
    assert_eq!(second.root_hash, first.root_hash);
    restores(&vault, &other, &second, work.path()).await?;

    // as a guest does it, who holds the keys of some boxes and knows of no packs but through them
    let fetch: Arc<dyn Fetch> = Arc::new(objects.clone());
    let context = cocoonbox_state::SaveContext::new(
        Arc::clone(&fetch),
        Arc::new(objects.clone()),
        Arc::new(SystemClock),
        Arc::new(cocoonbox_core::SystemEntropy),
    );
    let third = vault.keys(&label("cb-third"));
    let mut wanted = options(&root);
    let unreadable = (third.clone(), SaveId::from_bytes([9; 16]));
    wanted.neighbours = load_neighbours(&fetch, &[unreadable, (one.clone(), first.id)]).await?;
    let saved = cocoonbox_state::save(&third, &wanted, &context).await?;
    assert_eq!((saved.record.stats.new_bytes, saved.packs.len()), (0, 0));

    // one bit of one group is not what it was: what is in that group is packed again, and nothing else
    let pack = first.packs.keys().next().ok_or("no pack")?;
    objects.tamper(&ObjectKey::pack(one.uid(), one.domain(), pack), |mut bytes| {
        bytes[20] ^= 1;
        bytes
    });
    let fourth = vault.keys(&label("cb-fourth"));
    let saved = save(&vault, &fourth, &root).await?;
    let again = saved.record.stats.new_bytes;
    assert!(again > 0 && again < all, "{again} of {all}");
    assert!(vault.check(&fourth, &saved.id, Depth::All).await?.damages.is_empty());
    restores(&vault, &fourth, &saved, work.path()).await?;
    assert!(!vault.check(&one, &first.id, Depth::All).await?.damages.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_chain_of_deltas_ends_in_a_full_manifest() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    for number in 0..3000_u64 {
        let folder = root.join(format!("{}", number / 100));
        fs::create_dir_all(&folder)?;
        // names that do not compress: the full manifest is to be long
        let name = SaveId::from_bytes(*random(16, number).first_chunk().ok_or("16 bytes")?).to_string();
        fs::write(folder.join(name), random(10, number))?;
    }
    fs::create_dir(root.join("busy"))?;
    let (_, vault, keys) = memory(Arc::new(SystemClock));
    let mut saves = Vec::new();
    for round in 0..CHAIN_MAX + 3 {
        fs::write(root.join("busy/file"), format!("round {round}"))?;
        saves.push(save(&vault, &keys, &root).await?);
    }
    let deltas: Vec<bool> = saves.iter().map(|saved| saved.delta).collect();
    let mut expected = vec![true; deltas.len()];
    (expected[0], expected[CHAIN_MAX as usize + 1]) = (false, false);
    assert_eq!(deltas, expected);
    assert!(saves[1].manifest_length * 20 < saves[0].manifest_length);
    for (round, saved) in saves.iter().enumerate() {
        let browser = vault.browse(&keys, &saved.id).await?;
        let bytes = browser.read(&TreePath::parse(b"busy/file")?, 0..100).await?;
        assert_eq!(bytes, format!("round {round}"));
    }
    restores(&vault, &keys, &saves[CHAIN_MAX as usize], work.path()).await?;
    restores(&vault, &keys, &saves[CHAIN_MAX as usize + 2], work.path()).await
}

#[tokio::test]
async fn a_pack_that_is_mostly_dead_is_not_built_upon_and_dies_with_its_saves() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    fs::create_dir(&root)?;
    for number in 0..9 {
        fs::write(root.join(format!("{number}")), random(900_000, number))?;
    }
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_000_000_000)));
    let (objects, vault, keys) = memory(Arc::<ManualClock>::clone(&clock));
    let prune = async || -> Result<cocoonbox_state::PrunePlan, Box<dyn std::error::Error>> {
        let plan = vault.plan_prune(&KeepRule::default()).await?;
        vault.mark(&plan).await?;
        clock.advance(SWEEP_WAIT);
        vault.sweep().await?;
        Ok(plan)
    };
    let first = save(&vault, &keys, &root).await?;
    let old = *first.packs.keys().next().ok_or("no pack")?;
    for number in 1..9 {
        fs::remove_file(root.join(format!("{number}")))?;
    }
    clock.advance(Duration::from_hours(24 * 100));
    let second = save(&vault, &keys, &root).await?;
    assert_eq!(second.record.stats.new_bytes, 0);
    let plan = prune().await?;
    assert_eq!((&plan.condemned[..], plan.packs.len()), (&[old][..], 0));
    restores(&vault, &keys, &second, work.path()).await?;
    // its last chunks are packed anew
    clock.advance(Duration::from_hours(24));
    let third = save(&vault, &keys, &root).await?;
    assert_eq!((third.record.stats.new_bytes, third.delta), (900_000, false));
    clock.advance(Duration::from_hours(24 * 100));
    save(&vault, &keys, &root).await?;
    let plan = prune().await?;
    assert!(plan.packs.iter().any(|(_, pack, _)| *pack == old), "{plan:?}");
    assert!(objects.head(&ObjectKey::pack(keys.uid(), keys.domain(), &old)).await?.is_none());
    let newest = vault.saves(keys.box_label()).await?.pop().ok_or("no save")?;
    assert!(vault.check(&keys, &newest.id, Depth::All).await?.damages.is_empty());
    Ok(())
}

/// Content comes, goes and comes back while prunes take what nobody needs: whatever is committed is whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saves_and_prunes_at_the_same_time_lose_nothing() -> Outcome {
    let work = tempfile::tempdir()?;
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_000_000_000)));
    let (_, vault, _) = memory(Arc::<ManualClock>::clone(&clock));
    let (commits, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let saver = async |name: &str| -> Result<u64, Box<dyn std::error::Error>> {
        let (root, keys) = (work.path().join(name), vault.keys(&label(name)));
        let mut refused = 0;
        for round in 0..12 {
            // the two boxes hold the same, now and then
            plant(&root, round % 3 * 100)?;
            loop {
                match save(&vault, &keys, &root).await {
                    Ok(_) => break,
                    Err(CommitError::Refused(_) | CommitError::Lost { .. }) => refused += 1,
                    Err(error) => return Err(error.into()),
                }
            }
            commits.fetch_add(1, Ordering::Relaxed);
            clock.advance(Duration::from_mins(7));
        }
        Ok(refused)
    };
    let pruner = async || -> Result<usize, Box<dyn std::error::Error>> {
        let mut rule = KeepRule::default();
        (rule.all, rule.days, rule.weeks) = (Duration::ZERO, 0, 0);
        let (mut swept, mut seen) = (0, 0);
        while !over.load(Ordering::Relaxed) {
            // a sweep refuses the saves that are under way: without a pause none would ever end
            if commits.load(Ordering::Relaxed) < seen + 2 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            }
            seen = commits.load(Ordering::Relaxed);
            let plan = vault.plan_prune(&rule).await?;
            vault.mark(&plan).await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
            clock.advance(SWEEP_WAIT);
            swept += vault.sweep().await?.packs;
        }
        Ok(swept)
    };
    let savers = async {
        let done = tokio::join!(saver("cb-one"), saver("cb-two"));
        over.store(true, Ordering::Relaxed);
        done
    };
    let ((one, two), swept) = tokio::join!(savers, pruner());
    let (refused, swept) = (one? + two?, swept?);
    assert!(swept > 0, "the prunes found nothing");
    eprintln!("{refused} saves made anew, {swept} packs swept");
    for name in ["cb-one", "cb-two"] {
        let keys = vault.keys(&label(name));
        let saves = vault.saves(keys.box_label()).await?;
        assert!(!saves.is_empty());
        for entry in saves {
            let report = vault.check(&keys, &entry.id, Depth::All).await?;
            assert!(report.damages.is_empty(), "{:?}", report.damages);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_save_that_somebody_keeps_outlives_every_rule() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_000_000_000)));
    let (_, vault, keys) = memory(Arc::<ManualClock>::clone(&clock));
    plant(&root, 1)?;
    let kept = vault.save(&keys, options(&root), Some(Keep::Asked)).await?;
    clock.advance(Duration::from_hours(24 * 400));
    plant(&root, 1000)?;
    save(&vault, &keys, &root).await?;
    let plan = vault.plan_prune(&KeepRule::default()).await?;
    assert!(plan.forget.is_empty() && plan.packs.is_empty() && plan.manifests.is_empty(), "{plan:?}");
    assert!(vault.keep(keys.box_label(), &kept.id, None).await?);
    let plan = vault.plan_prune(&KeepRule::default()).await?;
    assert_eq!(plan.forget, [(keys.box_label().clone(), kept.id)]);
    Ok(())
}
