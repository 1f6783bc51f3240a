//! Running programs on the guest channel.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_wire::silkd::{ErrorKind, Request, Response};
use rustix::process::{Pid, Signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::Guest;
use super::channel::{Failure, Input, Output, Refusal};
use super::process::Process;
use crate::limit::{check_argv, check_env, check_path};
use crate::ring::Stream;
use crate::serve::children::Ending;
use crate::serve::ends::{self, Master, Sink, Source};
use crate::sys::{self, Launch, Size};

/// How long output is waited for once the program itself is over.
const DRAIN: Duration = Duration::from_secs(2);

/// How much output is still passed on after that time, from a pipe that never falls silent.
const DRAIN_BYTES: usize = 1024 * 1024;

const CHUNK: usize = 64 * 1024;

/// What a request asks to be run.
pub(super) struct Start {
    pub argv: Vec<String>,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
}

struct Running {
    process: Arc<Process>,
    stdin: Sink,
    stdout: Source,
    stderr: Option<Source>,
    ending: oneshot::Receiver<Ending>,
}

impl Start {
    fn run(self, terminal: Option<Size>, detached: bool, guest: &Guest) -> Result<Running, Refusal> {
        let argv: Vec<OsString> = self.argv.iter().map(OsString::from).collect();
        if terminal.is_none() {
            check_argv(&argv).map_err(Refusal::bad)?;
        }
        let variables = || self.env.iter().map(|(name, value)| (name.as_str(), OsStr::new(value)));
        check_env(variables()).map_err(Refusal::bad)?;
        check_path(OsStr::new(self.cwd.as_deref().unwrap_or_default())).map_err(Refusal::bad)?;
        if let Some(user) = self.user.as_deref().filter(|user| !user.is_empty()) {
            let uid = rustix::process::getuid().as_raw().to_string();
            if user != guest.base.user && user != uid {
                return Err(Refusal::bad(format!("this box has one user, {:?}", guest.base.user)));
            }
        }
        if !guest.table.has_room() {
            return Err(Refusal::internal("too many programs run"));
        }
        let directory = guest.base.directory(self.cwd.as_deref().map(Path::new));
        if !directory.is_dir() {
            return Err(Refusal::bad("cwd is no directory"));
        }
        let claim = guest.claim_env.variables();
        let env = guest.base.with_claim(&claim, variables().map(|(name, value)| (OsStr::new(name), value)));
        let launch = if terminal.is_some() {
            let shell = guest.base.shell.clone().into_os_string();
            let name = guest.base.shell.file_name().unwrap_or(OsStr::new("sh"));
            let mut login = OsString::from("-");
            login.push(name);
            Launch { argv: vec![shell], arg0: Some(login), directory, env }
        } else {
            Launch { argv, arg0: None, directory, env }
        };
        let started = guest.children.start(|| sys::launch(&launch, terminal));
        let (pid, ends, ending) = started.map_err(|error| refuse_spawn(&launch.argv[0], error))?;
        let (stdin, stdout, stderr, master) = ends::open(ends)?;
        let shown: Vec<_> = launch.argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let process = Process::new(pid, &shown, detached, master);
        guest.table.add(&process);
        Ok(Running { process, stdin, stdout, stderr, ending })
    }
}

fn refuse_spawn(program: &OsStr, error: io::Error) -> Refusal {
    let kind = match error.raw_os_error() {
        // no such file, not executable, no directory in its way, wrong format, too many links, arguments too long
        Some(2 | 13 | 20 | 8 | 40 | 7) => ErrorKind::BadRequest,
        _ => ErrorKind::Internal,
    };
    Refusal::new(kind, format!("{} cannot be started: {error}", program.to_string_lossy()))
}

pub(super) fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get() as u32
}

/// Runs a program in the foreground of a connection.
pub(super) async fn foreground(
    start: Start,
    guest: &Guest,
    input: &mut Input,
    output: &mut Output,
) -> Result<(), Failure> {
    let running = start.run(None, false, guest)?;
    attend(running, input, output).await
}

/// Runs the user's shell on a terminal, which is hung up when the connection goes.
pub(super) async fn terminal(
    start: Start,
    (cols, rows): (u16, u16),
    guest: &Guest,
    input: &mut Input,
    output: &mut Output,
) -> Result<(), Failure> {
    let running = start.run(Some(Size { columns: cols, rows }), false, guest)?;
    attend(running, input, output).await
}

async fn attend(running: Running, input: &mut Input, output: &mut Output) -> Result<(), Failure> {
    let Running { process, stdin, mut stdout, mut stderr, ending } = running;
    let pid = process.pid;
    let on_terminal = process.master.is_some();
    // whatever happens to the connection, someone waits for the program and keeps its end
    let (seen, ended) = oneshot::channel();
    tokio::spawn(async move {
        let ending = ending.await.unwrap_or(Ending::Code(-1));
        process.ended(ending);
        let _ = seen.send(ending);
    });
    if output.send(&Response::Started { pid: number(pid) }).await.is_err() {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        return Err(Failure::Gone);
    }
    let feed = async {
        feed(stdin, input).await;
        // a vanished client of a terminal never writes again; of pipes, it is noticed at the next output
        if !(on_terminal && input.is_over()) {
            std::future::pending::<()>().await;
        }
    };
    let relay = async {
        let ending = relay(&mut stdout, &mut stderr, ended, output).await?;
        output.send(&Response::Exit { code: ending.shell_code() }).await
    };
    tokio::pin!(relay);
    let result = tokio::select! {
        biased;
        result = &mut relay => result,
        () = feed => {
            let _ = rustix::process::kill_process_group(pid, Signal::HUP);
            relay.await
        }
    };
    if matches!(result, Err(Failure::Gone)) {
        // it was writing to a client that is not there any more
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
    result
}

/// Passes input on until it ends; what comes after is read and dropped.
async fn feed(stdin: Sink, input: &mut Input) {
    let mut stdin = Some(stdin);
    while let Some(request) = input.next_input().await {
        match request {
            Request::Stdin { data } => {
                if let Some(sink) = &mut stdin
                    && sink.write_all(&data).await.is_err()
                {
                    stdin = None;
                }
            }
            Request::StdinClose {} => {
                if let Some(sink) = stdin.take() {
                    sink.close().await;
                }
            }
            _ => {}
        }
    }
}

/// Passes output on until it ends and the program with it.
async fn relay(
    stdout: &mut Source,
    stderr: &mut Option<Source>,
    mut ended: oneshot::Receiver<Ending>,
    output: &mut Output,
) -> Result<Ending, Failure> {
    let (mut out_buffer, mut err_buffer) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (mut out_open, mut err_open) = (true, stderr.is_some());
    let (mut ending, mut deadline, mut late) = (None, Instant::now(), 0);
    loop {
        if let Some(ending) = ending
            && (!(out_open || err_open) || (Instant::now() >= deadline && late > DRAIN_BYTES))
        {
            return Ok(ending);
        }
        let (stream, count) = tokio::select! {
            biased;
            result = &mut ended, if ending.is_none() => {
                ending = Some(result.unwrap_or(Ending::Code(-1)));
                deadline = Instant::now() + DRAIN;
                continue;
            }
            count = stdout.read(&mut out_buffer), if out_open => (Stream::Out, count.unwrap_or(0)),
            count = read(stderr, &mut err_buffer), if err_open => (Stream::Err, count.unwrap_or(0)),
            () = sleep_until(deadline), if ending.is_some() => {
                out_open = false;
                err_open = false;
                continue;
            }
        };
        if count == 0 {
            match stream {
                Stream::Out => out_open = false,
                Stream::Err => err_open = false,
            }
            continue;
        }
        if ending.is_some() {
            late += count;
        }
        let response = match stream {
            Stream::Out => Response::Stdout { data: Bytes::copy_from_slice(&out_buffer[..count]) },
            Stream::Err => Response::Stderr { data: Bytes::copy_from_slice(&err_buffer[..count]) },
        };
        output.send(&response).await?;
    }
}

async fn read(source: &mut Option<Source>, buffer: &mut [u8]) -> io::Result<usize> {
    match source {
        Some(source) => source.read(buffer).await,
        None => Ok(0),
    }
}

/// Starts a program that does without its connection.
pub(super) async fn detached(start: Start, guest: &Guest, output: &mut Output) -> Result<(), Failure> {
    let Running { process, stdin, mut stdout, mut stderr, ending } = start.run(None, true, guest)?;
    drop(stdin);
    let pid = process.pid;
    tokio::spawn(async move {
        let keep = |stream, data: &[u8]| {
            if let Some(ring) = &process.ring {
                ring.lock().unwrap_or_else(PoisonError::into_inner).push(stream, data);
                process.news.send_modify(|progress| progress.pieces += 1);
            }
        };
        let collect = async {
            let (mut out_buffer, mut err_buffer) = (vec![0; CHUNK / 4], vec![0; CHUNK / 4]);
            let (mut out_open, mut err_open) = (true, true);
            while out_open || err_open {
                tokio::select! {
                    count = stdout.read(&mut out_buffer), if out_open => match count {
                        Ok(0) | Err(_) => out_open = false,
                        Ok(count) => keep(Stream::Out, &out_buffer[..count]),
                    },
                    count = read(&mut stderr, &mut err_buffer), if err_open => match count {
                        Ok(0) | Err(_) => err_open = false,
                        Ok(count) => keep(Stream::Err, &err_buffer[..count]),
                    },
                }
            }
        };
        tokio::pin!(collect);
        let (mut ending, mut silent) = (ending, false);
        let ending = loop {
            tokio::select! {
                ended = &mut ending => break ended.unwrap_or(Ending::Code(-1)),
                () = &mut collect, if !silent => silent = true,
            }
        };
        if !silent {
            silent = tokio::time::timeout(DRAIN, &mut collect).await.is_ok();
        }
        process.ended(ending);
        // its children may still write: reading on keeps them from SIGPIPE
        if !silent {
            collect.await;
        }
    });
    output.send(&Response::Started { pid: number(pid) }).await
}

/// Whether a replay goes on with what comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Follow {
    Yes,
    No,
}

/// Replays a detached program's kept output.
pub(super) async fn replay(
    pid: u32,
    follow: Follow,
    guest: &Guest,
    output: &mut Output,
) -> Result<(), Failure> {
    let process = guest.table.find(pid).ok_or_else(|| no_process(pid))?;
    let ring = process.ring.as_ref().ok_or_else(|| Refusal::bad(format!("process {pid} is not detached")))?;
    let mut news = process.news.subscribe();
    let mut cursor = (0, 0);
    loop {
        let ended = news.borrow_and_update().ended;
        loop {
            let piece = ring.lock().unwrap_or_else(PoisonError::into_inner).read(&mut cursor);
            match piece {
                Some((Stream::Out, data)) => output.send(&Response::Stdout { data }).await?,
                Some((Stream::Err, data)) => output.send(&Response::Stderr { data }).await?,
                None => break,
            }
        }
        if let Some((ending, _)) = ended {
            output.send(&Response::Exit { code: ending.shell_code() }).await?;
        }
        match (follow, ended) {
            (Follow::No, _) => return output.send(&Response::Done {}).await,
            (Follow::Yes, Some(_)) => return Ok(()),
            (Follow::Yes, None) => {
                tokio::select! {
                    changed = news.changed() => if changed.is_err() {
                        return output.send(&Response::Done {}).await;
                    },
                    // the client left: without output, nothing else would tell
                    () = output.closed() => return Err(Failure::Gone),
                }
            }
        }
    }
}

fn no_process(pid: u32) -> Refusal {
    Refusal::not_found(format!("no process {pid} was started here"))
}

/// Signals a program and its group.
pub(super) fn kill(pid: u32, signal: Option<i32>, guest: &Guest) -> Result<(), Refusal> {
    let process = guest.table.find(pid).ok_or_else(|| no_process(pid))?;
    let signal = signal.filter(|signal| *signal != 0).unwrap_or(9);
    if !(1..=64).contains(&signal) {
        return Err(Refusal::bad(format!("{signal} is no signal")));
    }
    if process.ending().is_none() {
        match crate::signal::to_group(process.pid, signal) {
            // it is over, and about to be noticed
            Err(error) if error.raw_os_error() == Some(3) => {}
            result => result?,
        }
    }
    Ok(())
}

/// Gives a terminal another size.
pub(super) fn resize(pid: u32, (columns, rows): (u16, u16), guest: &Guest) -> Result<(), Refusal> {
    let process = guest.table.find(pid).ok_or_else(|| no_process(pid))?;
    let master: &Master =
        process.master.as_ref().ok_or_else(|| Refusal::bad(format!("process {pid} has no terminal")))?;
    if process.ending().is_none() {
        master.resize(Size { columns, rows })?;
    }
    Ok(())
}
