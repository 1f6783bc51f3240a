use std::collections::HashMap;

use super::{ChunkTable, Content, Entry, FileNode, Listing, Node, Tree, join};
use crate::codec::{FormatError, Writer};
use crate::{BoxKeys, RootHash};

/// Hashes a file's content: its chunks' ids, and for a large one where they lie.
pub(crate) fn content_of(hasher: &mut blake3::Hasher, file: &FileNode, table: &ChunkTable) {
    match &file.content {
        Content::Empty => {}
        Content::One(chunk) => {
            hasher.update(table.id(*chunk).as_bytes());
        }
        Content::Many(many) => {
            for (start, length) in &many.extents {
                hasher.update(&start.to_le_bytes());
                hasher.update(&length.to_le_bytes());
            }
            for chunk in &many.chunks {
                hasher.update(&table.length(*chunk).to_le_bytes());
                hasher.update(table.id(*chunk).as_bytes());
            }
        }
    }
}

/// Returns the hash over all of a tree: a folder's is over its entries, a folder's entry ends with that folder's hash.
///
/// # Errors
/// Listings that do not fit each other, see [`check_shape`].
pub(crate) fn root_hash(keys: &BoxKeys, tree: &Tree, table: &ChunkTable) -> Result<RootHash, FormatError> {
    check_shape(tree)?;
    // children stand behind their parents: going backward, each folder's folders are done before it
    let mut done: Vec<[u8; 32]> = Vec::new();
    let mut scratch = Writer::default();
    for listing in tree.listings.iter().rev() {
        let mut hasher = keys.tree_hasher();
        for entry in &listing.entries {
            scratch.0.clear();
            entry.write_head(&mut scratch);
            hasher.update(&scratch.0);
            match &entry.node {
                Node::File(file) => content_of(&mut hasher, file, table),
                Node::Folder | Node::Passage => {
                    // the first subfolder was done last
                    let hash = done.pop().ok_or(FormatError::new("a tree"))?;
                    hasher.update(&hash);
                }
                Node::Symlink(_) | Node::Fifo => {}
            }
        }
        done.push(*hasher.finalize().as_bytes());
    }
    let mut hasher = keys.tree_hasher();
    scratch.0.clear();
    tree.root.write_head(&mut scratch);
    hasher.update(&scratch.0);
    hasher.update(&done.pop().ok_or(FormatError::new("a tree"))?);
    Ok(RootHash::from_bytes(*hasher.finalize().as_bytes()))
}

/// Holds when every folder has one listing, each listing a folder, all in order, no name stands twice, and of what has
/// several names one thing is said.
pub(crate) fn check_shape(tree: &Tree) -> Result<(), FormatError> {
    let wrong = FormatError::new("a tree");
    // folders that were named and whose listing is still to come, the next one last
    let mut awaited: Vec<Vec<u8>> = vec![Vec::new()];
    if !tree.root.is_folder() {
        return Err(wrong);
    }
    let mut linked: HashMap<u64, &Entry> = HashMap::new();
    for Listing { path, entries } in &tree.listings {
        if awaited.pop().as_deref() != Some(path) {
            return Err(wrong);
        }
        if entries.windows(2).any(|pair| pair[0].name >= pair[1].name) {
            return Err(wrong);
        }
        for entry in entries.iter().filter(|entry| entry.link != 0) {
            if !linked.entry(entry.link).or_insert(entry).is_same_but_for_name(entry) {
                return Err(wrong);
            }
        }
        awaited.extend(
            entries
                .iter()
                .rev()
                .filter(|entry| entry.is_folder())
                .map(|entry: &Entry| join(path, &entry.name)),
        );
    }
    if awaited.is_empty() { Ok(()) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_stands_under_a_folder_and_nothing_else() {
        let tree = |node| {
            let entry = Entry { name: b"a"[..].into(), node, ..Entry::default() };
            let below = Entry { name: b"b"[..].into(), node: Node::Fifo, ..Entry::default() };
            let listings = vec![
                Listing { path: [].into(), entries: vec![entry] },
                Listing { path: b"a"[..].into(), entries: vec![below] },
            ];
            Tree { root: Entry::default(), listings }
        };
        assert!(check_shape(&tree(Node::Folder)).is_ok());
        // or what is beneath would be written wherever the link leads
        assert!(check_shape(&tree(Node::Symlink(b"/etc"[..].into()))).is_err());
        assert!(check_shape(&tree(Node::Fifo)).is_err());
        let mut twice = tree(Node::Folder);
        let again = twice.listings[0].entries[0].clone();
        twice.listings[0].entries.push(Entry { node: Node::Symlink(b"/etc"[..].into()), ..again });
        assert!(check_shape(&twice).is_err());
    }

    #[test]
    fn names_of_one_file_that_differ_are_no_tree() {
        let entry = |name: &[u8], node: Node| Entry { name: name.into(), node, link: 7, ..Entry::default() };
        let file = |size| Node::File(FileNode { size, content: Content::Empty });
        for (other, fits) in [(file(1), true), (file(2), false), (Node::Fifo, false)] {
            let entries = vec![entry(b"a", file(1)), entry(b"b", other)];
            let tree = Tree { root: Entry::default(), listings: vec![Listing { path: [].into(), entries }] };
            assert_eq!(check_shape(&tree).is_ok(), fits);
        }
    }
}
