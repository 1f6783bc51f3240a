//! Programs: whether they are there, which version, and whether they do what they are for.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::time::timeout;

use super::Check;

pub(super) const BUBBLEWRAP: &str = "bubblewrap";

/// The oldest bubblewrap that can switch user namespaces off inside.
const OLDEST_BUBBLEWRAP: (u32, u32) = (0, 8);

/// The most of a program's words that is told.
const MAX_WORDS: usize = 300;

/// Returns the line to type for a package.
pub(super) fn apt(package: &str) -> String {
    format!("apt-get install -y {package}")
}

/// How a program failed.
enum Failure {
    Missing,
    Late,
    Refused(String),
}

impl Failure {
    /// Makes the check that says so.
    fn check(self, name: &'static str, package: &str, limit: Duration, remedy: &str) -> Check {
        match self {
            Self::Missing => Check::no(name, "not there", format!("{name} is not installed"), apt(package)),
            Self::Late => {
                let reason = format!("it did not answer in {} s", limit.as_secs());
                Check::no(name, "it hangs", reason, remedy)
            }
            Self::Refused(words) => Check::no(name, "it fails", words, remedy),
        }
    }
}

/// Runs a program for at most `limit`, with nothing to read; it is ended when nobody waits.
async fn run(program: &str, arguments: &[&str], limit: Duration) -> Result<String, Failure> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).env("LC_ALL", "C");
    match timeout(limit, command.output()).await {
        Err(_) => Err(Failure::Late),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Err(Failure::Missing),
        Ok(Err(error)) => Err(Failure::Refused(error.to_string())),
        Ok(Ok(output)) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(Ok(output)) => Err(Failure::Refused(complaint(&output))),
    }
}

/// What a program said when it failed: its last line, or its exit status.
fn complaint(output: &Output) -> String {
    let words = String::from_utf8_lossy(&output.stderr);
    let last = words.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last.map_or_else(|| output.status.to_string(), |line| line.chars().take(MAX_WORDS).collect())
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("").trim().chars().take(MAX_WORDS).collect()
}

/// Asks a program for its version.
pub(super) async fn version(name: &'static str, arguments: &[&str], package: &str, limit: Duration) -> Check {
    match run(name, arguments, limit).await {
        Ok(text) => Check::yes(name, first_line(&text)),
        Err(failure) => failure.check(name, package, limit, &format!("{} --reinstall", apt(package))),
    }
}

/// Starts something in bubblewrap.
pub(super) async fn bubblewrap(limit: Duration) -> Check {
    let version = match run("bwrap", &["--version"], limit).await {
        Ok(text) => first_line(&text),
        Err(failure) => return failure.check(BUBBLEWRAP, BUBBLEWRAP, limit, &apt(BUBBLEWRAP)),
    };
    let namespaces = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"];
    let arguments = [
        namespaces.as_slice(),
        &["--uid", "1000", "--gid", "1000", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--"],
        &["true"],
    ];
    if let Err(failure) = run("bwrap", &arguments.concat(), limit).await {
        let remedy = "see the check of user namespaces; inside a container, one with fewer restrictions is needed \
                      (--security-opt seccomp=unconfined --security-opt unmask=ALL)";
        let mut check = failure.check(BUBBLEWRAP, BUBBLEWRAP, limit, remedy);
        check.detail = format!("{version} is there and starts nothing");
        return check;
    }
    match numbers(&version) {
        Some(found) if found < OLDEST_BUBBLEWRAP => {
            let reason = "it is older than 0.8 and cannot switch user namespaces off inside a box";
            Check::no(
                BUBBLEWRAP,
                version,
                reason,
                "use a system with bubblewrap 0.8 or later, such as Debian 12",
            )
            .degraded()
        }
        _ => Check::yes(BUBBLEWRAP, format!("{version} starts")),
    }
}

/// Returns the first two numbers of a version in a text.
fn numbers(text: &str) -> Option<(u32, u32)> {
    let version = text.split(' ').find(|word| word.starts_with(|letter: char| letter.is_ascii_digit()))?;
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Looks for a podman service, else for the program.
pub(super) async fn podman(sockets: &[PathBuf], limit: Duration) -> Check {
    const NAME: &str = "podman";
    for socket in sockets {
        if timeout(limit, pings(socket)).await.is_ok_and(|answer| answer.unwrap_or(false)) {
            return Check::yes(NAME, format!("a service answers on {}", socket.display()));
        }
    }
    let format = "{{.Version.Version}} {{.Host.OCIRuntime.Name}} cgroup {{.Host.CgroupsVersion}}";
    match run(NAME, &["info", "--format", format], limit).await {
        Ok(text) => Check::yes(NAME, format!("{} (no service)", first_line(&text))),
        Err(failure) => {
            let remedy = "nothing to do for bubblewrap boxes; else run podman info and follow what it says \
                          (often: apt-get install -y crun runc, or [engine] runtime=\"runc\" in containers.conf)";
            failure.check(NAME, NAME, limit, remedy)
        }
    }
}

/// Asks a container service whether it is there.
async fn pings(socket: &Path) -> io::Result<bool> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: d\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await?;
    let status = String::from_utf8_lossy(&answer);
    Ok(status.starts_with("HTTP/1.") && status.split(' ').nth(1) == Some("200"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Status;

    #[tokio::test]
    async fn a_program_that_is_not_there_is_one_apt_line_away() {
        let check = version("no-such-program", &[], "some-package", Duration::from_secs(5)).await;
        assert_eq!(check.status, Status::No);
        assert_eq!(check.remedy.as_deref(), Some("apt-get install -y some-package"));
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_left() {
        let check = version("sleep", &["60"], "coreutils", Duration::from_millis(50)).await;
        assert_eq!((check.status, check.detail.as_str()), (Status::No, "it hangs"));
    }

    #[tokio::test]
    async fn a_program_that_fails_is_quoted() {
        let check = version("cat", &["/no/such/file"], "coreutils", Duration::from_secs(5)).await;
        assert!(check.reason.is_some_and(|reason| reason.contains("/no/such/file")));
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(numbers("bubblewrap 0.8.0"), Some((0, 8)));
        assert_eq!(numbers("bubblewrap 0.11"), Some((0, 11)));
        assert_eq!(numbers("bubblewrap"), None);
    }
}
