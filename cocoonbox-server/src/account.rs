//! The accounts' side of the server: the key that agents' tokens are derived with, and what goes with a user.

use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use cocoonbox_boxes::{AgentGrant, Confirm, Engine};
use cocoonbox_core::machine::Phase;
use cocoonbox_core::{Clock, Entropy, GrantId, UserId, random_secret};
use cocoonbox_oauth::http::Belongings;
use cocoonbox_oauth::{DialRules, Documents, OauthKey, OauthKeyStore, SystemResolver};
use cocoonbox_seal::{Key, NONCE_LENGTH, open, seal};
use rustls_platform_verifier::BuilderVerifierExt;

/// Names what is sealed, so that nothing else sealed under the master key can stand in for it.
const LABEL: &[u8] = b"cocoonbox oauth key";
/// Boxes that are looked at in one go.
const PAGE: usize = 100;

/// Returns the key of agents' tokens; the first call on a database makes it.
pub(crate) async fn oauth_key(
    store: &dyn OauthKeyStore,
    master: &Key,
    entropy: &dyn Entropy,
) -> anyhow::Result<OauthKey> {
    loop {
        if let Some(sealed) = store.sealed_oauth_key().await? {
            return open_key(master, &sealed).context(
                "the key of agents' tokens does not open: is master.key the one that it was sealed with?",
            );
        }
        let key = OauthKey::new(random_secret(entropy, "")?);
        // whoever was first, in whichever process, made the key
        if store.put_sealed_oauth_key(&seal_key(master, &key, entropy)?, None).await? {
            return Ok(key);
        }
    }
}

pub(crate) fn seal_key(master: &Key, key: &OauthKey, entropy: &dyn Entropy) -> anyhow::Result<Vec<u8>> {
    let mut nonce = [0_u8; NONCE_LENGTH];
    entropy.fill(&mut nonce)?;
    let mut sealed = nonce.to_vec();
    sealed.extend_from_slice(key.reveal().as_bytes());
    seal(master, &nonce, LABEL, &mut sealed, NONCE_LENGTH)?;
    Ok(sealed)
}

pub(crate) fn open_key(master: &Key, sealed: &[u8]) -> anyhow::Result<OauthKey> {
    let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LENGTH>().context("it is too short")?;
    let mut bytes = sealed.to_vec();
    open(master, nonce, LABEL, &mut bytes)?;
    Ok(OauthKey::new(String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("it is no text"))?))
}

/// Returns what fetches the metadata documents of clients, with this machine's roots; none, with a word in the log, where
/// it has none: such clients are then refused.
pub(crate) fn documents(clock: &Arc<dyn Clock>) -> Option<Documents> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier);
    match tls {
        Ok(tls) => {
            let (tls, resolver) = (Arc::new(tls.with_no_client_auth()), Arc::new(SystemResolver));
            Some(Documents::new(resolver, DialRules::default(), tls, Arc::clone(clock)))
        }
        Err(error) => {
            tracing::warn!(%error, "clients that are named by an address are refused: there are no roots to verify them");
            None
        }
    }
}

/// The boxes of users.
#[derive(Debug)]
pub(crate) struct Boxes(pub(crate) Arc<Engine>);

#[async_trait]
impl Belongings for Boxes {
    async fn end(&self, user: &UserId) -> Result<(), String> {
        loop {
            let page = self.0.list(user, None, PAGE).await.map_err(|error| error.to_string())?;
            if page.boxes.is_empty() {
                return Ok(());
            }
            for record in page.boxes {
                let deleted = self.0.delete(user, record.id.as_str(), Confirm::Yes, None).await;
                let started = match deleted {
                    Err(cocoonbox_boxes::EngineError::NotFound { .. }) => continue,
                    done => done.map_err(|error| format!("box {} cannot be deleted: {error}", record.id))?,
                };
                let last = self.0.wait(&started).await.map_err(|error| error.to_string())?;
                if let Some(last) = last.filter(|last| last.phase == Phase::Failed) {
                    return Err(format!("box {} was not deleted: {}", record.id, last.message));
                }
            }
        }
    }

    async fn made_by(&self, user: &UserId, grant: &GrantId) -> Vec<(String, String)> {
        // as the agent sees them; what it may have does not matter for looking
        let agent = AgentGrant { id: grant.clone(), max_boxes: 0, max_running: 0 };
        let seen = self.0.acting_for(Some(&agent)).list(user, None, PAGE).await;
        let boxes = seen.map(|page| page.boxes).unwrap_or_default();
        boxes.into_iter().map(|record| (record.id.to_string(), record.name.to_string())).collect()
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::SystemEntropy;
    use cocoonbox_oauth::MemoryUserStore;

    use super::*;

    #[tokio::test]
    async fn one_key_is_made_and_opens_under_its_master_alone() -> anyhow::Result<()> {
        let store = MemoryUserStore::default();
        let (master, other) = (Key::new([1; 32]), Key::new([2; 32]));
        let key = oauth_key(&store, &master, &SystemEntropy).await?;
        assert!(oauth_key(&store, &master, &SystemEntropy).await?.matches(&key));
        assert!(oauth_key(&store, &other, &SystemEntropy).await.is_err());
        let sealed = store.sealed_oauth_key().await?.context("a key")?;
        assert!(!sealed.windows(8).any(|part| part == &key.reveal().as_bytes()[..8]));
        assert!(open_key(&master, &sealed[..5]).is_err());
        Ok(())
    }
}
