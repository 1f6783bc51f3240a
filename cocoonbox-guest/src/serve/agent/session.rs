//! Sessions: programs that outlive the connection that started them, for a while.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cocoonbox_core::{Entropy, SessionId};
use cocoonbox_wire::agent::v1::event::What;
use cocoonbox_wire::agent::v1::{ExecExit, ExecStart, SessionEnded, SessionStarted, exec_exit::How};
use rustix::process::Pid;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;

use super::{Happenings, start};
use crate::base::Base;
use crate::claim_env::ClaimEnv;
use crate::replay::{Input, Output};
use crate::ring::Stream;
use crate::serve::children::{Children, Ending};
use crate::serve::ends::{self, Master, Sink, Source};
use crate::{signal, sys};

/// The most sessions at a time, those that wait to be attached to included.
pub(super) const MAX_SESSIONS: usize = 256;

/// How long output may be silent after the program itself is over, before what others still hold is let go.
const DRAIN: Duration = Duration::from_secs(2);

/// The same for a terminal, where background jobs commonly stay.
const TERMINAL_DRAIN: Duration = Duration::from_millis(100);

/// The most bytes that are read at a time, as much as a pipe holds: large pieces wake everybody on their way less often.
const CHUNK: usize = ends::PIPE;

/// A session that moved more than this leaves memory behind that is worth giving back.
const MANY_BYTES: u64 = 1024 * 1024;

const HANG_UP: i32 = 1;
const KILL: i32 = 9;

/// What sessions go by.
#[derive(Debug)]
pub(super) struct Rules {
    pub base: Base,
    pub claim_env: ClaimEnv,
    pub reattach: Duration,
    pub grace: Duration,
}

/// All sessions, by id.
#[derive(Clone, Debug)]
pub(super) struct Sessions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    rules: Rules,
    children: Children,
    entropy: Arc<dyn Entropy>,
    happenings: Arc<Happenings>,
    live: Mutex<HashMap<SessionId, Arc<Session>>>,
}

/// A program, what it said that nobody acknowledged, and what it was told that it did not take.
#[derive(Debug)]
pub(super) struct Session {
    pub id: SessionId,
    /// None when the program could not be started, which the session then tells.
    pub pid: Option<Pid>,
    pub master: Option<Master>,
    state: Mutex<State>,
    /// Told whenever a stream may have something to say.
    pub news: watch::Sender<()>,
    /// Counts the streams that attached; a stream that is not the last one ends.
    pub streams: watch::Sender<u64>,
    /// Output was acknowledged, or need not be any more.
    room: Notify,
    /// Input came, or ended.
    fed: Notify,
}

/// What changes in a session.
#[derive(Debug, Default)]
pub(super) struct State {
    pub output: Output,
    pub input: Input,
    pub signals: u64,
    /// The program itself is over; its group is not ours to signal any more.
    gone: bool,
    /// How it ended, once all its output is here.
    pub ending: Option<Ending>,
    /// The client asked for the end: when it goes, it does not come again.
    closed: bool,
    /// Nobody will come for the output.
    abandoned: bool,
}

impl Session {
    fn new(id: SessionId, pid: Option<Pid>, master: Option<Master>) -> Self {
        Self {
            id,
            pid,
            master,
            state: Mutex::default(),
            news: watch::Sender::new(()),
            streams: watch::Sender::new(1),
            room: Notify::new(),
            fed: Notify::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the client has dealt with output up to `offset`.
    pub(super) fn acknowledge(&self, offset: u64) -> Result<(), Status> {
        self.state()
            .output
            .acknowledge(offset)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.room.notify_one();
        Ok(())
    }

    /// Changes the input, and wakes who writes it.
    pub(super) fn feed<E: ToString>(
        &self,
        change: impl FnOnce(&mut Input) -> Result<(), E>,
    ) -> Result<(), Status> {
        change(&mut self.state().input).map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.fed.notify_one();
        self.news.send_replace(());
        Ok(())
    }

    /// Delivers signal `number` once: a sequence that is not higher than the last is one that was sent again.
    pub(super) fn signal(&self, number: u32, sequence: u64) -> Result<(), Status> {
        let number = i32::try_from(number).ok().filter(|number| (1..=64).contains(number));
        let number = number.ok_or_else(|| Status::invalid_argument("signal: 1 to 64"))?;
        let mut state = self.state();
        if sequence > state.signals {
            state.signals = sequence;
            if !state.gone {
                self.deliver(number);
            }
        }
        drop(state);
        self.news.send_replace(());
        Ok(())
    }

    /// Signals the foreground of a terminal, and the session's own group when that is what it is about.
    fn deliver(&self, number: i32) {
        let Some(pid) = self.pid else { return };
        let foreground = self.master.as_ref().and_then(|master| rustix::termios::tcgetpgrp(master.fd()).ok());
        let to_leader = foreground.is_none_or(|group| group != pid) && matches!(number, 1 | 9 | 15);
        let _ = signal::to_group(foreground.unwrap_or(pid), number);
        if to_leader && foreground.is_some() {
            let _ = signal::to_group(pid, number);
        }
    }

    /// Hangs up because the client asked for it.
    pub(super) fn close(self: &Arc<Self>, grace: Duration) {
        self.state().closed = true;
        self.hang_up(grace);
    }

    /// Hangs up: SIGHUP to the group at once, SIGKILL after `grace` if the program is still there. One that ignores
    /// SIGHUP (nohup) was started to outlive its session, and does.
    fn hang_up(self: &Arc<Self>, grace: Duration) {
        {
            let mut state = self.state();
            state.input.finish_here();
            self.fed.notify_one();
            if state.gone || self.pid.is_none_or(ignores_hang_up) {
                return;
            }
            self.deliver(HANG_UP);
        }
        let session = self.clone();
        tokio::spawn(async move {
            sleep(grace).await;
            if !session.state().gone {
                session.deliver(KILL);
            }
        });
    }

    /// Lets go of the output: what comes is read and dropped, so that the program does not stand still.
    fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        let end = state.output.end();
        let _ = state.output.acknowledge(end);
        drop(state);
        self.room.notify_one();
    }
}

fn ignores_hang_up(pid: Pid) -> bool {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

impl Sessions {
    pub(super) fn new(
        rules: Rules,
        children: Children,
        entropy: Arc<dyn Entropy>,
        happenings: Arc<Happenings>,
    ) -> Self {
        Self(Arc::new(Shared { rules, children, entropy, happenings, live: Mutex::default() }))
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn grace(&self) -> Duration {
        self.0.rules.grace
    }

    /// Starts a program.
    pub(super) fn start(&self, asked: ExecStart) -> Result<Arc<Session>, Status> {
        if self.live().len() >= MAX_SESSIONS {
            return Err(Status::resource_exhausted(format!("at most {MAX_SESSIONS} sessions at a time")));
        }
        let (launch, size) = start::launch(asked, &self.0.rules.base, &self.0.rules.claim_env.variables())?;
        let program = start::program(&launch);
        let id = SessionId::random(&*self.0.entropy).map_err(|error| Status::internal(error.to_string()))?;
        let (pid, ends, ending) = match self.0.children.start(|| sys::launch(&launch, size)) {
            Ok(started) => started,
            Err(error) => {
                let failure = start::failure(&launch, &error)?;
                return Ok(self.start_nothing(id, program, size.is_some(), failure));
            }
        };
        let (sink, stdout, stderr, master) =
            ends::open(ends).map_err(|error| Status::internal(error.to_string()))?;
        let session = self.add(Session::new(id, Some(pid), master), program, size.is_some());
        let feeder = tokio::spawn(write_input(session.clone(), sink));
        let (running, sessions) = (session.clone(), self.clone());
        tokio::spawn(async move {
            let mut sources = Sources { stdout: Some(stdout), stderr };
            let ending = read_output(&running, &mut sources, ending).await;
            feeder.abort();
            running.state().input.discard();
            sessions.ended(&running, ending);
            // others may hold the ends still: a write of theirs must not be their end
            while sources.read(&mut vec![0; CHUNK], CHUNK).await.is_some() {}
        });
        Ok(session)
    }

    /// Makes the session of a program that could not be started: it says why and is over, as a shell's child would be.
    fn start_nothing(
        &self,
        id: SessionId,
        program: String,
        tty: bool,
        failure: start::Failure,
    ) -> Arc<Session> {
        let session = self.add(Session::new(id, None, None), program, tty);
        {
            let mut state = session.state();
            state.gone = true;
            state.input.discard();
            let (stream, end) = if tty { (Stream::Out, "\r\n") } else { (Stream::Err, "\n") };
            state.output.push(stream, &[&failure.message, end.as_bytes()].concat());
        }
        self.ended(&session, Ending::Code(failure.code));
        session
    }

    fn add(&self, session: Session, program: String, tty: bool) -> Arc<Session> {
        let session = Arc::new(session);
        self.live().insert(session.id.clone(), session.clone());
        let session_id = session.id.to_string();
        self.0.happenings.add(What::SessionStarted(SessionStarted { session_id, program, tty }));
        session
    }

    fn ended(&self, session: &Session, ending: Ending) {
        session.state().ending = Some(ending);
        session.news.send_replace(());
        let ended = SessionEnded { session_id: session.id.to_string(), exit: Some(exit(ending)) };
        self.0.happenings.add(What::SessionEnded(ended));
        let abandoned = session.state().abandoned;
        if abandoned {
            self.forget(session);
        }
    }

    /// Finds a session and makes the caller its one stream.
    pub(super) fn attach(&self, id: &str, output_offset: u64) -> Result<(Arc<Session>, u64), Status> {
        let known = id.parse::<SessionId>().ok().and_then(|id| self.live().get(&id).cloned());
        let session = known.ok_or_else(|| Status::not_found("no such session, or not any more"))?;
        {
            let mut state = session.state();
            state.output.check(output_offset).map_err(|error| Status::out_of_range(error.to_string()))?;
            // what the client has is acknowledged: its own word may have been lost with the connection before, and
            // a program that waits for room would wait for ever
            state
                .output
                .acknowledge(output_offset)
                .map_err(|error| Status::out_of_range(error.to_string()))?;
        }
        session.room.notify_one();
        let mut stream = 0;
        session.streams.send_modify(|count| {
            *count += 1;
            stream = *count;
        });
        Ok((session, stream))
    }

    /// Notes that stream number `stream` lost its client; when none comes in time, the session ends.
    pub(super) fn lost(&self, session: &Arc<Session>, stream: u64) {
        let (sessions, session) = (self.clone(), session.clone());
        if session.state().closed {
            self.forget(&session);
            return session.abandon();
        }
        tokio::spawn(async move {
            let mut streams = session.streams.subscribe();
            tokio::select! {
                _ = streams.wait_for(|last| *last != stream) => return,
                () = sleep(sessions.0.rules.reattach) => {}
            }
            // from here on an attach finds nothing
            sessions.forget(&session);
            session.abandon();
            session.hang_up(sessions.grace());
        });
    }

    /// Forgets a session.
    pub(super) fn forget(&self, session: &Session) {
        self.live().remove(&session.id);
        let mut state = session.state();
        let moved = state.output.end() + state.input.received();
        let end = state.output.end();
        let _ = state.output.acknowledge(end);
        drop(state);
        if moved > MANY_BYTES {
            sys::give_memory_back();
        }
    }
}

/// Returns an ending as it is said.
pub(super) fn exit(ending: Ending) -> ExecExit {
    ExecExit {
        how: Some(match ending {
            Ending::Code(code) => How::Code(code),
            Ending::Signal(signal) => How::Signal(signal),
        }),
    }
}

/// Writes what input comes until it ends or nobody takes it.
async fn write_input(session: Arc<Session>, mut sink: Sink) {
    loop {
        let (piece, done) = {
            let state = session.state();
            (state.input.next(), state.input.is_done())
        };
        match piece {
            Some(piece) => {
                let Ok(count) = sink.write(&piece).await else {
                    session.state().input.discard();
                    session.news.send_replace(());
                    return;
                };
                session.state().input.wrote(count);
                session.news.send_replace(());
            }
            None if done => return sink.close().await,
            None => session.fed.notified().await,
        }
    }
}

/// Where output comes from.
struct Sources {
    stdout: Option<Source>,
    stderr: Option<Source>,
}

impl Sources {
    /// Reads at most `room` bytes from either; none when both are at their end. May be dropped while it waits.
    async fn read(&mut self, buffer: &mut [u8], room: usize) -> Option<(Stream, usize)> {
        async fn one(source: &mut Option<Source>, buffer: &mut [u8]) -> usize {
            match source {
                Some(source) => source.read(buffer).await.unwrap_or(0),
                None => std::future::pending().await,
            }
        }
        let room = room.min(buffer.len() / 2);
        let (out_buffer, err_buffer) = buffer.split_at_mut(buffer.len() / 2);
        while self.stdout.is_some() || self.stderr.is_some() {
            tokio::select! {
                count = one(&mut self.stdout, &mut out_buffer[..room]) => match count {
                    0 => self.stdout = None,
                    count => return Some((Stream::Out, count)),
                },
                count = one(&mut self.stderr, &mut err_buffer[..room]) => match count {
                    0 => self.stderr = None,
                    count => return Some((Stream::Err, count)),
                },
            }
        }
        None
    }
}

/// Reads output into the session until it ends and the program with it; held back while nobody acknowledges.
async fn read_output(
    session: &Session,
    sources: &mut Sources,
    mut ending: oneshot::Receiver<Ending>,
) -> Ending {
    let drain = if session.master.is_some() { TERMINAL_DRAIN } else { DRAIN };
    let mut buffer = vec![0; 2 * CHUNK];
    let (mut ended, mut open, mut silent_at) = (None, true, Instant::now());
    loop {
        if let Some(ended) = ended
            && !open
        {
            return ended;
        }
        let (room, abandoned) = {
            let state = session.state();
            if state.abandoned { (CHUNK, true) } else { (state.output.room(), false) }
        };
        tokio::select! {
            biased;
            result = &mut ending, if ended.is_none() => {
                session.state().gone = true;
                ended = Some(result.unwrap_or(Ending::Code(-1)));
                silent_at = Instant::now() + drain;
            }
            read = sources.read(&mut buffer, room), if open && room > 0 => match read {
                Some((stream, count)) => {
                    let start = if stream == Stream::Out { 0 } else { CHUNK };
                    if !abandoned {
                        session.state().output.push(stream, &buffer[start..start + count]);
                        session.news.send_replace(());
                    }
                    silent_at = Instant::now() + drain;
                }
                None => open = false,
            },
            // what is held back is not silence
            () = session.room.notified(), if open && room == 0 => silent_at = Instant::now() + drain,
            () = sleep_until(silent_at), if ended.is_some() && room > 0 => open = false,
        }
    }
}
