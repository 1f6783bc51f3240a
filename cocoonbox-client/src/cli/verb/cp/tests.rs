//! Packing and unpacking, against streams that lie.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

use super::extract::{Destination, Extractor};
use super::*;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn entry(builder: &mut Builder<Vec<u8>>, kind: EntryType, name: &[u8], link: &[u8], data: &[u8], mode: u32) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(mode);
    header.set_mtime(1_000_000_000);
    // straight into the fields: the crate's setters refuse what a hostile box writes
    let raw = header.as_gnu_mut().unwrap();
    raw.name[..name.len()].copy_from_slice(name);
    raw.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    builder.append(&header, data).unwrap();
}

fn unpack(stream: &[u8], to: &Path, base: Option<&str>) -> io::Result<Copied> {
    let base = base.map(OsString::from);
    Extractor::new(Destination::choose(to, base.as_deref())?, base).extract(stream)
}

#[test]
fn a_folder_comes_back_as_it_was() -> Outcome {
    let folder = tempfile::tempdir()?;
    let from = folder.path().join("from");
    let long = "n".repeat(200);
    fs::create_dir_all(from.join("deep/er").join(&long))?;
    fs::write(from.join("deep/run"), b"#!/bin/sh")?;
    fs::set_permissions(from.join("deep/run"), fs::Permissions::from_mode(0o751))?;
    fs::write(from.join("deep/er").join(&long).join("x"), vec![7; 100_000])?;
    symlink("/nowhere", from.join("link"))?;
    fs::File::open(from.join("deep/run"))?.set_times(
        fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_234_567)),
    )?;
    fs::set_permissions(from.join("deep"), fs::Permissions::from_mode(0o500))?;
    let mut stream = Vec::new();
    let packed = pack::pack(&mut stream, &from, Path::new("new"))?;
    let to = folder.path().join("to");
    let unpacked = unpack(&stream, &to, Some("new"))?;
    assert_eq!((packed.files, packed.bytes), (2, 100_009));
    assert_eq!(unpacked, packed);
    let run = fs::metadata(to.join("deep/run"))?;
    assert_eq!((run.mode() & 0o7777, run.mtime()), (0o751, 1_234_567));
    assert_eq!(fs::metadata(to.join("deep"))?.mode() & 0o777, 0o500);
    assert_eq!(fs::read_link(to.join("link"))?, Path::new("/nowhere"));
    assert_eq!(fs::read(to.join("deep/er").join(&long).join("x"))?.len(), 100_000);
    for place in [&from, &to] {
        fs::set_permissions(place.join("deep"), fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[test]
fn nothing_is_written_outside_the_destination() -> Outcome {
    let folder = tempfile::tempdir()?;
    let outside = folder.path().join("outside");
    fs::create_dir(&outside)?;
    fs::write(outside.join("kept"), b"kept")?;
    let to = outside.to_str().ok_or("path")?.as_bytes();
    type Entries<'a> = Vec<(EntryType, &'a [u8], &'a [u8])>;
    let hostile: [(&str, Entries<'_>); 7] = [
        ("parent", vec![(EntryType::Regular, b"b/../../outside/new", b"")]),
        ("absolute", vec![(EntryType::Regular, b"/tmp/new", b"")]),
        ("another name", vec![(EntryType::Regular, b"other", b"")]),
        (
            "through a link",
            vec![
                (EntryType::Directory, b"b", b""),
                (EntryType::Symlink, b"b/l", to),
                (EntryType::Regular, b"b/l/new", b""),
            ],
        ),
        ("the base is a link", vec![(EntryType::Symlink, b"b", to), (EntryType::Regular, b"b/new", b"")]),
        ("hard link out", vec![(EntryType::Link, b"b", b"../outside/kept")]),
        (
            "hard link through a link",
            vec![(EntryType::Symlink, b"b/l", to), (EntryType::Link, b"b/h", b"b/l/kept")],
        ),
    ];
    for (name, entries) in hostile {
        let to = folder.path().join(name.replace(' ', "-"));
        fs::create_dir(&to)?;
        let mut builder = Builder::new(Vec::new());
        for (kind, path, link) in entries {
            entry(
                &mut builder,
                kind,
                path,
                link,
                if kind == EntryType::Regular { b"bad" } else { b"" },
                0o644,
            );
        }
        assert!(unpack(&builder.into_inner()?, &to, Some("b")).is_err(), "{name}");
        let left: Vec<_> = fs::read_dir(&outside)?.flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["kept"], "{name}");
        assert_eq!(fs::read(outside.join("kept"))?, b"kept", "{name}");
    }
    Ok(())
}

#[test]
fn a_link_in_a_files_place_is_replaced_and_not_written_through() -> Outcome {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("victim"), b"kept")?;
    symlink("victim", folder.path().join("b"))?;
    let mut builder = Builder::new(Vec::new());
    entry(&mut builder, EntryType::Regular, b"b", b"", b"new", 0o6755);
    let stream = builder.into_inner()?;
    unpack(&stream, folder.path(), Some("b"))?;
    assert_eq!(fs::read(folder.path().join("victim"))?, b"kept");
    assert_eq!(fs::read(folder.path().join("b"))?, b"new");
    assert_eq!(fs::metadata(folder.path().join("b"))?.mode() & 0o7777, 0o755);
    Ok(())
}

#[test]
fn records_have_limits_and_devices_are_skipped() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut builder = Builder::new(Vec::new());
    entry(&mut builder, EntryType::GNULongName, b"././@LongLink", b"", &vec![b'a'; 300_000], 0o644);
    assert!(unpack(&builder.into_inner()?, folder.path(), Some("b")).is_err());
    let mut builder = Builder::new(Vec::new());
    entry(&mut builder, EntryType::Char, b"b", b"", b"", 0o666);
    let copied = unpack(&builder.into_inner()?, folder.path(), Some("b"))?;
    assert_eq!(copied, Copied { skipped: 1, ..Copied::default() });
    Ok(())
}

#[test]
fn sides_are_read_as_scp_reads_them() {
    let remote = |name: &str, path: &str| Some(Side::Box(name.parse().ok(), path.as_bytes().to_vec()));
    for (word, expected) in [
        ("main:", remote("main", "")),
        ("main:a/b:c", remote("main", "a/b:c")),
        (":x", remote("", "x")),
        ("main:~/x", remote("main", "x")),
        ("main:~", remote("main", "")),
        ("./a:b", Some(Side::Here("./a:b".into()))),
        ("a", Some(Side::Here("a".into()))),
        ("A b:c", None),
        ("", None),
    ] {
        assert_eq!(side(OsStr::new(word)).ok(), expected, "{word}");
    }
}

#[test]
fn a_path_in_a_box_has_a_folder_and_a_name() {
    for (path, folder, name) in [
        ("", "./", None),
        ("a", "./", Some("a")),
        ("-a", "./", Some("-a")),
        ("a/b/", "./a/", Some("b")),
        ("/a", "/", Some("a")),
        ("/", "/", None),
        ("a/..", "./a/..", None),
        ("/a/b", "/a/", Some("b")),
    ] {
        let (found, last) = split(path.as_bytes());
        assert_eq!(
            (String::from_utf8_lossy(&found).as_ref(), last.as_deref()),
            (folder, name.map(str::as_bytes)),
            "{path}"
        );
    }
}

proptest! {
    #[test]
    fn no_stream_crashes_the_extractor(noise in proptest::collection::vec(any::<u8>(), 0..2048), at in 0_usize..1536) {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = Builder::new(Vec::new());
        entry(&mut builder, EntryType::Regular, b"b", b"", &[1; 600], 0o644);
        let mut stream = builder.into_inner().unwrap();
        for (place, byte) in stream[at..].iter_mut().zip(&noise) {
            *place = *byte;
        }
        let _ = unpack(&stream, &folder.path().join("b"), Some("b"));
    }
}
