use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::Value;
use tempfile::TempDir;

use crate::build::{agent, binaries};
use crate::run::{Run, eventually, output};
use crate::tool::copy_program;

/// As whom a server and its command line run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Account {
    /// As whoever runs the tests.
    Own,
    /// As user 65534, without any privilege; needs root to become that.
    Ordinary,
}

const ORDINARY: u32 = 65534;

/// A running `cocoonbox up` on a data directory of its own. Dropping it removes its boxes and stops it.
pub struct Server {
    child: Option<Child>,
    folder: TempDir,
    programs: PathBuf,
    agent: PathBuf,
    account: Account,
    port: u16,
    variables: Vec<(String, String)>,
    /// How often it had said that it serves when it was last started.
    starts: usize,
    forgotten: bool,
}

impl Server {
    /// Starts one as whoever runs the tests.
    pub fn start() -> Self {
        Self::start_as(Account::Own)
    }

    /// Starts one as `account`, or as whoever runs the tests when that is an ordinary user already.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn start_as(account: Account) -> Self {
        let mut server = Self::prepare(account);
        server.start_again();
        server
    }

    /// Makes the folders and starts nothing.
    ///
    /// # Panics
    /// When a folder cannot be made.
    pub fn prepare(account: Account) -> Self {
        let folder =
            tempfile::Builder::new().prefix("cocoonbox-story-").tempdir().expect("a temporary folder");
        let (mut programs, mut guest) = (binaries().to_owned(), agent());
        let account = if Uid::effective().is_root() { account } else { Account::Own };
        if account == Account::Ordinary {
            // the build's folder may be closed to others
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("own folder");
            programs = folder.path().join("programs");
            fs::create_dir(&programs).expect("own folder");
            copy_program(&binaries().join("cocoonbox"), &programs.join("cocoonbox"))
                .expect("the binary can be copied");
            guest = programs.join("cocoonbox-agent");
            copy_program(&agent(), &guest).expect("the agent can be copied");
        }
        for name in ["data", "settings", "home"] {
            let path = folder.path().join(name);
            fs::create_dir(&path).expect("own folder");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("own folder");
            if account == Account::Ordinary {
                chown(&path, Some(ORDINARY), Some(ORDINARY)).expect("root may give folders away");
            }
        }
        Self {
            child: None,
            folder,
            programs,
            agent: guest,
            account,
            port: free_port(),
            starts: 0,
            forgotten: false,
            variables: Vec::new(),
        }
    }

    /// Sets a variable of the environment of all that is started.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Has boxes run `guest` instead of the agent that was built; before the first start.
    pub fn run_guest(&mut self, guest: PathBuf) {
        self.agent = guest;
    }

    /// Returns the data directory.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns the folder with the command line's settings.
    pub fn settings(&self) -> PathBuf {
        self.folder.path().join("settings")
    }

    /// Returns a folder for a story's own files.
    pub fn scratch(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// Returns the address that clients use.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the port of [`Self::endpoint`].
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path of the binary `cocoonbox`.
    pub fn program(&self) -> PathBuf {
        self.programs.join("cocoonbox")
    }

    /// Returns the process id of the server.
    ///
    /// # Panics
    /// When it does not run.
    pub fn id(&self) -> i32 {
        self.child.as_ref().expect("the server runs").id().cast_signed()
    }

    /// Returns the administrator's token.
    ///
    /// # Panics
    /// When the server never started.
    pub fn token(&self) -> String {
        let text = fs::read_to_string(self.data().join("admin-token.txt"))
            .expect("the first start writes the token");
        let token =
            text.split_whitespace().find(|word| word.starts_with("cb_")).expect("the file holds a token");
        token.to_owned()
    }

    /// Returns what all starts of the server printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("up.log")).unwrap_or_default()
    }

    /// Returns a command as this server's account, with its settings and nothing else of ours in the environment.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = match self.account {
            Account::Own => Command::new(program.as_ref()),
            Account::Ordinary => {
                let mut command = Command::new("setpriv");
                command.args([
                    &format!("--reuid={ORDINARY}"),
                    &format!("--regid={ORDINARY}"),
                    "--clear-groups",
                    "--",
                ]);
                command.arg(program.as_ref());
                command
            }
        };
        command
            .current_dir(self.scratch())
            .env_remove("COCOONBOX_ENDPOINT")
            .env_remove("COCOONBOX_TOKEN")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .env("COCOONBOX_AGENT", &self.agent)
            // what is nobody's would outlive a server that is killed
            .env("COCOONBOX_WARM", "0")
            .env("COCOONBOX_CONFIG_DIR", self.settings())
            .env("HOME", self.scratch())
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the command that serves, with `arguments` behind.
    pub fn up(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(self.program());
        command
            .arg("up")
            .arg("--data")
            .arg(self.data())
            .arg("--listen")
            .arg(format!("127.0.0.1:{}", self.port));
        command.args(arguments);
        command
    }

    /// Starts the server on its data directory and waits until it answers.
    ///
    /// # Panics
    /// When it ends instead, or does not answer in time.
    pub fn start_again(&mut self) {
        self.start_within(&[]);
    }

    /// Starts the server as [`Self::start_again`] does, by a program that runs its last words, such as
    /// `unshare --mount`.
    ///
    /// # Panics
    /// As there.
    pub fn start_within(&mut self, wrapper: &[&str]) {
        if let Err(reason) = self.try_start(wrapper) {
            panic!("{reason}:\n{}", self.log());
        }
    }

    /// Starts the server on its data directory and does not wait for it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn begin(&mut self) {
        if let Err(reason) = self.spawn(&[]) {
            panic!("{reason}:\n{}", self.log());
        }
    }

    /// Waits until a server that was begun answers.
    ///
    /// # Panics
    /// When it ends instead, or does not answer in time.
    pub fn wait(&mut self) {
        if let Err(reason) = self.answers() {
            panic!("{reason}:\n{}", self.log());
        }
    }

    /// Leaves what is in the data directory to whoever asked for this: dropping starts no server to remove boxes.
    pub fn forget(&mut self) {
        self.forgotten = true;
    }

    fn try_start(&mut self, wrapper: &[&str]) -> Result<(), String> {
        self.spawn(wrapper)?;
        self.answers()
    }

    fn spawn(&mut self, wrapper: &[&str]) -> Result<(), String> {
        if self.child.is_some() {
            return Err("the server runs already".to_owned());
        }
        self.starts = self.starts();
        let log = File::options().create(true).append(true).open(self.folder.path().join("up.log"));
        let log = log.map_err(|error| error.to_string())?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let mut up = self.up(&[]);
        if let [program, words @ ..] = wrapper {
            let plain = up;
            up = self.command(program);
            up.args(words).arg(plain.get_program()).args(plain.get_args());
        }
        let child = up.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
        self.child = Some(child.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn answers(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
                self.child = None;
                return Err(format!("the server ended with {status}"));
            }
            if self.starts() > self.starts {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err("the server does not answer".to_owned())
    }

    /// Returns how often the server said that it serves.
    fn starts(&self) -> usize {
        self.log().matches(&format!("listens on {}", self.endpoint())).count()
    }

    /// Sends `signal` and waits for the end.
    ///
    /// # Panics
    /// When the server does not run or does not end.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        let mut child = self.child.take().expect("the server runs");
        kill(Pid::from_raw(child.id().cast_signed()), signal).expect("own child");
        eventually("the server ends", || child.try_wait().expect("own child"))
    }

    /// Runs the command line with `arguments`.
    pub fn cli(&self, arguments: &[&str]) -> Run {
        self.cli_with(arguments, b"")
    }

    /// Runs the command line with `arguments` and `input`.
    pub fn cli_with(&self, arguments: &[&str], input: &[u8]) -> Run {
        output(self.command(self.program()).args(arguments), input)
    }

    /// Runs the command line with `--json` and returns what it printed: one value, or the last line's.
    ///
    /// # Panics
    /// When it fails or prints something else.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut words = vec!["--json"];
        words.extend_from_slice(arguments);
        let text = self.cli(&words).ok();
        serde_json::from_str(&text)
            .or_else(|_| serde_json::from_str(text.lines().last().unwrap_or_default()))
            .unwrap_or_else(|error| panic!("not JSON ({error}): {text}"))
    }

    /// Returns the saves of box `main`, newest first.
    ///
    /// # Panics
    /// When they cannot be listed.
    pub fn saves(&self) -> Vec<Value> {
        self.json(&["saves", "main"])["saves"].as_array().cloned().unwrap_or_default()
    }

    /// Runs a command in box `main`.
    pub fn rsh(&self, words: &[&str]) -> Run {
        self.rsh_with(words, b"")
    }

    /// Runs a command in box `main` with `input`.
    pub fn rsh_with(&self, words: &[&str], input: &[u8]) -> Run {
        let mut all = vec!["rsh", "--box", "main", "--"];
        all.extend_from_slice(words);
        self.cli_with(&all, input)
    }

    /// Runs a shell script in box `main` and returns what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub fn sh(&self, script: &str) -> String {
        self.rsh(&["sh", "-c", script]).ok()
    }

    /// Returns the network namespace of box `main`, the name that its processes have on this machine.
    pub fn network(&self) -> String {
        self.rsh(&["readlink", "/proc/self/ns/net"]).ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // boxes outlive the server by design: the story's must not outlive the story, whoever ended the server
        if self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_some())) {
            self.child = None;
        }
        if !self.forgotten && self.child.is_none() && self.data().join("admin-token.txt").exists() {
            let _ = self.try_start(&[]);
        }
        if self.child.is_some() && !self.forgotten {
            let listed = self.cli(&["--json", "box", "ls"]);
            for id in box_ids(&String::from_utf8_lossy(&listed.stdout)) {
                self.cli(&["box", "rm", &id, "--yes"]);
            }
        }
        if let Some(mut child) = self.child.take() {
            let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
            drop(child.wait());
        }
    }
}

/// Returns every box id in `text`, once.
fn box_ids(text: &str) -> Vec<String> {
    let mut ids: Vec<String> = text
        .match_indices("cb-")
        .filter_map(|(at, _)| text.get(at..at + 13))
        .filter(|id| id[3..].bytes().all(|byte| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte)))
        .map(str::to_owned)
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

fn free_port() -> u16 {
    // the window between this and the server's bind is the price of knowing the port before the first start
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port()
}

/// Returns all files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() { all.extend(files(&entry.path())) } else { all.push(entry.path()) }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn box_ids_are_found_once_each() {
        assert_eq!(box_ids(r#"[{"id":"cb-abcdefghij"},{"id":"cb-abcdefghij"},"cb-no"]"#), ["cb-abcdefghij"]);
    }
}
