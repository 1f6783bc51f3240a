//! Tokens: the node's own, and those that guard a sandbox.

use cocoonbox_core::backend::SandboxId;
use cocoonbox_core::{Entropy, EntropyError};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

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
    pub struct SandboxToken;
}

impl SandboxKey {
    /// Draws a new key.
    ///
    /// # Errors
    /// The system gave no randomness.
    pub fn draw(entropy: &dyn Entropy) -> Result<Self, EntropyError> {
        cocoonbox_core::random_secret(entropy, "").map(Self::new)
    }

    /// Returns the token that guards sandbox `id`.
    pub fn token(&self, id: &SandboxId) -> SandboxToken {
        let hash = |bytes: &[u8]| Sha256::new().chain_update(self.reveal()).chain_update(bytes).finalize();
        // hashed twice, so that no token can be drawn out into another
        SandboxToken::new(format!("sbt_{}", hex(&hash(&hash(id.as_str().as_bytes())))))
    }
}

/// Returns bytes as lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Compares in time that does not tell where two texts differ.
pub(crate) fn same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
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
