//! Who may do what.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use cocoonbox_core::backend::SandboxId;
use cocoonbox_core::{Entropy, EntropyError};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::Node;
use super::error::Failure;

cocoonbox_core::secret! {
    /// The token that may do everything on a node.
    pub struct NodeToken;
}

cocoonbox_core::secret! {
    /// The key that a node's sandbox tokens follow from.
    ///
    /// A sandbox's token is a keyed hash of its id: nothing is stored per sandbox, and a restart changes nothing.
    pub struct SandboxKey;
}

cocoonbox_core::secret! {
    /// The token that guards one sandbox.
    pub(super) struct SandboxToken;
}

impl SandboxKey {
    /// Draws a new key.
    ///
    /// # Errors
    /// The system gave no randomness.
    pub fn draw(entropy: &dyn Entropy) -> Result<Self, EntropyError> {
        cocoonbox_core::random_secret(entropy, "").map(Self::new)
    }

    pub(super) fn token(&self, id: &SandboxId) -> SandboxToken {
        use std::fmt::Write as _;
        let hash = |bytes: &[u8]| Sha256::new().chain_update(self.reveal()).chain_update(bytes).finalize();
        // hashed twice, so that no token can be drawn out into another
        let digest = hash(&hash(id.as_str().as_bytes()));
        SandboxToken::new(digest.iter().fold(String::from("sbt_"), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }
}

/// What a caller showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The node's own token.
    Root,
    /// The token of the sandbox in question.
    Sandbox,
}

fn shown(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::trim)
}

fn same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

impl Node {
    /// Lets in who may use the node as a whole.
    pub(super) fn root(&self, headers: &HeaderMap) -> Result<(), Failure> {
        match (&self.token, shown(headers)) {
            (None, _) => Ok(()),
            (Some(token), Some(shown)) if same(token.reveal(), shown) => Ok(()),
            _ => Err(Failure::unauthorized()),
        }
    }

    /// Lets in who may use one sandbox. A token that is not this sandbox's learns nothing, not even that it is there.
    pub(super) fn sandbox(&self, headers: &HeaderMap, id: &SandboxId) -> Result<Access, Failure> {
        let Some(shown) = shown(headers) else { return Err(Failure::unauthorized()) };
        if self.token.as_ref().is_some_and(|token| same(token.reveal(), shown)) {
            return Ok(Access::Root);
        }
        if same(self.key.token(id).reveal(), shown) { Ok(Access::Sandbox) } else { Err(Failure::not_found()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_belongs_to_one_sandbox_and_one_key() {
        let (one, other) = ("sb_one".parse().unwrap(), "sb_other".parse().unwrap());
        let key = SandboxKey::new("k".repeat(64));
        assert!(key.token(&one).matches(&SandboxKey::new("k".repeat(64)).token(&one)));
        assert!(!key.token(&one).matches(&key.token(&other)));
        assert!(!key.token(&one).matches(&SandboxKey::new("l".repeat(64)).token(&one)));
        assert_eq!(format!("{key:?} {:?}", key.token(&one)), "SandboxKey(redacted) SandboxToken(redacted)");
    }
}
