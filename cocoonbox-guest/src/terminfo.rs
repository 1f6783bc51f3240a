//! Making the caller's terminal known in the box.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The most bytes of a compiled entry.
const MAX_BYTES: usize = 64 * 1024;

/// The terminal that programs are told of when theirs is not known here.
const FALLBACK: &str = "xterm-256color";

/// A terminal that cannot be described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TerminfoError {
    #[error("term: at most 64 of A-Z a-z 0-9 . + _ -")]
    Name,
    #[error("terminfo: at most {MAX_BYTES} bytes")]
    TooLong,
    #[error("terminfo: not a compiled entry")]
    NotCompiled,
}

/// Where entries are looked for, the user's own first.
fn directories(home: &Path) -> [PathBuf; 5] {
    [
        home.join(".terminfo"),
        "/etc/terminfo".into(),
        "/lib/terminfo".into(),
        "/usr/share/terminfo".into(),
        "/usr/lib/terminfo".into(),
    ]
}

/// Returns the TERM under which programs know the caller's terminal `term`: itself when the box has its entry, or when
/// `entry` could be put in place; a common one otherwise.
///
/// # Errors
/// Any of [`TerminfoError`].
pub(crate) fn prepare(home: &Path, term: &str, entry: &[u8]) -> Result<String, TerminfoError> {
    if term.is_empty() && entry.is_empty() {
        return Ok(FALLBACK.to_owned());
    }
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b".+_-".contains(&byte);
    let first = term.bytes().next().filter(u8::is_ascii_alphanumeric).ok_or(TerminfoError::Name)?;
    if term.len() > 64 || !term.bytes().all(letters) {
        return Err(TerminfoError::Name);
    }
    if entry.len() > MAX_BYTES {
        return Err(TerminfoError::TooLong);
    }
    // 0432: 16-bit numbers, 01036: 32-bit numbers; little-endian on every machine
    if !entry.is_empty() && !matches!(entry, [0x1a, 0x01, _, ..] | [0x1e, 0x02, _, ..]) {
        return Err(TerminfoError::NotCompiled);
    }
    let folders = [char::from(first).to_string(), format!("{first:02x}")];
    let known = directories(home)
        .iter()
        .any(|directory| folders.iter().any(|folder| directory.join(folder).join(term).is_file()));
    if known || (!entry.is_empty() && put(home, &folders[0], term, entry).is_ok()) {
        Ok(term.to_owned())
    } else {
        Ok(FALLBACK.to_owned())
    }
}

fn put(home: &Path, folder: &str, term: &str, entry: &[u8]) -> std::io::Result<()> {
    let directory = home.join(".terminfo").join(folder);
    fs::create_dir_all(&directory)?;
    let temporary = directory.join(crate::file::temporary_name()?);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    let written = file.write_all(entry).and_then(|()| fs::rename(&temporary, directory.join(term)));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_terminal_is_made_known_once() -> Result<(), Box<dyn std::error::Error>> {
        let home = tempfile::tempdir()?;
        let entry = b"\x1a\x01rest of an entry";
        let path = home.path().join(".terminfo/n/no-such-term");
        assert_eq!(prepare(home.path(), "no-such-term", b"")?, FALLBACK);
        assert_eq!(prepare(home.path(), "no-such-term", entry)?, "no-such-term");
        assert_eq!(fs::read(&path)?, entry);
        assert_eq!(prepare(home.path(), "no-such-term", b"\x1e\x02other")?, "no-such-term");
        assert_eq!(fs::read(&path)?, entry);
        assert_eq!(prepare(home.path(), "no-such-term", b"")?, "no-such-term");
        assert_eq!(prepare(home.path(), "xterm", entry)?, "xterm");
        assert!(!home.path().join(".terminfo/x").exists());
        assert_eq!(prepare(home.path(), "", b"")?, FALLBACK);
        Ok(())
    }

    #[test]
    fn names_and_entries_have_limits() {
        let home = Path::new("/nonexistent");
        for name in ["", "../x", "a/b", ".x", "a b", "ä", "a\0", &"a".repeat(65)] {
            assert_eq!(prepare(home, name, b"\x1a\x01x"), Err(TerminfoError::Name), "{name}");
        }
        let mut long = vec![0; MAX_BYTES + 1];
        long[..2].copy_from_slice(&[0x1a, 1]);
        assert_eq!(prepare(home, "a", &long), Err(TerminfoError::TooLong));
        assert_eq!(prepare(home, "a", b"text"), Err(TerminfoError::NotCompiled));
        assert_eq!(prepare(home, "no-such-term", &long[1..]), Err(TerminfoError::NotCompiled));
        // nowhere to put it: programs still get a terminal they know
        assert_eq!(prepare(Path::new("/proc/nowhere"), "no-such-term", b"\x1a\x01x"), Ok(FALLBACK.into()));
    }
}
