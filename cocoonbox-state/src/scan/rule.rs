use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::tree::TreePath;

/// A folder that is saved, and what it is called in the save.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Root {
    /// Its path in the save; the root path when it is the whole save.
    pub prefix: TreePath,
    /// Where it is.
    pub folder: PathBuf,
}

impl Root {
    /// Names a folder that is all of a save.
    pub fn whole(folder: &Path) -> Self {
        Self { prefix: TreePath::default(), folder: folder.to_owned() }
    }

    /// Names a folder that is a part of a save.
    pub fn new(prefix: TreePath, folder: &Path) -> Self {
        Self { prefix, folder: folder.to_owned() }
    }

    /// Names what a box's save holds, `home/user` and `workspace`, under `base` (`/` in the guest).
    pub fn of_box(base: &Path) -> Vec<Self> {
        ["home/user", "workspace"]
            .map(|path| Self { prefix: TreePath::of(path.as_bytes()), folder: base.join(path) })
            .into()
    }
}

/// What is left out: paths in the save, each with all beneath it. Folders with a valid `CACHEDIR.TAG` always are.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Excludes(HashSet<Box<[u8]>>);

impl fmt::Debug for Excludes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Excludes({} paths)", self.0.len())
    }
}

impl Excludes {
    /// Leaves out nothing but tagged caches.
    pub fn none() -> Self {
        Self::default()
    }

    /// Leaves out what every box's save leaves out: `home/user/.cache`.
    pub fn of_box() -> Self {
        Self::none().with(&TreePath::of(b"home/user/.cache"))
    }

    /// Leaves out one more path.
    #[must_use]
    pub fn with(mut self, path: &TreePath) -> Self {
        if !path.as_bytes().is_empty() {
            self.0.insert(path.as_bytes().into());
        }
        self
    }

    /// Leaves out the paths in `lines` that are under `/workspace/`; other lines are ignored.
    #[must_use]
    pub fn with_lines(mut self, lines: &str) -> Self {
        for line in lines.lines() {
            if line.strip_prefix("/workspace/").is_some_and(|rest| !rest.trim_matches('/').is_empty())
                && let Ok(path) = TreePath::parse(line.as_bytes())
            {
                self = self.with(&path);
            }
        }
        self
    }

    pub(crate) fn has(&self, path: &[u8]) -> bool {
        self.0.contains(path)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_outside_the_workspace_are_ignored() {
        let excludes = Excludes::none().with_lines(
            "/workspace/a/target\n/workspace/\n/etc\nworkspace/b\n/workspace/../etc\n/workspace/c/\n",
        );
        let found: Vec<bool> =
            [&b"workspace/a/target"[..], b"workspace", b"etc", b"workspace/b", b"workspace/c"]
                .iter()
                .map(|path| excludes.has(path))
                .collect();
        assert_eq!(found, [true, false, false, false, true]);
    }
}
