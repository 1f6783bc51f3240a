//! Odd trees: large, deep, changing, hostile.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cocoonbox_core::SystemClock;
use cocoonbox_state::{
    BoxKeys, Excludes, FolderObjects, MemoryCatalog, MemoryObjects, RestoreError, RestoreOptions, Root,
    SaveOptions, TreePath, Vault,
};

use common::{Outcome, random, save, vault};

fn memory() -> (Vault, BoxKeys) {
    let clock = Arc::new(SystemClock);
    vault(
        Arc::new(MemoryObjects::new(Arc::<SystemClock>::clone(&clock))),
        Arc::new(MemoryCatalog::default()),
        clock,
    )
}

/// Whether trees are to be large: a debug build would only be slow at them.
fn soak() -> bool {
    std::env::var_os("COCOONBOX_SOAK").is_some() && !cfg!(debug_assertions)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_files_and_long_names_in_deep_folders() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    let count = if soak() { 1_000_000 } else { 3000 };
    for number in 0..count {
        let folder = root.join(format!("{}", number / 1000));
        if number % 1000 == 0 {
            fs::create_dir_all(&folder)?;
        }
        fs::write(folder.join(format!("{number}")), format!("file {number}"))?;
    }
    // deeper than one path can name: each folder is made from its parent
    let name = "n".repeat(255);
    let script =
        format!("cd \"$0\"; for i in $(seq 100); do mkdir {name}; cd -P {name}; done; echo bottom > file");
    assert!(Command::new("sh").args(["-ec", &script]).arg(&root).status()?.success());
    let (vault, keys) = memory();
    let saved = save(&vault, &keys, &root).await?;
    assert_eq!((saved.record.stats.files, saved.record.stats.unreadable), (count + 1, 0));
    let target = work.path().join("out");
    let restored = vault.restore(&keys, &saved.id, &target, &RestoreOptions::default()).await?;
    assert_eq!(restored.root_hash, Some(saved.root_hash));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_huge_sparse_file_stays_sparse() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    fs::create_dir(&root)?;
    let file = fs::File::create(root.join("disk.img"))?;
    file.set_len(20 << 30)?;
    for at in [0, 5 << 30, (20 << 30) - 7] {
        file.write_all_at(b"island!", at)?;
    }
    let (vault, keys) = memory();
    let saved = save(&vault, &keys, &root).await?;
    assert!(saved.record.stats.new_bytes < 1 << 20, "{:?}", saved.record.stats);
    vault.restore(&keys, &saved.id, &work.path().join("out"), &RestoreOptions::default()).await?;
    let restored = fs::File::open(work.path().join("out/disk.img"))?;
    assert_eq!(restored.metadata()?.len(), 20 << 30);
    assert!(restored.metadata()?.blocks() < 4096);
    let mut bytes = [0; 7];
    restored.read_exact_at(&mut bytes, 5 << 30)?;
    assert_eq!(&bytes, b"island!");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_are_stored_as_they_are() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    fs::create_dir(&root)?;
    let mut file = fs::File::create(root.join("random"))?;
    let rounds = if soak() { 256 } else { 2 };
    for round in 0..rounds {
        file.write_all(&random(16 << 20, round))?;
    }
    // not in memory, where the long form would not fit
    let objects = Arc::new(FolderObjects::open(&work.path().join("store"))?);
    let (vault, keys) = vault(objects, Arc::new(MemoryCatalog::default()), Arc::new(SystemClock));
    let saved = save(&vault, &keys, &root).await?;
    let stats = saved.record.stats;
    assert_eq!(stats.new_bytes, rounds * (16 << 20));
    let overhead = stats.stored_bytes - stats.new_bytes;
    // full packs are padded by less than the chunk that did not fit
    assert!(overhead < stats.new_bytes / 10 + (16 << 20), "{stats:?}");
    fs::remove_dir_all(&root)?;
    let restored =
        vault.restore(&keys, &saved.id, &work.path().join("out"), &RestoreOptions::default()).await?;
    assert_eq!(restored.root_hash, Some(saved.root_hash));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_while_it_is_read_is_named_and_a_link_is_not_followed() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    fs::create_dir(&root)?;
    fs::write(work.path().join("secret"), "outside")?;
    fs::write(root.join("swapped"), "inside")?;
    fs::write(root.join("growing"), random(8 << 20, 1))?;
    let stop = Arc::new(AtomicBool::new(false));
    let (stopping, place) = (Arc::clone(&stop), work.path().to_owned());
    let writer = thread::spawn(move || -> std::io::Result<()> {
        let mut file = fs::OpenOptions::new().append(true).open(place.join("root/growing"))?;
        while !stopping.load(Ordering::Relaxed) {
            file.write_all(b"more")?;
            let (link, plain, swapped) =
                (place.join("link"), place.join("plain"), place.join("root/swapped"));
            symlink("../secret", &link)?;
            fs::rename(link, &swapped)?;
            fs::write(&plain, "inside")?;
            fs::rename(plain, &swapped)?;
        }
        Ok(())
    });
    let (vault, keys) = memory();
    let mut named = 0;
    for _ in 0..5 {
        let saved = save(&vault, &keys, &root).await?;
        named += saved.record.stats.inconsistent;
        assert!(saved.record.inconsistent.iter().all(|path| path.as_bytes() == b"growing"));
        let browser = vault.browse(&keys, &saved.id).await?;
        let swapped = browser.read(&TreePath::parse(b"swapped")?, 0..100).await;
        assert!(!swapped.is_ok_and(|bytes| bytes == "outside"));
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().map_err(|_| "the writer panicked")??;
    assert!(named > 0, "a file that grows all the time is noticed");
    let calm = save(&vault, &keys, &root).await?;
    assert_eq!(calm.record.stats.inconsistent, 0);
    vault.restore(&keys, &calm.id, &work.path().join("out"), &RestoreOptions::default()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_box_is_saved_without_its_caches_sockets_and_excluded_paths() -> Outcome {
    let base = tempfile::tempdir()?;
    for file in [
        "home/user/.cache/x",
        "home/user/.bashrc",
        "workspace/app/target/y",
        "workspace/app/src",
        "workspace/tagged/z",
    ] {
        let path = base.path().join(file);
        fs::create_dir_all(path.parent().ok_or("no parent")?)?;
        fs::write(path, file)?;
    }
    fs::write(
        base.path().join("workspace/tagged/CACHEDIR.TAG"),
        "Signature: 8a477f597d28d172789f06886806bc55\n",
    )?;
    fs::write(base.path().join("workspace/app/CACHEDIR.TAG"), "not the signature")?;
    let _socket = UnixListener::bind(base.path().join("home/user/socket"))?;
    let (vault, keys) = memory();
    let mut options = SaveOptions::new(Root::of_box(base.path()));
    options.excludes = Excludes::of_box().with_lines("/workspace/app/target\n/etc/passwd\n");
    let saved = vault.save(&keys, options, None).await?;
    let stats = saved.record.stats;
    assert_eq!((stats.files, stats.sockets, stats.excluded), (3, 1, 3));
    let target = base.path().join("out");
    vault.restore(&keys, &saved.id, &target, &RestoreOptions::default()).await?;
    let mut found: Vec<_> = fs::read_dir(target.join("home/user"))?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()?;
    found.sort();
    assert_eq!(found.iter().map(|name| name.as_bytes()).collect::<Vec<_>>(), [b".bashrc"]);
    assert!(target.join("workspace/app/src").is_file() && !target.join("workspace/tagged").exists());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_said_and_leaves_the_rest() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    fs::create_dir_all(&root)?;
    fs::write(root.join("large"), random(6 << 20, 1))?;
    let disk = work.path().join("disk");
    fs::create_dir(&disk)?;
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(&disk).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("left out: a small disk is mounted by root alone");
        return Ok(());
    }
    let (vault, keys) = memory();
    let saved = save(&vault, &keys, &root).await?;
    let refused = vault.restore(&keys, &saved.id, &disk.join("out"), &RestoreOptions::default()).await;
    let written = fs::read_dir(disk.join("out"))?.count();
    // what is in use stays what it is, when there is no room beside it
    fs::create_dir(disk.join("used"))?;
    fs::write(disk.join("used/large"), "in use")?;
    let paths = [TreePath::parse(b"large")?];
    let options = RestoreOptions::default();
    let beside = vault.restore_paths(&keys, &saved.id, &paths, &disk.join("used"), &options).await;
    let used = fs::read(disk.join("used/large"))?;
    // not fresh: the room is not known beforehand, and runs out
    fs::write(disk.join("out/there"), "something")?;
    let filled = vault.restore(&keys, &saved.id, &disk.join("out"), &RestoreOptions::default()).await;
    assert!(Command::new("umount").arg(&disk).status()?.success());
    assert!(matches!(refused, Err(RestoreError::NoSpace { .. })), "{refused:?}");
    assert_eq!(written, 0);
    assert!(matches!(beside, Err(RestoreError::NoSpace { .. })), "{beside:?}");
    assert_eq!(used, b"in use");
    assert!(matches!(filled, Err(RestoreError::Full { .. })), "{filled:?}");
    Ok(())
}
