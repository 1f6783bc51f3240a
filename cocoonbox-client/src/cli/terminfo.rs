//! The compiled terminfo entry of the caller's TERM.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

/// The most bytes of an entry; ncurses' own limit is half of it.
const MAX_ENTRY: u64 = 64 * 1024;

/// Returns the compiled entry of `term`; empty when there is none, or its name could lead elsewhere.
pub(super) fn entry(term: &str, directories: &[PathBuf]) -> Vec<u8> {
    let Some(first) = term.chars().next() else { return Vec::new() };
    let harmless = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '+' | '.');
    if first == '.' || term.len() > 128 || !term.chars().all(harmless) {
        return Vec::new();
    }
    for directory in directories {
        // by its first letter, or, where file names have no case, by that letter's number
        for folder in [first.to_string(), format!("{:02x}", u32::from(first))] {
            let Ok(file) = File::open(directory.join(folder).join(term)) else { continue };
            let mut entry = Vec::new();
            if file.take(MAX_ENTRY + 1).read_to_end(&mut entry).is_ok() && is_compiled(&entry) {
                return entry;
            }
        }
    }
    Vec::new()
}

/// Returns whether the bytes begin as a compiled entry does: magic 0432 (legacy) or 01036 (32-bit numbers).
fn is_compiled(entry: &[u8]) -> bool {
    entry.len() as u64 <= MAX_ENTRY && matches!(entry, [0x1a, 0x01, ..] | [0x1e, 0x02, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_by_letter_or_number_and_nothing_else_is_read() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("x"))?;
        std::fs::create_dir_all(path("66"))?;
        std::fs::write(path("x/xterm"), [0x1a, 1, 7])?;
        std::fs::write(path("66/foot"), [0x1e, 2, 8])?;
        std::fs::write(path("x/xtext"), b"xtext|a source, not compiled,")?;
        std::fs::write(path("x/xhuge"), [vec![0x1a, 1], vec![0; 65536]].concat())?;
        std::fs::write(path("secret"), [0x1a, 1, 9])?;
        let directories = [path("missing"), folder.path().to_owned()];
        for (term, expected) in [
            ("xterm", &[0x1a, 1, 7][..]),
            ("foot", &[0x1e, 2, 8]),
            ("xtext", &[]),
            ("xhuge", &[]),
            ("x/../secret", &[]),
            ("../secret", &[]),
            ("", &[]),
        ] {
            assert_eq!(entry(term, &directories), expected, "{term}");
        }
        Ok(())
    }
}
