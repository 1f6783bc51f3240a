//! Randomness, as a seam.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Randomness could not be had.
#[derive(Debug, thiserror::Error)]
#[error("the system gave no randomness")]
#[non_exhaustive]
pub struct EntropyError;

/// Fills buffers with bytes that nobody can guess.
pub trait Entropy: fmt::Debug + Send + Sync + 'static {
    /// Fills `buffer` whole.
    ///
    /// # Errors
    /// The system's source failed; `buffer` then holds nothing of use.
    fn fill(&self, buffer: &mut [u8]) -> Result<(), EntropyError>;
}

/// The operating system's source.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), EntropyError> {
        getrandom::fill(buffer).map_err(|_| EntropyError)
    }
}

/// A repeatable source for tests. Not random, and named so.
#[derive(Debug)]
pub struct SeededEntropy(AtomicU64);

impl SeededEntropy {
    /// Makes a source whose bytes follow from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), EntropyError> {
        for chunk in buffer.chunks_mut(8) {
            // splitmix64: every seed walks through all 64-bit values once
            let mut value =
                self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst).wrapping_add(0x9e37_79b9_7f4a_7c15);
            value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            value ^= value >> 31;
            chunk.copy_from_slice(&value.to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

/// Returns `prefix` followed by 64 lower-case hex digits (256 random bits), the shape of every bearer token.
///
/// # Errors
/// As [`Entropy::fill`].
pub fn random_secret(entropy: &dyn Entropy, prefix: &str) -> Result<String, EntropyError> {
    let mut bytes = zeroize::Zeroizing::new([0_u8; 32]);
    entropy.fill(bytes.as_mut_slice())?;
    let mut text = String::with_capacity(prefix.len() + 64);
    text.push_str(prefix);
    for byte in bytes.iter() {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_another_differs() -> Result<(), EntropyError> {
        let text = |seed| random_secret(&SeededEntropy::new(seed), "cb_");
        assert_eq!(text(7)?, text(7)?);
        assert_ne!(text(7)?, text(8)?);
        assert_eq!(text(7)?.len(), 67);
        Ok(())
    }

    #[test]
    fn the_system_does_not_repeat() -> Result<(), EntropyError> {
        assert_ne!(random_secret(&SystemEntropy, "")?, random_secret(&SystemEntropy, "")?);
        Ok(())
    }
}
