use std::path::PathBuf;
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

fn installed(name: &str) -> PathBuf {
    let path = tools().join(name);
    assert!(path.exists(), "{} is not there: run `make test-tools`", path.display());
    path
}
