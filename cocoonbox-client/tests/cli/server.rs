//! A small server in memory: it keeps the protocol's rules for one user, and runs commands in a folder.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use cocoonbox_client::control::account_server::{Account, AccountServer};
use cocoonbox_client::control::boxes_server::{Boxes, BoxesServer};
use cocoonbox_client::control::sign_in_server::{SignIn, SignInServer};
use cocoonbox_client::control::{
    Box as Machine, BoxState, BrowseSnapshotReply, BrowseSnapshotRequest, CreateRequest, DeleteRequest,
    Device, EnsureRequest, GetRequest, HibernateRequest, ListDevicesReply, ListDevicesRequest, ListReply,
    ListRequest, ListSavesReply, ListSavesRequest, Memory, OperationEvent, OperationReply, Phase,
    ReadSnapshotPart, ReadSnapshotRequest, RebaseRequest, RedeemLinkReply, RedeemLinkRequest, RenameRequest,
    RestorePathsRequest, RestoreRequest, RevokeDeviceReply, RevokeDeviceRequest, RevokeTokenReply,
    RevokeTokenRequest, SaveRequest, Schedule, SetScheduleRequest, SignOutEverywhereReply,
    SignOutEverywhereRequest, UsageReply, UsageRequest, WatchRequest, WhoAmIReply, WhoAmIRequest,
};
use cocoonbox_wire::agent::v1::exec_request::Message as Ask;
use cocoonbox_wire::agent::v1::exec_response::Message as Tell;
use cocoonbox_wire::agent::v1::session_server::{Session, SessionServer};
use cocoonbox_wire::agent::v1::{
    Event, EventsRequest, ExecExit, ExecInputAck, ExecOutput, ExecRequest, ExecResponse, ExecStarted,
    exec_exit,
};
use futures::Stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

#[allow(dead_code, reason = "not every test asks")]
pub(crate) const LINK: &str = "open-sesame";

pub(crate) fn token(number: u8) -> String {
    format!("cb_{}", format!("{number:02x}").repeat(32))
}

#[derive(Debug, Default)]
struct State {
    boxes: Vec<Machine>,
    ended: Vec<String>,
    tokens: u8,
    operations: u64,
    made: u64,
    heard: Vec<String>,
}

/// The server; clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    state: Arc<Mutex<State>>,
    home: PathBuf,
}

type Answer<T> = Result<Response<T>, Status>;
type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Server {
    /// Serves on a socket; commands run in `home`.
    pub(crate) fn start(socket: &std::path::Path, home: PathBuf) -> std::io::Result<Self> {
        let server = Self { state: Arc::default(), home };
        server.lock().tokens = 1;
        let listener = tokio::net::UnixListener::bind(socket)?;
        let router = tonic::transport::Server::builder()
            .add_service(SignInServer::new(server.clone()))
            .add_service(AccountServer::new(server.clone()))
            .add_service(BoxesServer::new(server.clone()))
            .add_service(SessionServer::new(server.clone()));
        tokio::spawn(router.serve_with_incoming(UnixListenerStream::new(listener)));
        Ok(server)
    }

    #[allow(dead_code, reason = "not every test asks")]
    pub(crate) fn ended_tokens(&self) -> Vec<String> {
        self.lock().ended.clone()
    }

    /// Returns what commands were told besides their input.
    #[allow(dead_code, reason = "not every test asks")]
    pub(crate) fn heard(&self) -> Vec<String> {
        self.lock().heard.clone()
    }

    /// Puts a box there that a hostile server would show.
    #[allow(dead_code, reason = "not every test asks")]
    pub(crate) fn rename_first(&self, name: &str) {
        name.clone_into(&mut self.lock().boxes[0].name);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn authorized<T>(&self, request: &Request<T>) -> Result<String, Status> {
        let shown =
            request.metadata().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let state = self.lock();
        (1..=state.tokens)
            .map(token)
            .find(|token| shown == format!("Bearer {token}") && !state.ended.contains(token))
            .ok_or_else(|| Status::unauthenticated("unknown token"))
    }

    fn begin(state: &mut State, at: usize) -> Response<OperationReply> {
        state.operations += 1;
        let operation_id = format!("op_{}", state.operations);
        Response::new(OperationReply { operation_id, r#box: Some(state.boxes[at].clone()), event: None })
    }
}

impl State {
    fn find(&self, name: &str) -> Result<usize, Status> {
        let found =
            self.boxes.iter().position(|known| name.is_empty() || known.name == name || known.id == name);
        found.ok_or_else(|| Status::not_found(format!("no box {name}")))
    }

    fn make(&mut self, name: &str) -> Result<usize, Status> {
        if self.find(name).is_ok() {
            return Err(Status::already_exists(format!("a box named {name} exists")));
        }
        if self.boxes.len() == 2 {
            return Err(Status::resource_exhausted("2 boxes are the most"));
        }
        self.made += 1;
        self.boxes.push(Machine {
            id: format!("cb-aaaaaaaaa{}", char::from(b'a' + u8::try_from(self.made).unwrap_or(0))),
            name: name.to_owned(),
            image: "host".to_owned(),
            state: BoxState::Running.into(),
            created_at_ms: 1_700_000_000_000,
            last_used_at_ms: 1_700_000_060_000,
            ..Machine::default()
        });
        Ok(self.boxes.len() - 1)
    }
}

#[tonic::async_trait]
impl SignIn for Server {
    async fn redeem_link(&self, request: Request<RedeemLinkRequest>) -> Answer<RedeemLinkReply> {
        if request.into_inner().link != LINK {
            return Err(Status::unauthenticated("no such link"));
        }
        let mut state = self.lock();
        state.tokens += 1;
        Ok(Response::new(RedeemLinkReply { token: token(state.tokens), user_name: "ada".to_owned() }))
    }
}

#[tonic::async_trait]
impl Account for Server {
    async fn who_am_i(&self, request: Request<WhoAmIRequest>) -> Answer<WhoAmIReply> {
        self.authorized(&request)?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(WhoAmIReply {
            user_id: "us_1".to_owned(),
            user_name: "ada".to_owned(),
            admin: true,
            version,
        }))
    }
    async fn list_devices(&self, request: Request<ListDevicesRequest>) -> Answer<ListDevicesReply> {
        let token = self.authorized(&request)?;
        Ok(Response::new(ListDevicesReply {
            devices: vec![Device { id: token, current: true, ..Device::default() }],
        }))
    }
    async fn revoke_token(&self, request: Request<RevokeTokenRequest>) -> Answer<RevokeTokenReply> {
        self.authorized(&request)?;
        Ok(Response::new(RevokeTokenReply {}))
    }
    async fn sign_out_everywhere(
        &self,
        request: Request<SignOutEverywhereRequest>,
    ) -> Answer<SignOutEverywhereReply> {
        let token = self.authorized(&request)?;
        self.lock().ended.push(format!("everything of {token}"));
        Ok(Response::new(SignOutEverywhereReply {}))
    }
    async fn revoke_device(&self, request: Request<RevokeDeviceRequest>) -> Answer<RevokeDeviceReply> {
        self.authorized(&request)?;
        self.lock().ended.push(request.into_inner().device_id);
        Ok(Response::new(RevokeDeviceReply {}))
    }
}

#[tonic::async_trait]
impl Boxes for Server {
    type WatchStream = Events<OperationEvent>;
    type ReadSnapshotStream = Events<ReadSnapshotPart>;

    async fn create(&self, request: Request<CreateRequest>) -> Answer<OperationReply> {
        self.authorized(&request)?;
        let mut state = self.lock();
        let at = state.make(&request.into_inner().name)?;
        Ok(Self::begin(&mut state, at))
    }
    async fn ensure(&self, request: Request<EnsureRequest>) -> Answer<OperationReply> {
        self.authorized(&request)?;
        let mut state = self.lock();
        let name = request.into_inner().r#box;
        let at = if state.boxes.is_empty() && name.is_empty() {
            state.make("main")?
        } else {
            state.find(&name)?
        };
        state.boxes[at].set_state(BoxState::Running);
        Ok(Self::begin(&mut state, at))
    }
    async fn get(&self, request: Request<GetRequest>) -> Answer<Machine> {
        self.authorized(&request)?;
        let state = self.lock();
        let name = request.into_inner().r#box;
        if state.boxes.is_empty() && name.is_empty() {
            return Ok(Response::new(Machine { state: BoxState::Absent.into(), ..Machine::default() }));
        }
        Ok(Response::new(state.boxes[state.find(&name)?].clone()))
    }
    async fn list(&self, request: Request<ListRequest>) -> Answer<ListReply> {
        self.authorized(&request)?;
        // one box a page, so that paging is read
        let at: usize = request.into_inner().page_token.parse().unwrap_or(0);
        let state = self.lock();
        let next_page_token = if at + 1 < state.boxes.len() { (at + 1).to_string() } else { String::new() };
        Ok(Response::new(ListReply {
            boxes: state.boxes.get(at).cloned().into_iter().collect(),
            next_page_token,
        }))
    }
    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        self.authorized(&request)?;
        let WatchRequest { operation_id, after_sequence } = request.into_inner();
        let event = |sequence, phase: Phase, message: &str| OperationEvent {
            operation_id: operation_id.clone(),
            sequence,
            phase: phase.into(),
            message: message.to_owned(),
            ..OperationEvent::default()
        };
        // the stream breaks off once in the middle
        let events = if after_sequence == 0 {
            vec![Ok(event(1, Phase::Waking, "")), Err(Status::unavailable("restarting"))]
        } else {
            vec![Ok(event(2, Phase::Restoring, "\u{1b}[31mfiles")), Ok(event(3, Phase::Done, ""))]
        };
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }
    async fn hibernate(&self, request: Request<HibernateRequest>) -> Answer<OperationReply> {
        self.authorized(&request)?;
        let request = request.into_inner();
        let mut state = self.lock();
        let at = state.find(&request.r#box)?;
        if state.boxes[at].state() != BoxState::Running {
            return Err(Status::failed_precondition("the box sleeps already"));
        }
        state.boxes[at].set_state(BoxState::Hibernated);
        state.boxes[at].set_memory(if request.to_disk { Memory::Lost } else { Memory::Kept });
        Ok(Self::begin(&mut state, at))
    }
    async fn rename(&self, request: Request<RenameRequest>) -> Answer<Machine> {
        self.authorized(&request)?;
        let request = request.into_inner();
        let mut state = self.lock();
        let at = state.find(&request.r#box)?;
        state.boxes[at].name = request.name;
        Ok(Response::new(state.boxes[at].clone()))
    }
    async fn delete(&self, request: Request<DeleteRequest>) -> Answer<OperationReply> {
        self.authorized(&request)?;
        let request = request.into_inner();
        let mut state = self.lock();
        if !request.confirm || request.r#box.is_empty() {
            return Err(Status::invalid_argument("name the box and confirm"));
        }
        let at = state.find(&request.r#box)?;
        let reply = Self::begin(&mut state, at);
        state.boxes.remove(at);
        Ok(reply)
    }
    async fn set_schedule(&self, request: Request<SetScheduleRequest>) -> Answer<Machine> {
        self.authorized(&request)?;
        let request = request.into_inner();
        let mut state = self.lock();
        let at = state.find(&request.r#box)?;
        state.boxes[at].schedule =
            request.schedule.map(|schedule| Schedule { next_at_ms: 1_700_100_000_000, ..schedule });
        Ok(Response::new(state.boxes[at].clone()))
    }
    async fn usage(&self, request: Request<UsageRequest>) -> Answer<UsageReply> {
        self.authorized(&request)?;
        let boxes = self.lock().boxes.len().try_into().unwrap_or(i64::MAX);
        Ok(Response::new(UsageReply { boxes, running: boxes, max_boxes: 2, ..UsageReply::default() }))
    }
    async fn save(&self, _: Request<SaveRequest>) -> Answer<OperationReply> {
        Err(Status::unimplemented("saves"))
    }
    async fn list_saves(&self, _: Request<ListSavesRequest>) -> Answer<ListSavesReply> {
        Err(Status::unimplemented("saves"))
    }
    async fn restore(&self, _: Request<RestoreRequest>) -> Answer<OperationReply> {
        Err(Status::unimplemented("saves"))
    }
    async fn browse_snapshot(&self, _: Request<BrowseSnapshotRequest>) -> Answer<BrowseSnapshotReply> {
        Err(Status::unimplemented("saves"))
    }
    async fn read_snapshot(&self, _: Request<ReadSnapshotRequest>) -> Answer<Self::ReadSnapshotStream> {
        Err(Status::unimplemented("saves"))
    }
    async fn restore_paths(&self, _: Request<RestorePathsRequest>) -> Answer<OperationReply> {
        Err(Status::unimplemented("saves"))
    }
    async fn rebase(&self, _: Request<RebaseRequest>) -> Answer<OperationReply> {
        Err(Status::unimplemented("images"))
    }
}

#[tonic::async_trait]
impl Session for Server {
    type ExecStream = Events<ExecResponse>;
    type EventsStream = Events<Event>;

    async fn exec(&self, request: Request<Streaming<ExecRequest>>) -> Answer<Self::ExecStream> {
        self.authorized(&request)?;
        if let Some(name) = request.metadata().get("cocoonbox-box").and_then(|name| name.to_str().ok()) {
            self.lock().find(name)?;
        }
        let mut asked = request.into_inner();
        let Some(Ask::Start(start)) = asked.message().await?.and_then(|first| first.message) else {
            return Err(Status::not_found("no such session"));
        };
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let mut command = if let Some((program, arguments)) = start.argv.split_first() {
            let mut command = tokio::process::Command::new(text(program));
            command.args(arguments.iter().map(text));
            command
        } else {
            let mut command = tokio::process::Command::new("/bin/sh");
            command.arg("-c").arg(text(&start.shell_command));
            command
        };
        command.envs(start.env.iter().map(|variable| (variable.name.clone(), text(&variable.value))));
        command.current_dir(&self.home).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| Status::invalid_argument(error.to_string()))?;
        if let Some(tty) = &start.tty {
            self.lock().heard.push(format!("tty {} {:?} {}", tty.term, tty.size, tty.terminfo.len()));
        }
        let (tell, told) = mpsc::channel(4);
        tokio::spawn(converse(self.clone(), child, asked, tell));
        Ok(Response::new(Box::pin(ReceiverStream::new(told))))
    }
    async fn events(&self, _: Request<EventsRequest>) -> Answer<Self::EventsStream> {
        Err(Status::unimplemented("events"))
    }
}

async fn converse(
    server: Server,
    mut child: tokio::process::Child,
    mut asked: Streaming<ExecRequest>,
    tell: mpsc::Sender<Result<ExecResponse, Status>>,
) -> Option<()> {
    let say = |message| {
        let tell = tell.clone();
        async move { tell.send(Ok(ExecResponse { message: Some(message) })).await.ok() }
    };
    say(Tell::Started(ExecStarted { session_id: "se_1".to_owned(), pid: 1 })).await?;
    let mut stdin = child.stdin.take();
    let pid = child.id().and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
    let answer = tell.clone();
    let input = tokio::spawn(async move {
        let mut have = 0;
        while let Ok(Some(message)) = asked.message().await {
            match message.message {
                Some(Ask::Stdin(input)) => {
                    assert_eq!(input.offset, have);
                    have += input.data.len() as u64;
                    if let Some(stdin) = &mut stdin {
                        let _ = stdin.write_all(&input.data).await;
                    }
                    let ack = Tell::InputAck(ExecInputAck { offset: have, signal_sequence: 0 });
                    let _ = answer.send(Ok(ExecResponse { message: Some(ack) })).await;
                }
                Some(Ask::Eof(_)) => drop(stdin.take()),
                Some(Ask::Resize(size)) => {
                    server.lock().heard.push(format!("resize {}x{}", size.columns, size.rows));
                }
                Some(Ask::Signal(signal)) => {
                    server.lock().heard.push(format!("signal {}", signal.signal));
                    let number =
                        i32::try_from(signal.signal).ok().and_then(rustix::process::Signal::from_named_raw);
                    if let (Some(pid), Some(signal)) = (pid, number) {
                        let _ = rustix::process::kill_process(pid, signal);
                    }
                }
                _ => {}
            }
        }
    });
    let (mut stdout, mut stderr) = (child.stdout.take()?, child.stderr.take()?);
    let (mut out, mut err) = (vec![0; 60_000], vec![0; 60_000]);
    let (mut out_open, mut err_open) = (true, true);
    let mut offset = 0;
    while out_open || err_open {
        let (stream, data) = tokio::select! {
            count = stdout.read(&mut out), if out_open => (1, &out[..count.ok()?]),
            count = stderr.read(&mut err), if err_open => (2, &err[..count.ok()?]),
        };
        match (data.is_empty(), stream) {
            (true, 1) => out_open = false,
            (true, _) => err_open = false,
            (false, stream) => {
                let data = Bytes::copy_from_slice(data);
                let length = data.len() as u64;
                say(Tell::Output(ExecOutput { stream, offset, data })).await?;
                offset += length;
            }
        }
    }
    let status = child.wait().await.ok()?;
    let how = match std::os::unix::process::ExitStatusExt::signal(&status) {
        Some(signal) => exec_exit::How::Signal(signal),
        None => exec_exit::How::Code(status.code()?),
    };
    input.abort();
    say(Tell::Exit(ExecExit { how: Some(how) })).await
}
