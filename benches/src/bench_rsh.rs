//! Measures remote commands beside ssh: a whole process, a round trip, bytes, and a tree of many files.
//!
//! Reads one JSON object from standard input (see [`Plan`]) and prints one JSON line per figure and peer.

mod measure;

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use cocoonbox_client::exec::{Command as BoxCommand, RunOptions, Stdio as BoxStdio};
use cocoonbox_client::{BoxRef, Client};
use measure::{Better, Peer, alone, beside, connect, in_turns, make, median, process, remove, said, times};
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// What to measure.
#[derive(Debug, Deserialize)]
struct Plan {
    endpoint: String,
    token_file: PathBuf,
    rounds: u32,
    /// How many bytes the big file has.
    bytes: u64,
    /// How many files the tree has.
    files: u32,
    /// A directory to work in.
    work: PathBuf,
    /// `cocoonbox rsh`.
    rsh: Vec<String>,
    /// ssh to this machine over a warm control master, without the command; absent where there is no server for it.
    ssh: Option<Vec<String>>,
}

const SSH: &str = "ssh, warm control master";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let plan: Plan = serde_json::from_reader(std::io::stdin()).context("the plan on standard input")?;
    let client = connect(&plan.endpoint, &plan.token_file).await?;
    let id = make(&client, "rsh").await?;
    said(&client, &id, &format!("truncate -s {} /workspace/big; mkdir /workspace/trees", plan.bytes)).await?;

    let ours = |words: &[&str]| command(&plan.rsh, &[&["--box", "rsh", "--"], words].concat());
    let theirs = |words: &[&str]| plan.ssh.as_ref().map(|ssh| command(ssh, words));
    let argv = ours(&["true"]);
    let peers: Vec<Peer> =
        theirs(&["true"]).into_iter().map(|argv| Peer { name: SSH.to_owned(), argv }).collect();
    let (times_ours, times_theirs) = in_turns(plan.rounds, &peers, async |_| process(&argv)).await?;
    times("rsh-true", times_ours, &peers, times_theirs)?;

    let mine = round_trips(&client, &id, plan.rounds * 20).await?;
    match theirs(&["cat"]) {
        Some(argv) => {
            let peer = round_trips_of(&argv, plan.rounds * 20)?;
            beside("relay-rtt", mine, SSH, peer, "ms", Better::Less)?;
        }
        None => alone("relay-rtt", mine, "ms")?,
    }
    bytes(&plan, &ours(&["cat", "/workspace/big"]), theirs(&["cat", &big(&plan)]))?;
    tree(&plan, &id).await?;
    // the connection of before has had nobody to answer for it meanwhile
    remove(&connect(&plan.endpoint, &plan.token_file).await?, &id).await
}

fn command(first: &[String], rest: &[&str]) -> Vec<String> {
    first.iter().cloned().chain(rest.iter().map(|word| (*word).to_owned())).collect()
}

fn big(plan: &Plan) -> String {
    plan.work.join("big").display().to_string()
}

/// Returns the median of a byte's way to a `cat` in the box and back, on an open session.
async fn round_trips(client: &Client, id: &BoxRef, count: u32) -> Result<f64> {
    let (mut mine, stdin) = tokio::io::duplex(64 * 1024);
    let (stdout, mut back) = tokio::io::duplex(64 * 1024);
    let exec = client.exec(Some(id));
    let stdio = BoxStdio { stdin, stdout, stderr: tokio::io::sink() };
    let run = exec.run(BoxCommand::argv(["cat"]), stdio, RunOptions::default());
    let measure = async move {
        let mut times = Vec::new();
        for _ in 0..count + 10 {
            let start = Instant::now();
            mine.write_all(b"x").await?;
            back.read_u8().await?;
            times.push(start.elapsed().as_secs_f64() * 1000.0);
        }
        mine.shutdown().await?;
        Ok::<_, std::io::Error>(median(times.split_off(10)))
    };
    let (exit, times) = tokio::join!(run, measure);
    ensure!(exit?.success(), "cat failed");
    Ok(times?)
}

/// The same over a process's pipes.
fn round_trips_of(argv: &[String], count: u32) -> Result<f64> {
    let (program, arguments) = argv.split_first().context("an empty command")?;
    let mut child =
        Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(mut stdin), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
        bail!("no pipes")
    };
    let mut times = Vec::new();
    for _ in 0..count + 10 {
        let start = Instant::now();
        stdin.write_all(b"x")?;
        stdin.flush()?;
        stdout.read_exact(&mut [0])?;
        times.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    drop(stdin);
    child.wait()?;
    Ok(median(times.split_off(10)))
}

/// Times a big file's way out, thrown away here; MiB a second.
fn bytes(plan: &Plan, ours: &[String], theirs: Option<Vec<String>>) -> Result<()> {
    std::fs::File::create(big(plan))?.set_len(plan.bytes)?;
    let rate = |time: f64| plan.bytes as f64 / 1024.0 / 1024.0 / (time / 1000.0);
    let (mut mine, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        mine.push(rate(process(ours)?));
        if let Some(theirs) = &theirs {
            peer.push(rate(process(theirs)?));
        }
    }
    std::fs::remove_file(big(plan))?;
    if peer.is_empty() {
        return alone("rsh-bytes", median(mine), "MiB/s");
    }
    beside("rsh-bytes", median(mine), SSH, median(peer), "MiB/s", Better::More)
}

/// Times rsync of a tree of small files into an empty directory, three times.
async fn tree(plan: &Plan, id: &BoxRef) -> Result<()> {
    let from = plan.work.join("tree");
    for nth in 0..plan.files {
        let directory = from.join(format!("{:02}", nth % 100));
        if nth < 100 {
            std::fs::create_dir_all(&directory)?;
        }
        let content = vec![b'a' + (nth % 26) as u8; (nth as usize * 37) % 4096];
        std::fs::write(directory.join(format!("file-{nth}")), content)?;
    }
    let source = format!("{}/", from.display());
    let shell = |words: &[String]| words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let (mut mine, mut peer) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let rsync = |shell: &str, target: String| {
            process(&["rsync", "-a", "-e", shell, source.as_str(), target.as_str()].map(str::to_owned))
        };
        let mut ours = || -> Result<()> {
            let shell = shell(&command(&plan.rsh, &["--box", "rsh"]));
            mine.push(rsync(&shell, format!("box:/workspace/trees/{round}"))?);
            Ok(())
        };
        // nothing is removed in between, and who comes first changes: a file system that just removed much is slow to
        // give out its inodes again, to whoever comes next
        if round % 2 == 0 {
            ours()?;
        }
        if let Some(ssh) = &plan.ssh
            && let Some((host, words)) = ssh.split_last()
        {
            let target = plan.work.join(format!("copy-{round}"));
            peer.push(rsync(&shell(words), format!("{host}:{}", target.display()))?);
        }
        if round % 2 == 1 {
            ours()?;
        }
    }
    let client = connect(&plan.endpoint, &plan.token_file).await?;
    let there = said(&client, id, "find /workspace/trees/2 -type f | wc -l").await?;
    ensure!(there == plan.files.to_string(), "{there} files came");
    let figure = "rsync-tree";
    if peer.is_empty() {
        return alone(figure, median(mine), "ms");
    }
    beside(figure, median(mine), SSH, median(peer), "ms", Better::Less)
}
