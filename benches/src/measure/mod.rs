//! What the benches share: figures, medians, timed processes, boxes that come and go.

#![allow(dead_code, reason = "each bench uses its part")]
#![expect(clippy::print_stdout, reason = "the figures are what these programs are for")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use cocoonbox_client::exec::Command as BoxCommand;
use cocoonbox_client::{AccessToken, BoxRef, Client, CreateOptions};
use serde::{Deserialize, Serialize};

/// A command that stands beside ours.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) argv: Vec<String>,
}

/// One printed line.
#[derive(Debug, Serialize)]
struct Figure<'a> {
    figure: &'a str,
    ours: f64,
    peer_name: Option<&'a str>,
    peer: Option<f64>,
    ratio: Option<f64>,
    unit: &'a str,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
}

/// Prints a figure beside a peer.
pub(crate) fn beside(
    figure: &str,
    ours: f64,
    peer_name: &str,
    peer: f64,
    unit: &str,
    better: Better,
) -> Result<()> {
    let ratio = if better == Better::Less { peer / ours } else { ours / peer };
    line(&Figure {
        figure,
        ours: round(ours),
        peer_name: Some(peer_name),
        peer: Some(round(peer)),
        ratio: Some(round(ratio)),
        unit,
    })
}

/// Prints a figure that has no peer.
pub(crate) fn alone(figure: &str, ours: f64, unit: &str) -> Result<()> {
    line(&Figure { figure, ours: round(ours), peer_name: None, peer: None, ratio: None, unit })
}

fn line(figure: &Figure<'_>) -> Result<()> {
    println!("{}", serde_json::to_string(figure)?);
    Ok(())
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Prints a time beside each of its peers, medians of what was measured in turns.
pub(crate) fn times(figure: &str, ours: Vec<f64>, peers: &[Peer], times: Vec<Vec<f64>>) -> Result<()> {
    let ours = median(ours);
    if peers.is_empty() {
        return alone(figure, ours, "ms");
    }
    for (peer, times) in peers.iter().zip(times) {
        beside(figure, ours, &peer.name, median(times), "ms", Better::Less)?;
    }
    Ok(())
}

/// Measures ours and every peer in turns; the first round warms what all have in common and is not counted.
pub(crate) async fn in_turns(
    rounds: u32,
    peers: &[Peer],
    mut ours: impl AsyncFnMut(u32) -> Result<f64>,
) -> Result<(Vec<f64>, Vec<Vec<f64>>)> {
    let (mut all, mut beside) = (Vec::new(), vec![Vec::new(); peers.len()]);
    for round in 0..=rounds {
        let one = ours(round).await?;
        let others = peers.iter().map(|peer| process(&peer.argv)).collect::<Result<Vec<_>>>()?;
        if round > 0 {
            all.push(one);
            beside.iter_mut().zip(others).for_each(|(all, one)| all.push(one));
        }
    }
    Ok((all, beside))
}

/// Returns the milliseconds that a whole process takes, its output thrown away.
pub(crate) fn process(argv: &[String]) -> Result<f64> {
    let Some((program, arguments)) = argv.split_first() else { bail!("an empty command") };
    let start = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("{program} cannot be started"))?;
    let took = start.elapsed();
    ensure!(status.success(), "{argv:?} failed");
    Ok(took.as_secs_f64() * 1000.0)
}

/// Connects with the token that a server's first start left.
pub(crate) async fn connect(endpoint: &str, token_file: &Path) -> Result<Client> {
    let text = fs::read_to_string(token_file).context("the token file")?;
    let token =
        text.split_whitespace().find(|word| word.starts_with("cb_")).context("no token in the token file")?;
    Ok(Client::connect(endpoint.parse()?, Some(AccessToken::new(token.to_owned()))).await?)
}

/// Makes a box and waits until it runs.
pub(crate) async fn make(client: &Client, name: &str) -> Result<BoxRef> {
    let reply = client.create_box(CreateOptions::new(name.parse()?)).await?;
    client.follow(&reply, |_| ()).await?;
    Ok(reply.r#box.context("a new box without a description")?.id.parse()?)
}

/// Removes a box.
pub(crate) async fn remove(client: &Client, id: &BoxRef) -> Result<()> {
    let reply = client.delete_box(id, "").await?;
    client.follow(&reply, |_| ()).await?;
    Ok(())
}

/// Runs a command in a box and returns what it said.
pub(crate) async fn said(client: &Client, id: &BoxRef, line: &str) -> Result<String> {
    let output = client.exec(Some(id)).output(BoxCommand::shell(line), b"", 64 * 1024).await?;
    ensure!(output.exit.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}
