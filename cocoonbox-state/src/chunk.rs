//! Where content is cut, and how it is packed small.

use std::io;

use fastcdc::v2020::FastCDC;

use crate::codec::FormatError;

/// Files up to this size are one chunk and share groups.
pub const SMALL_FILE: u64 = 512 << 10;
/// How much of small files' chunks a group holds at most.
pub const GROUP: usize = 1 << 20;
const LEAST: usize = 256 << 10;
const AVERAGE: usize = 1 << 20;
/// The longest chunk.
pub const CHUNK_MAX: usize = 4 << 20;
/// Holes are told in blocks of this many bytes.
pub const BLOCK: u64 = 64 << 10;

/// Returns how long the first chunk of `bytes` is. It is final when `bytes` is at least [`CHUNK_MAX`] long or reaches
/// to the end of what is cut.
pub(crate) fn first_cut(bytes: &[u8]) -> usize {
    FastCDC::new(bytes, LEAST, AVERAGE, CHUNK_MAX).next().map_or(bytes.len(), |chunk| chunk.length)
}

/// Packs groups small, with one context for all.
pub(crate) struct Compressor {
    context: zstd::bulk::Compressor<'static>,
    buffer: Vec<u8>,
}

impl Compressor {
    pub(crate) fn new(level: i32) -> io::Result<Self> {
        Ok(Self { context: zstd::bulk::Compressor::new(level)?, buffer: Vec::new() })
    }

    /// Returns what is stored for `plain`: a zstd frame, or the bytes themselves where that is not shorter.
    pub(crate) fn pack<'a>(&'a mut self, plain: &'a [u8]) -> io::Result<&'a [u8]> {
        self.buffer.clear();
        self.buffer.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        let length = self.context.compress_to_buffer(plain, &mut self.buffer)?;
        Ok(if length < plain.len() { &self.buffer[..length] } else { plain })
    }
}

/// Unpacks groups, with one context and one buffer for all.
pub(crate) struct Unpacker {
    context: zstd::bulk::Decompressor<'static>,
    buffer: Vec<u8>,
    /// A group that was stored as it is.
    plain: Vec<u8>,
}

impl Unpacker {
    pub(crate) fn new() -> io::Result<Self> {
        let context = zstd::bulk::Decompressor::new()?;
        Ok(Self { context, buffer: vec![0; CHUNK_MAX], plain: Vec::new() })
    }

    /// As [`unpack`].
    pub(crate) fn unpack(&mut self, stored: Vec<u8>, length: usize) -> Result<&[u8], FormatError> {
        if stored.len() == length {
            self.plain = stored;
            return Ok(&self.plain);
        }
        let wrong = FormatError::new("a compressed group");
        let room = self.buffer.get_mut(..length).ok_or(wrong)?;
        let got = self.context.decompress_to_buffer(&stored, room).map_err(|_| wrong)?;
        if got == length { Ok(&self.buffer[..length]) } else { Err(wrong) }
    }
}

/// Returns the bytes of a group, which are `length` long; as long as that they were stored as they are.
pub(crate) fn unpack(stored: Vec<u8>, length: usize) -> Result<Vec<u8>, FormatError> {
    if stored.len() == length {
        return Ok(stored);
    }
    let wrong = FormatError::new("a compressed group");
    let plain = zstd::bulk::decompress(&stored, length).map_err(|_| wrong)?;
    if plain.len() == length { Ok(plain) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::{Entropy, SeededEntropy};

    use super::*;

    #[test]
    fn the_cuts_are_what_they_were() -> Result<(), Box<dyn std::error::Error>> {
        let mut bytes = vec![0; 12 << 20];
        SeededEntropy::new(42).fill(&mut bytes)?;
        let (mut rest, mut cuts) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let cut = first_cut(&rest[..rest.len().min(CHUNK_MAX)]);
            cuts.push(cut);
            rest = &rest[cut..];
        }
        // other cuts would store everybody's data anew
        assert_eq!(cuts, GOLDEN);
        Ok(())
    }

    const GOLDEN: &[usize] = &[
        1_689_120, 1_600_023, 1_184_901, 1_735_177, 1_106_366, 634_539, 640_133, 1_566_828, 1_843_929,
        581_896,
    ];

    #[test]
    fn packing_small_reads_back_and_is_bounded() -> Result<(), Box<dyn std::error::Error>> {
        let (mut compressor, mut unpacker) = (Compressor::new(1)?, Unpacker::new()?);
        let mut random = vec![0; 5000];
        SeededEntropy::new(1).fill(&mut random)?;
        for plain in [vec![7; 100_000], random, vec![], vec![1]] {
            let stored = compressor.pack(&plain)?.to_vec();
            assert!(stored.len() <= plain.len());
            assert_eq!(unpacker.unpack(stored.clone(), plain.len())?, plain);
            assert_eq!(unpack(stored, plain.len())?, plain);
        }
        let bomb = compressor.pack(&vec![0; 50 << 20])?.to_vec();
        assert!(unpack(bomb.clone(), 1 << 20).is_err());
        assert!(unpacker.unpack(bomb.clone(), 1 << 20).is_err());
        assert!(unpacker.unpack(bomb.clone(), 51 << 20).is_err());
        assert!(unpack(bomb, 51 << 20).is_err());
        Ok(())
    }
}
