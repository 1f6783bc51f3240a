//! The whole of a save's life against real S3 servers and a folder; and what presigned URLs do not let through.

#[path = "../common/mod.rs"]
mod common;
mod http;
mod server;

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use bytes::Bytes;
use cocoonbox_core::{Clock, ManualClock, SystemClock, SystemEntropy};
use cocoonbox_state::{
    ByteRange, Catalog, Depth, Fetch, FolderObjects, GrantedFetch, GrantedUpload, KeepRule, MemoryCatalog,
    ObjectCatalog, ObjectError, ObjectKey, Objects, Prefix, Presign, PresignedUrl, PruneError, PutGrant,
    RestoreContext, RestoreOptions, S3Objects, SWEEP_WAIT, SaveContext, SaveId, StateKey, Upload, Vault,
    commit, object_testkit, recover, restore, save,
};

use common::{Outcome, label, plant};
use http::{Edge, send};
use server::{SECRET, bucket, rclone, strict};

const KEY: [u8; 32] = [7; 32];
const CHILD: &str = "COCOONBOX_STATE_SECOND_MACHINE";

/// What a server does beyond the least that is needed of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enforces {
    /// Signatures and lengths.
    Signatures,
    /// A put only where nothing is, and checksums, too.
    Everything,
}

async fn holds_the_contract(objects: &dyn Objects, enforces: Enforces) {
    if enforces == Enforces::Everything {
        object_testkit::holds_the_contract(objects).await;
        return;
    }
    object_testkit::what_was_put_is_given_whole_and_in_parts(objects).await;
    object_testkit::what_is_not_there_is_not_found(objects).await;
    object_testkit::listings_hold_what_is_under_the_prefix(objects).await;
    object_testkit::a_large_object_reads_back(objects).await;
}

/// Saves, prunes, checks, restores.
async fn a_save_lives_its_life(objects: Arc<dyn Objects>, catalog: Arc<dyn Catalog>, work: &Path) -> Outcome {
    let days = |days: u64| Duration::from_hours(24 * days);
    let now = SystemClock.now();
    let clock = Arc::new(ManualClock::new(now));
    let vault = Vault::new(
        Arc::clone(&objects),
        catalog,
        StateKey::new(KEY),
        label("us_test"),
        Arc::<ManualClock>::clone(&clock),
        Arc::new(SystemEntropy),
    );
    let keys = vault.keys(&label("cb-test"));
    let root = work.join("root");
    plant(&root, 1)?;
    let old = common::save(&vault, &keys, &root).await?;
    clock.advance(days(200));
    plant(&root, 1000)?;
    // nothing of the old save's packs is needed any more
    fs::write(root.join("same"), "not the same")?;
    let whole = common::save(&vault, &keys, &root).await?;
    clock.advance(days(1));
    fs::write(root.join("note"), "one more")?;
    let newest = common::save(&vault, &keys, &root).await?;
    assert_eq!(newest.record.stats.new_bytes, 8);

    let plan = vault.plan_prune(&KeepRule::default()).await?;
    assert_eq!(plan.forget, [(keys.box_label().clone(), old.id)]);
    assert!(!plan.packs.is_empty() && plan.bytes > 3_000_000);
    vault.mark(&plan).await?;
    assert!(matches!(vault.sweep().await, Err(PruneError::TooEarly { .. })));
    clock.advance(SWEEP_WAIT);
    let swept = vault.sweep().await?;
    assert_eq!((swept.packs, swept.manifests, swept.spared), (plan.packs.len(), 1, 0));
    let left: u64 = objects.list(&Prefix::all_packs(keys.uid())).await?.iter().map(|pack| pack.length).sum();
    let kept: std::collections::BTreeMap<_, _> =
        whole.packs.iter().chain(&newest.packs).map(|(id, length)| (*id, *length)).collect();
    assert_eq!(left, kept.values().sum::<u64>());

    for save in [&whole, &newest] {
        let report = vault.check(&keys, &save.id, Depth::All).await?;
        assert!(report.groups > 0 && report.damages.is_empty(), "{:?}", report.damages);
        let target = work.join(save.id.to_string());
        let restored = vault.restore(&keys, &save.id, &target, &RestoreOptions::default()).await?;
        assert_eq!(restored.root_hash, Some(save.root_hash));
    }
    assert_eq!(fs::read(work.join(newest.id.to_string()).join("note"))?, b"one more");
    let gone = vault.restore(&keys, &old.id, &work.join("gone"), &RestoreOptions::default()).await;
    assert!(gone.is_err() && !work.join("gone").exists());
    assert!(vault.check(&keys, &old.id, Depth::All).await?.damages[0].missing);
    let again = common::save(&vault, &keys, &root).await?;
    assert_eq!(again.record.stats.new_bytes, 0);
    Ok(())
}

/// Saves and restores as a guest does, whose only way to the bucket are URLs.
async fn a_guest_saves_through_urls(objects: &S3Objects, work: &Path) -> Outcome {
    let edge = Arc::new(Edge(objects.clone()));
    let keys = StateKey::new([8; 32]).box_keys(
        &label("us_guest"),
        &cocoonbox_state::Domain::user(),
        &label("cb-guest"),
    );
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let fetch = Arc::new(GrantedFetch::new(Arc::<Edge>::clone(&edge), Arc::<Edge>::clone(&edge)));
    let upload = Arc::new(GrantedUpload::new(Arc::<Edge>::clone(&edge), edge));
    let entropy = Arc::new(SystemEntropy);
    let context = SaveContext::new(
        Arc::<GrantedFetch>::clone(&fetch),
        Arc::<GrantedUpload>::clone(&upload),
        Arc::clone(&clock),
        Arc::<SystemEntropy>::clone(&entropy),
    );
    let root = work.join("guest");
    plant(&root, 30)?;
    let prepared = save(&keys, &common::options(&root), &context).await?;
    let catalog = MemoryCatalog::default();
    commit(objects, &catalog, &prepared, None).await?;
    let context = RestoreContext::new(Arc::<GrantedFetch>::clone(&fetch), clock, entropy);
    let target = work.join("guest-out");
    let restored = restore(&keys, &prepared.id, &target, &RestoreOptions::default(), &context).await?;
    assert_eq!(restored.root_hash, Some(prepared.root_hash));
    let missing = ObjectKey::save(keys.uid(), keys.box_label(), &SaveId::from_bytes([9; 16]));
    let missing = fetch.get(&missing, ByteRange::Tail(10)).await;
    assert!(matches!(missing, Err(ObjectError::NotFound)), "{missing:?}");
    Ok(())
}

/// A URL puts the one object that it was signed for, once, and nothing else.
async fn urls_let_nothing_else_through(objects: &S3Objects, enforces: Enforces) -> Outcome {
    let key = |byte| ObjectKey::save(&label("us_url"), &label("cb-url"), &SaveId::from_bytes([byte; 16]));
    let refused = |status: u16| (400..500).contains(&status);
    let body = Bytes::from_static(b"what was granted");
    let put =
        async |byte: u8, lifetime| objects.presign_put(&PutGrant::new(key(byte), &body), lifetime).await;
    let sent = async |url: &PresignedUrl, headers: &[(String, String)], body: &Bytes| {
        send("PUT", url.reveal(), headers, body.clone()).await.map(|answer| answer.status)
    };
    let minute = Duration::from_mins(1);
    let given = put(1, Duration::from_hours(9)).await?;
    // what is signed cannot be changed; and no URL lives longer than 15 minutes
    for signed in ["content-length", "x-amz-checksum-sha256", "if-none-match", "X-Amz-Expires=900&"] {
        assert!(given.url.reveal().contains(signed), "{signed}");
    }
    assert!(!format!("{given:?}").contains("us_url") && !given.url.reveal().contains(SECRET));

    // another length, with and without a header that says so
    let shorter = body.slice(1..);
    let mut lies = given.headers.clone();
    for header in lies.iter_mut().filter(|(name, _)| name == "content-length") {
        header.1 = shorter.len().to_string();
    }
    assert!(refused(sent(&given.url, &lies, &shorter).await?), "a shorter body");
    // each signed header left out, or another value in it
    for at in 0..given.headers.len() {
        let mut without = given.headers.clone();
        let (name, _) = without.remove(at);
        if name != "content-length" {
            assert!(refused(sent(&given.url, &without, &body).await?), "no {name}");
            let mut other = given.headers.clone();
            "AAAA".clone_into(&mut other[at].1);
            assert!(refused(sent(&given.url, &other, &body).await?), "another {name}");
        }
    }
    // another object, another method
    let elsewhere = given.url.reveal().replacen(key(1).last(), key(2).last(), 1);
    assert!(refused(send("PUT", &elsewhere, &given.headers, body.clone()).await?.status));
    assert!(refused(send("DELETE", given.url.reveal(), &[], Bytes::new()).await?.status));
    assert!(refused(send("GET", given.url.reveal(), &[], Bytes::new()).await?.status));
    // one whose time is over
    let late = put(3, Duration::from_secs(1)).await?;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert!(refused(sent(&late.url, &late.headers, &body).await?), "an expired URL");
    for byte in 1..=3 {
        assert!(objects.head(&key(byte)).await?.is_none(), "object {byte} was put");
    }
    // other bytes of the same length
    let mut bent = body.to_vec();
    bent[0] ^= 1;
    let bent = Bytes::from(bent);
    if enforces == Enforces::Everything {
        assert!(refused(sent(&given.url, &given.headers, &bent).await?), "other bytes");
        assert!(objects.head(&key(1)).await?.is_none());
    }
    assert_eq!(sent(&given.url, &given.headers, &body).await?, 200);
    if enforces == Enforces::Everything {
        assert_eq!(sent(&given.url, &given.headers, &body).await?, 412, "a second put");
        assert_eq!(objects.get(&key(1), ByteRange::Whole).await?.bytes, body);
        assert!(matches!(objects.put(&key(1), bent).await, Err(ObjectError::AlreadyExists)));
    }

    let given = objects.presign_get(&key(1), minute).await?;
    let range = [("range".to_owned(), "bytes=5-7".to_owned())];
    let part = send("GET", given.url.reveal(), &range, Bytes::new()).await?;
    assert_eq!((&part.body[..], part.content_range.as_deref()), (&b"was"[..], Some("bytes 5-7/16")));
    let other = given.url.reveal().replacen(key(1).last(), key(2).last(), 1);
    assert!(refused(send("GET", &other, &[], Bytes::new()).await?.status));
    let late = objects.presign_get(&key(1), Duration::from_secs(1)).await?;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert!(refused(send("GET", late.url.reveal(), &[], Bytes::new()).await?.status), "an expired URL");
    // a catalog is nobody's to put through a URL
    let catalog = PutGrant::new("us_url/catalog/0000000000000001".parse()?, &body);
    assert!(matches!(objects.presign_put(&catalog, minute).await, Err(ObjectError::Denied)));
    Ok(())
}

/// Another process, with the printed key and the bucket: does nothing unless the parent asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_machine() -> Outcome {
    let Ok(asked) = env::var(CHILD) else { return Ok(()) };
    let mut words = asked.split('|');
    let mut word = || words.next().ok_or("the parent asks otherwise");
    let (address, key, hash): (SocketAddr, _, _) = (word()?.parse()?, StateKey::import(word()?)?, word()?);
    let work = tempfile::tempdir()?;
    let objects: Arc<dyn Objects> = Arc::new(S3Objects::open(&bucket(address))?);
    let (uid, name) = (label("us_test"), label("cb-test"));
    let ledger = recover(&objects, &key, &uid).await?;
    let newest = ledger.head(&name).ok_or("no save was found")?;
    let catalog = MemoryCatalog::default();
    catalog.store(&uid, &ledger, 0).await?;
    let vault =
        Vault::new(objects, Arc::new(catalog), key, uid, Arc::new(SystemClock), Arc::new(SystemEntropy));
    let keys = vault.keys_of(&name).await?;
    let target = work.path().join("restored");
    let restored = vault.restore(&keys, &newest, &target, &RestoreOptions::default()).await?;
    assert_eq!(restored.root_hash.map(|hash| hash.to_string()).as_deref(), Some(hash));
    // and goes on from there
    fs::write(target.join("added here"), "by the second machine")?;
    let next = common::save(&vault, &keys, &target).await?;
    assert_eq!(next.record.stats.new_bytes, 21);
    Ok(())
}

async fn key_and_bucket_are_enough_elsewhere(address: SocketAddr, work: &Path) -> Outcome {
    let objects: Arc<dyn Objects> = Arc::new(S3Objects::open(&bucket(address))?);
    let (vault, keys) =
        common::vault(Arc::clone(&objects), Arc::new(MemoryCatalog::default()), Arc::new(SystemClock));
    let root = work.join("first-machine");
    plant(&root, 500)?;
    for number in 0..300 {
        fs::write(root.join(format!("folder/deep/{number}")), common::random(50, 9000 + number))?;
    }
    common::save(&vault, &keys, &root).await?;
    fs::write(root.join("second"), "a delta")?;
    let newest = common::save(&vault, &keys, &root).await?;
    assert!(newest.delta);
    // the first machine, its folders and its catalog are gone
    drop(vault);
    fs::remove_dir_all(&root)?;
    let key = StateKey::new(KEY).export();
    let mut child = Command::new(env::current_exe()?);
    child.args(["second_machine", "--exact", "--nocapture"]);
    child.env(CHILD, format!("{address}|{}|{}", key.reveal(), newest.root_hash));
    let output = tokio::task::spawn_blocking(move || child.output()).await??;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn works_with(address: SocketAddr, enforces: Enforces) -> Result<(), Box<dyn Error>> {
    let work = tempfile::tempdir()?;
    let config = bucket(address);
    let objects = S3Objects::open(&config)?;
    assert!(!format!("{config:?} {objects:?}").contains(SECRET));
    holds_the_contract(&objects, enforces).await;
    urls_let_nothing_else_through(&objects, enforces).await?;
    a_guest_saves_through_urls(&objects, work.path()).await?;
    key_and_bucket_are_enough_elsewhere(address, &work.path().join("elsewhere")).await?;
    for listed in objects.list(&Prefix::all_saves(&label("us_test"))).await? {
        objects.delete(&listed.key).await?;
    }
    for listed in objects.list(&Prefix::all_packs(&label("us_test"))).await? {
        objects.delete(&listed.key).await?;
    }
    let shared: Arc<dyn Objects> = Arc::new(objects);
    let catalog: Arc<dyn Catalog> = if enforces == Enforces::Everything {
        Arc::new(ObjectCatalog::new(Arc::clone(&shared), StateKey::new(KEY), Arc::new(SystemEntropy)))
    } else {
        Arc::new(MemoryCatalog::default())
    };
    a_save_lives_its_life(shared, catalog, &work.path().join("life")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_server_keeps_saves() -> Outcome {
    let served = tempfile::tempdir()?;
    let (_server, address) = strict(served.path()).await?;
    works_with(address, Enforces::Everything).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rclone_keeps_saves() -> Outcome {
    let served = tempfile::tempdir()?;
    let (_server, address) = rclone(served.path()).await?;
    works_with(address, Enforces::Signatures).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_keeps_saves() -> Outcome {
    let work = tempfile::tempdir()?;
    let objects: Arc<dyn Objects> = Arc::new(FolderObjects::open(&work.path().join("store"))?);
    let catalog = ObjectCatalog::new(Arc::clone(&objects), StateKey::new(KEY), Arc::new(SystemEntropy));
    a_save_lives_its_life(objects, Arc::new(catalog), &work.path().join("life")).await
}
