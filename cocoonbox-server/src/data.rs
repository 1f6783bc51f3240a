//! The data directory: who owns it, who uses it, and the key kept in it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cocoonbox_core::Entropy;
use cocoonbox_sandbox::node::SandboxKey;
use ed25519_dalek::SigningKey;
use rustix::fs::FlockOperation;

/// A data directory that this process alone uses.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Makes the directory where it is missing (mode 0700) and takes it for this process.
    ///
    /// # Errors
    /// It belongs to somebody else, cannot be written, or another server uses it; the message says what to do.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(|| {
            format!("the data directory {shown} cannot be made: choose another with --data DIR")
        })?;
        let owner =
            fs::metadata(path).with_context(|| format!("the data directory {shown} cannot be read"))?.uid();
        let own = rustix::process::geteuid().as_raw();
        if owner != own {
            bail!(
                "the data directory {shown} belongs to uid {owner} and this server runs as uid {own}: run it as that user, or choose another with --data DIR"
            );
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .with_context(|| format!("the data directory {shown} cannot be closed to others"))?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join("server.lock"))
            .with_context(|| format!("the data directory {shown} cannot be written"))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = (&lock).take(20).read_to_string(&mut holder);
            bail!(
                "another server (pid {}) uses the data directory {shown}: stop it, or choose another with --data DIR",
                holder.trim()
            );
        }
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .with_context(|| format!("the data directory {shown} cannot be written: is the disk full?"))?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Returns the path of `name` in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes `name` as one step that survives power loss, readable by the owner alone.
    ///
    /// # Errors
    /// The disk is full or the directory cannot be written.
    pub fn write_secret(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let (target, temporary) = (self.join(name), self.join(&format!("{name}.new")));
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, &target)?;
            File::open(target.parent().unwrap_or(&self.path))?.sync_all()
        };
        write().with_context(|| format!("{} cannot be written", target.display()))
    }

    /// Returns the key that signs call tokens, made at the first start.
    ///
    /// # Errors
    /// The key's file cannot be read or written, is open to others, or holds no key.
    pub fn signing_key(&self, entropy: &dyn Entropy) -> anyhow::Result<SigningKey> {
        Ok(SigningKey::from_bytes(&*self.secret_key("call-signing.key", entropy)?))
    }

    /// Returns a key of 32 bytes out of the file `name`, made at the first start.
    ///
    /// # Errors
    /// The key's file cannot be read or written, is open to others, or holds no key.
    pub fn secret_key(
        &self,
        name: &str,
        entropy: &dyn Entropy,
    ) -> anyhow::Result<zeroize::Zeroizing<[u8; 32]>> {
        if let Some(key) = self.held_key(name)? {
            return Ok(key);
        }
        let mut key = zeroize::Zeroizing::new([0_u8; 32]);
        entropy.fill(key.as_mut_slice())?;
        self.write_secret(name, key.as_slice())?;
        Ok(key)
    }

    /// Returns a key of 32 bytes out of the file `name`; none when there is no such file.
    ///
    /// # Errors
    /// The key's file cannot be read, is open to others, or holds no key.
    pub fn held_key(&self, name: &str) -> anyhow::Result<Option<zeroize::Zeroizing<[u8; 32]>>> {
        let path = self.join(name);
        let Some(bytes) = read_secret(&path)? else { return Ok(None) };
        let mut key = zeroize::Zeroizing::new([0_u8; 32]);
        let held: &[u8; 32] = bytes
            .as_slice()
            .try_into()
            .with_context(|| format!("{} holds no key of 32 bytes", path.display()))?;
        key.copy_from_slice(held);
        Ok(Some(key))
    }

    /// Gives the file `from` the name `to` as one step that survives power loss.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn rename(&self, from: &str, to: &str) -> anyhow::Result<()> {
        let done =
            fs::rename(self.join(from), self.join(to)).and_then(|()| File::open(&self.path)?.sync_all());
        done.with_context(|| format!("{} cannot be written", self.join(to).display()))
    }

    /// Returns the key that the tokens of the node's sandboxes follow from, made at the first start.
    ///
    /// # Errors
    /// The key's file cannot be read or written, or is damaged.
    pub fn node_key(&self, entropy: &dyn Entropy) -> anyhow::Result<SandboxKey> {
        // beside what the node keeps, where `cocoonbox-sandboxd` looks for it
        const NAME: &str = "node/sandbox-key";
        let path = self.join(NAME);
        match fs::read_to_string(&path) {
            Ok(text) if text.trim().len() == 64 => Ok(SandboxKey::new(text.trim().to_owned())),
            Ok(_) => bail!("{} is damaged: remove it, and every sandbox gets a new token", path.display()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let key = SandboxKey::draw(entropy)?;
                let folder = self.join("node");
                let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
                made.with_context(|| format!("{} cannot be made", folder.display()))?;
                self.write_secret(NAME, key.reveal().as_bytes())?;
                Ok(key)
            }
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }
}

/// Reads a file that is closed to others; none when there is no such file.
pub(crate) fn read_secret(path: &Path) -> anyhow::Result<Option<zeroize::Zeroizing<Vec<u8>>>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.mode() & 0o077 != 0 => {
            bail!("{} can be read by others: chmod 600 it if you are sure nobody did", path.display())
        }
        Ok(metadata) if metadata.len() > 64 << 10 => bail!("{} is too long for a key", path.display()),
        Ok(_) => {
            let read = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
            Ok(Some(zeroize::Zeroizing::new(read)))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use cocoonbox_core::SeededEntropy;

    use super::*;

    #[test]
    fn a_second_server_is_told_who_holds_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let _first = DataDir::open(&path).unwrap();
        let refused = DataDir::open(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("pid {}", std::process::id())), "{refused}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn the_signing_key_stays_and_is_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir::open(folder.path()).unwrap();
        let key = data.signing_key(&SeededEntropy::new(1)).unwrap();
        assert_eq!(data.signing_key(&SeededEntropy::new(2)).unwrap().to_bytes(), key.to_bytes());
        let path = data.join("call-signing.key");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(data.signing_key(&SeededEntropy::new(2)).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, b"short").unwrap();
        assert!(data.signing_key(&SeededEntropy::new(2)).is_err());
    }
}
