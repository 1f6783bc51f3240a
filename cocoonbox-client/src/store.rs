//! What the command line remembers: endpoints and tokens, in `cli.json`.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use cocoonbox_core::{Retry, random_secret};
use serde::{Deserialize, Serialize};

use crate::{AccessToken, Endpoint};

const FILE: &str = "cli.json";
const LOCK: &str = "cli.json.lock";
const VERSION: u32 = 1;
const MAX_BYTES: u64 = 1024 * 1024;

/// How a token came here; signing out ends only tokens that were made for this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TokenSource {
    /// A sign-in through a browser made it; it is this client's own.
    Browser,
    /// A sign-in link was exchanged for it; it is this client's own.
    Link,
    /// The server's first start put it here.
    Admin,
    /// A person pasted it.
    Paste,
}

impl TokenSource {
    /// Returns whether the token was made for this client, which then ends it when it signs out.
    pub const fn is_own(self) -> bool {
        matches!(self, Self::Browser | Self::Link)
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Browser => "browser",
            Self::Link => "link",
            Self::Admin => "admin",
            Self::Paste => "paste",
        })
    }
}

/// What is remembered of one endpoint.
#[derive(Debug)]
#[non_exhaustive]
pub struct Remembered {
    /// The token to show there.
    pub token: AccessToken,
    /// How it came here.
    pub source: TokenSource,
    /// Whose it is, when that is known.
    pub user: Option<String>,
}

impl Remembered {
    /// Makes an entry for a token whose user is not known.
    pub fn new(token: AccessToken, source: TokenSource) -> Self {
        Self { token, source, user: None }
    }

    /// Notes whose it is.
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }
}

/// Why the store could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system said no.
    #[error("{path} cannot be {what}", path = path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others may read the file, or it is somebody else's.
    #[error("{path} holds tokens and is open to others", path = path.display())]
    Exposed {
        /// Which file.
        path: PathBuf,
    },
    /// The file is not what this version writes.
    #[error("{path} is damaged or written by another version (line {line})", path = path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Where; the text itself may hold a token and is not repeated.
        line: usize,
    },
}

impl StoreError {
    /// Returns what a caller may do after this.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Io { .. } => Retry::Later,
            Self::Exposed { .. } | Self::Malformed { .. } => Retry::Never,
        }
    }

    /// Returns what to do next, in words for a person at a command line.
    pub fn next_step(&self) -> String {
        match self {
            Self::Io { .. } => "choose another folder with --config-dir or COCOONBOX_CONFIG_DIR".to_owned(),
            Self::Exposed { path } => format!("make it yours alone: chmod 600 {}", path.display()),
            Self::Malformed { path, .. } => format!("move {} away and sign in again", path.display()),
        }
    }
}

/// The file's form. Tokens are read and written by hand, so that no type that serializes holds one for long.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default_endpoint: Option<String>,
    #[serde(default)]
    endpoints: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    token: String,
    source: TokenSource,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // moving the text into a secret wipes it
        drop(AccessToken::new(std::mem::take(&mut self.token)));
    }
}

/// Endpoints and their tokens in a folder of one user.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    /// Names the folder; nothing is read or made yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Returns the file that holds it all.
    pub fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Returns the endpoint that is used when none is named.
    pub fn default_endpoint(&self) -> Result<Option<Endpoint>, StoreError> {
        Ok(self.read()?.default_endpoint.and_then(|text| text.parse().ok()))
    }

    /// Returns what is remembered of an endpoint.
    pub fn remembered(&self, endpoint: &Endpoint) -> Result<Option<Remembered>, StoreError> {
        let mut document = self.read()?;
        Ok(document.endpoints.remove(&endpoint.to_string()).map(|mut entry| Remembered {
            token: AccessToken::new(std::mem::take(&mut entry.token)),
            source: entry.source,
            user: entry.user.take(),
        }))
    }

    /// Remembers a token for an endpoint, instead of the one before, and makes it the default endpoint.
    pub fn remember(&self, endpoint: &Endpoint, entry: &Remembered) -> Result<(), StoreError> {
        self.update(|document| {
            let entry = Entry {
                token: entry.token.reveal().to_owned(),
                source: entry.source,
                user: entry.user.clone(),
            };
            document.endpoints.insert(endpoint.to_string(), entry);
            document.default_endpoint = Some(endpoint.to_string());
        })
    }

    /// Forgets an endpoint and its token.
    pub fn forget(&self, endpoint: &Endpoint) -> Result<(), StoreError> {
        let name = endpoint.to_string();
        self.update(|document| {
            document.endpoints.remove(&name);
            if document.default_endpoint.as_deref() == Some(&name) {
                document.default_endpoint = document.endpoints.keys().next().cloned();
            }
        })
    }

    fn read(&self) -> Result<Document, StoreError> {
        let path = self.path();
        let failed = |what| {
            let path = path.clone();
            move |source| StoreError::Io { path, what, source }
        };
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Document { version: VERSION, ..Document::default() });
            }
            Err(error) => return Err(failed("opened")(error)),
        };
        let metadata = file.metadata().map_err(failed("read"))?;
        if metadata.mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(StoreError::Exposed { path });
        }
        let malformed = |line| StoreError::Malformed { path: path.clone(), line };
        let mut text = AccessText(Vec::new());
        file.take(MAX_BYTES + 1).read_to_end(&mut text.0).map_err(failed("read"))?;
        if text.0.len() as u64 > MAX_BYTES {
            return Err(malformed(0));
        }
        let document: Document = serde_json::from_slice(&text.0).map_err(|error| malformed(error.line()))?;
        if document.version == VERSION { Ok(document) } else { Err(malformed(1)) }
    }

    fn update(&self, change: impl FnOnce(&mut Document)) -> Result<(), StoreError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(|source| StoreError::Io { path: self.directory.clone(), what: "made", source })?;
        let lock_path = self.directory.join(LOCK);
        let failed = |path: &Path, what| {
            let path = path.to_owned();
            move |source| StoreError::Io { path, what, source }
        };
        let lock =
            private().create(true).truncate(false).open(&lock_path).map_err(failed(&lock_path, "opened"))?;
        lock.lock().map_err(failed(&lock_path, "locked"))?;
        let mut document = self.read()?;
        change(&mut document);
        document.version = VERSION;
        self.write(&document)
    }

    /// Writes beside the file and moves over it, so that readers see the old text or the new one.
    fn write(&self, document: &Document) -> Result<(), StoreError> {
        let path = self.path();
        let failed = |what| {
            let path = path.clone();
            move |source| StoreError::Io { path, what, source }
        };
        let suffix = random_secret(&cocoonbox_core::SystemEntropy, "").unwrap_or_default();
        let beside = self.directory.join(format!(".{FILE}.{}", suffix.get(..8).unwrap_or("new")));
        let mut text = AccessText(
            serde_json::to_vec_pretty(document).map_err(io::Error::from).map_err(failed("written"))?,
        );
        text.0.push(b'\n');
        let written = private().create_new(true).open(&beside).and_then(|mut file| {
            // the umask may have taken bits away, never added any
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            file.write_all(&text.0)?;
            file.sync_all()
        });
        if let Err(error) = written.and_then(|()| fs::rename(&beside, &path)) {
            let _ = fs::remove_file(&beside);
            return Err(failed("written")(error));
        }
        Ok(())
    }
}

fn private() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

/// The file's text, wiped when dropped.
struct AccessText(Vec<u8>);

impl Drop for AccessText {
    fn drop(&mut self) {
        if let Ok(text) = String::from_utf8(std::mem::take(&mut self.0)) {
            drop(AccessToken::new(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outcome = Result<(), Box<dyn std::error::Error>>;
    const CANARY: &str = "cb_c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00";

    fn entry() -> Remembered {
        Remembered::new(AccessToken::new(CANARY.to_owned()), TokenSource::Link).with_user("ada")
    }

    #[test]
    fn a_token_is_remembered_and_forgotten() -> Outcome {
        let folder = tempfile::tempdir()?;
        let store = Store::new(folder.path().join("a/b"));
        assert!(store.remembered(&Endpoint::local())?.is_none());
        store.remember(&Endpoint::local(), &entry())?;
        let other: Endpoint = "unix:/run/other".parse()?;
        store.remember(&other, &Remembered::new(AccessToken::new("cb_x".to_owned()), TokenSource::Paste))?;
        assert_eq!(store.default_endpoint()?, Some(other.clone()));
        let found = store.remembered(&Endpoint::local())?.ok_or("forgotten")?;
        assert_eq!(
            (found.token.reveal(), found.source, found.user.as_deref()),
            (CANARY, TokenSource::Link, Some("ada"))
        );
        store.forget(&other)?;
        assert!(store.remembered(&other)?.is_none());
        assert_eq!(store.default_endpoint()?, Some(Endpoint::local()));
        Ok(())
    }

    #[test]
    fn the_file_and_its_folder_are_the_users_alone() -> Outcome {
        let folder = tempfile::tempdir()?;
        let store = Store::new(folder.path().join("config"));
        store.remember(&Endpoint::local(), &entry())?;
        assert_eq!(fs::metadata(store.path())?.mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(folder.path().join("config"))?.mode() & 0o777, 0o700);
        let names: Vec<_> =
            fs::read_dir(folder.path().join("config"))?.flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        fs::set_permissions(store.path(), fs::Permissions::from_mode(0o640))?;
        assert!(matches!(store.remembered(&Endpoint::local()), Err(StoreError::Exposed { .. })));
        Ok(())
    }

    #[test]
    fn a_damaged_or_oversized_file_is_refused_and_kept() -> Outcome {
        let folder = tempfile::tempdir()?;
        let store = Store::new(folder.path());
        store.remember(&Endpoint::local(), &entry())?;
        for text in
            [format!("{{\"{CANARY}"), "{\"version\":2}".to_owned(), " ".repeat(MAX_BYTES as usize + 1)]
        {
            fs::write(store.path(), &text)?;
            let error = store.remember(&Endpoint::local(), &entry()).err().ok_or("accepted")?;
            assert!(matches!(error, StoreError::Malformed { .. }));
            assert!(!format!("{error} {error:?} {}", error.next_step()).contains("c0ffee"));
            assert_eq!(fs::read_to_string(store.path())?, text);
        }
        Ok(())
    }

    #[test]
    fn writers_at_once_lose_nothing() -> Outcome {
        let folder = tempfile::tempdir()?;
        let store = Store::new(folder.path());
        std::thread::scope(|scope| {
            for number in 0..8 {
                let store = store.clone();
                scope.spawn(move || {
                    let endpoint: Endpoint = format!("unix:/run/{number}").parse().unwrap();
                    store.remember(&endpoint, &entry()).unwrap();
                });
            }
        });
        assert_eq!(store.read()?.endpoints.len(), 8);
        Ok(())
    }

    #[test]
    fn nothing_that_holds_a_token_prints_it() {
        let printed = format!("{:?}", entry());
        assert!(!printed.contains("c0ffee"), "{printed}");
    }
}
