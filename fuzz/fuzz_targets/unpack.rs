//! A tar stream into a directory: whatever it says, nothing outside of the destination changes, and nothing of ours is
//! left in it.
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;

/// Every path below `root`, not through links, with all that would tell of a change.
fn seen(root: &Path) -> BTreeMap<PathBuf, (u32, u64, i64, u64, Vec<u8>)> {
    let (mut found, mut next) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = next.pop() {
        let about = fs::symlink_metadata(&path).expect("it is there");
        let content = if about.is_dir() {
            next.extend(fs::read_dir(&path).expect("readable").map(|entry| entry.expect("an entry").path()));
            Vec::new()
        } else if about.is_symlink() {
            fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
        } else {
            fs::read(&path).expect("readable")
        };
        found.insert(path, (about.mode(), about.nlink(), about.mtime(), about.size(), content));
    }
    found
}

fuzz_target!(|archive: &[u8]| {
    let top = tempfile::tempdir().expect("a directory");
    let (outside, inside) = (top.path().join("outside"), top.path().join("inside"));
    for path in [&outside, &outside.join("directory"), &inside, &inside.join("directory")] {
        fs::create_dir(path).expect("made");
    }
    for path in [outside.join("file"), outside.join("directory/file"), inside.join("file")] {
        fs::write(path, b"kept").expect("written");
    }
    // ways out that were there before
    symlink(&outside, inside.join("out")).expect("linked");
    symlink("../outside/file", inside.join("link")).expect("linked");
    let before = seen(&outside);
    let _ = cocoonbox_guest::fuzzing::unpack(archive, &inside);
    assert_eq!(seen(&outside), before);
    let mut at_top: Vec<_> =
        fs::read_dir(top.path()).expect("readable").map(|entry| entry.expect("an entry").file_name()).collect();
    at_top.sort();
    assert_eq!(at_top, ["inside", "outside"]);
    for entry in fs::read_dir(&inside).expect("readable") {
        let name = entry.expect("an entry").file_name();
        let name = name.as_encoded_bytes();
        let of_the_archive = archive.windows(name.len()).any(|part| part == name);
        assert!(of_the_archive || !name.starts_with(b".cocoonbox-"), "a staging directory is left");
    }
});
