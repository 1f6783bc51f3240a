//! The stores and catalogs hold their contracts, and a guest saves through URLs alone.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cocoonbox_core::{Clock, SystemClock, SystemEntropy};
use cocoonbox_seal::Key;
use cocoonbox_state::{
    ByteRange, CommitError, FolderObjects, GrantError, GrantedFetch, GrantedUpload, Grants, HttpAnswer,
    HttpRequest, HttpSend, Label, MemoryCatalog, MemoryObjects, ObjectCatalog, ObjectKey, Objects, Presign,
    Presigned, PresignedMethod, PutGrant, RestoreContext, RestoreOptions, SaveContext, StateKey, UrlSigner,
    catalog_testkit, commit, object_testkit, pack_view, recover, restore, save,
};

use common::{Outcome, label, options, plant, vault};

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

#[tokio::test]
async fn memory_holds_the_contract() {
    object_testkit::holds_the_contract(&MemoryObjects::new(clock())).await;
}

#[tokio::test]
async fn a_folder_holds_the_contract() -> Outcome {
    let folder = tempfile::tempdir()?;
    object_testkit::holds_the_contract(&FolderObjects::open(folder.path())?).await;
    let left = std::fs::read_dir(folder.path().join("unfinished"))?.count();
    assert_eq!(left, 0);
    Ok(())
}

#[tokio::test]
async fn the_catalogs_hold_the_contract() {
    catalog_testkit::holds_the_contract(&MemoryCatalog::default()).await;
    let objects: Arc<dyn Objects> = Arc::new(MemoryObjects::new(clock()));
    let catalog = ObjectCatalog::new(objects, StateKey::new([1; 32]), Arc::new(SystemEntropy));
    catalog_testkit::holds_the_contract(&catalog).await;
}

/// The edge and the store's door, as a guest meets them: URLs for what it asks, and nothing else.
#[derive(Debug)]
struct Edge {
    signer: UrlSigner,
    objects: FolderObjects,
    refused: Mutex<u32>,
    uid: Label,
}

#[async_trait]
impl Grants for Edge {
    async fn puts(&self, wanted: &[PutGrant]) -> Result<Vec<Presigned>, GrantError> {
        let mut given = Vec::new();
        for grant in wanted {
            assert!(grant.key.as_str().starts_with(self.uid.as_str()));
            given.push(
                self.signer
                    .presign_put(grant, Duration::from_mins(15))
                    .await
                    .map_err(|_| GrantError::Denied)?,
            );
        }
        Ok(given)
    }
    async fn gets(&self, wanted: &[ObjectKey]) -> Result<Vec<Presigned>, GrantError> {
        let mut given = Vec::new();
        for key in wanted {
            given.push(
                self.signer
                    .presign_get(key, Duration::from_mins(15))
                    .await
                    .map_err(|_| GrantError::Denied)?,
            );
        }
        Ok(given)
    }
}

#[async_trait]
impl HttpSend for Edge {
    async fn send(&self, request: HttpRequest) -> Result<HttpAnswer, GrantError> {
        let answer = |status, range, body| Ok(HttpAnswer::new(status, range, body));
        let method = if request.method == "PUT" { PresignedMethod::Put } else { PresignedMethod::Get };
        let Ok(verified) = self.signer.verify(method, request.presigned.url.reveal()) else {
            *self.refused.lock().expect("not poisoned") += 1;
            return answer(403, None, Bytes::new());
        };
        use cocoonbox_state::{Fetch, Upload};
        if method == PresignedMethod::Put {
            if verified.check_body(&request.body).is_err() {
                return answer(400, None, Bytes::new());
            }
            let put = self.objects.put(verified.key(), request.body).await;
            return answer(if put.is_ok() { 201 } else { 409 }, None, Bytes::new());
        }
        let range = request.headers.iter().find(|(name, _)| *name == "range").map(|(_, value)| value.clone());
        let spoken = range
            .as_deref()
            .and_then(|range| range.strip_prefix("bytes="))
            .and_then(|range| range.split_once('-'));
        let range = match spoken {
            None => ByteRange::Whole,
            Some(("", tail)) => ByteRange::Tail(tail.parse().unwrap_or(0)),
            Some((start, end)) => ByteRange::Span(start.parse().unwrap_or(0)..end.parse().unwrap_or(0) + 1),
        };
        match self.objects.get(verified.key(), range).await {
            Ok(fetched) => answer(206, Some(format!("bytes x/{}", fetched.length)), fetched.bytes),
            Err(_) => answer(404, None, Bytes::new()),
        }
    }
}

#[tokio::test]
async fn a_guest_saves_and_restores_through_urls_alone_and_the_edge_commits() -> Outcome {
    let work = tempfile::tempdir()?;
    let objects = FolderObjects::open(&work.path().join("store"))?;
    let edge = Arc::new(Edge {
        signer: UrlSigner::new(&Key::new([9; 32]), clock()),
        objects: objects.clone(),
        refused: Mutex::default(),
        uid: label("us_test"),
    });
    let catalog = Arc::new(MemoryCatalog::default());
    let shared: Arc<dyn Objects> = Arc::new(objects);
    let (vault, keys) = vault(Arc::clone(&shared), catalog, clock());
    let root = work.path().join("root");
    plant(&root, 1)?;

    let upload = GrantedUpload::new(Arc::<Edge>::clone(&edge), Arc::<Edge>::clone(&edge));
    let fetch = Arc::new(GrantedFetch::new(Arc::<Edge>::clone(&edge), Arc::<Edge>::clone(&edge)));
    let context = SaveContext::new(
        Arc::<GrantedFetch>::clone(&fetch),
        Arc::new(upload),
        clock(),
        Arc::new(SystemEntropy),
    );
    let mut wanted = options(&root);
    for round in 0..2 {
        let (ledger, _) = vault.catalog().load(keys.uid()).await?;
        wanted.base = ledger.head(keys.box_label());
        wanted.view = Some(pack_view(&*shared, &ledger, keys.uid(), keys.domain()).await?);
        let prepared = save(&keys, &wanted, &context).await?;
        assert_eq!(prepared.record.stats.new_bytes == 0, round == 1);
        // the same save twice, and one that lost the race
        let wire = serde_json::to_string(&prepared.to_wire())?;
        assert!(!wire.contains("file-1"));
        for _ in 0..2 {
            commit(&*shared, &**vault.catalog(), &prepared, None).await?;
        }
        let late = save(&keys, &wanted, &context).await?;
        let refused = commit(&*shared, &**vault.catalog(), &late, None).await;
        assert!(matches!(refused, Err(CommitError::Refused(_))), "{refused:?}");
        let target = work.path().join(format!("target-{round}"));
        let context =
            RestoreContext::new(Arc::<GrantedFetch>::clone(&fetch), clock(), Arc::new(SystemEntropy));
        let restored = restore(&keys, &prepared.id, &target, &RestoreOptions::default(), &context).await?;
        assert_eq!(restored.root_hash, Some(prepared.root_hash));
    }
    assert_eq!(*edge.refused.lock().expect("not poisoned"), 0);
    Ok(())
}

#[tokio::test]
async fn key_and_bucket_are_enough() -> Outcome {
    let work = tempfile::tempdir()?;
    let objects: Arc<dyn Objects> = Arc::new(FolderObjects::open(&work.path().join("store"))?);
    let (vault, keys) = vault(Arc::clone(&objects), Arc::new(MemoryCatalog::default()), clock());
    plant(&work.path().join("root"), 1)?;
    let first = common::save(&vault, &keys, &work.path().join("root")).await?;
    std::fs::write(work.path().join("root/new"), "new")?;
    let second = common::save(&vault, &keys, &work.path().join("root")).await?;
    let printed = StateKey::new([7; 32]).export();
    let ledger = recover(&objects, &StateKey::import(printed.reveal())?, keys.uid()).await?;
    let found: Vec<_> = ledger.saves(keys.box_label()).map(|save| save.id).collect();
    assert_eq!((found, ledger.head(keys.box_label())), (vec![first.id, second.id], Some(second.id)));
    let stranger = recover(&objects, &StateKey::new([8; 32]), keys.uid()).await?;
    assert!(stranger.boxes.is_empty());
    Ok(())
}
