use std::cmp::Ordering;

use super::{Listing, Tree, compare, is_beneath};

/// What a delta says: the listings that changed, and the folders that are gone with all beneath them.
#[derive(Debug, Default)]
pub(crate) struct Change {
    pub(crate) listings: Vec<usize>,
    pub(crate) removed: Vec<Box<[u8]>>,
}

/// Compares two trees over the same table of chunks.
pub(crate) fn changes(base: &Tree, tree: &Tree) -> Change {
    let mut change = Change::default();
    let mut old = base.listings.iter().peekable();
    let gone = |path: &[u8], change: &mut Change| {
        if !change.removed.last().is_some_and(|last| is_beneath(path, last)) {
            change.removed.push(path.into());
        }
    };
    for (index, listing) in tree.listings.iter().enumerate() {
        loop {
            match old.peek().map(|other| compare(&other.path, &listing.path)) {
                Some(Ordering::Less) => {
                    if let Some(other) = old.next() {
                        gone(&other.path, &mut change);
                    }
                }
                Some(Ordering::Equal) => {
                    if old.next().is_none_or(|other| other.entries != listing.entries) {
                        change.listings.push(index);
                    }
                    break;
                }
                Some(Ordering::Greater) | None => {
                    change.listings.push(index);
                    break;
                }
            }
        }
    }
    for other in old {
        gone(&other.path, &mut change);
    }
    change
}

/// Applies a delta: takes what is gone, then puts what changed.
pub(crate) fn apply(base: Vec<Listing>, removed: &[Box<[u8]>], changed: Vec<Listing>) -> Vec<Listing> {
    let mut merged = Vec::with_capacity(base.len() + changed.len());
    let mut gone = removed.iter().peekable();
    let mut changed = changed.into_iter().peekable();
    for listing in base {
        while let Some(next) = changed.next_if(|next| compare(&next.path, &listing.path) == Ordering::Less) {
            merged.push(next);
        }
        while gone
            .next_if(|path| {
                !is_beneath(&listing.path, path) && compare(path, &listing.path) == Ordering::Less
            })
            .is_some()
        {}
        if let Some(next) = changed.next_if(|next| next.path == listing.path) {
            merged.push(next);
        } else if !gone.peek().is_some_and(|path| is_beneath(&listing.path, path)) {
            merged.push(listing);
        }
    }
    merged.extend(changed);
    merged
}
