use std::fmt;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What a program did.
pub struct Run {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: String,
    command: String,
}

impl Run {
    /// Returns standard output as text, without white space at the end.
    ///
    /// # Panics
    /// When the program failed.
    pub fn ok(&self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// Checks that the program ended with `code`, and returns what it said on standard error.
    ///
    /// # Panics
    /// When it ended otherwise.
    pub fn failed(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        &self.stderr
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stdout = String::from_utf8_lossy(&self.stdout);
        let shown: String = stdout.chars().take(4000).collect();
        write!(f, "{}\n  code {:?}\n  stdout: {shown}\n  stderr: {}", self.command, self.code, self.stderr)
    }
}

/// Runs a command to its end with `input` on its standard input.
///
/// # Panics
/// When it cannot be started or does not end within two minutes.
pub fn output(command: &mut Command, input: &[u8]) -> Run {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{shown}: {error}"));
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_vec();
    // a program that does not read its input closes the pipe
    let feeder = thread::spawn(move || drop(stdin.write_all(&input)));
    let id = nix::unistd::Pid::from_raw(child.id().cast_signed());
    let (done, watch) = std::sync::mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        if watch.recv_timeout(Duration::from_mins(2)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL);
        }
    });
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{shown}: {error}"));
    drop(done);
    drop(watcher.join());
    drop(feeder.join());
    Run {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        command: shown,
    }
}

/// Asks again until the answer is `Some`, for at most half a minute.
///
/// # Panics
/// When it never was; `what` says what was waited for.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}
