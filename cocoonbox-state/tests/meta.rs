//! What a save keeps of a file beside its content, whose it is, and what it leaves out and counts.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cocoonbox_core::SystemClock;
use cocoonbox_state::{
    BoxKeys, MemoryCatalog, MemoryObjects, OwnerMap, RestoreError, RestoreOptions, Root, SaveOptions,
    TreePath, Vault,
};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;

use common::{Outcome, options, save, vault};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn memory() -> (Vault, BoxKeys) {
    let clock = Arc::new(SystemClock);
    vault(
        Arc::new(MemoryObjects::new(Arc::<SystemClock>::clone(&clock))),
        Arc::new(MemoryCatalog::default()),
        clock,
    )
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An access list as the kernel takes it: the owner, one named user, the group, the mask, others.
fn list(user: u32) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in [(1_u16, 6_u16, !0), (2, 4, user), (4, 4, !0), (0x10, 4, !0), (0x20, 0, !0)] {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&rights.to_le_bytes());
        bytes.extend_from_slice(&u32::to_le_bytes(id));
    }
    bytes
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    lsetxattr(path, name, value, XattrFlags::empty())
}

fn value(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 70_000];
    let length = lgetxattr(path, name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

/// All attributes of a path but those that the machine itself gives.
fn attributes(path: &Path) -> Result<Vec<(String, Vec<u8>)>, Errno> {
    let mut names = vec![0; 4096];
    let length = llistxattr(path, &mut names)?;
    let mut found = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        if !name.starts_with("security.") {
            let value = value(path, &name)?;
            found.push((name, value));
        }
    }
    found.sort();
    Ok(found)
}

#[tokio::test]
async fn attributes_and_access_lists_come_back() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    fs::create_dir_all(root.join("folder/inner"))?;
    for file in ["folder/file", "folder/empty"] {
        fs::write(root.join(file), &file[..file.len() - 5])?;
    }
    fs::write(root.join("large"), common::random(1 << 20, 1))?;
    match set(&root.join("large"), ACCESS, &list(4321)) {
        // a file system that knows none keeps none
        Err(Errno::OPNOTSUPP) => return Ok(()),
        done => done?,
    }
    set(&root.join("folder/file"), "user.one", b"\0binary\xff")?;
    set(&root.join("folder/file"), "user.two", &[b'v'; 3000])?;
    set(&root.join("folder/empty"), "user.empty", b"")?;
    set(&root.join("folder"), "user.of a folder", b"x")?;
    set(&root.join("folder"), DEFAULT, &list(99))?;
    set(&root, "user.of the root", b"y")?;
    rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)?;
    set(&root.join("pipe"), ACCESS, &list(7))?;
    let (vault, keys) = memory();
    let saved = save(&vault, &keys, &root).await?;
    assert_eq!(saved.record.stats.unreadable, 0);
    let target = work.path().join("out");
    vault.restore(&keys, &saved.id, &target, &RestoreOptions::default()).await?;
    for path in ["", "folder", "folder/file", "folder/empty", "folder/inner", "large", "pipe"] {
        let (there, here) = (root.join(path), target.join(path));
        assert_eq!(attributes(&there)?, attributes(&here)?, "{path}");
        assert_eq!(there.metadata()?.mode(), here.metadata()?.mode(), "{path}");
    }
    assert_eq!(value(&target.join("large"), ACCESS)?, list(4321));
    // a change of an attribute alone is seen, and is another tree
    set(&root.join("folder/file"), "user.one", b"changed")?;
    let again = save(&vault, &keys, &root).await?;
    assert!(again.root_hash != saved.root_hash && again.record.stats.new_bytes == 0);
    Ok(())
}

#[tokio::test]
async fn owners_are_the_guests_and_foreign_ones_are_counted() -> Outcome {
    if !is_root() {
        eprintln!("left out: files are given to others by root alone");
        return Ok(());
    }
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    fs::create_dir(&root)?;
    for (name, uid, gid) in [("user", 101_000, 100_100), ("root", 100_000, 100_000), ("foreign", 5, 100_000)]
    {
        fs::write(root.join(name), name)?;
        chown(root.join(name), Some(uid), Some(gid))?;
    }
    fs::set_permissions(root.join("user"), fs::Permissions::from_mode(0o4755))?;
    symlink("nowhere", root.join("link"))?;
    lchown(root.join("link"), Some(100_001), Some(100_001))?;
    chown(&root, Some(100_000), Some(100_000))?;
    let lists = set(&root.join("root"), ACCESS, &list(101_000)).is_ok();
    let foreign_list = set(&root.join("user"), ACCESS, &list(5)).is_ok();

    let (vault, keys) = memory();
    let mut options = options(&root);
    options.owners = OwnerMap::ranges(vec![(100_000, 0, 65_536)]);
    let saved = vault.save(&keys, options, None).await?;
    let stats = saved.record.stats;
    assert_eq!(stats.foreign_owners, 1);
    assert!(!foreign_list || stats.attributes == 1, "{stats:?}");
    let browser = vault.browse(&keys, &saved.id).await?;
    let listed = browser.list(&TreePath::parse(b"")?).await?;
    let owners: Vec<_> =
        listed.iter().map(|entry| (entry.path.as_bytes().to_vec(), entry.uid, entry.gid)).collect();
    let expected: [(&[u8], u32, u32); 4] =
        [(b"foreign", 65534, 0), (b"link", 1, 1), (b"root", 0, 0), (b"user", 1000, 100)];
    assert_eq!(owners, expected.map(|(name, uid, gid)| (name.to_vec(), uid, gid)));

    // on another machine the guest's numbers are others
    let target = work.path().join("out");
    let mut there = RestoreOptions::default();
    there.owners = OwnerMap::ranges(vec![(200_000, 0, 65_536)]);
    let restored = vault.restore(&keys, &saved.id, &target, &there).await?;
    assert_eq!(restored.root_hash, Some(saved.root_hash));
    let owner = |name: &str| target.join(name).symlink_metadata().map(|meta| (meta.uid(), meta.gid()));
    assert_eq!(owner("user")?, (201_000, 200_100));
    assert_eq!(owner("root")?, (200_000, 200_000));
    assert_eq!(owner("link")?, (200_001, 200_001));
    assert_eq!(owner("foreign")?, (265_534, 200_000));
    let mode = |path: PathBuf| path.metadata().map(|meta| meta.mode());
    assert_eq!(mode(target.join("user"))?, mode(root.join("user"))?);
    assert_eq!(mode(target.join("user"))? & 0o7000, 0o4000, "set-user-id stays");
    if lists {
        assert_eq!(value(&target.join("root"), ACCESS)?, list(201_000));
        // without the one entry, and the others as they were: the group gets nothing that it had not
        let mut rest = list(5);
        rest.drain(12..20);
        assert_eq!(value(&target.join("user"), ACCESS)?, rest);
    }
    // a mapping that does not reach is refused, not guessed
    there.owners = OwnerMap::ranges(vec![(200_000, 0, 10)]);
    let refused = vault.restore(&keys, &saved.id, &work.path().join("small"), &there).await;
    assert!(matches!(refused, Err(RestoreError::Write { .. })), "{refused:?}");
    Ok(())
}

const CHILD: &str = "COCOONBOX_STATE_PLAIN_USER";

async fn counts_what_it_cannot_read(work: &Path) -> Outcome {
    let root = work.join("root");
    fs::create_dir_all(root.join("closed"))?;
    fs::write(root.join("closed/inside"), "x")?;
    fs::write(root.join("open"), "x")?;
    fs::write(root.join("shut"), "x")?;
    fs::set_permissions(root.join("shut"), fs::Permissions::from_mode(0o0))?;
    fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o300))?;
    assert!(File::open(root.join("shut")).is_err(), "this user reads everything");
    let (vault, keys) = memory();
    let saved = save(&vault, &keys, &root).await?;
    fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o700))?;
    let mut named: Vec<&[u8]> = saved.record.unreadable.iter().map(TreePath::as_bytes).collect();
    named.sort_unstable();
    assert_eq!(named, [&b"closed"[..], b"shut"]);
    assert_eq!((saved.record.stats.unreadable, saved.record.stats.files), (2, 1));
    let target = work.join("out");
    vault.restore(&keys, &saved.id, &target, &RestoreOptions::default()).await?;
    assert!(target.join("open").exists() && !target.join("shut").exists() && !target.join("closed").exists());
    // and none at all when there is nothing to save
    let nothing = SaveOptions::new(vec![Root::whole(&work.join("not there"))]);
    assert!(vault.save(&keys, nothing, None).await.is_err());
    Ok(())
}

/// Does nothing unless the parent asks.
#[tokio::test]
async fn plain_user() -> Outcome {
    let Some(work) = std::env::var_os(CHILD) else { return Ok(()) };
    counts_what_it_cannot_read(&PathBuf::from(work)).await
}

#[tokio::test]
async fn what_cannot_be_read_is_left_out_named_and_counted() -> Outcome {
    let work = tempfile::tempdir()?;
    if !is_root() {
        return counts_what_it_cannot_read(work.path()).await;
    }
    // root reads everything: another user looks, where it may
    let program = work.path().join("program");
    // by a process of its own: what is open for writing here could be inherited by another thread's, and not be run
    assert!(Command::new("cp").args([&std::env::current_exe()?, &program]).status()?.success());
    let place = work.path().join("place");
    fs::create_dir(&place)?;
    chown(&place, Some(65_534), Some(65_534))?;
    fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755))?;
    let mut child = Command::new(program);
    child.args(["plain_user", "--exact", "--nocapture"]).env(CHILD, &place).current_dir("/");
    let output = match child.uid(65_534).gid(65_534).output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("left out: the folder for temporary files is closed to others");
            return Ok(());
        }
        done => done?,
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
