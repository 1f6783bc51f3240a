use std::cmp::Ordering;
use std::fmt;

/// A path in a save: names joined by `/`, neither first nor last, any bytes but `/` and NUL. It does not print: names
/// of files are nobody's who reads a log.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct TreePath(Box<[u8]>);

/// A path that would lead out of the tree, or is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a path within a save")]
#[non_exhaustive]
pub struct PathError;

impl TreePath {
    /// Reads a path; a leading or trailing `/` does not matter, the empty one is the root.
    ///
    /// # Errors
    /// A name that is `.`, `..`, empty, longer than 255 bytes or holds NUL.
    pub fn parse(bytes: &[u8]) -> Result<Self, PathError> {
        let trimmed = bytes.strip_prefix(b"/").unwrap_or(bytes);
        let trimmed = trimmed.strip_suffix(b"/").unwrap_or(trimmed);
        if trimmed.is_empty() || trimmed.split(|byte| *byte == b'/').all(name_is_good) {
            Ok(Self(trimmed.into()))
        } else {
            Err(PathError)
        }
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Returns the path's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TreePath({} bytes)", self.0.len())
    }
}
impl PartialOrd for TreePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for TreePath {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.0, &other.0)
    }
}

pub(crate) fn name_is_good(name: &[u8]) -> bool {
    (1..=255).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// Orders paths name by name, so that a folder is followed by all that is beneath it.
pub(crate) fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let common = one.iter().zip(other).position(|(a, b)| a != b);
    let rank =
        |byte: Option<&u8>| byte.map_or(0, |byte| if *byte == b'/' { 1 } else { u16::from(*byte) + 2 });
    let at = common.unwrap_or(one.len().min(other.len()));
    rank(one.get(at)).cmp(&rank(other.get(at)))
}

pub(crate) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(folder.len() + 1 + name.len());
    path.extend_from_slice(folder);
    if !folder.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Returns the folder and the last name; nothing for the root.
pub(crate) fn parent(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    Some(match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    })
}

/// Holds when `path` is `folder` or beneath it.
pub(crate) fn is_beneath(path: &[u8], folder: &[u8]) -> bool {
    folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_order_is_that_of_the_names(
            one in prop::collection::vec("[a!.-]{1,3}", 0..4), other in prop::collection::vec("[a!.-]{1,3}", 0..4),
        ) {
            let (a, b) = (one.join("/"), other.join("/"));
            prop_assert_eq!(compare(a.as_bytes(), b.as_bytes()), one.cmp(&other));
        }

        #[test]
        fn what_parses_stays_beneath(bytes in prop::collection::vec(prop::sample::select(&b"./ab\0"[..]), 0..12)) {
            if let Ok(path) = TreePath::parse(&bytes) {
                prop_assert!(components(path.as_bytes()).all(|name| name != b".."));
                prop_assert!(!path.as_bytes().starts_with(b"/"));
            }
        }
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        for bad in [&b".."[..], b"a/../b", b"a//b", b"./a", b"a\0", b"//a", &[b'x'; 256]] {
            assert!(TreePath::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(TreePath::parse(b"/a/b/").as_ref().map(TreePath::as_bytes), Ok(&b"a/b"[..]));
        assert!(!format!("{:?}", TreePath::of(b"canary")).contains("canary"));
    }
}
