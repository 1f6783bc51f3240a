use super::GroupPlace;
use crate::chunk::{CHUNK_MAX, Unpacker, unpack};
use crate::codec::{FormatError, Reader};
use crate::sealed::{OpenError, Sealer};
use crate::{BoxKeys, ChunkId};

/// A group as a pack's directory tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackGroup {
    /// Where in the object it starts.
    pub offset: u32,
    /// How long it is there, with its tag.
    pub sealed: u32,
    /// How long it is when opened and unpacked.
    pub plain: u32,
    /// Its chunks in order, and how long each is.
    pub chunks: Vec<(ChunkId, u32)>,
}

/// What is in a pack: from these alone the places of all chunks can be found again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PackDirectory {
    /// Its groups in order.
    pub groups: Vec<PackGroup>,
}

/// Reads a pack's directory once it is opened.
///
/// # Errors
/// Bytes that break the format.
pub fn decode_directory(plain: &[u8]) -> Result<PackDirectory, FormatError> {
    let mut reader = Reader::new(plain, "a pack's directory");
    let wrong = reader.error();
    if reader.byte()? != 1 {
        return Err(wrong);
    }
    let count = reader.count(4)?;
    let mut groups = Vec::new();
    for _ in 0..count {
        let (offset, sealed, plain) = (reader.small()?, reader.small()?, reader.small()?);
        check_group(sealed, plain).map_err(|_| wrong)?;
        let mut chunks = Vec::new();
        let mut total = 0_u64;
        for _ in 0..reader.count(33)? {
            let length = reader.small()?;
            total += u64::from(length);
            chunks.push((ChunkId::from_bytes(reader.array()?), length));
        }
        if total != u64::from(plain) {
            return Err(wrong);
        }
        groups.push(PackGroup { offset, sealed, plain, chunks });
    }
    reader.padding()?;
    Ok(PackDirectory { groups })
}

/// Holds for lengths that a group can have.
pub(crate) fn check_group(sealed: u32, plain: u32) -> Result<(), FormatError> {
    let stored = (sealed as usize).checked_sub(cocoonbox_seal::TAG_LENGTH);
    if plain as usize <= CHUNK_MAX && stored.is_some_and(|stored| stored <= plain as usize) {
        Ok(())
    } else {
        Err(FormatError::new("a group's length"))
    }
}

/// Opens and unpacks one group.
pub(crate) fn open_group(keys: &BoxKeys, place: &GroupPlace, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
    let stored = Sealer::pack(keys, &place.pack).open(place.number, sealed)?;
    Ok(unpack(stored, place.plain as usize)?)
}

/// The same for who opens many.
pub(crate) fn open_group_with<'a>(
    unpacker: &'a mut Unpacker,
    keys: &BoxKeys,
    place: &GroupPlace,
    sealed: &[u8],
) -> Result<&'a [u8], OpenError> {
    let stored = Sealer::pack(keys, &place.pack).open(place.number, sealed)?;
    Ok(unpacker.unpack(stored, place.plain as usize)?)
}
