use std::sync::Arc;

use async_trait::async_trait;
use cocoonbox_core::Entropy;
use cocoonbox_seal::{Key, NONCE_LENGTH, derive, open, seal};

use super::{BoxSaves, Catalog, CatalogError, Ledger, Revision, SaveEntry};
use crate::manifest::{Manifest, ReadError};
use crate::object::{ByteRange, ObjectError, Objects};
use crate::{Domain, Label, ObjectKey, Prefix, SaveId, StateKey};

const MAGIC: &[u8; 8] = b"CBXCATA1";
const SALT: usize = 16;
const LEDGER_MAX: u64 = 64 << 20;
/// Older revisions that stay, for who is reading one.
const KEPT: u64 = 8;

/// A catalog in the store itself: each revision an object of its own, put only where none is. It needs nothing but the
/// key and the bucket, and a store whose `put` overwrites nothing.
#[derive(Debug)]
pub struct ObjectCatalog {
    objects: Arc<dyn Objects>,
    key: StateKey,
    entropy: Arc<dyn Entropy>,
}

impl ObjectCatalog {
    /// Opens the catalog of whoever owns `key`.
    pub fn new(objects: Arc<dyn Objects>, key: StateKey, entropy: Arc<dyn Entropy>) -> Self {
        Self { objects, key, entropy }
    }

    fn key(&self, uid: &Label, salt: &[u8]) -> Key {
        derive(&self.key.catalog_key(uid), salt, &[b"one ledger"])
    }

    async fn revisions(&self, uid: &Label) -> Result<Vec<Revision>, CatalogError> {
        let listed = self.objects.list(&Prefix::catalog(uid)).await.map_err(unavailable)?;
        Ok(listed.iter().filter_map(|listed| u64::from_str_radix(listed.key.last(), 16).ok()).collect())
    }

    fn open(&self, uid: &Label, revision: Revision, bytes: &[u8]) -> Result<Ledger, CatalogError> {
        let corrupt = || CatalogError::Corrupt { source: "the sealed ledger is cut short".into() };
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(corrupt)?;
        let (salt, sealed) = rest.split_at_checked(SALT).ok_or_else(corrupt)?;
        let mut plain = sealed.to_vec();
        open(&self.key(uid, salt), &[0; NONCE_LENGTH], &additional(uid, revision), &mut plain)
            .map_err(|error| CatalogError::Corrupt { source: error.into() })?;
        serde_json::from_slice(&plain).map_err(|error| CatalogError::Corrupt { source: error.into() })
    }
}

fn additional(uid: &Label, revision: Revision) -> Vec<u8> {
    format!("ledger {uid} {revision}").into_bytes()
}

fn unavailable(source: ObjectError) -> CatalogError {
    CatalogError::Unavailable { source: source.into() }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Catalog for ObjectCatalog {
    async fn load(&self, uid: &Label) -> Result<(Ledger, Revision), CatalogError> {
        let mut tries = 3;
        loop {
            let Some(newest) = self.revisions(uid).await?.into_iter().max() else {
                return Ok((Ledger::default(), 0));
            };
            match self.objects.get(&ObjectKey::catalog(uid, newest), ByteRange::Tail(LEDGER_MAX)).await {
                // tidied away between the listing and here: there is a newer one
                Err(ObjectError::NotFound) if tries > 0 => tries -= 1,
                fetched => {
                    let bytes = fetched.map_err(unavailable)?.bytes;
                    return Ok((self.open(uid, newest, &bytes)?, newest));
                }
            }
        }
    }

    async fn store(&self, uid: &Label, ledger: &Ledger, expect: Revision) -> Result<Revision, CatalogError> {
        let newest = self.revisions(uid).await?.into_iter().max().unwrap_or(0);
        if newest != expect {
            return Err(CatalogError::Conflict { uid: uid.clone() });
        }
        let revision = expect + 1;
        let mut bytes = MAGIC.to_vec();
        let mut salt = [0; SALT];
        self.entropy.fill(&mut salt).map_err(|error| CatalogError::Unavailable { source: error.into() })?;
        bytes.extend_from_slice(&salt);
        let from = bytes.len();
        serde_json::to_writer(&mut bytes, ledger)
            .map_err(|error| CatalogError::Corrupt { source: error.into() })?;
        seal(&self.key(uid, &salt), &[0; NONCE_LENGTH], &additional(uid, revision), &mut bytes, from)
            .map_err(|error| CatalogError::Corrupt { source: error.into() })?;
        match self.objects.put(&ObjectKey::catalog(uid, revision), bytes.into()).await {
            Ok(()) => {}
            Err(ObjectError::AlreadyExists) => return Err(CatalogError::Conflict { uid: uid.clone() }),
            Err(error) => return Err(unavailable(error)),
        }
        // tidying is not part of the promise
        if let Ok(revisions) = self.revisions(uid).await {
            for old in revisions.into_iter().filter(|old| old + KEPT < revision) {
                let _ = self.objects.delete(&ObjectKey::catalog(uid, old)).await;
            }
        }
        Ok(revision)
    }
}

/// Finds a user's saves by listing alone, where the catalog is lost: every manifest that opens and whose bases do.
/// A save that was put and never committed is found, too; it is whole.
///
/// # Errors
/// The store cannot be listed or read. Manifests that are damaged are left out.
pub async fn recover(objects: &Arc<dyn Objects>, key: &StateKey, uid: &Label) -> Result<Ledger, ReadError> {
    let prefix = Prefix::all_saves(uid);
    let listed = objects.list(&prefix).await.map_err(|source| ReadError::Listing { source })?;
    let mut ledger = Ledger::default();
    for object in listed {
        let mut parts = object.key.as_str().rsplit('/');
        let (Some(id), Some(label)) = (parts.next(), parts.next()) else { continue };
        let (Ok(id), Ok(label)) = (id.parse::<SaveId>(), label.parse::<Label>()) else { continue };
        let domains = [Some(Domain::user()), Domain::agent(&label).ok()];
        for domain in domains.into_iter().flatten() {
            let keys = key.box_keys(uid, &domain, &label);
            let manifest = match Manifest::open(&**objects, &keys, &id).await {
                Ok(manifest) => manifest,
                Err(error) if error.retry() == cocoonbox_core::Retry::Never => continue,
                Err(error) => return Err(error),
            };
            let entry = SaveEntry {
                id,
                base: manifest.index.base.map(|base| base.0),
                created_micros: manifest.index.created.micros(),
                root_hash: manifest.index.root_hash,
                stats: manifest.index.record.stats,
                keep: None,
                forgotten: false,
            };
            let known = ledger.boxes.entry(label.clone()).or_insert_with(|| BoxSaves {
                domain: domain.clone(),
                head: None,
                saves: Vec::new(),
                restored: None,
            });
            if known.domain == domain {
                known.saves.push(entry);
            }
            break;
        }
    }
    for known in ledger.boxes.values_mut() {
        known.saves.sort_by_key(|save| save.created_micros);
        let mut there = std::collections::BTreeSet::new();
        known
            .saves
            .retain(|save| save.base.is_none_or(|base| there.contains(&base)) && there.insert(save.id));
        known.head = known.saves.last().map(|save| save.id);
    }
    ledger.boxes.retain(|_, known| known.head.is_some());
    Ok(ledger)
}
