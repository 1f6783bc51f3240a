use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Uid;
use serde_json::Value;
use tempfile::TempDir;

use crate::beside::Beside;
use crate::tool::python;

/// An address that is public everywhere else. No packet for it leaves this machine.
const PUBLIC: &str = "93.184.215.14";

/// A network of its own on which a few hosts publish documents over TLS, under names that resolve there alone. Dropping
/// it ends the hosts; the network lives as long as a process in it.
pub struct Internet {
    hosts: Beside,
    folder: TempDir,
    names: String,
}

impl Internet {
    /// An address of the same hosts that is not public.
    pub const PRIVATE: &str = "10.77.0.1";
    /// One more host, which has no certificate for its name.
    pub const UNPROVEN: &str = "unproven.example";

    /// Makes one with hosts of these names; none when the tests do not run as root, which alone may.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn make(names: &[&str]) -> Option<Self> {
        if !Uid::effective().is_root() {
            return None;
        }
        for program in ["ip", "nsenter", "unshare"] {
            crate::require(program);
        }
        let folder =
            tempfile::Builder::new().prefix("cocoonbox-story-").tempdir().expect("a temporary folder");
        let listed = folder.path().join("hosts");
        fs::write(&listed, "").expect("own folder");
        let script = "ip link set lo up && ip addr add $1/32 dev lo && ip addr add $2/32 dev lo \
            && mount --bind \"$3\" /etc/hosts && shift 3 && exec \"$@\"";
        let serve = python("documents.py");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--", "sh", "-c", script, "internet", PUBLIC, Self::PRIVATE]);
        command.arg(&listed).arg(serve.get_program()).args(serve.get_args()).arg(folder.path()).args(names);
        let (hosts, _) = Beside::start(&mut command);
        let internet = Self { hosts, folder, names: format!("{} {}", names.join(" "), Self::UNPROVEN) };
        internet.resolve_to(PUBLIC);
        Some(internet)
    }

    /// Has the names of all hosts mean `address` from now on.
    ///
    /// # Panics
    /// When that cannot be written.
    pub fn resolve_to(&self, address: &str) {
        let lines = format!("127.0.0.1 localhost\n::1 localhost\n{address} {}\n", self.names);
        fs::write(self.folder.path().join("hosts"), lines).expect("own folder");
    }

    /// Has the names mean an address that is public.
    pub fn resolve(&self) {
        self.resolve_to(PUBLIC);
    }

    /// Publishes a document at an `https` address of one of the hosts.
    ///
    /// # Panics
    /// When the address is none.
    pub fn publish(&self, address: &str, document: &Value) {
        let path = address.strip_prefix("https://").expect("an https address");
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().expect("the host's folder")).expect("own folder");
        fs::write(path, document.to_string()).expect("own folder");
    }

    /// Returns the certificate of the authority that vouches for the hosts.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Returns the words that run a program there, in `folder`.
    pub fn within(&self, folder: &Path) -> Vec<String> {
        let (id, folder) = (self.hosts.id().to_string(), folder.to_string_lossy());
        let words = ["nsenter", "--target", &id, "--net", "--mount", "--", "env", "-C", &folder];
        words.map(str::to_owned).to_vec()
    }

    /// Returns a command that runs `plain` there.
    ///
    /// # Panics
    /// When `plain` names no folder to run in.
    pub fn command(&self, plain: &Command) -> Command {
        let words = self.within(plain.get_current_dir().expect("it has a folder"));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(plain.get_program()).args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }
}
