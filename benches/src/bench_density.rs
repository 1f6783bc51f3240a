//! Measures what boxes cost that nobody uses: memory, processor time, and how long a list of them takes.
//!
//! Reads one JSON object from standard input (see [`Plan`]) and prints one JSON line per figure.

mod measure;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cocoonbox_client::{BoxRef, Client, EnsureOptions, HibernateOptions};
use futures::StreamExt as _;
use measure::{alone, connect, make, median, remove, said};
use serde::Deserialize;

/// What to measure.
#[derive(Debug, Deserialize)]
struct Plan {
    endpoint: String,
    token_file: PathBuf,
    /// The server's process.
    server: i32,
    /// How many boxes there are; they sleep on disk.
    boxes: u32,
    /// How many of them run and do nothing.
    running: u32,
    /// How many seconds the idle processors are watched.
    seconds: u32,
    /// The kernel's ticks of processor time in a second.
    ticks: u32,
}

/// How many boxes are made or put to sleep at a time.
const AT_ONCE: usize = 4;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let plan: Plan = serde_json::from_reader(std::io::stdin()).context("the plan on standard input")?;
    let client = connect(&plan.endpoint, &plan.token_file).await?;

    // one that ran a command, so that all that ever runs for it is there
    let first = make(&client, "first").await?;
    said(&client, &first, "true").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let processes = in_boxes();
    ensure!(!processes.is_empty(), "the box has no process");
    let memory: u64 = processes.iter().map(|pid| proportional(*pid)).sum();
    alone("density-box-mib", mib(memory), "MiB")?;
    remove(&client, &first).await?;

    let boxes = futures::stream::iter((0..plan.boxes).map(|nth| asleep(&client, nth)))
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let boxes = boxes.into_iter().collect::<Result<Vec<_>>>()?;
    let left = in_boxes();
    ensure!(left.is_empty(), "{} processes are left of {} boxes on disk", left.len(), boxes.len());

    let mut times = Vec::new();
    for _ in 0..=20 {
        let start = Instant::now();
        let listed = client.list_boxes().await?;
        times.push(start.elapsed().as_secs_f64() * 1000.0);
        ensure!(listed.len() == boxes.len(), "{} boxes are listed", listed.len());
    }
    alone(&format!("list-{}", plan.boxes), median(times.split_off(1)), "ms")?;

    let running = boxes.iter().take(plan.running as usize);
    let woken = futures::stream::iter(running.map(|id| wake(&client, id)))
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    woken.into_iter().collect::<Result<Vec<_>>>()?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    alone("density-mib", mib(proportional(plan.server)), "MiB")?;

    let before = used(plan.server);
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(u64::from(plan.seconds))).await;
    let after = used(plan.server);
    let ticks: u64 = after.iter().map(|(pid, now)| now - before.get(pid).copied().unwrap_or(*now)).sum();
    let percent = ticks as f64 / f64::from(plan.ticks) / start.elapsed().as_secs_f64() * 100.0;
    alone("density-cpu", percent, "%")?;

    let removed = futures::stream::iter(boxes.iter().map(|id| remove(&client, id)))
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    removed.into_iter().collect::<Result<Vec<_>>>().map(drop)
}

/// Makes a box, runs a command in it and puts it to sleep on disk.
async fn asleep(client: &Client, nth: u32) -> Result<BoxRef> {
    let id = make(client, &format!("box-{nth}")).await?;
    let options = HibernateOptions::default().with_to_disk(true);
    let reply = client.hibernate_box(Some(&id), options).await?;
    client.follow(&reply, |_| ()).await?;
    Ok(id)
}

async fn wake(client: &Client, id: &BoxRef) -> Result<()> {
    let reply = client.ensure_box(Some(id), EnsureOptions::default()).await?;
    client.follow(&reply, |_| ()).await?;
    said(client, id, "true").await.map(drop)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}

/// Returns every process of a box on this machine: those that launched one, and what they started. Other servers'
/// boxes are counted, too: run this where there are none.
fn in_boxes() -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let mut found = Vec::new();
    for pid in pids() {
        if fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"cocoonbox-box ")) {
            found.push(pid);
        }
        if let Some(parent) = stat(pid, 1) {
            children.entry(i32::try_from(parent).unwrap_or(0)).or_default().push(pid);
        }
    }
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        let below = children.remove(&pid).unwrap_or_default();
        found.extend(below.into_iter().filter(|child| !found.contains(child)).collect::<Vec<_>>());
    }
    found
}

fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns a number of `/proc/PID/stat`, counted from the state, which is 0.
fn stat(pid: i32, field: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split_whitespace().nth(field)?.parse().ok()
}

/// Returns the memory of a process, what it shares divided by those who share it.
fn proportional(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Returns the processor time of the server and of every box's processes, in ticks.
fn used(server: i32) -> BTreeMap<i32, u64> {
    let pids = in_boxes().into_iter().chain([server]);
    pids.filter_map(|pid| Some((pid, stat(pid, 11)? + stat(pid, 12)?))).collect()
}
