//! What the tests share: a small tree, a vault, a look at two folders.
#![allow(dead_code, reason = "each test file uses its part")]

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use cocoonbox_core::{Clock, Entropy, SeededEntropy, SystemEntropy};
use cocoonbox_state::{BoxKeys, Catalog, Label, Objects, PreparedSave, Root, SaveOptions, StateKey, Vault};

pub(crate) type Outcome = Result<(), Box<dyn Error>>;

pub(crate) fn label(text: &str) -> Label {
    text.parse().expect("a label")
}

pub(crate) fn random(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SeededEntropy::new(seed).fill(&mut bytes).expect("a seed gives bytes");
    bytes
}

pub(crate) fn vault(
    objects: Arc<dyn Objects>,
    catalog: Arc<dyn Catalog>,
    clock: Arc<dyn Clock>,
) -> (Vault, BoxKeys) {
    let key = StateKey::new([7; 32]);
    let vault = Vault::new(objects, catalog, key, label("us_test"), clock, Arc::new(SystemEntropy));
    let keys = vault.keys(&label("cb-test"));
    (vault, keys)
}

/// Makes a folder with small files, a large one and a link.
pub(crate) fn plant(root: &Path, seed: u64) -> Outcome {
    fs::create_dir_all(root.join("folder/deep"))?;
    for number in 0..20 {
        fs::write(root.join(format!("folder/file-{number}")), random(3000 + number, seed + number as u64))?;
    }
    fs::write(root.join("folder/deep/large"), random(3_000_000, seed))?;
    fs::write(root.join("same"), b"always the same")?;
    let _ = std::os::unix::fs::symlink("folder", root.join("link"));
    Ok(())
}

pub(crate) fn options(root: &Path) -> SaveOptions {
    let mut options = SaveOptions::new(vec![Root::whole(root)]);
    options.threads = 2;
    options
}

pub(crate) async fn save(
    vault: &Vault,
    keys: &BoxKeys,
    root: &Path,
) -> Result<PreparedSave, cocoonbox_state::CommitError> {
    vault.save(keys, options(root), None).await
}
