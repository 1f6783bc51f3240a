//! Nothing gets out of a box: every way that is known, tried by a program in a real box that must fail, beside the
//! same program where it gets through. The README lists the ways.

#![expect(clippy::print_stdout, reason = "what was tried and what stopped it, for who asks with --nocapture")]

mod data;
mod guest;
mod handle;
mod image;
mod opener;
mod scene;
mod suite;
mod terminal;
mod way;

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Uid;

use opener::{Bwrap, Opener, Podman};

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// What a key in the node's session is called.
pub(crate) const KEY: &str = "cocoonbox-escape-key";
/// The ordinary user that the suite runs as, too; no account of the machine has it.
const ORDINARY: u32 = 61_235;
/// Set in a run of the test that has a session of its own with a key in it.
const WITHIN: &str = "COCOONBOX_ESCAPE_WITHIN";

/// The program that attacks.
pub(crate) fn attacker() -> PathBuf {
    let path = std::env::var_os("COCOONBOX_ATTACKER").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/agent/cocoonbox-attacker"),
        PathBuf::from,
    );
    assert!(path.exists(), "no attacker at {}: run `scripts/agent.sh --with-attacker`", path.display());
    path
}

/// Runs the test `name` again in a session with a key, as whoever runs it and, where that is root, as an ordinary user.
fn story(name: &str, opener: impl Opener + Clone + 'static, as_a_user: bool) -> Result<(), Error> {
    if std::env::var_os(WITHIN).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
        return runtime.block_on(suite::run(opener));
    }
    let mut users = vec![Uid::effective().as_raw()];
    if Uid::effective().is_root() && as_a_user {
        users.push(ORDINARY);
    }
    for user in users {
        // what a build directory holds may be closed to others
        let folder = tempfile::Builder::new().prefix("cocoonbox-escape-").tempdir()?;
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open)?;
        let [own, attack, agent] = ["test", "attacker", "agent"].map(|name| folder.path().join(name));
        cocoonbox_stories::copy_program(&std::env::current_exe()?, &own)?;
        cocoonbox_stories::copy_program(&attacker(), &attack)?;
        cocoonbox_stories::copy_program(&cocoonbox_stories::agent(), &agent)?;
        let mut again = if user == Uid::effective().as_raw() {
            Command::new(&attack)
        } else {
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups", "--"]);
            command.arg(&attack);
            command
        };
        let again = again
            .args(["keyed", KEY])
            .arg(&own)
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(WITHIN, "1")
            .env("COCOONBOX_ATTACKER", &attack)
            .env("COCOONBOX_AGENT", &agent)
            .output()?;
        let said = [again.stdout, again.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if !again.status.success() || !said.contains("1 passed") {
            return Err(format!("as user {user}:\n{said}").into());
        }
        println!("as user {user}:\n{said}");
    }
    Ok(())
}

#[test]
fn nothing_gets_out_of_a_bubblewrap_box() {
    shown(story("nothing_gets_out_of_a_bubblewrap_box", Bwrap, true));
}

#[test]
fn nothing_gets_out_of_a_podman_box() {
    shown(story("nothing_gets_out_of_a_podman_box", Podman, false));
}

/// Fails with the report as it is, line by line.
fn shown(done: Result<(), Error>) {
    if let Err(error) = done {
        panic!("{error}");
    }
}
