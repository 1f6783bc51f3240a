//! The box's identity file, `/run/cocoonbox-identity/identity` (contract "Box identity").

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cocoonbox_core::{BoxId, BoxName, WakeId};
use ed25519_dalek::VerifyingKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The directory in the guest that holds host-owned files.
pub const DIRECTORY: &str = "/run/cocoonbox-identity";

/// The file's name in [`DIRECTORY`].
pub const FILE: &str = "identity";

/// The most bytes an identity file may have.
pub const MAX_BYTES: usize = 4096;

/// Who a box is in this boot or wake, and whose call tokens its agent accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Identity {
    /// The box.
    pub box_id: BoxId,
    /// This boot or wake.
    pub wake_id: WakeId,
    /// The first 16 hex digits of SHA-256 over the public key's bytes.
    pub key_id: String,
    /// The ed25519 public key, base64url without padding.
    pub public_key: String,
    /// The box's name; empty when it has none.
    #[serde(default)]
    pub name: String,
}

/// An identity file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// It is over [`MAX_BYTES`].
    #[error("the identity file has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    /// It is no JSON object of the expected shape.
    #[error("the identity file cannot be read (line {line}, column {column})")]
    Malformed {
        /// Where parsing stopped.
        line: usize,
        /// Where parsing stopped.
        column: usize,
    },
    /// The public key is no ed25519 key, or `key_id` is not its fingerprint.
    #[error("the identity file's key does not hold together")]
    BadKey,
}

impl Identity {
    /// Makes the identity of `box_id` in `wake_id` under `key`.
    pub fn new(box_id: BoxId, wake_id: WakeId, name: Option<&BoxName>, key: &VerifyingKey) -> Self {
        Self {
            box_id,
            wake_id,
            key_id: key_id(key),
            public_key: URL_SAFE_NO_PAD.encode(key.as_bytes()),
            name: name.map(|name| name.as_str().to_owned()).unwrap_or_default(),
        }
    }

    /// Returns the file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of strings is always JSON")
    }

    /// Reads a file's bytes and checks that its key holds together.
    ///
    /// # Errors
    /// Any of [`IdentityError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, IdentityError> {
        if bytes.len() > MAX_BYTES {
            return Err(IdentityError::TooLarge(bytes.len()));
        }
        let identity: Self = serde_json::from_slice(bytes)
            .map_err(|error| IdentityError::Malformed { line: error.line(), column: error.column() })?;
        if key_id(&identity.key()?) == identity.key_id { Ok(identity) } else { Err(IdentityError::BadKey) }
    }

    /// Returns the public key.
    ///
    /// # Errors
    /// [`IdentityError::BadKey`].
    pub fn key(&self) -> Result<VerifyingKey, IdentityError> {
        let bytes = URL_SAFE_NO_PAD.decode(&self.public_key).map_err(|_| IdentityError::BadKey)?;
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| IdentityError::BadKey)?;
        VerifyingKey::from_bytes(&bytes).map_err(|_| IdentityError::BadKey)
    }
}

/// Returns the fingerprint of `key`: the first 16 hex digits of its SHA-256.
pub fn key_id(key: &VerifyingKey) -> String {
    Sha256::digest(key.as_bytes()).iter().take(8).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::SigningKey;

    use super::*;

    fn identity() -> Identity {
        let key = SigningKey::from_bytes(&[7; 32]);
        Identity::new(
            "cb-abcdefghij".parse().unwrap(),
            format!("wk_{}", "a".repeat(26)).parse().unwrap(),
            Some(&BoxName::first()),
            &key.verifying_key(),
        )
    }

    #[test]
    fn the_file_keeps_its_bytes() {
        let golden = include_str!("../../fixtures/identity-v1.json").trim_end();
        assert_eq!(String::from_utf8(identity().to_bytes()).unwrap(), golden);
        assert_eq!(Identity::parse(golden.as_bytes()).unwrap(), identity());
    }

    #[test]
    fn a_wrong_file_is_refused() {
        let mut other = identity();
        other.key_id = "0".repeat(16);
        assert!(matches!(Identity::parse(&other.to_bytes()), Err(IdentityError::BadKey)));
        assert!(matches!(Identity::parse(b"{}"), Err(IdentityError::Malformed { .. })));
        assert!(matches!(Identity::parse(&vec![b' '; MAX_BYTES + 1]), Err(IdentityError::TooLarge(_))));
    }
}
