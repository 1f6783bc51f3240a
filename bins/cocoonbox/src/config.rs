//! `cocoonbox config show`: what `up` would serve with.

use std::io::Write;

use cocoonbox_client::cli::{Environment, Global, UpArgs, exit};
use cocoonbox_server::{ServerConfig, settings};

/// Prints the settings, then says which of them cannot be read.
pub(crate) fn run(
    args: &UpArgs,
    global: &Global,
    environment: &Environment,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let settings = settings(args, environment)?;
    if global.json {
        writeln!(out, "{}", settings.to_json())?;
    } else {
        write!(out, "{settings}")?;
    }
    Ok(ServerConfig::read(&settings, args).map(|_| exit::DONE)?)
}
