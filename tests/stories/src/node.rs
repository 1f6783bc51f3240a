use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::build::{agent, binaries};
use crate::run::eventually;

/// A running `cocoonbox-sandboxd` on a data directory of its own. Dropping it ends its sandboxes and stops it.
pub struct Node {
    child: Option<Child>,
    folder: TempDir,
    arguments: Vec<String>,
    host: String,
    port: u16,
    preview_port: u16,
    /// The words that start it elsewhere than here.
    within: Vec<String>,
}

/// The root token of these nodes.
const TOKEN: &str = "root-token-of-a-story";

impl Node {
    /// Starts one with `arguments` besides what it needs.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_at("127.0.0.1", arguments, Vec::new())
    }

    /// Starts one in the network namespace behind `link`.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn start_behind(link: &crate::Link) -> Self {
        Self::start_at(link.address(), &[], link.within().to_vec())
    }

    fn start_at(host: &str, arguments: &[&str], within: Vec<String>) -> Self {
        let folder =
            tempfile::Builder::new().prefix("cocoonbox-node-").tempdir().expect("a temporary folder");
        let token = folder.path().join("token");
        fs::write(&token, TOKEN).expect("own folder");
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("own folder");
        let mut node = Self {
            child: None,
            folder,
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            host: host.to_owned(),
            port: free_port(),
            preview_port: free_port(),
            within,
        };
        node.start_again();
        node
    }

    /// Starts it on its data directory and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub fn start_again(&mut self) {
        self.begin();
        self.wait();
    }

    /// Starts it on its data directory and does not wait for it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn begin(&mut self) {
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.folder.path().join("node.log"))
            .expect("own folder");
        let program = binaries().join("cocoonbox-sandboxd");
        let mut command = match self.within.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let child = command
            .arg("--data")
            .arg(self.data())
            .args(["--listen", &self.address()])
            .args(["--preview-listen", &format!("127.0.0.1:{}", self.preview_port)])
            .arg("--token-file")
            .arg(self.folder.path().join("token"))
            .args(&self.arguments)
            .env("COCOONBOX_AGENT", agent())
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the node can be started");
        self.child = Some(child);
    }

    /// Waits until one that was begun answers.
    ///
    /// # Panics
    /// When it ends instead, or does not answer in time.
    pub fn wait(&mut self) {
        eventually("the node answers", || {
            if let Ok(Some(status)) = self.child.as_mut().expect("it was started").try_wait() {
                panic!("the node ended, {status}:\n{}", self.log());
            }
            self.call("GET", "/healthz", "", None).ok().filter(|(status, _)| *status == 200)
        });
    }

    /// Kills it, as a power cut would; its sandboxes go on.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill(&mut self) {
        self.end(Signal::SIGKILL);
    }

    /// Sends `signal` and waits for the end.
    ///
    /// # Panics
    /// When it does not run or does not end.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        let mut child = self.child.take().expect("the node runs");
        kill(Pid::from_raw(child.id().cast_signed()), signal).expect("own child");
        eventually("the node ends", || child.try_wait().expect("own child"))
    }

    /// Returns its process id.
    ///
    /// # Panics
    /// When it does not run.
    pub fn id(&self) -> i32 {
        self.child.as_ref().expect("the node runs").id().cast_signed()
    }

    /// Returns the data directory.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns where it serves.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns the file with the root token.
    pub fn token_file(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    /// Returns the root token.
    pub const fn token() -> &'static str {
        TOKEN
    }

    /// Returns what all its starts printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("node.log")).unwrap_or_default()
    }

    /// Makes one call with the root token, and an idempotency key where there is one.
    ///
    /// # Errors
    /// The node does not answer, or not whole.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        body: &str,
        key: Option<&str>,
    ) -> std::io::Result<(u16, Value)> {
        call(&self.address(), method, path, body, key)
    }
}

/// Makes one call to the node at `address` with the root token.
///
/// # Errors
/// The node does not answer, or not whole.
pub fn call(
    address: &str,
    method: &str,
    path: &str,
    body: &str,
    key: Option<&str>,
) -> std::io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_mins(1)))?;
    let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: node\r\nauthorization: Bearer {TOKEN}\r\n{key}connection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let cut = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return Err(cut) };
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    if length.is_some_and(|length: usize| length != body.len()) {
        return Err(cut);
    }
    let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
    status.map(|status| (status, body)).ok_or(cut)
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.child.is_none() && !std::thread::panicking() {
            self.start_again();
        }
        if let Ok((_, list)) = self.call("GET", "/v1/sandboxes", "", None) {
            for row in list["sandboxes"].as_array().into_iter().flatten() {
                let path = format!("/v1/sandboxes/{}/release", row["id"].as_str().unwrap_or_default());
                let _ = self.call("POST", &path, "", None);
            }
        }
        if self.child.is_some() {
            self.kill();
        }
    }
}
