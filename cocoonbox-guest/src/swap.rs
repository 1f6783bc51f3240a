//! Puts what was restored in the place of what a box has, before anything of the box runs.
//!
//! Home and workspace may be file systems of their own, so each is changed by itself: what was restored lies beneath it,
//! in `.cocoonbox-restore/new`, whole and proven, when its `ready` file appears. What was there goes to
//! `.cocoonbox-restore/old`, name by name; then `ready` becomes `moving`, and what is new comes, name by name. Cut off at
//! any point it is gone on with at the next start, from the file that is there.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The folder, in home and workspace, of a restore that is under way; never saved.
pub(crate) const FOLDER: &str = ".cocoonbox-restore";

/// The folder, in home and workspace, of what restores replaced, until it is removed; never saved.
pub(crate) const REPLACED: &str = ".cocoonbox-replaced";

/// What is saved of a box, and restored.
pub(crate) const ROOTS: [&str; 2] = ["/home/user", "/workspace"];

/// What was restored beneath `root` lies here.
pub(crate) fn new_of(root: &Path) -> PathBuf {
    root.join(FOLDER).join("new")
}

/// Removes what an earlier restore left beneath `root` and was never ready.
pub(crate) fn clear(root: &Path) -> io::Result<()> {
    let folder = root.join(FOLDER);
    if !is_there(&folder) {
        return Ok(());
    }
    if !folder.is_symlink() {
        // first what says that it is to be used
        remove(&folder.join("ready"))?;
        remove(&folder.join("moving"))?;
    }
    take_away(root, &folder)
}

/// Makes the place of a restore beneath `root`. One of the same save that was broken off is gone on with, others go.
pub(crate) fn begin(root: &Path, save: &str) -> io::Result<()> {
    let (folder, new) = (root.join(FOLDER), new_of(root));
    let over =
        ["ready", "moving", "done"].iter().any(|name| folder.join(name).exists()) || whole_of(root).exists();
    if new.exists() && !over && noted(&folder.join("save")).is_ok_and(|noted| noted == save) {
        return Ok(());
    }
    clear(root)?;
    fs::create_dir_all(&new)?;
    fs::write(folder.join("save"), save)
}

fn noted(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    // whatever else the box may have put there
    File::open(file)?.take(64).read_to_string(&mut text)?;
    Ok(text)
}

/// What takes the place of what was restored in parts, once all of it is right.
fn whole_of(root: &Path) -> PathBuf {
    root.join(FOLDER).join("whole")
}

/// Makes `restored`, a folder in [`new_of`], all that is new beneath `root`.
pub(crate) fn settle_on(root: &Path, restored: &Path) -> io::Result<()> {
    let (new, whole) = (new_of(root), whole_of(root));
    fs::rename(restored, &whole)?;
    fs::remove_dir_all(&new)?;
    fs::rename(&whole, &new)
}

/// Removes a folder of `root` with all that is in it. A link that the box put there is removed, not followed.
fn take_away(root: &Path, folder: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(folder)?.is_dir() {
        return unaged(root, || fs::remove_file(folder));
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    unaged(root, || fs::remove_dir(folder))
}

/// Whether a name is there, be it a link to nowhere.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Does something to the names in `root`, which is then as old as it was: as what was restored, or as the box made it.
fn unaged(root: &Path, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let modified = fs::metadata(root)?.modified()?;
    work()?;
    File::open(root)?.set_times(fs::FileTimes::new().set_modified(modified))
}

/// Holds when a restore took its place at this start, and what it replaced is still there.
pub(crate) fn is_done(roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| root.join(FOLDER).join("done").exists())
}

/// Puts what a restore replaced aside, where it is done: the next restore has the place to itself.
pub(crate) fn set_aside(roots: &[PathBuf]) -> io::Result<()> {
    for root in roots {
        let folder = root.join(FOLDER);
        if !folder.join("done").exists() {
            continue;
        }
        let replaced = root.join(REPLACED);
        unaged(root, || {
            fs::create_dir_all(&replaced)?;
            // what an earlier start did not come to remove is still there
            let free =
                (0..u32::MAX).map(|number| replaced.join(number.to_string())).find(|path| !path.exists());
            fs::rename(&folder, free.ok_or(io::ErrorKind::AlreadyExists)?)
        })?;
    }
    Ok(())
}

/// Removes what restores replaced.
pub(crate) fn tidy(roots: &[PathBuf]) -> io::Result<()> {
    for root in roots.iter().filter(|root| is_there(&root.join(REPLACED))) {
        take_away(root, &root.join(REPLACED))?;
    }
    Ok(())
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Says of every root at once, as far as one can, that what was restored takes its place at the next start.
pub(crate) fn ready(roots: &[PathBuf]) -> io::Result<()> {
    for root in roots {
        let folder = root.join(FOLDER);
        let mut file = File::create(folder.join("ready"))?;
        // moving names out of a folder makes it younger: what it was is written down
        let meta = fs::metadata(new_of(root))?;
        write!(file, "{} {} {}", meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec())?;
        file.sync_all()?;
        File::open(&folder)?.sync_all()?;
    }
    Ok(())
}

/// Goes on where the last start left off; nothing is done where nothing is ready. What is old is left for
/// [`set_aside`].
///
/// # Errors
/// The first that occurs; the other roots are gone on with all the same.
pub(crate) fn settle(roots: &[PathBuf]) -> io::Result<()> {
    let mut result = Ok(());
    // all or none: who was cut off before the last root was ready keeps what there was
    let any_moving = roots.iter().any(|root| root.join(FOLDER).join("moving").exists());
    let all_ready = roots.iter().all(|root| {
        let folder = root.join(FOLDER);
        folder.join("ready").exists() || folder.join("moving").exists() || folder.join("done").exists()
    });
    if any_moving || all_ready {
        for root in roots {
            result = result.and(settle_one(root));
        }
    }
    result
}

fn settle_one(root: &Path) -> io::Result<()> {
    let folder = root.join(FOLDER);
    let (ready, moving, done) = (folder.join("ready"), folder.join("moving"), folder.join("done"));
    if ready.exists() {
        let old = folder.join("old");
        match fs::create_dir(&old) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // a home's cache is in no save: what is there stays
        let cache = if root.ends_with(ROOTS[0].trim_start_matches('/')) { ".cache" } else { FOLDER };
        move_all(root, &old, &[FOLDER, cache])?;
        File::open(root)?.sync_all()?;
        fs::rename(&ready, &moving)?;
        File::open(&folder)?.sync_all()?;
    }
    if moving.exists() {
        move_all(&new_of(root), root, &[])?;
        let written = fs::read_to_string(&moving)?;
        let before = read(&written);
        if let Some((mode, _)) = before {
            fs::set_permissions(root, fs::Permissions::from_mode(mode))?;
        }
        File::open(root)?.sync_all()?;
        fs::rename(&moving, &done)?;
        File::open(&folder)?.sync_all()?;
        if let Some((_, modified)) = before {
            File::open(root)?.set_times(fs::FileTimes::new().set_modified(modified))?;
        }
    }
    Ok(())
}

/// Reads the mode and the time that [`ready`] wrote.
fn read(text: &str) -> Option<(u32, SystemTime)> {
    let mut numbers = text.split(' ');
    let mode = numbers.next()?.parse::<u32>().ok()? & 0o7777;
    let (seconds, nanos) = (numbers.next()?.parse::<i64>().ok()?, numbers.next()?.parse::<u32>().ok()?);
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let at = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    Some((mode, at?.checked_add(Duration::from_nanos(nanos.into()))?))
}

fn move_all(from: &Path, to: &Path, but: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if but.iter().all(|name| entry.file_name() != *name) {
            fs::rename(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != FOLDER)
            .collect();
        names.sort();
        names
    }

    fn prepared(root: &Path) {
        fs::create_dir_all(root).unwrap();
        fs::write(root.join("old-file"), "old").unwrap();
        fs::create_dir_all(root.join("both")).unwrap();
        fs::write(root.join("both/old"), "old").unwrap();
        let new = new_of(root);
        fs::create_dir_all(new.join("both")).unwrap();
        fs::write(new.join("both/new"), "new").unwrap();
        fs::write(new.join("new-file"), "new").unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o710)).unwrap();
        File::open(&new).unwrap().set_times(fs::FileTimes::new().set_modified(long_ago())).unwrap();
    }

    /// When what is restored was last changed: before 1970, and not on a whole second.
    fn long_ago() -> SystemTime {
        UNIX_EPOCH - Duration::from_millis(1500)
    }

    fn is_old(root: &Path) {
        let meta = fs::metadata(root).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.modified().unwrap()), (0o710, long_ago()));
    }

    #[test]
    fn nothing_moves_until_all_is_ready() {
        let folder = tempfile::tempdir().unwrap();
        let roots = ["home", "workspace"].map(|name| folder.path().join(name));
        for root in &roots {
            prepared(root);
        }
        settle(&roots).unwrap();
        ready(&roots[..1]).unwrap();
        settle(&roots).unwrap();
        for root in &roots {
            assert_eq!(names(root), ["both", "old-file"]);
        }
        ready(&roots).unwrap();
        settle(&roots).unwrap();
        for root in &roots {
            assert_eq!(names(root), ["both", "new-file"]);
            assert_eq!(names(&root.join("both")), ["new"]);
            is_old(root);
        }
        // a second start changes nothing
        fs::write(roots[0].join("later"), "").unwrap();
        settle(&roots).unwrap();
        assert_eq!(names(&roots[0]), ["both", "later", "new-file"]);
        // what was replaced is out of the next restore's way at once, and gone a moment later
        fs::create_dir_all(roots[1].join(REPLACED).join("0")).unwrap();
        set_root_time(&roots[1]);
        assert!(is_done(&roots));
        set_aside(&roots).unwrap();
        assert!(!is_done(&roots));
        assert_eq!(names(&roots[1]), [REPLACED, "both", "new-file"]);
        assert_eq!(names(&roots[1].join(REPLACED)), ["0", "1"]);
        assert_eq!(names(&roots[1].join(REPLACED).join("1/old")), ["both", "old-file"]);
        is_old(&roots[1]);
        prepared(&roots[0]);
        set_root_time(&roots[0]);
        tidy(&roots).unwrap();
        assert!(!roots[0].join(REPLACED).exists() && !roots[1].join(REPLACED).exists());
        assert!(new_of(&roots[0]).join("new-file").exists(), "a restore that is under way stays");
        is_old(&roots[1]);
        clear(&roots[0]).unwrap();
        assert!(!roots[0].join(FOLDER).exists());
        is_old(&roots[0]);
    }

    fn set_root_time(root: &Path) {
        fs::set_permissions(root, fs::Permissions::from_mode(0o710)).unwrap();
        File::open(root).unwrap().set_times(fs::FileTimes::new().set_modified(long_ago())).unwrap();
    }

    #[test]
    fn a_restore_that_was_broken_off_is_gone_on_with_by_one_of_the_same_save() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("home");
        fs::create_dir(&root).unwrap();
        let part = new_of(&root).join("part");
        let write = || {
            fs::create_dir_all(&part).unwrap();
            fs::write(part.join("file"), "restored").unwrap();
        };
        begin(&root, "one").unwrap();
        write();
        begin(&root, "one").unwrap();
        assert_eq!(names(&part), ["file"]);
        begin(&root, "other").unwrap();
        assert!(names(&new_of(&root)).is_empty());
        write();
        settle_on(&root, &part).unwrap();
        assert_eq!(names(&new_of(&root)), ["file"]);
        // it is whole, and the next one starts anew
        ready(std::slice::from_ref(&root)).unwrap();
        begin(&root, "other").unwrap();
        assert!(names(&new_of(&root)).is_empty());
        // cut off when it was about to be whole
        write();
        fs::rename(&part, whole_of(&root)).unwrap();
        begin(&root, "other").unwrap();
        assert!(names(&new_of(&root)).is_empty() && !whole_of(&root).exists());
        // what says nothing is no reason to trust what is there
        write();
        fs::write(root.join(FOLDER).join("save"), "other".repeat(100)).unwrap();
        begin(&root, "other").unwrap();
        assert!(names(&new_of(&root)).is_empty());
    }

    #[test]
    fn a_link_in_the_place_of_what_is_removed_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (root, other) = (folder.path().join("home"), folder.path().join("other"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&other).unwrap();
        for name in ["ready", "file"] {
            fs::write(other.join(name), "kept").unwrap();
        }
        for name in [FOLDER, REPLACED] {
            std::os::unix::fs::symlink(&other, root.join(name)).unwrap();
        }
        clear(&root).unwrap();
        tidy(std::slice::from_ref(&root)).unwrap();
        assert!(names(&root).is_empty() && !is_there(&root.join(FOLDER)));
        assert_eq!(names(&other), ["file", "ready"]);
    }

    #[test]
    fn whoever_was_cut_off_goes_on() {
        // every step that a name takes is one that may be the last
        for steps in 0..6 {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("home");
            prepared(&root);
            ready(std::slice::from_ref(&root)).unwrap();
            let inner = root.join(FOLDER);
            let by_hand: [&dyn Fn(); 6] = [
                &|| fs::create_dir(inner.join("old")).unwrap(),
                &|| fs::rename(root.join("both"), inner.join("old/both")).unwrap(),
                &|| fs::rename(root.join("old-file"), inner.join("old/old-file")).unwrap(),
                &|| fs::rename(inner.join("ready"), inner.join("moving")).unwrap(),
                &|| fs::rename(inner.join("new/both"), root.join("both")).unwrap(),
                &|| fs::rename(inner.join("new/new-file"), root.join("new-file")).unwrap(),
            ];
            by_hand.iter().take(steps).for_each(|step| step());
            settle(std::slice::from_ref(&root)).unwrap();
            assert_eq!(names(&root), ["both", "new-file"], "after {steps} steps");
            assert_eq!(names(&root.join("both")), ["new"], "after {steps} steps");
            is_old(&root);
            assert_eq!(names(&inner.join("old")), ["both", "old-file"], "after {steps} steps");
        }
    }
}
