//! The stored format is what it was: `fixtures/state-v1.json` opens, and a change of one byte of it does not.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cocoonbox_core::{ManualClock, SeededEntropy, Timestamp};
use cocoonbox_state::{
    BoxKeys, Browser, Domain, MemoryObjects, ObjectKey, Objects, Root, SaveContext, SaveId, SaveOptions,
    StateKey, TreePath, Upload, save,
};
use serde_json::{Value, json};

use common::{Outcome, label};

const CONTENT: &[u8] = b"What a box holds outlives its host.\n";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/state-v1.json")
}

fn keys() -> BoxKeys {
    StateKey::new([0x42; 32]).box_keys(&label("us_fixture"), &Domain::user(), &label("cb-fixture"))
}

async fn generate() -> Result<Value, Box<dyn std::error::Error>> {
    let work = tempfile::tempdir()?;
    fs::write(work.path().join("note.txt"), CONTENT)?;
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, 123_456_789);
    for at in [work.path().join("note.txt"), work.path().to_owned()] {
        fs::File::open(at)?.set_modified(time)?;
    }
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_700_000_000_000)));
    let objects = MemoryObjects::new(Arc::<ManualClock>::clone(&clock));
    let context = SaveContext::new(
        Arc::new(objects.clone()),
        Arc::new(objects.clone()),
        clock,
        Arc::new(SeededEntropy::new(1)),
    );
    let options = SaveOptions::new(vec![Root::new(TreePath::parse(b"home/user")?, work.path())]);
    let saved = save(&keys(), &options, &context).await?;
    let pack = *saved.packs.keys().next().ok_or("no pack")?;
    let bytes = async |key: ObjectKey| -> Result<String, cocoonbox_state::ObjectError> {
        use cocoonbox_state::{ByteRange, Fetch};
        Ok(STANDARD.encode(objects.get(&key, ByteRange::Whole).await?.bytes))
    };
    Ok(json!({
        "state_key": StateKey::new([0x42; 32]).export().reveal(),
        "uid": "us_fixture", "domain": "user", "box": "cb-fixture",
        "save": saved.id, "root_hash": saved.root_hash, "pack": pack,
        "manifest_object": bytes(ObjectKey::save(&label("us_fixture"), &label("cb-fixture"), &saved.id)).await?,
        "pack_object": bytes(ObjectKey::pack(&label("us_fixture"), &Domain::user(), &pack)).await?,
    }))
}

async fn read(
    manifest: Vec<u8>,
    pack: Vec<u8>,
    fixture: &Value,
) -> Result<(Bytes, String), Box<dyn std::error::Error>> {
    let text = |name: &str| fixture[name].as_str().ok_or("a field is missing");
    let keys = StateKey::import(text("state_key")?)?.box_keys(
        &text("uid")?.parse()?,
        &Domain::user(),
        &text("box")?.parse()?,
    );
    let save: SaveId = text("save")?.parse()?;
    let objects = MemoryObjects::new(Arc::new(ManualClock::default()));
    objects.put(&ObjectKey::save(keys.uid(), keys.box_label(), &save), manifest.into()).await?;
    objects.put(&ObjectKey::pack(keys.uid(), keys.domain(), &text("pack")?.parse()?), pack.into()).await?;
    let objects: Arc<dyn Objects> = Arc::new(objects);
    let browser = Browser::open(&keys, Arc::new(objects), &save).await?;
    let bytes = browser.read(&TreePath::parse(b"home/user/note.txt")?, 0..1000).await?;
    Ok((bytes, browser.summary().root_hash.to_string()))
}

#[tokio::test]
async fn the_fixture_opens_and_a_changed_byte_does_not() -> Outcome {
    if env::var_os("COCOONBOX_REGENERATE").is_some() {
        fs::write(path(), serde_json::to_string_pretty(&generate().await?)? + "\n")?;
    }
    let fixture: Value = serde_json::from_str(&fs::read_to_string(path())?)?;
    let object = |name: &str| STANDARD.decode(fixture[name].as_str().unwrap_or_default());
    let (manifest, pack) = (object("manifest_object")?, object("pack_object")?);
    let (content, root_hash) = read(manifest.clone(), pack.clone(), &fixture).await?;
    assert_eq!(content, CONTENT);
    assert_eq!(fixture["root_hash"], root_hash);
    // past the magic, every byte of a manifest is sealed
    for at in (8..manifest.len()).step_by(31).chain([manifest.len() - 1]) {
        let mut changed = manifest.clone();
        changed[at] ^= 1;
        assert!(read(changed, pack.clone(), &fixture).await.is_err(), "byte {at} of the manifest");
    }
    for at in 8..8 + CONTENT.len() + 16 {
        let mut changed = pack.clone();
        changed[at] ^= 1;
        assert!(read(manifest.clone(), changed, &fixture).await.is_err(), "byte {at} of the pack");
    }
    Ok(())
}
