//! What is written into a claim while it is held: its environment and its instance metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use cocoonbox_core::backend::{ClaimState, HostFile, SandboxId};

use super::claim::guest_file;
use super::env::{Change, Env, Written};
use super::record::{Entry, Phase};
use super::refusal::{Code, Refusal};
use super::{Inner, Node, serve};

/// The host file that holds the instance metadata.
const METADATA_FILE: &str = "instance-metadata.json";
/// The most bytes of instance metadata.
const MAX_METADATA: usize = 4096;

/// How an environment is written.
#[derive(Debug)]
pub(crate) enum EnvWrite {
    /// All of it.
    Replace(BTreeMap<String, Written>),
    /// Some of it.
    Merge(Change),
}

impl Node {
    /// Writes a claim's environment: host-only entries in any state, the guest's while it runs.
    pub(crate) async fn write_env(&self, id: &SandboxId, write: EnvWrite) -> Result<(), Refusal> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        serve::to_the_end(async move {
            let entry = inner.entry(&id).await?;
            let _turn = entry.turn.lock().await;
            let before = entry.record();
            let env = match write {
                EnvWrite::Replace(written) => Env::parse(written)?,
                EnvWrite::Merge(change) => before.env.merged(change)?,
            };
            let runs = inner.runs(&entry, &id).await?;
            if !env.same_in_guest(&before.env) && !runs {
                return Err(Refusal::conflict(format!(
                    "sandbox {id} does not run: what its guest sees of the environment can not change now"
                )));
            }
            let deliver = runs && (env.has_guest_part() || before.env_delivered);
            inner
                .change(&entry, |record| {
                    record.env_delivered |= deliver;
                    record.env = env;
                })
                .await?;
            if deliver {
                inner.put_file(&id, guest_file(&entry.record().env)?).await?;
            }
            Ok(())
        })
        .await
    }

    /// Writes a claim's instance metadata, which its guest can read.
    pub(crate) async fn write_metadata(&self, id: &SandboxId, body: &[u8]) -> Result<(), Refusal> {
        if body.len() > MAX_METADATA {
            return Err(Refusal::invalid(format!("instance metadata has at most {MAX_METADATA} bytes")));
        }
        let metadata: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(body)
            .map_err(|_| Refusal::invalid("instance metadata is one JSON object"))?;
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        serve::to_the_end(async move {
            let entry = inner.entry(&id).await?;
            let _turn = entry.turn.lock().await;
            if !inner.runs(&entry, &id).await? {
                return Err(Refusal::conflict(format!("sandbox {id} does not run")));
            }
            let bytes = serde_json::to_vec(&metadata).unwrap_or_default();
            inner.change(&entry, |record| record.instance_metadata = Some(metadata)).await?;
            inner.put_file(&id, HostFile::new(METADATA_FILE.parse()?, bytes)).await
        })
        .await
    }
}

impl Inner {
    async fn runs(&self, entry: &Entry, id: &SandboxId) -> Result<bool, Refusal> {
        if !entry.record().is_shown() {
            return Err(Refusal::not_found());
        }
        let running = self.claim_of(id).await?.state == ClaimState::Running;
        Ok(running && entry.record().phase == Phase::Live)
    }

    async fn put_file(&self, id: &SandboxId, file: HostFile) -> Result<(), Refusal> {
        let name = file.name.as_str().to_owned();
        self.backend.put_host_file(id, file).await.map_err(|error| Refusal {
            code: Code::Internal,
            text: format!("stored, and not yet written for the guest ({name}): send it again"),
            source: Some(Box::new(error)),
        })
    }
}
