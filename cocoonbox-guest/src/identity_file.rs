//! Reading the box's identity, from a file that only the host can have written.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use cocoonbox_core::Retry;
use cocoonbox_wire::identity::{Identity, IdentityError, MAX_BYTES};
use rustix::fs::{FileType, Mode, OFlags, Stat, StatVfsMountFlags, fstat, fstatvfs, open, openat};

/// What unmapped owners are shown as in a user namespace.
const OVERFLOW_UID: u32 = 65534;

/// An identity that is not believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityFileError {
    /// The file or its directory cannot be read.
    #[error("the identity file cannot be read")]
    Unreadable(#[source] io::Error),
    /// It is no regular file.
    #[error("the identity is not a regular file")]
    NotAFile,
    /// Someone else than the host may have written it.
    #[error("the identity's {what} is neither root's alone nor on a read-only mount")]
    NotTheHosts {
        /// The file, or its directory.
        what: &'static str,
    },
    /// Its content is no identity.
    #[error("the identity file holds no identity")]
    Content(#[from] IdentityError),
}

impl IdentityFileError {
    /// Tells what a caller may do.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Unreadable(_) => Retry::Later,
            Self::NotAFile | Self::NotTheHosts { .. } | Self::Content(_) => Retry::Never,
        }
    }
}

/// Reads the identity in `directory`.
///
/// It is believed when file and directory belong to root and nobody else may write them, or when both are on a
/// read-only mount, where the box shares its uid with the host's files.
///
/// # Errors
/// Any of [`IdentityFileError`].
pub(crate) fn read(directory: &Path, name: &str) -> Result<Identity, IdentityFileError> {
    let unreadable = |error: rustix::io::Errno| IdentityFileError::Unreadable(error.into());
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let directory = open(directory, flags | OFlags::DIRECTORY, Mode::empty()).map_err(unreadable)?;
    let file = openat(&directory, name, flags, Mode::empty()).map_err(unreadable)?;
    let root = Root::here();
    let mut read_only = true;
    let mut owned = None;
    for (what, fd) in [("directory", &directory), ("file", &file)] {
        let stat = fstat(fd).map_err(unreadable)?;
        let mount = fstatvfs(fd).map_err(unreadable)?;
        read_only &= mount.f_flag.contains(StatVfsMountFlags::RDONLY);
        if !root.owns(&stat) {
            owned.get_or_insert(what);
        }
        if what == "file" && FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(IdentityFileError::NotAFile);
        }
    }
    if let Some(what) = owned.filter(|_| !read_only) {
        return Err(IdentityFileError::NotTheHosts { what });
    }
    let mut bytes = Vec::new();
    File::from(file)
        .take(MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(IdentityFileError::Unreadable)?;
    Ok(Identity::parse(&bytes)?)
}

/// What root looks like from this user namespace.
#[derive(Debug)]
struct Root {
    /// The host's root is not mapped here: it shows as the overflow uid, which nobody here can become.
    unmapped: bool,
}

impl Root {
    fn here() -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self { unmapped: !maps(&map, 0) && !maps(&map, OVERFLOW_UID) }
    }

    fn owns(&self, stat: &Stat) -> bool {
        let owner = stat.st_uid == 0 || (self.unmapped && stat.st_uid == OVERFLOW_UID);
        owner && stat.st_mode & 0o022 == 0
    }
}

/// Tells whether a user namespace with this map has `uid`.
fn maps(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut fields = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) = (fields.next(), fields.next(), fields.next())
        else {
            return true;
        };
        (first..first.saturating_add(count)).contains(&u64::from(uid))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

    fn golden() -> &'static str {
        include_str!("../../fixtures/identity-v1.json").trim_end()
    }

    fn chmod(path: &Path, mode: u32) -> Result {
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
    }

    #[test]
    fn only_a_file_that_root_alone_can_write_is_believed() -> Result {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("identity");
        fs::write(&file, golden())?;
        let denied = |what| matches!(read(dir.path(), "identity"), Err(IdentityFileError::NotTheHosts { what: w }) if w == what);
        chmod(dir.path(), 0o755)?;
        chmod(&file, 0o644)?;
        assert_eq!(read(dir.path(), "identity")?.box_id.as_str(), "cb-abcdefghij");
        for mode in [0o664, 0o646, 0o666] {
            chmod(&file, mode)?;
            assert!(denied("file"), "{mode:o}");
        }
        chmod(&file, 0o644)?;
        for mode in [0o775, 0o757, 0o1777] {
            chmod(dir.path(), mode)?;
            assert!(denied("directory"), "{mode:o}");
        }
        chmod(dir.path(), 0o755)?;
        for uid in [1000, OVERFLOW_UID] {
            chown(&file, Some(uid), None)?;
            assert!(denied("file"), "{uid}");
        }
        chown(&file, Some(0), None)?;
        chown(dir.path(), Some(1000), None)?;
        assert!(denied("directory"));
        Ok(())
    }

    #[test]
    fn what_is_no_identity_file_is_refused() -> Result {
        let dir = tempfile::tempdir()?;
        chmod(dir.path(), 0o755)?;
        let put = |text: &[u8]| fs::write(dir.path().join("identity"), text);
        assert!(matches!(read(dir.path(), "identity"), Err(IdentityFileError::Unreadable(_))));
        put(&vec![b' '; MAX_BYTES + 1])?;
        assert!(matches!(
            read(dir.path(), "identity"),
            Err(IdentityFileError::Content(IdentityError::TooLarge(_)))
        ));
        for text in ["", "{", "[]", "{\"box_id\":\"x\"}"] {
            put(text.as_bytes())?;
            let error = read(dir.path(), "identity");
            assert!(
                matches!(error, Err(IdentityFileError::Content(IdentityError::Malformed { .. }))),
                "{text}"
            );
        }
        put(golden().replace("\"key_id\":\"", "\"key_id\":\"0").as_bytes())?;
        assert!(matches!(read(dir.path(), "identity"), Err(IdentityFileError::Content(_))));
        fs::rename(dir.path().join("identity"), dir.path().join("real"))?;
        symlink("real", dir.path().join("identity"))?;
        assert!(matches!(read(dir.path(), "identity"), Err(IdentityFileError::Unreadable(_))));
        fs::remove_file(dir.path().join("identity"))?;
        fs::create_dir(dir.path().join("identity"))?;
        assert!(matches!(read(dir.path(), "identity"), Err(IdentityFileError::NotAFile)));
        Ok(())
    }

    #[test]
    fn a_map_tells_who_is_in_a_user_namespace() {
        assert!(maps("         0          0 4294967295\n", OVERFLOW_UID));
        assert!(!maps("      1000          0          1\n", 0));
        assert!(maps("      1000          0          1\n", 1000));
        assert!(!maps("      1000     100000          1\n", 1001));
        assert!(maps("what", 0));
        assert!(!maps("", 0));
    }
}
