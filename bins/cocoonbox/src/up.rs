//! `cocoonbox up`: edge and node in this process.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context as _;
use cocoonbox_client::cli::{Environment, Global, UpArgs};
use cocoonbox_client::{AccessToken, Endpoint, Remembered, TokenSource};
use cocoonbox_server::{
    DataDir, LinkToken, ServerConfig, Started, hand_out, log_to_stderr, settings, sign_in_words, stop_signal,
};
use serde_json::json;

use crate::text;

/// Serves until Ctrl-C or SIGTERM; boxes go on and the next `up` finds them.
pub(crate) async fn run(args: &UpArgs, global: &Global, environment: &Environment) -> anyhow::Result<()> {
    log_to_stderr(text(environment, "COCOONBOX_LOG").as_deref())?;
    let config = ServerConfig::read(&settings(args, environment)?, args)?;
    let stop = stop_signal()?;
    let tell = |data: &DataDir, started: &Started| {
        let mut told =
            started.link.as_ref().map(|link| sign_in_words(started.address, link)).unwrap_or_default();
        if let Some(first) = &started.first {
            told = hand_out(data, started.address, first)?;
            remember(started.address, first.token.reveal(), global, environment)?;
        }
        let mut out = std::io::stdout().lock();
        if global.json {
            let line = json!({
                "address": started.address.to_string(),
                "boxes": started.boxes,
                "first_start": started.first.is_some(),
                "link": started.first.as_ref().map(|first| &first.link).or(started.link.as_ref()).map(LinkToken::reveal),
            });
            writeln!(out, "{line}")?;
        } else {
            write!(out, "{told}")?;
            let boxes =
                if started.boxes == 1 { "1 box".to_owned() } else { format!("{} boxes", started.boxes) };
            writeln!(
                out,
                "cocoonbox listens on http://{} ({boxes}); Ctrl-C stops it, boxes stay",
                started.address
            )?;
            if started.first.is_some() {
                writeln!(out, "next, in another terminal: cocoonbox box ensure && cocoonbox rsh")?;
            }
        }
        Ok(out.flush()?)
    };
    cocoonbox_server::run(config, tell, stop).await
}

/// Gives a server that is stopped another master key.
pub(crate) async fn rotate_master_key(
    args: &UpArgs,
    global: &Global,
    environment: &Environment,
    out: &mut dyn std::io::Write,
) -> anyhow::Result<()> {
    let config = ServerConfig::read(&settings(args, environment)?, args)?;
    let sealed = cocoonbox_server::rotate_master_key(&config).await?;
    if global.json {
        writeln!(out, "{}", json!({ "sealed_anew": sealed }))?;
    } else {
        writeln!(out, "the master key is another one; {sealed} users' state keys are sealed under it")?;
    }
    Ok(())
}

/// Gives the command line of this user the token of the user that was made.
fn remember(
    address: SocketAddr,
    token: &str,
    global: &Global,
    environment: &Environment,
) -> anyhow::Result<()> {
    let reached = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let endpoint: Endpoint = format!("http://{}", SocketAddr::new(reached, address.port())).parse()?;
    let entry = Remembered::new(AccessToken::new(token.to_owned()), TokenSource::Admin).with_user("admin");
    let store = environment.store(global).context("the command line's token is not stored")?;
    store.remember(&endpoint, &entry).context("the command line's token is not stored")
}
