//! Random trees with random edits between saves restore equal.

use std::error::Error;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cocoonbox_core::{Clock, Entropy, SeededEntropy, SystemClock};
use cocoonbox_state::{
    BoxKeys, Keep, Label, MemoryCatalog, MemoryObjects, Objects, RestoreOptions, Root, SaveOptions, StateKey,
    TreePath, Vault, Verify, hash_tree,
};
use proptest::prelude::*;

type Outcome = Result<(), Box<dyn Error>>;

#[derive(Clone, Debug)]
enum Edit {
    Write(Vec<u8>, u32, u64),
    Append(Vec<u8>, u32),
    Remove(Vec<u8>),
    Folder(Vec<u8>),
    Symlink(Vec<u8>, Vec<u8>),
    Link(Vec<u8>, Vec<u8>),
    Fifo(Vec<u8>),
    Sparse(Vec<u8>, u64),
    Mode(Vec<u8>, u32),
    Attribute(Vec<u8>, Vec<u8>),
    Touch(Vec<u8>, i64, u32),
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::sample::select(vec![&b"a"[..], b"b", b"c!", b"\xff\xfe", b"d.e", b"-"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.join(&b'/'))
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        4 => (path(), 0..200_000_u32, any::<u64>()).prop_map(|(path, length, seed)| Edit::Write(path, length, seed % 5)),
        1 => (path(), 600_000..3_000_000_u32, any::<u64>()).prop_map(|(path, length, seed)| Edit::Write(path, length, seed)),
        1 => (path(), 1..9000_u32).prop_map(|(path, length)| Edit::Append(path, length)),
        2 => path().prop_map(Edit::Remove),
        1 => path().prop_map(Edit::Folder),
        1 => (path(), path()).prop_map(|(path, target)| Edit::Symlink(path, target)),
        1 => (path(), path()).prop_map(|(path, other)| Edit::Link(path, other)),
        1 => path().prop_map(Edit::Fifo),
        1 => (path(), 0..40_000_000_u64).prop_map(|(path, at)| Edit::Sparse(path, at)),
        1 => (path(), 0..0o7777_u32).prop_map(|(path, mode)| Edit::Mode(path, mode | 0o700)),
        1 => (path(), prop::collection::vec(any::<u8>(), 0..50)).prop_map(|(path, value)| Edit::Attribute(path, value)),
        1 => (path(), -5_000_000_000..5_000_000_000_i64, 0..1_000_000_000_u32).prop_map(|(path, at, nanos)| Edit::Touch(path, at, nanos)),
    ]
}

fn place(root: &Path, path: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    root.join(std::ffi::OsStr::from_bytes(path))
}

fn random(length: u32, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    SeededEntropy::new(seed).fill(&mut bytes).expect("a seed gives bytes");
    bytes
}

/// Does what can be done; an edit that finds no place for itself is none.
fn apply(root: &Path, edit: &Edit) {
    let make_way = |path: &Path| path.parent().map(fs::create_dir_all);
    if let Edit::Write(path, ..) | Edit::Append(path, _) | Edit::Sparse(path, _) = edit {
        // a pipe would wait for a reader
        if fs::metadata(place(root, path)).is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
            return;
        }
    }
    let _ = match edit {
        Edit::Write(path, length, seed) => {
            let path = place(root, path);
            make_way(&path);
            fs::write(path, random(*length, *seed))
        }
        Edit::Append(path, length) => fs::OpenOptions::new()
            .append(true)
            .open(place(root, path))
            .and_then(|mut file| std::io::Write::write_all(&mut file, &random(*length, 9))),
        Edit::Remove(path) => {
            let path = place(root, path);
            fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path))
        }
        Edit::Folder(path) => fs::create_dir_all(place(root, path)),
        Edit::Symlink(path, target) => {
            let path = place(root, path);
            make_way(&path);
            symlink(place(Path::new("../x"), target), path)
        }
        Edit::Link(path, other) => {
            let path = place(root, path);
            make_way(&path);
            fs::hard_link(place(root, other), path)
        }
        Edit::Fifo(path) => {
            let path = place(root, path);
            make_way(&path);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o640.into(), 0)
                .map_err(Into::into)
        }
        Edit::Sparse(path, at) => {
            let path = place(root, path);
            make_way(&path);
            fs::OpenOptions::new()
                .create(true)
                .write(true)
                .truncate(false)
                .open(path)
                .and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, b"island", *at))
        }
        Edit::Mode(path, mode) => {
            let path = place(root, path);
            if path.is_symlink() {
                Ok(())
            } else {
                fs::set_permissions(path, fs::Permissions::from_mode(*mode))
            }
        }
        Edit::Attribute(path, value) => {
            rustix::fs::lsetxattr(place(root, path), "user.test", value, rustix::fs::XattrFlags::empty())
                .map_err(Into::into)
        }
        Edit::Touch(path, at, nanos) => {
            let time = rustix::fs::Timespec { tv_sec: *at, tv_nsec: i64::from(*nanos) };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(
                rustix::fs::CWD,
                place(root, path),
                &times,
                rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
            )
            .map_err(Into::into)
        }
    };
}

fn vault() -> (Vault, BoxKeys, Label) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new(Arc::clone(&clock)));
    let name: Label = "cb-test".parse().expect("a label");
    let vault = Vault::new(
        objects,
        Arc::new(MemoryCatalog::default()),
        StateKey::new([7; 32]),
        "us_test".parse().expect("a label"),
        clock,
        Arc::new(SeededEntropy::new(3)),
    );
    let keys = vault.keys(&name);
    (vault, keys, name)
}

/// Compares two trees by what a user sees of them, apart from the library's own eyes.
fn looks_the_same(one: &Path, other: &Path) -> Outcome {
    let list = |root: &Path| -> Result<Vec<_>, Box<dyn Error>> {
        let mut found = Vec::new();
        let mut open = vec![root.to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                let meta = path.symlink_metadata()?;
                let content = if meta.is_file() { fs::read(&path)? } else { Vec::new() };
                let target = if meta.is_symlink() { Some(fs::read_link(&path)?) } else { None };
                if meta.is_dir() {
                    open.push(path.clone());
                }
                let size = if meta.is_file() { meta.len() } else { 0 };
                let links = if meta.is_dir() { 0 } else { meta.nlink() };
                found.push((
                    path.strip_prefix(root)?.to_owned(),
                    (meta.mode(), meta.uid(), meta.gid(), meta.mtime(), meta.mtime_nsec()),
                    (size, links, target, content),
                ));
            }
        }
        found.sort();
        Ok(found)
    };
    let (one, other) = (list(one)?, list(other)?);
    assert_eq!(one.len(), other.len());
    for (left, right) in one.iter().zip(&other) {
        assert_eq!(
            (&left.0, &left.1, left.2.0, left.2.1, &left.2.2),
            (&right.0, &right.1, right.2.0, right.2.1, &right.2.2)
        );
        assert!(left.2.3 == right.2.3, "the content of {} differs", left.0.display());
    }
    Ok(())
}

async fn saves_and_restores(rounds: &[Vec<Edit>]) -> Outcome {
    let work = tempfile::tempdir()?;
    let source = work.path().join("source");
    fs::create_dir(&source)?;
    let (vault, keys, _) = vault();
    let mut saved = Vec::new();
    for (round, edits) in rounds.iter().enumerate() {
        for edit in edits {
            apply(&source, edit);
        }
        let mut options = SaveOptions::new(vec![Root::whole(&source)]);
        options.cache = Some(work.path().join("cache"));
        let prepared = vault.save(&keys, options.clone(), Some(Keep::Asked)).await?;
        assert_eq!(prepared.root_hash, hash_tree(&keys, &options).await?, "round {round}");
        saved.push((prepared.id, prepared.root_hash));
    }
    // the newest looks like the source; each older one gives its own hash
    for (number, (id, hash)) in saved.iter().enumerate().rev() {
        let target = work.path().join(format!("restored-{number}"));
        let mut options = RestoreOptions::default();
        options.verify = Verify::ReadBack;
        let restored = vault.restore(&keys, id, &target, &options).await?;
        assert_eq!(restored.root_hash, Some(*hash));
        if number + 1 == saved.len() {
            looks_the_same(&source, &target)?;
        }
    }
    Ok(())
}

/// A few cases; `PROPTEST_CASES` asks for more.
fn few() -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::default() };
    if asked { default } else { ProptestConfig { cases: 24, ..default } }
}

proptest! {
    #![proptest_config(few())]
    #[test]
    fn random_trees_restore_equal(rounds in prop::collection::vec(prop::collection::vec(edit(), 0..25), 1..4)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(saves_and_restores(&rounds)).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
    }
}

#[tokio::test]
async fn a_part_of_a_save_is_listed_read_and_restored() -> Outcome {
    let work = tempfile::tempdir()?;
    let source = work.path().join("source");
    for (path, length) in [(&b"a/b/one"[..], 70_000), (b"a/b/two", 3_000_000), (b"a/c", 10), (b"z/y/x", 5)] {
        apply(&source, &Edit::Write(path.to_vec(), length, u64::from(length)));
    }
    apply(&source, &Edit::Link(b"a/b/three".to_vec(), b"a/c".to_vec()));
    let (vault, keys, _) = vault();
    let first = vault.save(&keys, SaveOptions::new(vec![Root::whole(&source)]), None).await?;
    apply(&source, &Edit::Write(b"a/b/four".to_vec(), 100, 1));
    apply(&source, &Edit::Remove(b"z".to_vec()));
    let second = vault.save(&keys, SaveOptions::new(vec![Root::whole(&source)]), None).await?;
    assert_eq!(second.record.stats.new_bytes, 100);

    let browser = vault.browse(&keys, &second.id).await?;
    let listed = browser.list(&TreePath::parse(b"a/b")?).await?;
    let names: Vec<&[u8]> = listed.iter().map(|entry| entry.path.as_bytes()).collect();
    assert_eq!(names, [&b"a/b/four"[..], b"a/b/one", b"a/b/three", b"a/b/two"]);
    let bytes = browser.read(&TreePath::parse(b"a/b/two")?, 999_999..2_000_001).await?;
    assert!(bytes[..] == random(3_000_000, 3_000_000)[999_999..2_000_001]);
    assert!(browser.list(&TreePath::parse(b"z")?).await.is_err());

    let target = work.path().join("target");
    fs::create_dir_all(target.join("a/b"))?;
    fs::write(target.join("a/b/stays not"), "x")?;
    let paths = [TreePath::parse(b"a/b")?, TreePath::parse(b"z/y/x")?];
    let options = RestoreOptions::default();
    vault.restore_paths(&keys, &second.id, &paths[..1], &target, &options).await?;
    assert!(vault.restore_paths(&keys, &second.id, &paths[1..], &target, &options).await.is_err());
    vault.restore_paths(&keys, &first.id, &paths[1..], &target, &options).await?;
    // `three` has another name outside of what was restored
    fs::remove_file(source.join("a/c"))?;
    looks_the_same(&source.join("a/b"), &target.join("a/b"))?;
    assert_eq!(fs::read(target.join("a/b/two"))?, random(3_000_000, 3_000_000));
    assert_eq!(fs::read(target.join("z/y/x"))?, random(5, 5));
    assert!(!target.join("a/b/stays not").exists());
    let left = fs::read_dir(target.join("a"))?.count() + fs::read_dir(target.join("z/y"))?.count();
    assert_eq!(left, 2, "nothing is left of the staging");
    Ok(())
}

#[tokio::test]
async fn names_of_one_symlink_and_of_one_pipe_stay_names_of_one() -> Outcome {
    let work = tempfile::tempdir()?;
    let source = work.path().join("source");
    fs::create_dir_all(source.join("a"))?;
    fs::create_dir_all(source.join("b"))?;
    apply(&source, &Edit::Symlink(b"a/link".to_vec(), b"nowhere".to_vec()));
    apply(&source, &Edit::Fifo(b"b/pipe".to_vec()));
    // so much that the next save is a delta
    for number in 0..400_u32 {
        apply(&source, &Edit::Write(format!("c/{number}").into_bytes(), 40, number.into()));
    }
    let (vault, keys, _) = vault();
    let options = || {
        let mut options = SaveOptions::new(vec![Root::whole(&source)]);
        options.cache = Some(work.path().join("cache"));
        options
    };
    let restored = async |saved: &cocoonbox_state::PreparedSave, name: &str| -> Outcome {
        let target = work.path().join(name);
        let proof = vault.restore(&keys, &saved.id, &target, &RestoreOptions::default()).await?;
        assert_eq!((proof.root_hash, proof.files), (Some(saved.root_hash), saved.record.stats.files));
        looks_the_same(&source, &target)?;
        // once more into what is there, as after a restore that broke off
        fs::remove_file(target.join("b/link")).or_else(|_| fs::remove_file(target.join("b/pipe")))?;
        vault.restore(&keys, &saved.id, &target, &RestoreOptions::default()).await?;
        looks_the_same(&source, &target)
    };
    let alone = vault.save(&keys, options(), None).await?;
    restored(&alone, "alone").await?;

    apply(&source, &Edit::Link(b"b/link".to_vec(), b"a/link".to_vec()));
    apply(&source, &Edit::Link(b"a/pipe".to_vec(), b"b/pipe".to_vec()));
    apply(&source, &Edit::Link(b"b/pipe too".to_vec(), b"b/pipe".to_vec()));
    let twice = vault.save(&keys, options(), None).await?;
    assert!(twice.delta);
    assert_eq!(twice.root_hash, hash_tree(&keys, &options()).await?);
    restored(&twice, "twice").await?;

    // one of the names alone, and a folder with one name of the link and two of the pipe
    let target = work.path().join("part");
    let paths = [TreePath::parse(b"a/link")?, TreePath::parse(b"b")?];
    vault.restore_paths(&keys, &twice.id, &paths, &target, &RestoreOptions::default()).await?;
    assert_eq!(fs::read_link(target.join("a/link"))?, Path::new("../x/nowhere"));
    let names = |name: &str| target.join(name).symlink_metadata().map(|meta| meta.nlink());
    assert_eq!((names("a/link")?, names("b/link")?, names("b/pipe")?), (1, 1, 2));

    // the same content under names of their own is another tree
    fs::remove_file(source.join("b/link"))?;
    apply(&source, &Edit::Symlink(b"b/link".to_vec(), b"nowhere".to_vec()));
    let apart = vault.save(&keys, options(), None).await?;
    assert_ne!(apart.root_hash, twice.root_hash);
    restored(&apart, "apart").await
}
