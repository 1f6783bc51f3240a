use std::fs;
use std::io::Cursor;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use cocoonbox_wire::silkd::ErrorKind;
use tar::{Builder, EntryType, Header};
use tempfile::tempdir;

use super::{pack, unpack};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Entry<'a>(EntryType, &'a [u8], &'a str, &'a [u8]);

/// Names are written into the header as they are: the library refuses the ones that matter here.
fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for Entry(kind, name, link, data) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_mtime(1_000_000_000);
        header.set_size(data.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        builder.append(&header, Cursor::new(data)).unwrap();
    }
    builder.into_inner().unwrap()
}

fn listing(root: &Path) -> Vec<String> {
    fn walk(root: &Path, at: &Path, out: &mut Vec<String>) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            out.push(path.strip_prefix(root).unwrap().to_string_lossy().into_owned());
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                walk(root, &path, out);
            }
        }
    }
    let mut out = Vec::new();
    walk(root, root, &mut out);
    out.sort();
    out
}

const FILE: EntryType = EntryType::Regular;

#[test]
fn a_tree_comes_back_as_it_was() -> Result {
    let (from, to) = (tempdir()?, tempdir()?);
    let deep = from.path().join("a").join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep)?;
    fs::write(deep.join("f"), vec![7; 3_000_000])?;
    fs::write(from.path().join("x"), "x")?;
    fs::set_permissions(from.path().join("x"), fs::Permissions::from_mode(0o751))?;
    symlink("/etc/passwd", from.path().join("abs"))?;
    symlink("l".repeat(300), from.path().join("long"))?;
    fs::create_dir(from.path().join("read-only"))?;
    fs::write(from.path().join("read-only/f"), "f")?;
    fs::set_permissions(from.path().join("read-only"), fs::Permissions::from_mode(0o555))?;
    let mut bytes = Vec::new();
    pack(from.path(), |chunk| {
        bytes.extend_from_slice(&chunk);
        Ok(())
    })?;
    unpack(&bytes[..], to.path())?;
    unpack(&bytes[..], to.path())?;
    assert_eq!(listing(from.path()), listing(to.path()));
    for name in listing(from.path()) {
        let (old, new) =
            (fs::symlink_metadata(from.path().join(&name))?, fs::symlink_metadata(to.path().join(&name))?);
        assert_eq!((old.mode(), old.len(), old.mtime()), (new.mode(), new.len(), new.mtime()), "{name}");
    }
    assert_eq!(fs::read(to.path().join(deep.strip_prefix(from.path())?).join("f"))?, vec![7; 3_000_000]);
    let mut one = Vec::new();
    pack(&from.path().join("x"), |chunk| {
        one.extend_from_slice(&chunk);
        Ok(())
    })?;
    let alone = tempdir()?;
    unpack(&one[..], &alone.path().join("new/deep"))?;
    assert_eq!(fs::read(alone.path().join("new/deep/x"))?, b"x");
    Ok(())
}

#[test]
fn no_entry_leads_out_of_the_destination() -> Result {
    let attacks: [(&str, Vec<Entry<'_>>); 8] = [
        ("dots", vec![Entry(FILE, b"../evil", "", b"x")]),
        ("dots within", vec![Entry(FILE, b"a/../../evil", "", b"x")]),
        ("absolute", vec![Entry(FILE, b"/tmp/cocoonbox-evil", "", b"x")]),
        (
            "through a link",
            vec![Entry(EntryType::Symlink, b"l", "..", b""), Entry(FILE, b"l/evil", "", b"x")],
        ),
        (
            "through a link to a directory of its own",
            vec![
                Entry(EntryType::Directory, b"d", "", b""),
                Entry(EntryType::Symlink, b"l", "d", b""),
                Entry(FILE, b"l/evil", "", b"x"),
            ],
        ),
        ("hard link out", vec![Entry(EntryType::Link, b"h", "../secret", b"")]),
        (
            "hard link through a link",
            vec![Entry(EntryType::Symlink, b"l", "..", b""), Entry(EntryType::Link, b"h", "l/secret", b"")],
        ),
        ("empty link", vec![Entry(EntryType::Link, b"h", "", b"")]),
    ];
    for (name, entries) in attacks {
        let base = tempdir()?;
        fs::write(base.path().join("secret"), "s")?;
        let dest = base.path().join("dest");
        fs::create_dir(&dest)?;
        fs::write(dest.join("kept"), "kept")?;
        let error = unpack(&archive(&entries)[..], &dest).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::BadRequest, "{name}: {error}");
        assert_eq!(listing(base.path()), ["dest", "dest/kept", "secret"], "{name}");
        assert_eq!(fs::metadata(base.path().join("secret"))?.nlink(), 1, "{name}");
    }
    assert!(!Path::new("/tmp/cocoonbox-evil").exists());
    Ok(())
}

#[test]
fn a_link_that_is_already_there_is_not_followed() -> Result {
    let base = tempdir()?;
    let (dest, outside) = (base.path().join("dest"), base.path().join("outside"));
    fs::create_dir(&dest)?;
    fs::create_dir(&outside)?;
    symlink(&outside, dest.join("l"))?;
    assert!(unpack(&archive(&[Entry(FILE, b"l/evil", "", b"x")])[..], &dest).is_err());
    assert_eq!(listing(&outside), [""; 0]);
    // a file of that name replaces the link, it does not write through it
    fs::write(outside.join("f"), "old")?;
    symlink(outside.join("f"), dest.join("f"))?;
    unpack(&archive(&[Entry(FILE, b"f", "", b"new")])[..], &dest)?;
    assert_eq!((fs::read(outside.join("f"))?, fs::read(dest.join("f"))?), (b"old".to_vec(), b"new".to_vec()));
    Ok(())
}

#[test]
fn a_later_entry_replaces_an_earlier_one_even_a_link() -> Result {
    let base = tempdir()?;
    let dest = base.path().join("dest");
    let entries = [
        Entry(EntryType::Symlink, b"f", "../secret", b""),
        Entry(FILE, b"f", "", b"new"),
        Entry(FILE, b"f", "", b"2"),
    ];
    fs::write(base.path().join("secret"), "s")?;
    unpack(&archive(&entries)[..], &dest)?;
    assert_eq!(
        (fs::read(dest.join("f"))?, fs::read(base.path().join("secret"))?),
        (b"2".to_vec(), b"s".to_vec())
    );
    Ok(())
}

#[test]
fn an_archive_cut_anywhere_leaves_the_destination_as_it_was() -> Result {
    let whole = archive(&[Entry(FILE, b"a", "", &[1; 700]), Entry(FILE, b"b", "", b"bb")]);
    let end = whole.len() - 1024;
    for cut in [0, 1, 511, 512, 600, 1024, 1536, 1537, 2048, 2560, end - 1, end, end + 511] {
        let dest = tempdir()?;
        let error = unpack(&whole[..cut], dest.path()).expect_err("a cut archive");
        assert_eq!(error.kind(), ErrorKind::BadRequest, "{cut}");
        assert_eq!(listing(dest.path()), [""; 0], "{cut}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_unpacked_is_refused() -> Result {
    let dest = tempdir()?;
    for kind in [EntryType::Fifo, EntryType::Block, EntryType::Char, EntryType::GNUSparse] {
        let error = unpack(&archive(&[Entry(kind, b"x", "", b"")])[..], dest.path()).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::BadRequest, "{error}");
    }
    let long = vec![b'a'; 70_000];
    let error = unpack(&archive(&[Entry(EntryType::GNULongName, b"x", "", &long)])[..], dest.path());
    assert!(error.expect_err("too long").to_string().contains("extended header"));
    assert!(unpack(&[7; 4096][..], dest.path()).is_err());
    assert_eq!(listing(dest.path()), [""; 0]);
    Ok(())
}
