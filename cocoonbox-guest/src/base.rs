//! What every program in a box starts with: its user, and the base set of variables.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A login's search path; the guest's own tools come last, so that a box can replace them.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/cocoonbox/bin";

const HTTP_DOOR: &str = "http://127.0.0.1:3128";

/// Addresses in the box itself, which no proxy reaches.
const NO_PROXY: &str = "localhost,127.0.0.1,::1,10.203.0.1";

/// The user of a box and the variables its programs start with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Base {
    /// The user's name.
    pub user: String,
    /// The user's home.
    pub home: PathBuf,
    /// The user's login shell.
    pub shell: PathBuf,
    /// The variables.
    pub env: Vec<(OsString, OsString)>,
}

impl Base {
    /// Makes the base of `uid` as `passwd` (the text of `/etc/passwd`) describes it; `doors` adds the proxy variables.
    ///
    /// A uid that is not described is `user` with `/home/user`. A shell that is not there is replaced by one that is.
    pub fn new(uid: u32, passwd: &str, doors: bool) -> Self {
        let line = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let entry = line.into_iter().find(|fields| fields.len() == 7 && fields[2].parse() == Ok(uid));
        let (user, home, shell) =
            entry.map_or(("user", "/home/user", ""), |fields| (fields[0], fields[5], fields[6]));
        let shell = [shell, "/bin/bash", "/bin/sh"].into_iter().find(|shell| Path::new(shell).is_file());
        let shell = shell.unwrap_or("/bin/sh");
        let mut env = vec![
            ("PATH", PATH),
            ("HOME", home),
            ("USER", user),
            ("LOGNAME", user),
            ("SHELL", shell),
            ("LANG", "C.UTF-8"),
            ("TERM", "xterm-256color"),
        ];
        if doors {
            env.extend(
                ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, HTTP_DOOR)),
            );
            env.extend(["NO_PROXY", "no_proxy"].map(|name| (name, NO_PROXY)));
        }
        Self {
            user: user.to_owned(),
            home: home.into(),
            shell: shell.into(),
            env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        }
    }

    /// Makes the base of the user who runs this, as [`new`](Self::new).
    pub fn of_this_user(passwd: &str, doors: bool) -> Self {
        Self::new(rustix::process::getuid().as_raw(), passwd, doors)
    }

    /// Takes over variables that another base set made, without those of our own contract (`COCOONBOX_*`).
    pub fn from_vars(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let env: Vec<_> = vars
            .into_iter()
            .filter(|(name, _)| !name.as_encoded_bytes().starts_with(b"COCOONBOX_"))
            .collect();
        let value = |name: &str, default: &str| {
            let found = env.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            found.unwrap_or_else(|| default.into())
        };
        Self {
            user: value("USER", "user").to_string_lossy().into_owned(),
            home: value("HOME", "/home/user").into(),
            shell: value("SHELL", "/bin/sh").into(),
            env,
        }
    }

    /// Returns where a program starts: `asked`, relative to home, or home itself; `/` where there is no home.
    pub fn directory(&self, asked: Option<&Path>) -> PathBuf {
        match asked {
            Some(path) if !path.as_os_str().is_empty() => self.home.join(path),
            _ if self.home.is_dir() => self.home.clone(),
            _ => "/".into(),
        }
    }

    /// Returns the base variables with the claim's and then `over` on top.
    pub(crate) fn with_claim<'a>(
        &'a self,
        claim: &'a [(OsString, OsString)],
        over: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>,
    ) -> Vec<(OsString, OsString)> {
        let claim = claim.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
        self.variables(claim.chain(over))
    }

    /// Returns the base variables with `over` on top.
    pub fn variables<'a>(
        &'a self,
        over: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>,
    ) -> Vec<(OsString, OsString)> {
        let mut env = self.env.clone();
        for (name, value) in over {
            match env.iter_mut().find(|(key, _)| key == name) {
                Some((_, old)) => value.clone_into(old),
                None => env.push((name.to_owned(), value.to_owned())),
            }
        }
        env
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0::/root:/bin/sh\nmia:x:1000:1000:Mia:/home/mia:/bin/no-such-shell\nbroken\n";

    #[test]
    fn a_described_user_is_taken_with_a_shell_that_exists() {
        let base = Base::new(1000, PASSWD, true);
        assert_eq!((base.user.as_str(), base.home.as_path()), ("mia", Path::new("/home/mia")));
        assert!(base.shell.is_file());
        assert!(base.env.contains(&("http_proxy".into(), HTTP_DOOR.into())));
        assert_eq!(Base::from_vars(base.env.clone()), base);
    }

    #[test]
    fn an_undescribed_user_is_named_user_and_has_no_proxy_without_doors() {
        let base = Base::new(4711, PASSWD, false);
        assert_eq!((base.user.as_str(), base.home.as_path()), ("user", Path::new("/home/user")));
        assert!(!base.env.iter().any(|(name, _)| name.to_string_lossy().to_lowercase().contains("proxy")));
    }

    #[test]
    fn our_own_variables_stay_behind_and_asked_ones_win() {
        let base =
            Base::from_vars([("COCOONBOX_AGENT_FD", "3"), ("HOME", "/h")].map(|(a, b)| (a.into(), b.into())));
        assert_eq!(base.env, [("HOME".into(), "/h".into())]);
        let env =
            base.variables([(OsStr::new("HOME"), OsStr::new("/x")), (OsStr::new("A"), OsStr::new("b"))]);
        assert_eq!(env, [("HOME".into(), "/x".into()), ("A".into(), "b".into())]);
    }
}
