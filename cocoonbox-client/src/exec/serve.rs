//! Moves a session's bytes and waits for lost connections to come back.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use cocoonbox_wire::agent::v1::exec_request::Message as Ask;
use cocoonbox_wire::agent::v1::exec_response::Message as Tell;
use cocoonbox_wire::agent::v1::{ExecClose, ExecRequest, ExecStart, exec_output};
use futures::StreamExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use super::session::Session;
use super::transport::{Relay, Transport, Wire};
use super::{Command, ExecError, Exit, REATTACH_FOR};
use crate::{BoxRef, Client, ClientError, Endpoint};

/// How long one try to attach may take.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the agent may take to hear that its exit was received.
const FAREWELL: Duration = Duration::from_millis(500);
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM: before a command runs they end the wait for it.
const ENDING_SIGNALS: [u32; 4] = [1, 2, 3, 15];

/// What a caller tells a running command besides its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// Sends a Linux signal to it.
    Signal(u32),
    /// Its terminal has another size now.
    Resize {
        /// Columns.
        columns: u32,
        /// Rows.
        rows: u32,
    },
    /// Hangs it up.
    Close,
}

/// What a caller may want to know besides the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The command runs; no output was written yet.
    Started,
    /// The connection was lost and is being taken up again.
    Lost,
    /// The connection is back; nothing was lost.
    Back,
}

/// Where a command's bytes come from and go to.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a command has these three")]
pub struct Stdio<I, O, E> {
    /// Standard input.
    pub stdin: I,
    /// Standard output.
    pub stdout: O,
    /// Standard error.
    pub stderr: E,
}

/// What else a run may be given.
#[derive(Default)]
#[non_exhaustive]
pub struct RunOptions<'a> {
    controls: Option<&'a mut mpsc::Receiver<Control>>,
    notice: Option<&'a mut (dyn FnMut(Notice) + Send)>,
}

impl<'a> RunOptions<'a> {
    /// Takes signals and window sizes from a queue.
    pub fn with_controls(mut self, controls: &'a mut mpsc::Receiver<Control>) -> Self {
        self.controls = Some(controls);
        self
    }

    /// Tells about the connection as it changes.
    pub fn with_notice(mut self, notice: &'a mut (dyn FnMut(Notice) + Send)) -> Self {
        self.notice = Some(notice);
        self
    }

    fn tell(&mut self, notice: Notice) {
        if let Some(tell) = &mut self.notice {
            tell(notice);
        }
    }

    /// Returns the next control; never when there is nobody to send one.
    async fn control(&mut self) -> Control {
        if let Some(controls) = &mut self.controls {
            if let Some(control) = controls.recv().await {
                return control;
            }
            self.controls = None;
        }
        std::future::pending().await
    }
}

impl fmt::Debug for RunOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions").finish_non_exhaustive()
    }
}

/// What a short command said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

/// The door to one box's commands.
#[derive(Debug)]
pub struct Exec {
    relay: Relay,
}

impl Exec {
    pub(crate) fn new(client: Client, name: Option<BoxRef>) -> Self {
        Self { relay: Relay { client, name } }
    }

    /// Runs a command to its end; a sleeping box is woken for it.
    ///
    /// Input is kept until the agent has it, output is written once and in order, and a lost connection is taken up
    /// again for [`REATTACH_FOR`]. Dropping the future leaves the command to be hung up after that time.
    ///
    /// # Errors
    /// As [`ExecError`]; the command's own failure is an [`Exit`].
    pub async fn run<I, O, E>(
        &self,
        command: Command,
        stdio: Stdio<I, O, E>,
        options: RunOptions<'_>,
    ) -> Result<Exit, ExecError>
    where
        I: AsyncRead + Unpin,
        O: AsyncWrite + Unpin,
        E: AsyncWrite + Unpin,
    {
        run_over(&self.relay, self.relay.client.endpoint(), command, stdio, options).await
    }

    /// Runs a short command with `input` and collects what it says, at most `limit` bytes on each stream.
    ///
    /// # Errors
    /// [`ExecError::TooLong`] over the limit, else as [`Exec::run`].
    pub async fn output(&self, command: Command, input: &[u8], limit: usize) -> Result<Output, ExecError> {
        let (mut stdout, mut stderr) = (Collector::new(limit), Collector::new(limit));
        let stdio = Stdio { stdin: input, stdout: &mut stdout, stderr: &mut stderr };
        match self.run(command, stdio, RunOptions::default()).await {
            Ok(exit) => Ok(Output { exit, stdout: stdout.bytes, stderr: stderr.bytes }),
            Err(ExecError::Output(_)) => Err(ExecError::TooLong { limit }),
            Err(error) => Err(error),
        }
    }
}

struct Collector {
    bytes: Vec<u8>,
    limit: usize,
}

impl Collector {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit }
    }
}

impl AsyncWrite for Collector {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        data: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        if self.bytes.len() + data.len() > self.limit {
            return std::task::Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        }
        self.bytes.extend_from_slice(data);
        std::task::Poll::Ready(Ok(data.len()))
    }
    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

/// Output on its way out; it outlives the connection that brought it.
struct Pending {
    to_stderr: bool,
    data: Bytes,
}

/// How one stream ended.
enum Ended {
    Exit(Exit),
    Lost(Status),
}

struct Runner<'a, 'o, T, I, O, E> {
    transport: &'a T,
    endpoint: &'a Endpoint,
    session: Session,
    stdio: Stdio<I, O, E>,
    pending: Option<Pending>,
    buffer: BytesMut,
    options: RunOptions<'o>,
}

/// Runs a command over any [`Transport`]; `endpoint` names the server in errors.
///
/// # Errors
/// As [`Exec::run`].
pub async fn run_over<T, I, O, E>(
    transport: &T,
    endpoint: &Endpoint,
    command: Command,
    stdio: Stdio<I, O, E>,
    options: RunOptions<'_>,
) -> Result<Exit, ExecError>
where
    T: Transport,
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    let start: ExecStart = command.into_start();
    let session = Session::new(start);
    Runner { transport, endpoint, session, stdio, pending: None, buffer: BytesMut::new(), options }
        .run()
        .await
}

/// Returns whether a status says that the connection broke, rather than what the peer thinks.
fn is_loss(status: &Status) -> bool {
    status.source().is_some()
        || matches!(
            status.code(),
            Code::Unavailable
                | Code::Unknown
                | Code::Cancelled
                | Code::Internal
                | Code::DeadlineExceeded
                | Code::DataLoss
        )
}

impl<T, I, O, E> Runner<'_, '_, T, I, O, E>
where
    T: Transport,
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    async fn run(mut self) -> Result<Exit, ExecError> {
        let first = self.session.first_message();
        let mut wire = self.begin(first).await?;
        loop {
            let lost = match self.converse(wire).await? {
                Ended::Exit(exit) => return Ok(exit),
                Ended::Lost(status) => status,
            };
            if !self.session.is_started() {
                return Err(ExecError::Uncertain { source: Box::new(lost) });
            }
            tracing::debug!(code = ?lost.code(), "the connection to the box was lost");
            self.options.tell(Notice::Lost);
            wire = self.reattach(lost).await?;
        }
    }

    /// Opens the first stream; the edge may be waking the box meanwhile.
    async fn begin(&mut self, first: ExecRequest) -> Result<Wire, ExecError> {
        let open = self.transport.open(first);
        tokio::pin!(open);
        loop {
            tokio::select! {
                opened = &mut open => return opened.map_err(|status| self.refusal(status)),
                control = self.options.control() => match control {
                    Control::Signal(signal) if ENDING_SIGNALS.contains(&signal) => return Err(ExecError::Interrupted { signal }),
                    Control::Close => return Err(ExecError::Interrupted { signal: 1 }),
                    Control::Signal(signal) => self.session.push_signal(signal),
                    Control::Resize { columns, rows } => self.session.push_size(columns, rows),
                },
            }
        }
    }

    /// Opens streams until one holds or the time is over.
    async fn reattach(&mut self, mut lost: Status) -> Result<Wire, ExecError> {
        let deadline = Instant::now() + REATTACH_FOR;
        let mut pause = Duration::from_millis(50);
        let mut interrupts = 0;
        loop {
            let first = self.session.first_message();
            let transport = self.transport;
            let before = pause;
            let attempt = async move {
                sleep(before).await;
                timeout(ATTACH_TIMEOUT, transport.open(first)).await
            };
            tokio::pin!(attempt);
            let opened = loop {
                tokio::select! {
                    opened = &mut attempt => break opened,
                    () = tokio::time::sleep_until(deadline) => {
                        return Err(ExecError::Lost { seconds: REATTACH_FOR.as_secs(), source: Box::new(lost) });
                    }
                    control = self.options.control() => match control {
                        Control::Signal(signal) => {
                            interrupts += u32::from(ENDING_SIGNALS.contains(&signal));
                            if interrupts > 1 {
                                return Err(ExecError::Interrupted { signal });
                            }
                            self.session.push_signal(signal);
                        }
                        Control::Resize { columns, rows } => self.session.push_size(columns, rows),
                        Control::Close => return Err(ExecError::Interrupted { signal: 1 }),
                    },
                }
            };
            match opened {
                Ok(Ok(wire)) => return Ok(wire),
                Ok(Err(status)) if is_loss(&status) => lost = status,
                Ok(Err(status)) => return Err(self.refusal(status)),
                Err(_) => lost = Status::deadline_exceeded("no answer to an attach"),
            }
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    /// Works on one stream until it ends.
    async fn converse(&mut self, wire: Wire) -> Result<Ended, ExecError> {
        let Wire { requests, mut responses } = wire;
        let mut owed: Option<ExecRequest> = None;
        let mut sending = true;
        loop {
            if owed.is_none() && sending {
                owed = self.session.next_message();
            }
            let room = self.session.room();
            if room > 0 {
                self.buffer.reserve(room.min(64 * 1024));
            }
            // no order among the branches: a flood of output must not keep an interrupt from being read
            tokio::select! {
                permit = requests.reserve(), if owed.is_some() => match (permit, owed.take()) {
                    (Ok(permit), Some(message)) => permit.send(message),
                    // the stream is over; why is on the other side
                    _ => sending = false,
                },
                message = responses.next(), if self.pending.is_none() => {
                    let message = match message {
                        Some(Ok(message)) => message,
                        Some(Err(status)) if is_loss(&status) && (self.session.is_started() || status.source().is_some()) => {
                            return Ok(Ended::Lost(status));
                        }
                        Some(Err(status)) => return Err(self.refusal(status)),
                        None => return Ok(Ended::Lost(Status::unavailable("the stream ended before the command"))),
                    };
                    if let Some(exit) = self.take(message.message)? {
                        self.say_farewell(&requests, &mut responses).await;
                        return Ok(Ended::Exit(exit));
                    }
                },
                written = write_some(&mut self.pending, &mut self.stdio.stdout, &mut self.stdio.stderr),
                    if self.pending.is_some() => match written {
                        Ok(false) => {}
                        Ok(true) => {
                            self.pending = None;
                            self.session.on_written();
                        }
                        Err(error) => {
                            close(&requests, &mut responses).await;
                            return Err(ExecError::Output(error));
                        }
                    },
                read = read_some(&mut self.stdio.stdin, &mut self.buffer, room), if room > 0 => match read {
                    Ok(0) => self.session.push_eof(),
                    Ok(_) => self.session.push_input(self.buffer.split().freeze()),
                    Err(error) => {
                        tracing::debug!(%error, "standard input broke and counts as ended");
                        self.session.push_eof();
                    }
                },
                control = self.options.control() => match control {
                    Control::Signal(signal) if !self.session.is_started() && ENDING_SIGNALS.contains(&signal) => {
                        close(&requests, &mut responses).await;
                        return Err(ExecError::Interrupted { signal });
                    }
                    Control::Signal(signal) => self.session.push_signal(signal),
                    Control::Resize { columns, rows } => self.session.push_size(columns, rows),
                    Control::Close => {
                        close(&requests, &mut responses).await;
                        return Err(ExecError::Interrupted { signal: 1 });
                    }
                },
            }
        }
    }

    /// Deals with one message; returns the exit when it is the last.
    fn take(&mut self, message: Option<Tell>) -> Result<Option<Exit>, ExecError> {
        match message {
            Some(Tell::Started(started)) => {
                self.session.on_started(started.session_id)?;
                self.options.tell(Notice::Started);
            }
            Some(Tell::Attached(attached)) => {
                self.session.on_attached(attached)?;
                self.options.tell(Notice::Back);
            }
            Some(Tell::Output(output)) => {
                let to_stderr = output.stream() == exec_output::Stream::Stderr;
                let data = self.session.on_output(&output)?;
                if !data.is_empty() {
                    self.pending = Some(Pending { to_stderr, data });
                }
            }
            Some(Tell::InputAck(ack)) => self.session.on_input_ack(ack)?,
            Some(Tell::Exit(exit)) => {
                if self.session.is_opening() {
                    return Err(ExecError::PeerMisbehaved {
                        what: "an exit came before the session was open",
                    });
                }
                let exit = Exit::from_wire(exit);
                return exit.map(Some).ok_or(ExecError::PeerMisbehaved { what: "an exit says nothing" });
            }
            None => return Err(ExecError::PeerMisbehaved { what: "a message is empty or unknown" }),
        }
        Ok(None)
    }

    /// Tells the agent that it may forget the session, and waits a moment for the word to get through.
    async fn say_farewell(&self, requests: &mpsc::Sender<ExecRequest>, responses: &mut Responses) {
        let farewell = async {
            if requests.send(self.session.farewell()).await.is_ok() {
                while let Some(Ok(_)) = responses.next().await {}
            }
        };
        if timeout(FAREWELL, farewell).await.is_err() {
            tracing::debug!("the agent did not end the stream after the exit");
        }
    }

    fn refusal(&self, status: Status) -> ExecError {
        if status.source().is_some() {
            return ExecError::Uncertain { source: Box::new(status) };
        }
        if self.session.is_started() {
            match status.code() {
                Code::NotFound => return ExecError::SessionGone { message: status.message().to_owned() },
                Code::Aborted => return ExecError::TakenOver,
                _ => {}
            }
        }
        ClientError::from_status(status, self.endpoint).into()
    }
}

type Responses = std::pin::Pin<
    Box<dyn futures::Stream<Item = Result<cocoonbox_wire::agent::v1::ExecResponse, Status>> + Send>,
>;

/// Hangs the command up, and waits a moment for the word to get through.
async fn close(requests: &mpsc::Sender<ExecRequest>, responses: &mut Responses) {
    let close = async {
        if requests.send(ExecRequest { message: Some(Ask::Close(ExecClose {})) }).await.is_ok() {
            while let Some(Ok(_)) = responses.next().await {}
        }
    };
    if timeout(FAREWELL, close).await.is_err() {
        tracing::debug!("the agent did not end the stream after the close");
    }
}

/// Writes a part, or flushes when all is written; returns whether everything is out. May be dropped at any point.
async fn write_some(
    pending: &mut Option<Pending>,
    stdout: &mut (impl AsyncWrite + Unpin),
    stderr: &mut (impl AsyncWrite + Unpin),
) -> io::Result<bool> {
    let Some(pending) = pending else { return Ok(true) };
    let empty = pending.data.is_empty();
    let written = match (pending.to_stderr, empty) {
        (false, false) => stdout.write(&pending.data).await?,
        (true, false) => stderr.write(&pending.data).await?,
        (false, true) => return stdout.flush().await.map(|()| true),
        (true, true) => return stderr.flush().await.map(|()| true),
    };
    if written == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    pending.data = pending.data.slice(written..);
    Ok(false)
}

async fn read_some(
    stdin: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    room: usize,
) -> io::Result<usize> {
    stdin.read_buf(&mut buffer.limit(room.min(64 * 1024))).await
}
