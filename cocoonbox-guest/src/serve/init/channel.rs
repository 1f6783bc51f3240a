//! One connection of the guest channel: requests one after the other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_wire::silkd::{
    DecodeError, ErrorKind, FrameError, LineCodec, Request, Response, decode_request, response_line,
};
use futures::StreamExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::sleep;
use tokio_util::codec::FramedRead;

use super::{Guest, exec, files, git, relay, search, upload, watch};

/// How often a silent stream looks whether its client is still there.
const HANG_UP_CHECK: Duration = Duration::from_secs(10);

/// What a request comes to when it fails; the connection goes on.
#[derive(Debug)]
pub(super) struct Refusal {
    pub kind: ErrorKind,
    pub message: String,
}

impl Refusal {
    pub(super) fn new(kind: ErrorKind, message: impl ToString) -> Self {
        Self { kind, message: message.to_string() }
    }
    pub(super) fn bad(message: impl ToString) -> Self {
        Self::new(ErrorKind::BadRequest, message)
    }
    pub(super) fn not_found(message: impl ToString) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }
    pub(super) fn internal(message: impl ToString) -> Self {
        Self::new(ErrorKind::Internal, message)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::PermissionDenied => ErrorKind::BadRequest,
            _ => ErrorKind::Internal,
        };
        Self::new(kind, error)
    }
}

/// How a request ended, seen from its connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request failed, the connection goes on.
    Refused(Refusal),
    /// The connection is over.
    Gone,
}

impl<E: Into<Refusal>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
}

/// The reading half: lines, and the request that came while another was in flight.
#[derive(Debug)]
pub(super) struct Input {
    pub lines: FramedRead<OwnedReadHalf, LineCodec>,
    pending: Option<Result<Request, DecodeError>>,
    broken: Option<FrameError>,
}

impl Input {
    /// Reads the next line; none when no line follows.
    async fn next(&mut self) -> Option<Result<Request, DecodeError>> {
        if let Some(pending) = self.pending.take() {
            return Some(pending);
        }
        match self.lines.next().await? {
            Ok(line) => Some(decode_request(&line)),
            Err(error) => {
                self.broken = Some(error);
                None
            }
        }
    }

    /// Reads the next input of the request in flight; none when the client's input is over. A new request ends the
    /// input too, and is kept. May be dropped while it waits.
    pub(super) async fn next_input(&mut self) -> Option<Request> {
        if self.pending.is_some() {
            return None;
        }
        match self.next().await? {
            Ok(request) if request.is_input() => Some(request),
            other => {
                self.pending = Some(other);
                None
            }
        }
    }

    /// Tells whether nothing will follow, not even a request.
    pub(super) fn is_over(&self) -> bool {
        self.pending.is_none()
    }

    /// Reads the next bytes of an upload; `Ok(None)` at its end.
    pub(super) async fn next_data(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            match self.next_input().await {
                Some(Request::Data { data }) => return Ok(Some(data)),
                Some(Request::DataEnd {}) => return Ok(None),
                Some(_) => {}
                None if self.pending.is_some() => {
                    return Err(Refusal::bad("another request came before data_end").into());
                }
                None => return Err(Failure::Gone),
            }
        }
    }
}

/// The writing half.
#[derive(Debug)]
pub(super) struct Output(pub OwnedWriteHalf);

impl Output {
    pub(super) async fn send(&mut self, response: &Response) -> Result<(), Failure> {
        self.0.write_all(&response_line(response)).await.map_err(|_| Failure::Gone)
    }

    /// Waits until the client has closed the whole connection; looked for now and then, since no read will tell.
    pub(super) async fn closed(&self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        loop {
            sleep(HANG_UP_CHECK).await;
            let mut asked = [PollFd::new(self.0.as_ref(), PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut asked, Some(&now)).is_ok()
                && asked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
            {
                return;
            }
        }
    }
}

/// Serves one connection to its end.
pub(super) async fn serve(stream: UnixStream, guest: Arc<Guest>) {
    let (read, write) = stream.into_split();
    let mut input = Input { lines: FramedRead::new(read, LineCodec::default()), pending: None, broken: None };
    let mut output = Output(write);
    while let Some(request) = input.next().await {
        let result = match request {
            Ok(Request::XRelay { port }) => match relay::connect(port).await {
                Ok(guest_side) => {
                    if output.send(&Response::Ready {}).await.is_ok() {
                        relay::raw(input.lines, output.0, guest_side).await;
                    }
                    return;
                }
                Err(refusal) => Err(refusal.into()),
            },
            Ok(request) => answer(request, &guest, &mut input, &mut output).await,
            Err(error) => Err(Failure::Refused(Refusal::new(error.kind(), error))),
        };
        match result {
            Ok(()) => {}
            Err(Failure::Refused(Refusal { kind, message })) => {
                if output.send(&Response::Error { kind, message }).await.is_err() {
                    return;
                }
            }
            Err(Failure::Gone) => return,
        }
    }
    if let Some(error) = input.broken {
        let _ =
            output.send(&Response::Error { kind: ErrorKind::BadRequest, message: error.to_string() }).await;
    }
}

async fn answer(
    request: Request,
    guest: &Arc<Guest>,
    input: &mut Input,
    output: &mut Output,
) -> Result<(), Failure> {
    match request {
        Request::Info {} => {
            let running = guest.children.count() as u64;
            let info = Response::Info {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                proto: 2,
                uptime_secs: guest.started.elapsed().as_secs(),
                procs: running,
                sessions: guest.shells.names().len() as u64,
            };
            output.send(&info).await
        }
        Request::Exec { session: Some(_), detach: Some(true), .. } => {
            Err(Refusal::bad("detach and session exclude each other").into())
        }
        Request::Exec { session: Some(session), argv, .. } => guest.shells.run(&session, argv, output).await,
        Request::Exec { argv, cwd, env, user, detach, .. } => {
            let start = exec::Start { argv, cwd, env: env.unwrap_or_default(), user };
            if detach == Some(true) {
                exec::detached(start, guest, output).await
            } else {
                exec::foreground(start, guest, input, output).await
            }
        }
        Request::PtyOpen { cols, rows, cwd, env, user } => {
            let start = exec::Start { argv: Vec::new(), cwd, env: env.unwrap_or_default(), user };
            exec::terminal(start, (cols, rows), guest, input, output).await
        }
        Request::PtyResize { pid, cols, rows } => {
            exec::resize(pid, (cols, rows), guest)?;
            output.send(&Response::Done {}).await
        }
        Request::Kill { pid, signal } => {
            exec::kill(pid, signal, guest)?;
            output.send(&Response::Done {}).await
        }
        Request::Ps {} => output.send(&Response::Procs { procs: guest.table.entries() }).await,
        Request::Logs { pid } => exec::replay(pid, exec::Follow::No, guest, output).await,
        Request::Attach { pid } => exec::replay(pid, exec::Follow::Yes, guest, output).await,
        Request::PortForward { port } => {
            let guest_side = relay::connect(port).await?;
            output.send(&Response::Ready {}).await?;
            relay::framed(guest_side, input, output).await
        }
        Request::FsWrite { path, mode } => upload::write(path, mode, guest, input, output).await,
        Request::FsPush { dest } => upload::push(dest, guest, input, output).await,
        Request::FsPull { path } => files::pull(path, guest, output).await,
        Request::FsRead { path } => files::read(path, guest, output).await,
        Request::FsList { path } => files::list(path, guest, output).await,
        Request::FsStat { .. }
        | Request::FsMkdir { .. }
        | Request::FsRm { .. }
        | Request::FsRename { .. } => {
            let response = files::change(request, guest).await?;
            output.send(&response).await
        }
        Request::SessionCreate { id, cwd, env } => {
            let id = guest.shells.create(id, cwd, env.unwrap_or_default(), guest)?;
            output.send(&Response::SessionCreated { id }).await
        }
        Request::SessionList {} => output.send(&Response::Sessions { sessions: guest.shells.names() }).await,
        Request::SessionRm { id } => {
            guest.shells.remove(&id)?;
            output.send(&Response::Done {}).await
        }
        Request::FsFind { path, pattern, glob } => search::find(path, pattern, glob, guest, output).await,
        Request::FsReplace { files, pattern, replacement } => {
            search::replace(files, pattern, replacement, guest, output).await
        }
        Request::FsWatch { path, recursive } => {
            watch::watch(path, recursive == Some(true), guest, input, output).await
        }
        Request::GitStatus { path } => git::status(&path, guest, output).await,
        Request::GitAdd { path, files } => git::add(&path, &files, guest, output).await,
        Request::GitCommit { path, message, author } => {
            git::commit(&path, &message, &author, guest, output).await
        }
        Request::GitBranch { path, action, name } => {
            git::branch(&path, &action, name.as_deref(), guest, output).await
        }
        Request::GitClone { .. } | Request::GitPush { .. } | Request::GitPull { .. } => {
            Err(git::no_network().into())
        }
        Request::LspStart { language } => Err(Refusal::not_found(format!(
            "this image has no language server for {}",
            &language[..language.floor_char_boundary(64)]
        ))
        .into()),
        Request::LspAttach { .. } | Request::LspStop { .. } => {
            Err(Refusal::not_found("no such language server").into())
        }
        // input of a request that is over
        Request::Stdin { .. } | Request::StdinClose {} | Request::Data { .. } | Request::DataEnd {} => Ok(()),
        _ => Err(Refusal::new(ErrorKind::Unimplemented, "not served here").into()),
    }
}
