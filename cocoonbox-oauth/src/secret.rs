//! Tokens and links: drawn, read, and stored as hashes alone.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use cocoonbox_core::{Entropy, EntropyError, random_secret};
use sha2::{Digest as _, Sha256};

const ACCESS_PREFIX: &str = "cb_";
const LINK_PREFIX: &str = "cbl_";
const SESSION_PREFIX: &str = "cbs_";
const CODE_PREFIX: &str = "cbc_";
const AGENT_PREFIX: &str = "cba_";
const REFRESH_PREFIX: &str = "cbr_";

cocoonbox_core::secret! {
    /// What a client shows with each call: `cb_` and 64 lower-case hex digits.
    pub struct AccessToken;
}

cocoonbox_core::secret! {
    /// The secret part of a sign-in link: `cbl_` and 64 lower-case hex digits, good once.
    pub struct LinkToken;
}

cocoonbox_core::secret! {
    /// What the console's cookie holds: `cbs_` and 64 lower-case hex digits.
    pub struct SessionToken;
}

cocoonbox_core::secret! {
    /// An authorization code: `cbc_` and 64 lower-case hex digits, good once.
    pub struct AuthorizationCode;
}

cocoonbox_core::secret! {
    /// What an outside agent shows with each call: `cba_` and 64 lower-case hex digits.
    pub struct AgentToken;
}

cocoonbox_core::secret! {
    /// What an outside agent exchanges for its next token: `cbr_` and 64 lower-case hex digits.
    pub struct RefreshToken;
}

/// A text that is no token or link. It does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form {prefix}<64 hex digits>")]
#[non_exhaustive]
pub struct TokenTextError {
    /// How the text should start.
    pub prefix: &'static str,
}

/// The SHA-256 of a token or link: all that is stored of it.
///
/// The secrets have 256 random bits, so a plain hash cannot be searched backward, and looking one up by its hash tells
/// nothing about how close a wrong guess was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Takes a stored hash; none when it has not 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns the hash for storing.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

/// What is looked up by the hash of a secret. The key is a hash already, of which nobody chooses the bytes: they find the
/// place as they are.
pub(crate) type HashMapByToken<V> = HashMap<TokenHash, V, BuildHasherDefault<FirstBytes>>;

/// Takes the first eight bytes for the hash of them all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn write(&mut self, bytes: &[u8]) {
        // what is written before is the length, which is always the same
        if let Some((first, _)) = bytes.split_first_chunk() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }
    fn write_usize(&mut self, _: usize) {}
    fn finish(&self) -> u64 {
        self.0
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(redacted)")
    }
}

fn check(text: &str, prefix: &'static str) -> Result<(), TokenTextError> {
    let digits = text.strip_prefix(prefix).unwrap_or_default();
    if digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        Ok(())
    } else {
        Err(TokenTextError { prefix })
    }
}

macro_rules! bearer {
    ($name:ident, $prefix:ident) => {
        impl $name {
            /// Draws a new one.
            ///
            /// # Errors
            /// As [`Entropy::fill`].
            pub fn random(entropy: &dyn Entropy) -> Result<Self, EntropyError> {
                Ok(Self::new(random_secret(entropy, $prefix)?))
            }

            /// Reads one as a client shows it.
            ///
            /// # Errors
            /// [`TokenTextError`] when the text has another form.
            pub fn parse(text: &str) -> Result<Self, TokenTextError> {
                check(text, $prefix)?;
                Ok(Self::new(text.to_owned()))
            }

            /// Returns what is stored of it.
            pub fn hash(&self) -> TokenHash {
                TokenHash::of(self.reveal())
            }
        }
    };
}
bearer!(AccessToken, ACCESS_PREFIX);
bearer!(LinkToken, LINK_PREFIX);
bearer!(SessionToken, SESSION_PREFIX);
bearer!(AuthorizationCode, CODE_PREFIX);
bearer!(AgentToken, AGENT_PREFIX);
bearer!(RefreshToken, REFRESH_PREFIX);

#[cfg(test)]
mod tests {
    use cocoonbox_core::SeededEntropy;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_drawn_token_reads_back_and_hashes_alike() -> Result<(), Box<dyn std::error::Error>> {
        let token = AccessToken::random(&SeededEntropy::new(1))?;
        assert_eq!(AccessToken::parse(token.reveal())?.hash(), token.hash());
        assert!(LinkToken::parse(token.reveal()).is_err());
        assert!(AccessToken::parse(LinkToken::random(&SeededEntropy::new(1))?.reveal()).is_err());
        Ok(())
    }

    proptest! {
        #[test]
        fn only_the_one_form_is_read(text in "(cb_)?[0-9a-fA-F]{62,66}|.{0,80}") {
            let good = text.len() == 67 && text.starts_with("cb_") && !text[3..].contains(|c: char| !matches!(c, '0'..='9' | 'a'..='f'));
            prop_assert_eq!(AccessToken::parse(&text).is_ok(), good);
        }
    }
}
