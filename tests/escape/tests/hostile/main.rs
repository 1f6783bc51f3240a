//! A guest that was taken over: its first process, its agent and its files lie to the node, to the edge and to the
//! person at the terminal.

mod edge;
mod host;
mod node;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fs, io};

use cocoonbox_stories::Server;

type Outcome = Result<(), Box<dyn Error>>;

fn attacker() -> PathBuf {
    let path = std::env::var_os("COCOONBOX_ATTACKER").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/agent/cocoonbox-attacker"),
        PathBuf::from,
    );
    assert!(path.exists(), "no attacker at {}: run `scripts/agent.sh --with-attacker`", path.display());
    path
}

/// Writes a guest's binary that lies in boxes of certain names and is the true agent in all others.
fn hostile_agent(folder: &Path) -> io::Result<PathBuf> {
    let (mut bytes, agent) = (fs::read(attacker())?, fs::read(cocoonbox_stories::agent())?);
    bytes.extend_from_slice(&agent);
    bytes.extend_from_slice(&(agent.len() as u64).to_le_bytes());
    bytes.extend_from_slice(b"COCOAGNT");
    let (whole, path) = (folder.join("hostile-agent.whole"), folder.join("hostile-agent"));
    fs::write(&whole, bytes)?;
    cocoonbox_stories::copy_program(&whole, &path)?;
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

/// A server whose boxes lie when their names say so.
fn hostile_server() -> Result<Server, Box<dyn Error>> {
    let mut server = Server::prepare(cocoonbox_stories::Account::Own);
    let agent = hostile_agent(&server.scratch())?;
    server.run_guest(agent);
    server.start_again();
    Ok(server)
}

/// Fails when a terminal would act on any of `text`.
fn is_plain(what: &str, text: &str) {
    let acts = |letter: char| {
        (letter.is_control() && letter != '\n' && letter != '\t')
            || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.chars().any(acts), "{what} has letters that a terminal acts on: {text:?}");
}
