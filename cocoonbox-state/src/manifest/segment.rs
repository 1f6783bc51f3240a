use std::collections::HashMap;

use crate::codec::{FormatError, Reader, Writer};
use crate::pack::{GroupPlace, check_group};
use crate::tree::{Chunk, ChunkTable, Entry, Listing, TreePath};
use crate::{ChunkId, PackId};

/// How long a segment becomes, about.
pub(crate) const SEGMENT: usize = 256 << 10;
/// The longest that a segment may be when unpacked: one entry of a huge file may be longer than [`SEGMENT`].
pub(crate) const SEGMENT_MAX: u32 = 16 << 20;
pub(crate) const PATH_MAX: usize = 64 << 10;
const VERSION: u8 = 1;

/// A segment in the making: parts of listings, and the table of the chunks that they name.
#[derive(Debug)]
pub(crate) struct SegmentBuilder<'a> {
    table: &'a ChunkTable,
    stamped: bool,
    packs: Vec<PackId>,
    groups: HashMap<u32, u32>,
    chunks: HashMap<u32, u32>,
    pack_table: Writer,
    group_table: Writer,
    chunk_table: Writer,
    parts: Writer,
    part_count: u64,
    scratch: Writer,
}

impl<'a> SegmentBuilder<'a> {
    pub(crate) fn new(table: &'a ChunkTable, stamped: bool) -> Self {
        Self {
            table,
            stamped,
            packs: Vec::new(),
            groups: HashMap::new(),
            chunks: HashMap::new(),
            pack_table: Writer::default(),
            group_table: Writer::default(),
            chunk_table: Writer::default(),
            parts: Writer::default(),
            part_count: 0,
            scratch: Writer::default(),
        }
    }

    fn len(&self) -> usize {
        self.parts.0.len()
            + self.scratch.0.len()
            + self.chunk_table.0.len()
            + self.group_table.0.len()
            + self.pack_table.0.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= SEGMENT
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.part_count == 0
    }

    /// Adds entries of a listing from `from` on until the segment is full; returns how many.
    pub(crate) fn push(&mut self, listing: &Listing, from: usize) -> usize {
        let mut taken = 0;
        while from + taken < listing.entries.len() && !(self.is_full() && taken > 0) {
            self.entry(&listing.entries[from + taken]);
            taken += 1;
        }
        let (first, last) = (from == 0, from + taken == listing.entries.len());
        self.parts.bytes(&listing.path);
        self.parts.byte(u8::from(first) | u8::from(last) << 1 | u8::from(self.stamped) << 2);
        self.parts.number(taken as u64);
        self.parts.raw(&self.scratch.0);
        self.scratch.0.clear();
        self.part_count += 1;
        taken
    }

    fn entry(&mut self, entry: &Entry) {
        let (table, packs, groups, chunks) =
            (self.table, &mut self.packs, &mut self.groups, &mut self.chunks);
        let (pack_table, group_table, chunk_table) =
            (&mut self.pack_table, &mut self.group_table, &mut self.chunk_table);
        let local = |chunk: u32| {
            let next = chunks.len() as u32;
            *chunks.entry(chunk).or_insert_with(|| {
                let known = &table.chunks[chunk as usize];
                let next_group = groups.len() as u32;
                let group = *groups.entry(known.group).or_insert_with(|| {
                    let place = &table.groups[known.group as usize];
                    // packs fill one after the other: the last is the likely one
                    let pack = packs.iter().rposition(|pack| *pack == place.pack).unwrap_or_else(|| {
                        packs.push(place.pack);
                        pack_table.raw(place.pack.as_bytes());
                        packs.len() - 1
                    });
                    for number in [pack as u32, place.number, place.offset, place.sealed, place.plain] {
                        group_table.number(u64::from(number));
                    }
                    next_group
                });
                for number in [group, known.offset, known.length] {
                    chunk_table.number(u64::from(number));
                }
                chunk_table.raw(known.id.as_bytes());
                next
            })
        };
        entry.write(&mut self.scratch, local, self.stamped);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        let mut out = Writer::default();
        out.byte(VERSION);
        for (count, table) in [
            (self.packs.len(), &self.pack_table),
            (self.groups.len(), &self.group_table),
            (self.chunks.len(), &self.chunk_table),
            (self.part_count as usize, &self.parts),
        ] {
            out.number(count as u64);
            out.raw(&table.0);
        }
        out.0
    }
}

/// A part of a listing, as a segment holds it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) first: bool,
    pub(crate) last: bool,
    pub(crate) listing: Listing,
}

/// Reads a segment; its chunks go into `table`, and the entries name them there.
pub(crate) fn read_segment(
    plain: &[u8],
    table: &mut ChunkTable,
    stamped: bool,
) -> Result<Vec<Part>, FormatError> {
    let mut reader = Reader::new(plain, "a manifest's segment");
    let wrong = reader.error();
    if reader.byte()? != VERSION {
        return Err(wrong);
    }
    let mut packs = Vec::new();
    for _ in 0..reader.count(16)? {
        packs.push(PackId::from_bytes(reader.array()?));
    }
    let mut groups = Vec::new();
    for _ in 0..reader.count(5)? {
        let pack = *packs.get(reader.small()? as usize).ok_or(wrong)?;
        let (number, offset) = (reader.small()?, reader.small()?);
        let (sealed, plain) = (reader.small()?, reader.small()?);
        check_group(sealed, plain)?;
        let place = GroupPlace { pack, offset, sealed, plain, number };
        let group = table.group(place);
        // two places for one group are a lie
        if table.groups[group as usize] != place {
            return Err(wrong);
        }
        groups.push(group);
    }
    let mut chunks: Vec<(u32, u32)> = Vec::new();
    for _ in 0..reader.count(35)? {
        let group = *groups.get(reader.small()? as usize).ok_or(wrong)?;
        let (offset, length) = (reader.small()?, reader.small()?);
        let id = ChunkId::from_bytes(reader.array()?);
        let end = offset.checked_add(length).ok_or(wrong)?;
        if length == 0 || end > table.groups[group as usize].plain {
            return Err(wrong);
        }
        let chunk = table.add(Chunk { id, length, group, offset });
        if table.length(chunk) != length {
            return Err(wrong);
        }
        chunks.push((chunk, length));
    }
    let mut parts = Vec::new();
    for _ in 0..reader.count(3)? {
        let path = reader.bytes(PATH_MAX)?;
        if TreePath::parse(path).map_err(|_| wrong)?.as_bytes() != path {
            return Err(wrong);
        }
        let flags = reader.byte()?;
        if flags & !7 != 0 || (flags & 4 != 0) != stamped {
            return Err(wrong);
        }
        let mut listing = Listing { path: path.into(), entries: Vec::new() };
        for _ in 0..reader.count(7)? {
            let length_of = |chunk: u32| chunks.get(chunk as usize).map(|known| known.1);
            let mut entry = Entry::read(&mut reader, false, length_of, stamped)?;
            for chunk in entry.chunks_mut() {
                *chunk = chunks[*chunk as usize].0;
            }
            listing.entries.push(entry);
        }
        parts.push(Part { first: flags & 1 != 0, last: flags & 2 != 0, listing });
    }
    reader.end()?;
    Ok(parts)
}

/// How much a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentSummary {
    /// Parts of folders' listings.
    pub parts: usize,
    /// Entries in them.
    pub entries: usize,
    /// Chunks that they name.
    pub chunks: usize,
}

/// Reads a segment once it is opened and unpacked, and says how much it holds.
///
/// # Errors
/// Bytes that break the format.
pub fn decode_segment(plain: &[u8]) -> Result<SegmentSummary, FormatError> {
    let mut table = ChunkTable::default();
    let parts = read_segment(plain, &mut table, false)?;
    let entries = parts.iter().map(|part| part.listing.entries.len()).sum();
    Ok(SegmentSummary { parts: parts.len(), entries, chunks: table.chunks.len() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tree::{Content, FileNode, Node};

    fn segment(path: &[u8], name: &[u8], node: Node) -> Vec<u8> {
        let mut table = ChunkTable::default();
        let place = GroupPlace { pack: PackId::default(), offset: 8, sealed: 100, plain: 200, number: 0 };
        let group = table.group(place);
        table.add(Chunk { id: ChunkId::default(), length: 50, group, offset: 10 });
        let mut builder = SegmentBuilder::new(&table, false);
        let entry = Entry { name: name.into(), node, ..Entry::default() };
        builder.push(&Listing { path: path.into(), entries: vec![entry] }, 0);
        builder.finish()
    }

    fn file(size: u64) -> Node {
        Node::File(FileNode { size, content: Content::One(0) })
    }

    #[test]
    fn hostile_names_paths_and_sizes_are_refused() {
        assert!(decode_segment(&segment(b"a/b", b"c", file(50))).is_ok());
        for (path, name) in [
            (&b"a"[..], &b".."[..]),
            (b"a", b"."),
            (b"a", b"b/c"),
            (b"a", b""),
            (b"a", b"b\0"),
            (b"../a", b"b"),
            (b"/a", b"b"),
            (b"a//b", b"b"),
            (b"a/", b"b"),
        ] {
            assert!(decode_segment(&segment(path, name, file(50))).is_err(), "{path:?} {name:?}");
        }
        for size in [0, 49, 51, u64::MAX] {
            assert!(decode_segment(&segment(b"a", b"b", file(size))).is_err(), "{size}");
        }
    }

    #[test]
    fn other_names_are_read_for_files_symlinks_and_pipes_alone() {
        for (node, linkable) in [
            (file(50), true),
            (Node::Symlink(b"x"[..].into()), true),
            (Node::Fifo, true),
            (Node::Folder, false),
            (Node::Passage, false),
        ] {
            let entry = Entry { name: b"b"[..].into(), node, link: 7, ..Entry::default() };
            let mut writer = Writer::default();
            entry.write(&mut writer, |chunk| chunk, false);
            let read = Entry::read(&mut Reader::new(&writer.0, "it"), false, |_| Some(50), false);
            assert_eq!(read.is_ok_and(|read| read == entry), linkable, "{entry:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_segment(&bytes);
            let _ = crate::decode_index(&bytes);
            let _ = crate::decode_directory(&bytes);
            let _ = crate::decode_cache("cb-a", &bytes);
        }

        #[test]
        fn a_changed_segment_is_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = segment(b"a/b", b"c", file(50));
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = decode_segment(&bytes);
        }
    }
}
