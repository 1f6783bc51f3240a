//! Golden bytes change on purpose or not at all.

use std::fmt::Write;
use std::{fs, io};

use cocoonbox_house_tests::{compare_with_list, root, tracked_files};
use sha2::{Digest, Sha256};

#[test]
fn the_fixtures_are_what_they_were() -> io::Result<()> {
    let root = root();
    let mut found = Vec::new();
    for path in tracked_files()?.into_iter().filter(|path| path.starts_with(root.join("fixtures"))) {
        let mut line = String::new();
        for byte in Sha256::digest(fs::read(&path)?) {
            let _ = write!(line, "{byte:02x}");
        }
        let _ = write!(line, "  {}", path.strip_prefix(&root).unwrap_or(&path).display());
        found.push(line);
    }
    assert!(!found.is_empty(), "no fixtures were found");
    compare_with_list(&root.join("tests/house/fixtures.sha256"), &found, "make fixtures");
    Ok(())
}
