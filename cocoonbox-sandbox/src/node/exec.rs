//! Running one command and answering with all it said.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_core::backend::{BoxedDuplex, SandboxId, Target};
use cocoonbox_wire::silkd::{ErrorKind, LineCodec, Request, Response, decode_response, request_line};
use futures::StreamExt as _;
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;

use super::refusal::{Code, Refusal};
use super::{Node, serve};

/// The most bytes of output of one command.
pub(crate) const MAX_OUTPUT: usize = 8 * 1024 * 1024;
/// The most bytes of output that all commands under way hold.
const MAX_HELD: usize = 64 * 1024 * 1024;
/// The most commands under way.
const MAX_COMMANDS: usize = 256;
/// How long a kill may take.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How long a guest has to say that a command started.
const START_LIMIT: Duration = Duration::from_secs(30);

/// What the commands under way hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Room(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    bytes: AtomicUsize,
    commands: AtomicUsize,
}

/// What one command holds of the room.
#[derive(Debug)]
struct Share {
    room: Arc<Held>,
    bytes: usize,
}

impl Room {
    fn enter(&self) -> Result<Share, Refusal> {
        if self.0.commands.fetch_add(1, Ordering::SeqCst) >= MAX_COMMANDS {
            self.0.commands.fetch_sub(1, Ordering::SeqCst);
            return Err(full());
        }
        Ok(Share { room: Arc::clone(&self.0), bytes: 0 })
    }
}

impl Share {
    fn take(&mut self, bytes: usize) -> Result<(), Refusal> {
        if self.room.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes > MAX_HELD {
            self.room.bytes.fetch_sub(bytes, Ordering::SeqCst);
            return Err(full());
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        self.room.commands.fetch_sub(1, Ordering::SeqCst);
    }
}

fn full() -> Refusal {
    Refusal::new(Code::Busy, "the output of the commands under way takes all the room there is for it")
}

/// What to run.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// Absent: as long as the caller waits.
    pub(crate) timeout: Option<Duration>,
}

/// What it did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Held until the answer is written.
    _share: Share,
}

impl Node {
    /// Runs a command in a sandbox, which is waked for it. A command that is given up, by a limit or because the
    /// caller left, is killed.
    pub(crate) async fn exec(&self, id: &SandboxId, command: Command) -> Result<Done, Refusal> {
        let share = self.0.execs.enter()?;
        let given_up = CancellationToken::new();
        let here = given_up.clone().drop_guard();
        let (node, id) = (self.clone(), id.clone());
        let done = serve::to_the_end(async move { node.run(&id, command, share, given_up).await }).await;
        drop(here.disarm());
        done
    }

    async fn run(
        &self,
        id: &SandboxId,
        command: Command,
        mut share: Share,
        given_up: CancellationToken,
    ) -> Result<Done, Refusal> {
        let stream = self.connect(id, Target::Channel).await?;
        let timeout = command.timeout;
        let mut running = match serve::within(START_LIMIT, Running::start(stream, command)).await {
            Some(running) => running?,
            None => return Err(strange("it did not start the command within 30 s")),
        };
        let ended = {
            let collect = running.collect(&mut share);
            tokio::pin!(collect);
            let limited = async {
                match timeout {
                    Some(limit) => serve::within(limit, &mut collect).await,
                    None => Some(collect.await),
                }
            };
            tokio::select! {
                ended = limited => ended.unwrap_or_else(|| {
                    Err(Refusal::new(Code::Timeout, "the command ran longer than timeout_seconds"))
                }),
                () = given_up.cancelled() => Err(Refusal::new(Code::Timeout, "the caller left")),
            }
        };
        match ended {
            Ok(code) => Ok(Done { code, stdout: running.stdout, stderr: running.stderr, _share: share }),
            Err(refusal) => {
                if running.pid > 0 && refusal.code() != Code::Unreachable {
                    self.kill(id, running.pid).await;
                }
                Err(refusal)
            }
        }
    }

    /// Kills a command through a connection of its own.
    async fn kill(&self, id: &SandboxId, pid: u32) {
        let work = async {
            let stream = self.0.backend.connect(id, Target::Channel).await?;
            let mut lines = Lines::new(stream);
            lines.say(&Request::Kill { pid, signal: None }).await?;
            lines.next().await.map(drop)
        };
        match serve::within(KILL_LIMIT, work).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(sandbox = %id, error, "a command that was given up may go on");
            }
            None => {
                tracing::warn!(sandbox = %id, "a command that was given up may go on: no answer to its kill");
            }
        }
    }
}

fn strange(reason: &str) -> Refusal {
    Refusal::new(Code::Unreachable, format!("the guest misbehaved: {reason}"))
}

/// A connection of the guest channel.
struct Lines {
    read: FramedRead<ReadHalf<BoxedDuplex>, LineCodec>,
    write: WriteHalf<BoxedDuplex>,
}

impl Lines {
    fn new(stream: BoxedDuplex) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self { read: FramedRead::new(read, LineCodec::default()), write }
    }

    async fn say(&mut self, request: &Request) -> Result<(), Refusal> {
        let said = self.write.write_all(&request_line(request)).await;
        said.map_err(|_| strange("it hung up"))
    }

    async fn next(&mut self) -> Result<Response, Refusal> {
        let line = match self.read.next().await {
            Some(Ok(line)) => line,
            Some(Err(error)) => return Err(strange(&error.to_string())),
            None => return Err(strange("it hung up")),
        };
        match decode_response(&line).map_err(|error| strange(&error.to_string()))? {
            Response::Error { kind, message } => {
                let said: String = message.chars().take(1024).collect();
                Err(match kind {
                    ErrorKind::BadRequest => Refusal::invalid(said),
                    _ => Refusal::new(Code::Unreachable, format!("the guest refused: {said}")),
                })
            }
            response => Ok(response),
        }
    }
}

/// A command that runs.
struct Running {
    lines: Lines,
    pid: u32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Running {
    async fn start(stream: BoxedDuplex, command: Command) -> Result<Self, Refusal> {
        let mut lines = Lines::new(stream);
        let Command { argv, cwd, env, timeout: _ } = command;
        let exec = Request::Exec { argv, cwd, env, user: None, detach: None, session: None };
        lines.say(&exec).await?;
        lines.say(&Request::StdinClose {}).await?;
        match lines.next().await? {
            Response::Started { pid } => Ok(Self { lines, pid, stdout: Vec::new(), stderr: Vec::new() }),
            _ => Err(strange("it did not say that the command started")),
        }
    }

    async fn collect(&mut self, share: &mut Share) -> Result<i32, Refusal> {
        loop {
            let response = self.lines.next().await?;
            let (data, all): (Bytes, &mut Vec<u8>) = match response {
                Response::Stdout { data } => (data, &mut self.stdout),
                Response::Stderr { data } => (data, &mut self.stderr),
                Response::Exit { code } => return Ok(code),
                _ => return Err(strange("it sent what is no part of a command")),
            };
            share.take(data.len())?;
            all.extend_from_slice(&data);
            if self.stdout.len() + self.stderr.len() > MAX_OUTPUT {
                let text = format!("the command said more than {MAX_OUTPUT} bytes: use the relay");
                return Err(Refusal::new(Code::TooLarge, text));
            }
        }
    }
}
