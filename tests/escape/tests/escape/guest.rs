//! What the tests ask of a box: the guest channel, as a client speaks it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cocoonbox_core::backend::{BoxedDuplex, SandboxBackend, SandboxId, Target};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, ReadHalf, WriteHalf};

use crate::Error;

/// Where a box keeps the attacker.
pub(crate) const ATTACKER: &str = "/home/user/attacker";

/// What a program did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) code: i64,
    pub(crate) said: String,
}

struct Channel {
    lines: tokio::io::Lines<BufReader<ReadHalf<BoxedDuplex>>>,
    write: WriteHalf<BoxedDuplex>,
}

impl Channel {
    async fn open(backend: &dyn SandboxBackend, id: &SandboxId) -> Result<Self, Error> {
        let (read, write) = tokio::io::split(backend.connect(id, Target::Channel).await?);
        Ok(Self { lines: BufReader::new(read).lines(), write })
    }
    async fn send(&mut self, frame: &Value) -> Result<(), Error> {
        Ok(self.write.write_all(format!("{frame}\n").as_bytes()).await?)
    }
    async fn next(&mut self) -> Result<Value, Error> {
        let line = self.lines.next_line().await?.ok_or("the guest hung up")?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Puts a program into a box.
pub(crate) async fn put(
    backend: &dyn SandboxBackend,
    id: &SandboxId,
    path: &str,
    bytes: &[u8],
) -> Result<(), Error> {
    let mut channel = Channel::open(backend, id).await?;
    channel.send(&json!({ "v": 1, "op": "fs_write", "path": path, "mode": 0o755 })).await?;
    for part in bytes.chunks(1 << 20) {
        channel.send(&json!({ "v": 1, "op": "data", "data": STANDARD.encode(part) })).await?;
    }
    channel.send(&json!({ "v": 1, "op": "data_end" })).await?;
    let answer = channel.next().await?;
    if answer["type"] == "done" { Ok(()) } else { Err(format!("{path} was not written: {answer}").into()) }
}

/// Starts a program in a box and leaves it running.
pub(crate) async fn detach(backend: &dyn SandboxBackend, id: &SandboxId, argv: &[&str]) -> Result<(), Error> {
    let mut channel = Channel::open(backend, id).await?;
    channel.send(&json!({ "v": 1, "op": "exec", "argv": argv, "detach": true })).await?;
    let answer = channel.next().await?;
    if answer["type"] == "started" { Ok(()) } else { Err(format!("{argv:?}: {answer}").into()) }
}

/// Runs a program in a box to its end.
pub(crate) async fn exec(backend: &dyn SandboxBackend, id: &SandboxId, argv: &[&str]) -> Result<Ran, Error> {
    let mut channel = Channel::open(backend, id).await?;
    channel.send(&json!({ "v": 1, "op": "exec", "argv": argv })).await?;
    let mut said = Vec::new();
    loop {
        let frame = channel.next().await?;
        match frame["type"].as_str().unwrap_or_default() {
            "stdout" | "stderr" => {
                said.extend(STANDARD.decode(frame["data"].as_str().unwrap_or_default())?);
            }
            "started" => {}
            "exit" => {
                let said = String::from_utf8_lossy(&said).trim_end().to_owned();
                return Ok(Ran { code: frame["code"].as_i64().unwrap_or(-1), said });
            }
            _ => return Err(format!("{argv:?}: the guest answered {frame}").into()),
        }
    }
}
