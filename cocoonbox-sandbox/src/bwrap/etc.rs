//! The `/etc` of an image in one piece.
//!
//! An image shows dozens of entries of `/etc`, and bwrap looks through every mount for each mount that it makes. So a
//! copy of them is kept in `<data>/etc/<digest>`, which all boxes of the image share: one mount. Folders with much in
//! them are mounted over it, as many files are slower to make than a mount is. The digest is of what tells that an
//! entry changed, and boxes that run keep the copy that they were started with.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

use super::image::{self, Source};
use super::registry::hold;
use super::{disk, open, tree};

/// How long a copy counts as what the image has.
const FRESH: Duration = Duration::from_secs(1);
/// The most that a copied folder has in it; one with more is mounted.
const MANY: usize = 40;
/// The most entries and bytes that are copied; an image with more is seen entry by entry.
const MOST_ENTRIES: usize = 1024;
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// The copies of a data directory.
#[derive(Debug)]
pub(super) struct Copies {
    directory: PathBuf,
    /// By image: its copy, where it can have one, and when that was seen.
    known: Mutex<HashMap<PathBuf, (Option<Copy>, Duration)>>,
}

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// What it is called among the copies.
    pub(super) name: String,
    /// What is to be mounted over it, by its path in `/etc`.
    pub(super) mounted: Vec<PathBuf>,
}

/// One entry of `/etc`, by its path there.
#[derive(Debug, PartialEq, Eq)]
struct Item {
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Folder,
    /// A folder that is mounted.
    Mounted,
    Link(PathBuf),
    /// Its mode's bits for all to read and to run; its length, inode and last change in nanoseconds.
    File {
        mode: u32,
        length: u64,
        inode: u64,
        changed: (i64, i64),
    },
}

impl Copies {
    pub(super) fn new(data: &Path) -> Self {
        Self { directory: data.join("etc"), known: Mutex::default() }
    }

    /// Where a copy lies.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns a copy of an image's `/etc` as it was within the last second; nothing where there can be
    /// none, and each entry is to be shown by itself. `now` is steady time.
    pub(super) fn latest(&self, source: &Source, now: Duration) -> Option<Copy> {
        let image = match source {
            Source::Host => PathBuf::from("/"),
            // an image that is a whole machine shows what no copy should hold
            Source::Rootfs(rootfs) if rootfs.parent().is_none() => return None,
            Source::Rootfs(rootfs) => rootfs.clone(),
        };
        // whoever waits here would have made the same copy
        let mut known = hold(&self.known);
        if let Some((copy, seen)) = known.get(&image)
            && now.saturating_sub(*seen) < FRESH
        {
            return copy.clone();
        }
        let copy = self.copy(&image, source).inspect_err(|error| {
            tracing::warn!(%error, image = %image.display(), "boxes see each entry of /etc by itself");
        });
        let copy = copy.ok();
        known.insert(image, (copy.clone(), now));
        copy
    }

    fn copy(&self, image: &Path, source: &Source) -> io::Result<Copy> {
        let etc = image.join("etc");
        let items = list(&etc, image::etc_names(source)?)?;
        let name = open::hex(&digest(&items)[..16]);
        let is_mounted = |item: &&Item| item.kind == Kind::Mounted;
        let mounted = items.iter().filter(is_mounted).map(|item| item.path.clone()).collect();
        let copy = Copy { name, mounted };
        let place = self.path(&copy.name);
        if place.is_dir() {
            return Ok(copy);
        }
        disk::directory(&self.directory, 0o755)?;
        let new = self.directory.join(format!(".{}.new", copy.name));
        tree::remove(&new)?;
        let made = fill(&new, &etc, &items).and_then(|()| fs::rename(&new, &place));
        made.inspect_err(|_| drop(tree::remove(&new)))?;
        Ok(copy)
    }

    /// Removes the copies that no box runs with. What is left was made since the machine started, as something runs.
    pub(super) fn remove_unused(&self, used: &[String]) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if !used.iter().any(|used| entry.file_name() == **used) {
                let _ = tree::remove(&entry.path());
            }
        }
    }
}

/// Lists what is below the named entries of `etc`, folders before what is in them; what is gone meanwhile, what is
/// neither file, folder nor link, and what not all may read is left out.
fn list(etc: &Path, mut names: Vec<OsString>) -> io::Result<Vec<Item>> {
    names.sort();
    let (mut items, mut bytes) = (Vec::new(), 0);
    for name in names {
        items.extend(below(etc, PathBuf::from(name), &mut bytes)?);
        if items.len() > MOST_ENTRIES || bytes > MOST_BYTES {
            return Err(too_large());
        }
    }
    Ok(items)
}

/// Lists one entry and what is in it.
fn below(etc: &Path, top: PathBuf, bytes: &mut u64) -> io::Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut left = vec![top.clone()];
    while let Some(path) = left.pop() {
        let full = etc.join(&path);
        let found = match fs::symlink_metadata(&full) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let kind = if found.is_symlink() {
            Kind::Link(fs::read_link(&full)?)
        } else if found.is_dir() && found.mode() & 0o005 == 0o005 {
            let inside = fs::read_dir(&full)?.take(MANY + 1).map(|entry| Ok(path.join(entry?.file_name())));
            let mut inside = inside.collect::<io::Result<Vec<_>>>()?;
            inside.sort();
            left.extend(inside.into_iter().rev());
            Kind::Folder
        } else if found.is_file() && found.mode() & 0o004 != 0 {
            *bytes += found.len();
            let changed = (found.mtime(), found.mtime_nsec());
            Kind::File { mode: found.mode() & 0o005, length: found.len(), inode: found.ino(), changed }
        } else {
            continue;
        };
        items.push(Item { path, kind });
        if items.len() + left.len() > MANY {
            return Ok(vec![Item { path: top, kind: Kind::Mounted }]);
        }
    }
    Ok(items)
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "its /etc is too large to be copied")
}

fn digest(items: &[Item]) -> [u8; 32] {
    let mut digest = Sha256::new();
    let mut add = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    for Item { path, kind } in items {
        add(path.as_os_str().as_bytes());
        match kind {
            Kind::Folder => add(b"folder"),
            Kind::Mounted => add(b"mounted"),
            Kind::Link(target) => {
                add(b"link");
                add(target.as_os_str().as_bytes());
            }
            Kind::File { mode, length, inode, changed: (seconds, nanoseconds) } => {
                add(format!("file {mode} {length} {inode} {seconds} {nanoseconds}").as_bytes());
            }
        }
    }
    for (name, content) in own() {
        add(name.as_bytes());
        add(content.as_bytes());
    }
    digest.finalize().into()
}

/// The files that every box has of its own; those with its host name are there to be mounted over.
fn own() -> impl Iterator<Item = (&'static str, String)> {
    let fixed = |(name, content)| {
        let content = if image::NAMED.contains(&name) { String::new() } else { content };
        (name, content)
    };
    image::own_etc("").into_iter().map(fixed)
}

fn fill(new: &Path, etc: &Path, items: &[Item]) -> io::Result<()> {
    disk::directory(new, 0o755)?;
    for Item { path, kind } in items {
        let to = new.join(path);
        // a name of the host's list may have several parts, whose folders are not listed
        if let Some(parent) = path.parent().filter(|parent| parent.components().count() > 0)
            && !new.join(parent).is_dir()
        {
            let parts = parent.ancestors().collect::<Vec<_>>().into_iter().rev();
            parts.skip(1).try_for_each(|part| disk::directory(&new.join(part), 0o755))?;
        }
        match kind {
            Kind::Folder | Kind::Mounted => disk::directory(&to, 0o755)?,
            Kind::Link(target) => symlink(target, &to)?,
            Kind::File { mode, .. } => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let mut from =
                    fs::File::from(rustix::fs::open(etc.join(path).as_path(), flags, Mode::empty())?);
                let mut file = fs::File::create_new(&to)?;
                io::copy(&mut from, &mut file)?;
                set_mode(&file, 0o644 | if mode & 0o001 == 0 { 0 } else { 0o111 })?;
            }
        }
    }
    for (name, content) in own() {
        disk::overwrite(&new.join(name), content.as_bytes())?;
    }
    image::OWN_ETC_LINKS.iter().try_for_each(|(name, target)| symlink(target, new.join(name)))
}

fn set_mode(file: &fs::File, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    type Anyhow = Box<dyn std::error::Error>;

    fn image() -> Result<(tempfile::TempDir, PathBuf, Copies), Anyhow> {
        let folder = tempfile::tempdir()?;
        let rootfs = folder.path().join("rootfs");
        fs::create_dir_all(rootfs.join("etc/ssl/certs"))?;
        fs::write(rootfs.join("etc/ssl/certs/a.pem"), "one")?;
        fs::write(rootfs.join("etc/issue"), "hello")?;
        fs::write(rootfs.join("etc/passwd"), "the image's")?;
        symlink("ssl/certs/a.pem", rootfs.join("etc/link"))?;
        let copies = Copies::new(folder.path());
        Ok((folder, rootfs, copies))
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_copy_is_what_the_image_has_and_follows_it() -> Result<(), Anyhow> {
        let (_folder, rootfs, copies) = image()?;
        let source = Source::Rootfs(rootfs.clone());
        let first = copies.latest(&source, at(1)).ok_or("copied")?;
        let path = copies.path(&first.name);
        assert_eq!(fs::read_to_string(path.join("ssl/certs/a.pem"))?, "one");
        assert_eq!(fs::read_link(path.join("link"))?, Path::new("ssl/certs/a.pem"));
        assert_eq!(fs::read_link(path.join("mtab"))?, Path::new("/proc/self/mounts"));
        assert!(fs::read_to_string(path.join("passwd"))?.starts_with("root:x:0"));
        assert_eq!(fs::read_to_string(path.join("hostname"))?, "");
        assert_eq!(fs::metadata(path.join("ssl"))?.permissions().mode() & 0o777, 0o755);

        assert_eq!(copies.latest(&source, at(5)).as_ref(), Some(&first));
        fs::write(rootfs.join("etc/ssl/certs/a.pem"), "two!")?;
        assert_eq!(copies.latest(&source, at(5)).as_ref(), Some(&first), "within a second it is not asked");
        let second = copies.latest(&source, at(6)).ok_or("copied")?;
        assert_eq!(fs::read_to_string(copies.path(&second.name).join("ssl/certs/a.pem"))?, "two!");
        assert_eq!(fs::read_to_string(path.join("ssl/certs/a.pem"))?, "one", "who runs keeps its copy");

        fs::create_dir(copies.path(".left.new"))?;
        copies.remove_unused(std::slice::from_ref(&second.name));
        let left: Vec<_> = fs::read_dir(&copies.directory)?
            .map(|entry| entry.map(|e| e.file_name()))
            .collect::<Result<_, _>>()?;
        assert_eq!(left, [OsString::from(second.name)]);
        Ok(())
    }

    #[test]
    fn what_not_all_may_read_is_not_copied() -> Result<(), Anyhow> {
        let (_folder, rootfs, copies) = image()?;
        let source = Source::Rootfs(rootfs.clone());
        for (seconds, (mode, copied)) in
            [(0o644, true), (0o640, false), (0o600, false), (0o604, true)].into_iter().enumerate()
        {
            fs::set_permissions(rootfs.join("etc/issue"), fs::Permissions::from_mode(mode))?;
            let name = copies.latest(&source, at(2 * seconds as u64)).ok_or("copied")?;
            assert_eq!(copies.path(&name.name).join("issue").exists(), copied, "{mode:o}");
        }
        fs::set_permissions(rootfs.join("etc/ssl"), fs::Permissions::from_mode(0o700))?;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            rootfs.join("etc/pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o666),
            0,
        )?;
        let name = copies.latest(&source, at(60)).ok_or("copied")?;
        assert!(
            !copies.path(&name.name).join("ssl").exists() && !copies.path(&name.name).join("pipe").exists()
        );
        Ok(())
    }

    #[test]
    fn a_folder_with_much_in_it_is_mounted() -> Result<(), Anyhow> {
        let (_folder, rootfs, copies) = image()?;
        let source = Source::Rootfs(rootfs.clone());
        // wide, and deep
        for nth in 0..MANY {
            fs::write(rootfs.join(format!("etc/ssl/certs/{nth}")), "")?;
        }
        fs::create_dir_all(rootfs.join("etc").join("d/".repeat(MANY + 1)))?;
        let copy = copies.latest(&source, at(1)).ok_or("copied")?;
        assert_eq!(copy.mounted, [Path::new("d"), Path::new("ssl")]);
        let place = copies.path(&copy.name);
        assert_eq!(
            (fs::read_dir(place.join("ssl"))?.count(), fs::read_dir(place.join("d"))?.count()),
            (0, 0)
        );
        assert_eq!(fs::read_to_string(place.join("issue"))?, "hello");
        // what changes in it is no reason for another copy
        fs::write(rootfs.join("etc/ssl/certs/new"), "")?;
        assert_eq!(copies.latest(&source, at(9)), Some(copy));
        Ok(())
    }

    #[test]
    fn an_etc_without_end_is_not_copied_and_leaves_nothing() -> Result<(), Anyhow> {
        let (_folder, rootfs, copies) = image()?;
        let source = Source::Rootfs(rootfs.clone());
        let big = fs::File::create(rootfs.join("etc/big"))?;
        big.set_len(MOST_BYTES + 1)?;
        assert_eq!(copies.latest(&source, at(1)), None);
        fs::remove_file(rootfs.join("etc/big"))?;
        for nth in 0..=MOST_ENTRIES {
            fs::write(rootfs.join(format!("etc/file-{nth}")), "")?;
        }
        assert_eq!(copies.latest(&source, at(3)), None);
        assert!(!copies.directory.exists());
        assert_eq!(copies.latest(&Source::Rootfs("/".into()), at(5)), None);
        Ok(())
    }
}
