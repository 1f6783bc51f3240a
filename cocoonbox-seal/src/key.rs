//! Keys and how one follows from another.

use std::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

/// The length of a key in bytes.
pub const KEY_LENGTH: usize = 32;

/// A 256-bit key: it prints redacted, is wiped when dropped and is shown by [`reveal`](Self::reveal) alone.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; KEY_LENGTH]>);

impl Key {
    /// Takes the bytes in.
    pub fn new(bytes: [u8; KEY_LENGTH]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Lends the bytes; the only way to them.
    pub fn reveal(&self) -> &[u8; KEY_LENGTH] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(redacted)")
    }
}

/// Derives a key with HKDF-SHA256; the parts of `info` are joined, each behind its length.
///
/// # Panics
/// When a part is longer than 65,535 bytes: names of uses are a program's own and short.
#[inline(never)]
pub fn derive(key: &Key, salt: &[u8], info: &[&[u8]]) -> Key {
    let mut joined = Vec::with_capacity(info.iter().map(|part| part.len() + 2).sum());
    for part in info {
        let length = u16::try_from(part.len()).expect("a part of an info string is short");
        joined.extend_from_slice(&length.to_be_bytes());
        joined.extend_from_slice(part);
    }
    let mut bytes = Zeroizing::new([0_u8; KEY_LENGTH]);
    Hkdf::<Sha256>::new(Some(salt), key.reveal())
        .expand(&joined, bytes.as_mut_slice())
        .expect("32 bytes are within what HKDF-SHA256 gives");
    Key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let key = Key::new([1; 32]);
        let derived = |info: &[&[u8]]| *derive(&key, b"", info).reveal();
        assert_ne!(derived(&[b"ab", b"c"]), derived(&[b"a", b"bc"]));
        assert_ne!(derived(&[b"abc"]), derived(&[b"ab", b"c"]));
        assert_eq!(derived(&[b"ab", b"c"]), derived(&[b"ab", b"c"]));
    }

    #[test]
    fn it_is_hkdf_sha256() {
        // what another implementation gives for the same input
        let info = [0, 1, b'x'];
        let salt = aws_lc_rs::hkdf::Salt::new(aws_lc_rs::hkdf::HKDF_SHA256, b"salt");
        let pseudo_random = salt.extract(&[9; 32]);
        let parts: [&[u8]; 1] = [&info];
        let mut other = [0; 32];
        let filled =
            pseudo_random.expand(&parts, aws_lc_rs::hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut other));
        assert!(filled.is_ok());
        assert_eq!(derive(&Key::new([9; 32]), b"salt", &[b"x"]).reveal(), &other);
    }

    #[test]
    fn a_key_does_not_print() {
        let text = format!("{:?}", Key::new([0xAB; 32]));
        assert_eq!(text, "Key(redacted)");
    }
}
