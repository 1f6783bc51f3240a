//! Measures a box's start and a remote command, each in turns with its peers.
//!
//! Reads one JSON object from standard input (see [`Plan`]) and prints one JSON line per figure and peer.
#![expect(clippy::print_stdout, reason = "the figures are what this program is for")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use cocoonbox_client::exec::Command as BoxCommand;
use cocoonbox_client::{AccessToken, BoxRef, Client, CreateOptions, EnsureOptions};
use serde::{Deserialize, Serialize};

/// What to measure.
#[derive(Debug, Deserialize)]
struct Plan {
    endpoint: String,
    token_file: PathBuf,
    rounds: u32,
    /// The whole command that `rsh-true` times.
    rsh: Vec<String>,
    /// Beside `ensure-cold`: commands that start something and print a line.
    start_peers: Vec<Peer>,
    /// Beside `rsh-true`.
    rsh_peers: Vec<Peer>,
}

#[derive(Debug, Deserialize)]
struct Peer {
    name: String,
    argv: Vec<String>,
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

#[tokio::main]
async fn main() -> Result<()> {
    let plan: Plan = serde_json::from_reader(std::io::stdin()).context("the plan on standard input")?;
    let text = fs::read_to_string(&plan.token_file).context("the token file")?;
    let token =
        text.split_whitespace().find(|word| word.starts_with("cb_")).context("no token in the token file")?;
    let client = Client::connect(plan.endpoint.parse()?, Some(AccessToken::new(token.to_owned()))).await?;

    let mut ours = Vec::new();
    let mut peers = vec![Vec::new(); plan.start_peers.len()];
    for round in 0..=plan.rounds {
        let cold = cold_start(&client, round).await?;
        let beside =
            plan.start_peers.iter().map(|peer| time_process(&peer.argv)).collect::<Result<Vec<_>>>()?;
        // the first round warms what all have in common: files in memory, connections
        if round > 0 {
            ours.push(cold);
            peers.iter_mut().zip(beside).for_each(|(all, one)| all.push(one));
        }
    }
    print("ensure-cold", ours, &plan.start_peers, peers)?;

    let reply = client.ensure_box(None, EnsureOptions::default()).await?;
    client.follow(&reply, |_| ()).await?;
    let mut ours = Vec::new();
    let mut peers = vec![Vec::new(); plan.rsh_peers.len()];
    for round in 0..=plan.rounds {
        let command = time_process(&plan.rsh)?;
        let beside =
            plan.rsh_peers.iter().map(|peer| time_process(&peer.argv)).collect::<Result<Vec<_>>>()?;
        if round > 0 {
            ours.push(command);
            peers.iter_mut().zip(beside).for_each(|(all, one)| all.push(one));
        }
    }
    print("rsh-true", ours, &plan.rsh_peers, peers)
}

/// Returns the milliseconds from asking for a new box to the output of a command in it; the box is gone afterwards.
async fn cold_start(client: &Client, round: u32) -> Result<f64> {
    let start = Instant::now();
    let reply = client.create_box(CreateOptions::new(format!("bench-{round}").parse()?)).await?;
    client.follow(&reply, |_| ()).await?;
    let id: BoxRef = reply.r#box.context("a new box without a description")?.id.parse()?;
    let output = client.exec(Some(&id)).output(BoxCommand::argv(["echo", "here"]), b"", 1024).await?;
    let took = start.elapsed();
    ensure!(output.stdout == b"here\n", "the new box answered something else");
    let reply = client.delete_box(&id, "").await?;
    client.follow(&reply, |_| ()).await?;
    Ok(took.as_secs_f64() * 1000.0)
}

/// Returns the milliseconds that a whole process takes.
fn time_process(argv: &[String]) -> Result<f64> {
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

fn print(figure: &str, ours: Vec<f64>, peers: &[Peer], times: Vec<Vec<f64>>) -> Result<()> {
    let ours = median(ours);
    let round = |value: f64| (value * 100.0).round() / 100.0;
    let mut lines: Vec<_> = peers
        .iter()
        .zip(times)
        .map(|(peer, times)| {
            let peer_time = median(times);
            Figure {
                figure,
                ours: round(ours),
                peer_name: Some(&peer.name),
                peer: Some(round(peer_time)),
                ratio: Some(round(peer_time / ours)),
                unit: "ms",
            }
        })
        .collect();
    if lines.is_empty() {
        lines.push(Figure {
            figure,
            ours: round(ours),
            peer_name: None,
            peer: None,
            ratio: None,
            unit: "ms",
        });
    }
    for line in lines {
        println!("{}", serde_json::to_string(&line)?);
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}
