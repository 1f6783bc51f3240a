//! What a binary hands in: variables and streams.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};

use super::{CliError, Global, Tty};
use crate::{AccessToken, Client, Endpoint, Store};

/// The environment of the process, as the binary read it.
#[derive(Clone, Default)]
pub struct Environment {
    variables: Vec<(OsString, OsString)>,
    device_name: String,
}

impl Environment {
    /// Takes all variables, and the name under which a sign-in from here is listed (the host's name).
    pub fn new(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        device_name: impl Into<String>,
    ) -> Self {
        Self { variables: variables.into_iter().collect(), device_name: device_name.into() }
    }

    /// Returns a variable that is set and not empty.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.variables.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// Returns all variables whose names match `pattern`, in which `*` stands for any letters.
    pub(super) fn matching(&self, pattern: &str) -> impl Iterator<Item = (&str, &OsStr)> {
        self.variables.iter().filter_map(move |(name, value)| {
            let name = name.to_str()?;
            matches_glob(pattern, name).then_some((name, value.as_os_str()))
        })
    }

    /// Returns the device's name, at most 64 bytes.
    pub(super) fn device_name(&self) -> &str {
        let mut end = self.device_name.len().min(64);
        while !self.device_name.is_char_boundary(end) {
            end -= 1;
        }
        &self.device_name[..end]
    }

    /// Returns the store of endpoints and tokens: `--config-dir`, else `COCOONBOX_CONFIG_DIR`, else
    /// `$XDG_CONFIG_HOME/cocoonbox`, else `~/.config/cocoonbox`.
    pub fn store(&self, global: &Global) -> Result<Store, CliError> {
        let path = |name| self.variable(name).map(PathBuf::from);
        let directory = global
            .config_dir
            .clone()
            .or_else(|| path("COCOONBOX_CONFIG_DIR"))
            .or_else(|| {
                path("XDG_CONFIG_HOME").filter(|path| path.is_absolute()).map(|path| path.join("cocoonbox"))
            })
            .or_else(|| path("HOME").map(|path| path.join(".config/cocoonbox")));
        directory.map(Store::new).ok_or_else(|| {
            CliError::failed(
                "there is no place for cli.json",
                Some("set HOME, or name a folder with --config-dir"),
            )
        })
    }

    /// Returns the server: `--endpoint`, else `COCOONBOX_ENDPOINT`, else the one last signed in to, else this machine's.
    pub fn endpoint(&self, global: &Global) -> Result<Endpoint, CliError> {
        if let Some(endpoint) = &global.endpoint {
            return Ok(endpoint.clone());
        }
        if let Some(text) = self.variable("COCOONBOX_ENDPOINT") {
            let text = text.to_str().unwrap_or_default();
            return text.parse().map_err(|error| CliError::Usage(format!("COCOONBOX_ENDPOINT: {error}")));
        }
        Ok(self.store(global)?.default_endpoint()?.unwrap_or_else(Endpoint::local))
    }

    /// Returns the token from `COCOONBOX_TOKEN`, else the one remembered for `endpoint`.
    pub(super) fn token(
        &self,
        global: &Global,
        endpoint: &Endpoint,
    ) -> Result<Option<AccessToken>, CliError> {
        if let Some(text) = self.variable("COCOONBOX_TOKEN") {
            let token = AccessToken::new(text.to_str().unwrap_or_default().trim().to_owned());
            if !AccessToken::is_well_formed(token.reveal()) {
                return Err(CliError::Usage(
                    "COCOONBOX_TOKEN: not a token (cb_ and 64 hex digits)".to_owned(),
                ));
            }
            return Ok(Some(token));
        }
        Ok(self.store(global)?.remembered(endpoint)?.map(|remembered| remembered.token))
    }

    /// Connects as the person who is signed in.
    pub(super) async fn client(&self, global: &Global) -> Result<Client, CliError> {
        let endpoint = self.endpoint(global)?;
        let Some(token) = self.token(global, &endpoint)? else {
            return Err(CliError::NotSignedIn { endpoint });
        };
        Ok(Client::connect(endpoint, Some(token)).await?)
    }

    /// Returns the folders in which terminfo entries are looked for, in ncurses' order.
    pub(super) fn terminfo_directories(&self) -> Vec<PathBuf> {
        let mut directories = Vec::new();
        directories.extend(self.variable("TERMINFO").map(PathBuf::from));
        directories.extend(self.variable("HOME").map(|home| Path::new(home).join(".terminfo")));
        if let Some(list) = self.variable("TERMINFO_DIRS") {
            directories.extend(std::env::split_paths(list).filter(|path| path.is_absolute()));
        }
        directories.extend(
            ["/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo", "/usr/lib/terminfo"].map(PathBuf::from),
        );
        directories
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // values may be secrets
        f.debug_list().entries(self.variables.iter().map(|(name, _)| name)).finish()
    }
}

/// The streams of the process.
///
/// Standard output and error come twice: verbs write whole answers to the plain ones, and `rsh` lets a command's bytes
/// flow through the others, which must not block the runtime.
pub struct Io<'a> {
    /// Answers.
    pub stdout: &'a mut (dyn Write + Send),
    /// Progress, errors, hints.
    pub stderr: &'a mut (dyn Write + Send),
    /// Standard input.
    pub stdin: Box<dyn AsyncRead + Send + Unpin>,
    /// A remote command's output.
    pub command_stdout: Box<dyn AsyncWrite + Send + Unpin>,
    /// A remote command's errors.
    pub command_stderr: Box<dyn AsyncWrite + Send + Unpin>,
    /// The terminal that standard input is.
    pub terminal: Option<Tty>,
    /// Whether standard output is a terminal.
    pub stdout_is_terminal: bool,
    /// Whether standard error is a terminal.
    pub stderr_is_terminal: bool,
}

impl fmt::Debug for Io<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io").finish_non_exhaustive()
    }
}

fn matches_glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches_glob(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(variables.iter().map(|(name, value)| (name.into(), value.into())), "a-host")
    }

    #[test]
    fn a_pattern_matches_whole_names() {
        for (pattern, name, matches) in [
            ("LANG", "LANG", true),
            ("LC_*", "LC_ALL", true),
            ("LC_*", "ALC_X", false),
            ("*", "X", true),
            ("A*C", "ABC", true),
            ("A*C", "ABD", false),
        ] {
            assert_eq!(matches_glob(pattern, name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn flags_come_before_variables_and_variables_before_the_file() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().to_str().ok_or("path")?;
        let mut global = Global::default();
        let bare = environment(&[("COCOONBOX_CONFIG_DIR", config)]);
        assert_eq!(bare.endpoint(&global)?, Endpoint::local());
        let remembered: Endpoint = "unix:/run/a".parse()?;
        bare.store(&global)?.remember(
            &remembered,
            &crate::Remembered::new(AccessToken::new("cb_a".to_owned()), crate::TokenSource::Paste),
        )?;
        assert_eq!(bare.endpoint(&global)?, remembered);
        let set = environment(&[("COCOONBOX_CONFIG_DIR", config), ("COCOONBOX_ENDPOINT", "unix:/run/b")]);
        assert_eq!(set.endpoint(&global)?, "unix:/run/b".parse()?);
        global.endpoint = Some("unix:/run/c".parse()?);
        assert_eq!(set.endpoint(&global)?, "unix:/run/c".parse()?);
        Ok(())
    }

    #[test]
    fn a_malformed_token_variable_is_named_and_not_shown() {
        let set = environment(&[("COCOONBOX_TOKEN", "canary")]);
        let error = set.token(&Global::default(), &Endpoint::local()).err();
        let printed = format!("{error:?} {set:?}");
        assert!(printed.contains("COCOONBOX_TOKEN") && !printed.contains("canary"), "{printed}");
    }
}
