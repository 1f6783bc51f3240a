use std::collections::HashMap;

use super::FileTask;
use crate::browse::spans;
use crate::tree::{ChunkTable, Node, Tree, components};

/// One chunk in one place of one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) file: u32,
    pub(crate) chunk: u32,
    pub(crate) at: u64,
}

/// A group, opened once, and all that is written from it.
#[derive(Debug)]
pub(crate) struct GroupTask {
    pub(crate) group: u32,
    pub(crate) uses: Vec<Use>,
}

/// A name of what is made under another one; each is a listing and an entry in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) made: (u32, u32),
    pub(crate) name: (u32, u32),
}

/// All that a restore writes, in order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) files: Vec<FileTask>,
    pub(crate) groups: Vec<GroupTask>,
    /// Other names of what is made under one already.
    pub(crate) links: Vec<Link>,
    /// How many of them are files'.
    pub(crate) linked_files: u64,
    pub(crate) bytes: u64,
}

/// Folders whose content can be made again, and so comes last.
const LATER: &[&[u8]] = &[
    b"node_modules",
    b"target",
    b".cargo",
    b".rustup",
    b".npm",
    b".gradle",
    b".m2",
    b".venv",
    b"venv",
    b"__pycache__",
    b".cache",
    b".conda",
    b".pnpm-store",
    b".yarn",
];

/// Ranks a folder: what a person works with first, then the rest, then caches.
fn rank(path: &[u8]) -> u8 {
    if components(path).any(|name| LATER.contains(&name)) {
        return 3;
    }
    let inside = path.strip_prefix(b"home/user").map(|rest| rest.strip_prefix(b"/").unwrap_or(rest));
    match inside {
        // dotfiles and what they stand beside
        Some(rest) if rest.is_empty() || rest[0] == b'.' => 0,
        _ if components(path).any(|name| name == b".git") => 1,
        _ => 2,
    }
}

impl Plan {
    pub(crate) fn new(tree: &Tree, table: &ChunkTable) -> Self {
        let mut plan = Self::default();
        let mut order: Vec<(u8, u32)> = tree
            .listings
            .iter()
            .enumerate()
            .map(|(index, listing)| (rank(&listing.path), index as u32))
            .collect();
        order.sort_unstable();
        let mut made: HashMap<u64, (u32, u32)> = HashMap::new();
        let mut by_group: HashMap<u32, u32> = HashMap::new();
        for (_, index) in order {
            let listing = &tree.listings[index as usize];
            for (place, entry) in listing.entries.iter().enumerate() {
                if entry.link != 0 {
                    let name = (index, place as u32);
                    let made = *made.entry(entry.link).or_insert(name);
                    if made != name {
                        plan.links.push(Link { made, name });
                        plan.linked_files += u64::from(matches!(entry.node, Node::File(_)));
                        continue;
                    }
                }
                let Node::File(file) = &entry.node else { continue };
                let number = plan.files.len() as u32;
                let spans = spans(&file.content, table);
                plan.files.push(FileTask::new(index, place as u32, spans.len() as u32));
                for (chunk, at) in spans {
                    plan.bytes += u64::from(table.length(chunk));
                    let group = table.chunks[chunk as usize].group;
                    let task = *by_group.entry(group).or_insert_with(|| {
                        plan.groups.push(GroupTask { group, uses: Vec::new() });
                        plan.groups.len() as u32 - 1
                    });
                    plan.groups[task as usize].uses.push(Use { file: number, chunk, at });
                }
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_works_with_comes_before_caches() {
        let mut paths: Vec<&[u8]> = vec![
            b"workspace/app/node_modules/x",
            b"workspace/app",
            b"home/user/.cargo/registry",
            b"home/user/.config",
            b"home/user",
            b"workspace/app/.git",
        ];
        paths.sort_by_key(|path| rank(path));
        assert_eq!(paths[..2], [&b"home/user/.config"[..], b"home/user"]);
        assert_eq!(paths[2..4], [&b"workspace/app/.git"[..], b"workspace/app"]);
    }
}
