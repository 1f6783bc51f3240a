//! Passwords: chosen by a person, kept as an Argon2id hash.

pub(crate) mod serve;

use std::fmt;

use argon2::password_hash::phc::PasswordHash as Phc;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use argon2::{Algorithm, Argon2, Params, Version};
use cocoonbox_core::{Entropy, EntropyError};

/// The shortest password that may be chosen, in bytes.
pub const PASSWORD_MIN: usize = 8;
/// The longest, in bytes: hashing must not be made slow by whoever shows one.
pub const PASSWORD_MAX: usize = 1024;

/// OWASP's first choice for Argon2id: 19 MiB, two passes, one lane; about 15 ms.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;

cocoonbox_core::secret! {
    /// What a person types to sign in.
    pub struct Password;
}

/// A password that may not be chosen. It does not repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose a password of 8 to 1024 bytes")]
#[non_exhaustive]
pub struct WeakPassword;

/// Why a password was not hashed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordError {
    /// No salt could be drawn.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// The machine has no memory for it, or the work was given up.
    #[error("the password cannot be hashed now")]
    Unavailable,
}

impl Password {
    /// Takes a new password in.
    ///
    /// # Errors
    /// [`WeakPassword`] when it is too short or too long.
    pub fn chosen(text: String) -> Result<Self, WeakPassword> {
        let password = Self::new(text);
        if (PASSWORD_MIN..=PASSWORD_MAX).contains(&password.reveal().len()) {
            Ok(password)
        } else {
            Err(WeakPassword)
        }
    }

    /// Hashes it with a salt of its own; takes some 15 ms of a processor and 19 MiB.
    ///
    /// # Errors
    /// [`PasswordError`].
    pub fn hash(&self, entropy: &dyn Entropy) -> Result<PasswordHash, PasswordError> {
        let mut salt = [0_u8; 16];
        entropy.fill(&mut salt)?;
        let hash: Phc = argon2()
            .hash_password_with_salt(self.reveal().as_bytes(), &salt)
            .map_err(|_| PasswordError::Unavailable)?;
        Ok(PasswordHash(hash.to_string().into()))
    }

    /// Returns whether the hash is this password's; takes as long as hashing it. A password over [`PASSWORD_MAX`] is
    /// nobody's.
    pub fn verify(&self, hash: &PasswordHash) -> bool {
        let text = self.reveal().as_bytes();
        text.len() <= PASSWORD_MAX && argon2().verify_password(text, &*hash.0).is_ok()
    }
}

fn argon2() -> Argon2<'static> {
    // parameters of the constants above are always within the algorithm's limits
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).unwrap_or_default();
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// What is stored of a password: an Argon2id hash as a PHC string, which names its own parameters.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(Box<str>);

impl PasswordHash {
    /// Takes a stored hash; none when it is no Argon2id string.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() <= 256 && text.starts_with("$argon2id$") && Phc::new(text).is_ok())
            .then(|| Self(text.into()))
    }

    /// Returns the hash for storing.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::SeededEntropy;

    use super::*;

    #[test]
    fn a_password_is_known_again_and_no_other() -> Result<(), Box<dyn std::error::Error>> {
        let entropy = SeededEntropy::new(1);
        let password = Password::chosen("correct horse".to_owned())?;
        let (one, two) = (password.hash(&entropy)?, password.hash(&entropy)?);
        assert_ne!(one, two, "each has a salt of its own");
        assert!(one.as_str().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
        assert!(password.verify(&one) && password.verify(&two));
        assert!(!Password::new("Correct horse".to_owned()).verify(&one));
        assert!(!Password::new(String::new()).verify(&one));
        assert_eq!(PasswordHash::parse(one.as_str()), Some(one.clone()));
        assert!(!format!("{password:?} {one:?}").contains("horse"));
        Ok(())
    }

    #[test]
    fn what_is_no_hash_is_not_read() {
        for text in ["", "$argon2id$", "$argon2i$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaA", "plain"] {
            assert!(PasswordHash::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn passwords_have_a_least_and_a_most() {
        for (length, good) in [(0, false), (7, false), (8, true), (1024, true), (1025, false)] {
            assert_eq!(Password::chosen("x".repeat(length)).is_ok(), good, "{length}");
        }
    }
}
