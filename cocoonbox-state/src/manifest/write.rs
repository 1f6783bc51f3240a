use std::io;

use super::index::{Index, SegmentPlace};
use super::segment::SegmentBuilder;
use crate::chunk::Compressor;
use crate::codec::Writer;
use crate::sealed::{SealedObject, Sealer};
use crate::tree::{ChunkTable, Tree};
use crate::{BoxKeys, SaveId};

/// What goes into a manifest besides its index.
#[derive(Debug)]
pub(crate) struct ManifestPlan<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) table: &'a ChunkTable,
    /// Which listings, in order.
    pub(crate) listings: Vec<usize>,
}

/// A segment in the making, and the path and name with which it starts.
type Open<'a> = (SegmentBuilder<'a>, Box<[u8]>, Box<[u8]>);

/// Writes a manifest; `index` is given its segments.
pub(crate) fn write_manifest(
    keys: &BoxKeys,
    id: &SaveId,
    plan: &ManifestPlan<'_>,
    mut index: Index,
    level: i32,
) -> io::Result<Vec<u8>> {
    let mut object = SealedObject::new(Sealer::save(keys, id), 0);
    let mut compressor = Compressor::new(level)?;
    let mut open: Option<Open<'_>> = None;
    let mut close = |open: Open<'_>| -> io::Result<()> {
        let (builder, path, name) = open;
        let plain = builder.finish();
        let (offset, sealed) = object.push(compressor.pack(&plain)?);
        index.segments.push(SegmentPlace { path, name, offset, sealed, plain: plain.len() as u32 });
        Ok(())
    };
    for listing in plan.listings.iter().map(|listing| &plan.tree.listings[*listing]) {
        let mut from = 0;
        loop {
            let (builder, ..) = open.get_or_insert_with(|| {
                let name = listing.entries.get(from).map(|entry| entry.name.clone()).unwrap_or_default();
                (SegmentBuilder::new(plan.table, false), listing.path.clone(), name)
            });
            from += builder.push(listing, from);
            if builder.is_full()
                && let Some(full) = open.take()
            {
                close(full)?;
            }
            if from >= listing.entries.len() {
                break;
            }
        }
    }
    if let Some(last) = open.take() {
        close(last)?;
    }
    let plain = index.encode();
    let stored = compressor.pack(&plain)?;
    let mut directory = Writer::default();
    directory.number(plain.len() as u64);
    directory.bytes(stored);
    Ok(object.finish(&directory.0, |least| least.next_multiple_of(4096)))
}
