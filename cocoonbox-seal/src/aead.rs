//! AES-256-GCM over one buffer.

use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes256Gcm, KeyInit};

use crate::Key;

/// The length of a nonce in bytes.
pub const NONCE_LENGTH: usize = 12;
/// How many bytes sealing adds.
pub const TAG_LENGTH: usize = 16;

/// What kept bytes from being sealed or opened; it does not say more, since more helps who forges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The bytes are not what this key sealed for this use.
    #[error("sealed bytes do not open: they were changed, or belong elsewhere")]
    Forged,
    /// More bytes than the mode seals under one nonce.
    #[error("too many bytes for one message")]
    TooLong,
}

/// Seals what stands in `buffer` from byte `from` on, in place, and appends the tag.
///
/// # Errors
/// [`SealError::TooLong`] over 64 GiB.
#[inline(never)]
pub fn seal(
    key: &Key,
    nonce: &[u8; NONCE_LENGTH],
    additional: &[u8],
    buffer: &mut Vec<u8>,
    from: usize,
) -> Result<(), SealError> {
    let cipher = Aes256Gcm::new(key.reveal().into());
    let tag = cipher
        .encrypt_inout_detached(nonce.into(), additional, (&mut buffer[from..]).into())
        .map_err(|_| SealError::TooLong)?;
    buffer.extend_from_slice(&tag);
    Ok(())
}

/// Opens `buffer` in place and takes the tag off.
///
/// # Errors
/// [`SealError::Forged`]; what `buffer` then holds is of no use.
#[inline(never)]
pub fn open(
    key: &Key,
    nonce: &[u8; NONCE_LENGTH],
    additional: &[u8],
    buffer: &mut Vec<u8>,
) -> Result<(), SealError> {
    let length = buffer.len().checked_sub(TAG_LENGTH).ok_or(SealError::Forged)?;
    let mut tag = [0_u8; TAG_LENGTH];
    tag.copy_from_slice(&buffer[length..]);
    buffer.truncate(length);
    Aes256Gcm::new(key.reveal().into())
        .decrypt_inout_detached(nonce.into(), additional, buffer.as_mut_slice().into(), (&tag).into())
        .map_err(|_| SealError::Forged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn other_seals(key: &Key, nonce: [u8; 12], additional: &[u8], mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.reveal()).ok()?);
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(additional), &mut bytes)
            .ok()?;
        Some(bytes)
    }

    proptest! {
        #[test]
        fn it_seals_as_another_implementation_does(
            key in any::<[u8; 32]>(), nonce in any::<[u8; 12]>(),
            additional in prop::collection::vec(any::<u8>(), 0..40),
            plain in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let key = Key::new(key);
            let mut sealed = plain.clone();
            seal(&key, &nonce, &additional, &mut sealed, 0)?;
            let other = other_seals(&key, nonce, &additional, plain.clone());
            prop_assert_eq!(Some(&sealed), other.as_ref());
            open(&key, &nonce, &additional, &mut sealed)?;
            prop_assert_eq!(sealed, plain);
        }

        #[test]
        fn a_changed_bit_does_not_open(
            plain in prop::collection::vec(any::<u8>(), 0..100), place in any::<prop::sample::Index>(), bit in 0..8_u8,
        ) {
            let key = Key::new([3; 32]);
            let mut sealed = plain;
            seal(&key, &[0; 12], b"a", &mut sealed, 0)?;
            let place = place.index(sealed.len());
            sealed[place] ^= 1 << bit;
            prop_assert_eq!(open(&key, &[0; 12], b"a", &mut sealed), Err(SealError::Forged));
        }
    }

    #[test]
    fn another_use_does_not_open() -> Result<(), SealError> {
        let key = Key::new([3; 32]);
        let mut sealed = b"head plain".to_vec();
        seal(&key, &[0; 12], b"a", &mut sealed, 5)?;
        assert_eq!(&sealed[..5], b"head ");
        let opened =
            |nonce: &[u8; 12], additional: &[u8]| open(&key, nonce, additional, &mut sealed[5..].to_vec());
        assert_eq!(opened(&[0; 12], b"a"), Ok(()));
        assert_eq!(opened(&[0; 12], b"b"), Err(SealError::Forged));
        assert_eq!(opened(&[1; 12], b"a"), Err(SealError::Forged));
        assert_eq!(open(&key, &[0; 12], b"a", &mut vec![1; 15]), Err(SealError::Forged));
        Ok(())
    }
}
