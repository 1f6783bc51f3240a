use crate::ChunkId;
use crate::id::IdMap;
use crate::pack::GroupPlace;

/// A chunk that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) id: ChunkId,
    pub(crate) length: u32,
    /// Which group of the table holds it; [`ChunkTable::NOWHERE`] when none does.
    pub(crate) group: u32,
    /// Where in the opened group it starts.
    pub(crate) offset: u32,
}

/// All chunks that are known, each once, and the groups they are in.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkTable {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) groups: Vec<GroupPlace>,
    by_id: IdMap<ChunkId, u32>,
    by_place: std::collections::HashMap<(crate::PackId, u32), u32>,
}

impl ChunkTable {
    pub(crate) const NOWHERE: u32 = u32::MAX;

    pub(crate) fn find(&self, id: &ChunkId) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    pub(crate) fn length(&self, chunk: u32) -> u32 {
        self.chunks[chunk as usize].length
    }

    pub(crate) fn id(&self, chunk: u32) -> &ChunkId {
        &self.chunks[chunk as usize].id
    }

    pub(crate) fn place(&self, chunk: u32) -> Option<&GroupPlace> {
        self.groups.get(self.chunks[chunk as usize].group as usize)
    }

    /// Returns the number of a group, new or known.
    pub(crate) fn group(&mut self, place: GroupPlace) -> u32 {
        let next = self.groups.len() as u32;
        let known = *self.by_place.entry((place.pack, place.number)).or_insert(next);
        if known == next {
            self.groups.push(place);
        }
        known
    }

    /// Adds a chunk, or returns the one that is there; one without a place is given this one.
    pub(crate) fn add(&mut self, chunk: Chunk) -> u32 {
        let next = self.chunks.len() as u32;
        let known = *self.by_id.entry(chunk.id).or_insert(next);
        if known == next {
            self.chunks.push(chunk);
        } else if self.chunks[known as usize].group == Self::NOWHERE {
            self.chunks[known as usize] = chunk;
        }
        known
    }
}
