//! Targets that lead elsewhere, and what is said of saves: no secret and no name of a file.

mod common;

use std::error::Error;
use std::fmt::{Debug, Display, Write};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_core::SystemClock;
use cocoonbox_seal::Key;
use cocoonbox_state::{
    BoxKeys, ByteRange, Depth, Excludes, Fetch, KeepRule, MemoryCatalog, MemoryObjects, ObjectKey, Objects,
    Prefix, Presign, Presigned, PresignedUrl, PrintedKey, PutGrant, RestoreError, RestoreOptions, S3Config,
    S3Objects, S3Secret, StateKey, TreePath, UrlSigner, Vault,
};

use common::{Outcome, label, plant, random, save, vault};

fn memory() -> (MemoryObjects, Vault, BoxKeys) {
    let clock = Arc::new(SystemClock);
    let objects = MemoryObjects::new(Arc::<SystemClock>::clone(&clock));
    let (vault, keys) = vault(Arc::new(objects.clone()), Arc::new(MemoryCatalog::default()), clock);
    (objects, vault, keys)
}

#[tokio::test]
async fn a_restore_does_not_leave_its_target() -> Outcome {
    let work = tempfile::tempdir()?;
    let (root, outside) = (work.path().join("root"), work.path().join("outside"));
    plant(&root, 1)?;
    fs::create_dir_all(outside.join("deep"))?;
    fs::write(outside.join("file-1"), "outside")?;
    let (_, vault, keys) = memory();
    let saved = save(&vault, &keys, &root).await?;
    let untouched = || -> Outcome {
        assert_eq!(fs::read(outside.join("file-1"))?, b"outside");
        assert_eq!((fs::read_dir(&outside)?.count(), fs::read_dir(outside.join("deep"))?.count()), (2, 0));
        Ok(())
    };
    // a folder of the save is a link in the target; so is a file
    for (name, to) in [("folder", outside.clone()), ("same", outside.join("file-1"))] {
        let target = work.path().join(format!("target-{name}"));
        fs::create_dir(&target)?;
        symlink(to, target.join(name))?;
        let restored = vault.restore(&keys, &saved.id, &target, &RestoreOptions::default()).await;
        // in the place of the file's link is the file; a folder is not replaced
        assert_eq!(restored.is_ok(), name == "same", "{restored:?}");
        untouched()?;
    }
    // chosen paths: a link on the way is not followed, one in their place is replaced
    let target = work.path().join("target");
    fs::create_dir(&target)?;
    symlink(&outside, target.join("folder"))?;
    let options = RestoreOptions::default();
    for path in ["folder/file-1", "folder/deep/large"] {
        let paths = [TreePath::parse(path.as_bytes())?];
        let refused = vault.restore_paths(&keys, &saved.id, &paths, &target, &options).await;
        assert!(matches!(refused, Err(RestoreError::Write { .. })), "{refused:?}");
        untouched()?;
    }
    let paths = [TreePath::parse(b"folder")?];
    vault.restore_paths(&keys, &saved.id, &paths, &target, &options).await?;
    untouched()?;
    assert_eq!(fs::read(target.join("folder/file-1"))?, random(3001, 2));
    Ok(())
}

/// What a canary looks like however it is printed.
fn spellings(secret: &[u8]) -> Vec<String> {
    let hex = |upper: bool| -> String {
        let digits = if upper { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
        secret
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .map(|at| char::from(digits[at as usize]))
            .collect()
    };
    let list = format!("{secret:?}");
    vec![
        String::from_utf8_lossy(secret).into_owned(),
        hex(false),
        hex(true),
        list[1..list.len() - 1].to_owned(),
    ]
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = format!("{error:?}");
    let mut next = Some(error);
    while let Some(error) = next {
        let _ = write!(text, " | {error}");
        next = error.source();
    }
    text
}

#[tokio::test]
async fn no_secret_is_printed() -> Outcome {
    let bytes: [u8; 32] = *random(32, 77).first_chunk().ok_or("32 bytes")?;
    let key = StateKey::new(bytes);
    let clock = Arc::new(SystemClock);
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new(Arc::<SystemClock>::clone(&clock)));
    let vault = Vault::open(Arc::clone(&objects), key.clone(), label("us_test"));
    let keys = vault.keys(&label("cb-test"));
    let printed = key.export();
    let signer = UrlSigner::new(&Key::new(bytes), clock);
    let object = ObjectKey::save(keys.uid(), keys.box_label(), &cocoonbox_state::SaveId::from_bytes([1; 16]));
    let granted = PutGrant::new(object.clone(), b"body");
    let url = signer.presign_put(&granted, Duration::from_mins(1)).await?;
    let spelled = url.url.reveal().to_owned();
    let config = S3Config::new(
        "http://127.0.0.1:9".to_owned(),
        "bucket".to_owned(),
        "access".to_owned(),
        S3Secret::new("canary-of-s3".to_owned()),
    );
    let s3 = S3Objects::open(&config)?;
    let s3_url = s3.presign_get(&object, Duration::from_mins(1)).await?;
    let s3_spelled = s3_url.url.reveal().to_owned();
    let wrong = printed.reveal().replace(&printed.reveal()[20..30], "bbbbbbbbbb");
    let refused = StateKey::import(&wrong).err().ok_or("a wrong key was taken")?;
    let account = cocoonbox_state::Account { uid: keys.uid().clone(), key: key.clone() };
    let (owner, entropy) = (keys.uid(), &cocoonbox_core::SystemEntropy);
    let sealed = cocoonbox_state::seal_account(&Key::new([3; 32]), owner, &account, entropy)?;
    let unopened = cocoonbox_state::open_account(&Key::new([4; 32]), owner, &sealed);
    let said = [
        format!("{account:?} {:?}", account.export()),
        format!("{key:?} {printed:?} {keys:?} {vault:?} {signer:?} {url:?} {granted:?}"),
        format!("{config:?} {s3:?} {s3_url:?} {refused:?} {refused} {unopened:?}"),
        format!("{:?} {:?}", signer.verify(cocoonbox_state::PresignedMethod::Get, &spelled), url.url),
    ]
    .join("\n");
    let whole = keys.to_bytes();
    let mut canaries = vec![
        printed.reveal()[5..25].to_owned(),
        "canary-of-s3".to_owned(),
        spelled[spelled.len() - 20..].to_owned(),
        s3_spelled[s3_spelled.len() - 20..].to_owned(),
    ];
    canaries.extend(spellings(&bytes[..6]));
    // each of the derived keys stands somewhere in these bytes
    canaries.extend(whole.windows(6).flat_map(spellings).filter(|text| text.is_ascii() && text.len() > 11));
    for canary in &canaries {
        assert!(!said.contains(canary), "{canary:?} is in {said}");
    }
    Ok(())
}

/// Holds when `$type` has no such trait: both ways would fit otherwise, and it would not compile.
macro_rules! lacks {
    ($trait:path: $($type:ty),+) => {
        $({
            trait Either<A> {
                fn holds() {}
            }
            impl<T: ?Sized> Either<()> for T {}
            struct Has;
            impl<T: ?Sized + $trait> Either<Has> for T {}
            <$type as Either<_>>::holds();
        })+
    };
}

#[test]
fn secrets_are_neither_shown_nor_serialized_nor_compared() {
    lacks!(serde::Serialize: StateKey, BoxKeys, PrintedKey, PresignedUrl, Presigned, S3Secret, S3Config, UrlSigner, TreePath);
    lacks!(Display: StateKey, BoxKeys, PrintedKey, PresignedUrl, Presigned, S3Secret, UrlSigner, TreePath);
    lacks!(PartialEq: StateKey, BoxKeys, PrintedKey, PresignedUrl, S3Secret);
}

const CANARY: &str = "kanarienvogel";

fn plant_canaries(root: &Path) -> Outcome {
    let folder = root.join(format!("{CANARY}-folder"));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(format!("{CANARY}-file")), random(200_000, 5))?;
    fs::write(folder.join(format!("{CANARY}-text")), CANARY.repeat(1000))?;
    symlink(format!("{CANARY}-target"), folder.join(format!("{CANARY}-link")))?;
    let attribute = rustix::fs::setxattr(
        &folder,
        format!("user.{CANARY}"),
        CANARY.as_bytes(),
        rustix::fs::XattrFlags::empty(),
    );
    let _ = attribute;
    Ok(())
}

fn is_silent(what: &dyn Debug) {
    let text = format!("{what:?}");
    assert!(!text.contains(CANARY), "{text}");
    // nor as numbers
    assert!(!text.contains("107, 97, 110, 97"), "{text}");
}

#[tokio::test]
async fn no_name_is_in_an_object_a_key_a_url_an_error_or_an_answer() -> Outcome {
    let work = tempfile::tempdir()?;
    let root = work.path().join("root");
    plant_canaries(&root)?;
    let (objects, vault, keys) = memory();
    let first = save(&vault, &keys, &root).await?;
    fs::write(root.join(format!("{CANARY}-more")), CANARY)?;
    let saved = save(&vault, &keys, &root).await?;
    let folder = format!("{CANARY}-folder");
    let path = TreePath::parse(format!("{folder}/{CANARY}-file").as_bytes())?;

    let mut listed = objects.list(&Prefix::all_saves(keys.uid())).await?;
    listed.extend(objects.list(&Prefix::all_packs(keys.uid())).await?);
    assert!(listed.len() > 3);
    let signer = UrlSigner::new(&Key::new([1; 32]), Arc::new(SystemClock));
    for object in &listed {
        assert!(!object.key.as_str().contains(CANARY));
        let bytes = objects.get(&object.key, ByteRange::Whole).await?.bytes;
        assert!(!bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()));
        let url =
            signer.presign_put(&PutGrant::new(object.key.clone(), &bytes), Duration::from_mins(1)).await?;
        assert!(!url.url.reveal().contains(CANARY));
    }
    let wire = serde_json::to_string(&saved.to_wire())?;
    let (ledger, _) = vault.catalog().load(keys.uid()).await?;
    let plan = vault.plan_prune(&KeepRule::default()).await?;
    for text in [wire, serde_json::to_string(&ledger)?, serde_json::to_string(&plan)?] {
        assert!(!text.contains(CANARY), "{text}");
    }
    let excluded = Excludes::none().with_lines(&format!("/{CANARY}"));
    is_silent(&excluded);
    is_silent(&(&first, &saved, &ledger, &plan, &vault, &keys, &path));
    let browser = vault.browse(&keys, &saved.id).await?;
    is_silent(&browser);
    is_silent(&browser.list(&TreePath::parse(folder.as_bytes())?).await?);
    is_silent(&browser.look(&path).await?);

    let mut errors: Vec<Box<dyn Error>> = Vec::new();
    let nowhere = TreePath::parse(format!("{CANARY}-nowhere/{CANARY}").as_bytes())?;
    errors.extend(browser.list(&nowhere).await.err().map(Into::into));
    errors.extend(browser.list(&path).await.err().map(Into::into));
    errors.extend(browser.read(&TreePath::parse(folder.as_bytes())?, 0..1).await.err().map(Into::into));
    errors.extend(TreePath::parse(format!("{CANARY}/../x").as_bytes()).err().map(Into::into));
    let target = work.path().join("target");
    let options = RestoreOptions::default();
    let paths = [nowhere];
    errors
        .extend(vault.restore_paths(&keys, &saved.id, &paths, &target, &options).await.err().map(Into::into));
    // a file in the place of a folder
    fs::create_dir_all(&target)?;
    fs::write(target.join(&folder), "in the way")?;
    errors.extend(vault.restore(&keys, &saved.id, &target, &options).await.err().map(Into::into));
    errors.extend(
        vault.restore_paths(&keys, &saved.id, &[path], &target, &options).await.err().map(Into::into),
    );
    // and what is damaged
    for object in &listed {
        objects.tamper(&object.key, |mut bytes| {
            for byte in &mut bytes[8..] {
                *byte ^= 0x55;
            }
            bytes
        });
    }
    errors.extend(
        vault.restore(&keys, &saved.id, &work.path().join("new"), &options).await.err().map(Into::into),
    );
    errors.extend(vault.browse(&keys, &saved.id).await.err().map(Into::into));
    is_silent(&vault.check(&keys, &saved.id, Depth::All).await?);
    assert_eq!(errors.len(), 9);
    for error in &errors {
        let text = chain(&**error);
        assert!(!text.contains(CANARY), "{text}");
    }
    Ok(())
}
