use cocoonbox_core::{Entropy, EntropyError};
use cocoonbox_seal::TAG_LENGTH;

use super::GroupPlace;
use crate::codec::Writer;
use crate::sealed::{SealedObject, Sealer, TRAILER_LENGTH};
use crate::{BoxKeys, ChunkId, PackId};

const LEAST_SIZE: usize = 64 << 10;

/// Returns the size that a pack of `least` bytes is given: the target when it is full, else a power of two, so that a
/// size tells no file's size.
pub(crate) fn padded_size(least: usize, target: usize, full: bool) -> usize {
    if full && least <= target {
        target
    } else {
        least.next_power_of_two().max(LEAST_SIZE).min(if least <= target { target } else { usize::MAX })
    }
}

/// A pack that is whole and ready to be put.
#[derive(Debug)]
pub(crate) struct ClosedPack {
    pub(crate) id: PackId,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
struct OpenPack {
    id: PackId,
    object: SealedObject,
    groups: u32,
    directory: Writer,
}

/// Puts groups into packs, one pack at a time.
#[derive(Debug)]
pub(crate) struct Packer {
    keys: BoxKeys,
    target: usize,
    open: Option<OpenPack>,
    ids: Vec<PackId>,
}

impl Packer {
    pub(crate) const fn new(keys: BoxKeys, target: usize) -> Self {
        Self { keys, target, open: None, ids: Vec::new() }
    }

    /// Seals a group, `stored` being its packed bytes; returns its place, and a pack that became full before it.
    pub(crate) fn push(
        &mut self,
        stored: &[u8],
        plain: u32,
        chunks: &[(ChunkId, u32)],
        entropy: &dyn Entropy,
    ) -> Result<(GroupPlace, Option<ClosedPack>), EntropyError> {
        let more = stored.len() + TAG_LENGTH + 32 + chunks.len() * 37;
        let fits = self.open.as_ref().is_none_or(|open| {
            open.object.len() + open.directory.0.len() + 2 * TAG_LENGTH + TRAILER_LENGTH + more <= self.target
        });
        let closed = if fits { None } else { self.close(true) };
        if self.open.is_none() {
            let id = PackId::random(entropy)?;
            let object = SealedObject::new(Sealer::pack(&self.keys, &id), self.target);
            self.ids.push(id);
            self.open = Some(OpenPack { id, object, groups: 0, directory: Writer::default() });
        }
        let open = self.open.as_mut().expect("it was just opened");
        let (offset, sealed) = open.object.push(stored);
        open.directory.number(offset);
        open.directory.number(u64::from(sealed));
        open.directory.number(u64::from(plain));
        open.directory.number(chunks.len() as u64);
        for (id, length) in chunks {
            open.directory.number(u64::from(*length));
            open.directory.raw(id.as_bytes());
        }
        let place = GroupPlace { pack: open.id, offset: offset as u32, sealed, plain, number: open.groups };
        open.groups += 1;
        Ok((place, closed))
    }

    /// Closes the pack that is open, if one is.
    pub(crate) fn close(&mut self, full: bool) -> Option<ClosedPack> {
        let open = self.open.take()?;
        let mut directory = Writer::default();
        directory.byte(1);
        directory.number(u64::from(open.groups));
        directory.raw(&open.directory.0);
        let target = self.target;
        let bytes = open.object.finish(&directory.0, |least| padded_size(least, target, full));
        Some(ClosedPack { id: open.id, bytes })
    }
}
