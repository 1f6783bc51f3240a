//! Measures the start of a box beside its peers, from a warm pool and without one, alone and in a crowd; and a command in
//! a box whose neighbours behave badly.
//!
//! Reads one JSON object from standard input (see [`Plan`]) and prints one JSON line per figure and peer.

mod measure;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cocoonbox_client::exec::Command as BoxCommand;
use cocoonbox_client::{BoxRef, Client, CreateOptions};
use futures::future::try_join_all;
use measure::{Better, Peer, beside, connect, in_turns, make, median, process, remove, said, times};
use serde::Deserialize;

/// What to measure.
#[derive(Debug, Deserialize)]
struct Plan {
    /// A server that keeps nothing warm.
    cold: Server,
    /// One that does.
    warm: Server,
    rounds: u32,
    /// How many boxes the crowd has.
    crowd: u32,
    /// The whole command that `noisy-rsh` times, on the cold server; the box's name is added.
    rsh: Vec<String>,
    /// Whether `noisy-rsh` is measured: its neighbours would use up a machine that does not limit them.
    noise: bool,
    /// Commands that start something and print a line.
    peers: Vec<Peer>,
}

#[derive(Debug, Deserialize)]
struct Server {
    endpoint: String,
    token_file: PathBuf,
}

/// How long a pool has to fill up again before the next round.
const REFILL: Duration = Duration::from_millis(600);

/// What the bad neighbours do, one each.
const NOISE: [&str; 3] = [
    // a fork bomb
    "b() { b | b & }; b; sleep 600",
    // a memory hog
    "while :; do head -c 400m /dev/zero | tail -c 399m >/dev/null; done",
    // a busy loop on every processor
    "for n in $(seq $(nproc)); do while :; do :; done & done; wait",
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let plan: Plan = serde_json::from_reader(std::io::stdin()).context("the plan on standard input")?;
    let cold = connect(&plan.cold.endpoint, &plan.cold.token_file).await?;
    let warm = connect(&plan.warm.endpoint, &plan.warm.token_file).await?;

    let (ours, theirs) = in_turns(plan.rounds, &plan.peers, async |round| {
        tokio::time::sleep(REFILL).await;
        start(&warm, &format!("warm-{round}")).await
    })
    .await?;
    times("ensure-warm", ours, &plan.peers, theirs)?;
    let (ours, theirs) =
        in_turns(plan.rounds, &plan.peers, async |round| start(&cold, &format!("cold-{round}")).await)
            .await?;
    let one = median(ours.clone());
    times("ensure-cold", ours, &plan.peers, theirs)?;

    let start_all = Instant::now();
    let boxes = try_join_all((0..plan.crowd).map(|nth| first_word(&cold, format!("crowd-{nth}")))).await?;
    let took = start_all.elapsed().as_secs_f64() * 1000.0;
    let most = 60.0 * f64::from(plan.crowd) / 100.0;
    let name = format!("{most} x ensure-cold of this run");
    beside(&format!("burst-{}", plan.crowd), took, &name, most * one, "ms", Better::Less)?;
    for chunk in boxes.chunks(8) {
        try_join_all(chunk.iter().map(|id| remove(&cold, id))).await?;
    }
    if plan.noise { noisy(&cold, &plan).await } else { Ok(()) }
}

/// Returns the milliseconds from asking for a new box to the output of a command in it; the box is gone afterwards.
async fn start(client: &Client, name: &str) -> Result<f64> {
    let start = Instant::now();
    let id = first_word(client, name.to_owned()).await?;
    let took = start.elapsed();
    remove(client, &id).await?;
    Ok(took.as_secs_f64() * 1000.0)
}

/// Asks for a new box and waits for the output of a command in it.
async fn first_word(client: &Client, name: String) -> Result<BoxRef> {
    let reply = client.create_box(CreateOptions::new(name.parse()?)).await?;
    client.follow(&reply, |_| ()).await?;
    let id: BoxRef = reply.r#box.context("a new box without a description")?.id.parse()?;
    let output = client.exec(Some(&id)).output(BoxCommand::argv(["echo", "here"]), b"", 1024).await?;
    ensure!(output.stdout == b"here\n", "the new box answered something else");
    Ok(id)
}

/// Times a command in a quiet box, alone and beside boxes that take what they can get.
async fn noisy(client: &Client, plan: &Plan) -> Result<()> {
    let quiet = make(client, "quiet").await?;
    let argv: Vec<String> = plan
        .rsh
        .iter()
        .map(|word| if word == "BOX" { quiet.as_str().to_owned() } else { word.clone() })
        .collect();
    let time = || (0..plan.rounds).map(|_| process(&argv)).collect::<Result<Vec<_>>>();
    process(&argv)?;
    let alone = median(time()?);
    let mut boxes = Vec::new();
    for (nth, noise) in NOISE.iter().enumerate() {
        let id = make(client, &format!("noisy-{nth}")).await?;
        said(client, &id, &format!("setsid sh -c '{noise}' >/dev/null 2>&1 </dev/null & echo")).await?;
        boxes.push(id);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let noisy = time();
    for id in boxes.iter().chain([&quiet]) {
        remove(client, id).await?;
    }
    beside("noisy-rsh", median(noisy?), "2 x alone", 2.0 * alone, "ms", Better::Less)
}
