//! The shape that packs and manifests share: a magic, sealed parts, a sealed directory, a sealed trailer.

use cocoonbox_seal::{Key, NONCE_LENGTH, SealError, TAG_LENGTH, open, seal};

use crate::codec::{FormatError, Reader, Writer};
use crate::{BoxKeys, PackId, SaveId};

pub(crate) const MAGIC_LENGTH: usize = 8;
const DIRECTORY: u32 = u32::MAX - 1;
const TRAILER: u32 = u32::MAX;
const TRAILER_PLAIN: usize = 16;
/// The sealed trailer's length; it ends the object.
pub(crate) const TRAILER_LENGTH: usize = TRAILER_PLAIN + TAG_LENGTH;

/// Why sealed bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// They were changed, cut short, or belong elsewhere.
    #[error("sealed bytes do not open")]
    Sealed(#[from] SealError),
    /// They open, and break the format: whoever held the key wrote them wrong, or a newer version did.
    #[error("sealed bytes open and are malformed")]
    Format(#[from] FormatError),
}

/// One object's key, and what its additional data says.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: Key,
    magic: [u8; MAGIC_LENGTH],
    additional: Vec<u8>,
}

impl Sealer {
    pub(crate) fn pack(keys: &BoxKeys, id: &PackId) -> Self {
        let domain = keys.domain().as_str().as_bytes();
        Self::new(
            keys.pack_key(id),
            *b"CBXPACK1",
            &[b"pack", keys.uid().as_str().as_bytes(), domain, id.as_bytes()],
        )
    }

    pub(crate) fn save(keys: &BoxKeys, id: &SaveId) -> Self {
        let (uid, domain) = (keys.uid().as_str().as_bytes(), keys.domain().as_str().as_bytes());
        let label = keys.box_label().as_str().as_bytes();
        Self::new(keys.manifest_key(id), *b"CBXSAVE1", &[b"save", uid, domain, label, id.as_bytes()])
    }

    fn new(key: Key, magic: [u8; MAGIC_LENGTH], parts: &[&[u8]]) -> Self {
        let mut additional = Writer::default();
        for part in parts {
            additional.bytes(part);
        }
        Self { key, magic, additional: additional.0 }
    }

    fn additional(&self, number: u32) -> Vec<u8> {
        let mut additional = self.additional.clone();
        additional.extend_from_slice(&number.to_le_bytes());
        additional
    }

    /// The part's number is its nonce: an object's key is its own, and no number is used twice.
    fn nonce(number: u32) -> [u8; NONCE_LENGTH] {
        let mut nonce = [0; NONCE_LENGTH];
        nonce[..4].copy_from_slice(&number.to_le_bytes());
        nonce
    }

    pub(crate) fn open(&self, number: u32, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut plain = sealed.to_vec();
        open(&self.key, &Self::nonce(number), &self.additional(number), &mut plain)?;
        Ok(plain)
    }

    pub(crate) fn open_directory(&self, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        self.open(DIRECTORY, sealed)
    }

    /// Opens the last [`TRAILER_LENGTH`] bytes of an object of `length` bytes: where its directory is.
    pub(crate) fn open_trailer(&self, sealed: &[u8], length: u64) -> Result<std::ops::Range<u64>, OpenError> {
        let plain = self.open(TRAILER, sealed)?;
        let mut reader = Reader::new(&plain, "a trailer");
        let wrong = reader.error();
        let start = u64::from_le_bytes(reader.array()?);
        let size = u64::from_le_bytes(reader.array()?);
        let end = start.checked_add(size).ok_or(wrong)?;
        if start < MAGIC_LENGTH as u64
            || size < TAG_LENGTH as u64
            || end != length.saturating_sub(TRAILER_LENGTH as u64)
        {
            return Err(wrong.into());
        }
        Ok(start..end)
    }
}

/// An object in the making.
#[derive(Debug)]
pub(crate) struct SealedObject {
    sealer: Sealer,
    bytes: Vec<u8>,
    parts: u32,
}

impl SealedObject {
    pub(crate) fn new(sealer: Sealer, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend_from_slice(&sealer.magic);
        Self { sealer, bytes, parts: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Seals one more part; returns where it is and how long.
    pub(crate) fn push(&mut self, plain: &[u8]) -> (u64, u32) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(plain);
        self.seal(self.parts, from);
        self.parts += 1;
        (from as u64, (self.bytes.len() - from) as u32)
    }

    /// Seals the directory, padded with zeros so that the object is `padded(its least length)` long.
    pub(crate) fn finish(mut self, directory: &[u8], padded: impl FnOnce(usize) -> usize) -> Vec<u8> {
        let from = self.bytes.len();
        let least = from + directory.len() + TAG_LENGTH + TRAILER_LENGTH;
        let padding = padded(least).saturating_sub(least);
        self.bytes.reserve_exact(least + padding - from);
        self.bytes.extend_from_slice(directory);
        self.bytes.resize(self.bytes.len() + padding, 0);
        self.seal(DIRECTORY, from);
        let size = self.bytes.len() - from;
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&(from as u64).to_le_bytes());
        self.bytes.extend_from_slice(&(size as u64).to_le_bytes());
        self.seal(TRAILER, at);
        self.bytes
    }

    fn seal(&mut self, number: u32, from: usize) {
        let additional = self.sealer.additional(number);
        seal(&self.sealer.key, &Sealer::nonce(number), &additional, &mut self.bytes, from)
            .expect("an object is far shorter than what the mode seals");
    }
}
