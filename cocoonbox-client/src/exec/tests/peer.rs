//! An agent in memory that holds the client to every promise of the protocol.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use cocoonbox_wire::agent::v1::exec_request::Message as Ask;
use cocoonbox_wire::agent::v1::exec_response::Message as Tell;
use cocoonbox_wire::agent::v1::{
    ExecAttached, ExecExit, ExecInputAck, ExecOutput, ExecRequest, ExecResponse, ExecStarted, exec_exit,
    exec_output,
};
use tokio::sync::mpsc;
use tonic::Status;

use crate::exec::{Exit, Transport, Wire};

/// What the peer's program does and what befalls its connections.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) exit: Exit,
    pub(super) takes_input: bool,
    pub(super) waits_for_signal: bool,
    pub(super) never_opens: bool,
    pub(super) cuts: Cuts,
    pub(super) refuse_start: Option<Status>,
    pub(super) refuse_attach: Option<Status>,
    pub(super) lie: Option<Lie>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            stdout: Vec::new(),
            stderr: Vec::new(),
            exit: Exit::Code(0),
            takes_input: true,
            waits_for_signal: false,
            never_opens: false,
            cuts: Cuts::default(),
            refuse_start: None,
            refuse_attach: None,
            lie: None,
        }
    }
}

/// When connections break: after how many messages in both directions, one entry per connection.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    pub(super) after: Vec<u32>,
    /// How many dials after each break find nobody.
    pub(super) refused_dials: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Lie {
    Gap,
    AckBeyond,
    Empty,
}

/// What the peer saw of the client.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) input: Vec<u8>,
    pub(super) eof: bool,
    pub(super) exit_acknowledged: bool,
    pub(super) closed: bool,
    pub(super) starts: u32,
    pub(super) dials: u32,
    pub(super) size: Option<(u32, u32)>,
    pub(super) violations: Vec<String>,
    signal_sequence: u64,
    signal: Option<u32>,
    acknowledged: u64,
    /// The most output that was ever sent.
    sent: u64,
    refusals_left: u32,
    pub(super) connections: usize,
}

#[derive(Debug)]
pub(super) struct Peer {
    plan: Plan,
    seen: Mutex<Seen>,
}

impl Peer {
    pub(super) fn new(plan: Plan) -> Self {
        Self { plan, seen: Mutex::default() }
    }

    pub(super) fn seen(&self) -> Seen {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Returns the output that begins at `offset`: stderr first, then stdout, in pieces that shift with the offset.
    fn output(&self, offset: u64) -> Option<ExecOutput> {
        let at = usize::try_from(offset).unwrap();
        let errors = self.plan.stderr.len();
        let (stream, rest) = if at < errors {
            (exec_output::Stream::Stderr, &self.plan.stderr[at..])
        } else {
            (exec_output::Stream::Stdout, self.plan.stdout.get(at - errors..)?)
        };
        if rest.is_empty() {
            return None;
        }
        let length = rest.len().min(10_000 + at % 7_000);
        let data = Bytes::copy_from_slice(&rest[..length]);
        Some(ExecOutput { stream: stream.into(), offset, data })
    }

    async fn serve(self: Arc<Self>, mut link: Link, first: Ask) -> Option<()> {
        let mut output = match first {
            Ask::Start(_) => {
                self.lock().starts += 1;
                link.send(Tell::Started(ExecStarted { session_id: "se_1".to_owned(), pid: 1 })).await?;
                0
            }
            Ask::Attach(attach) => {
                let answer = {
                    let mut seen = self.lock();
                    if attach.session_id != "se_1"
                        || attach.output_offset > seen.sent
                        || attach.output_offset < seen.acknowledged
                    {
                        seen.violations.push(format!("attach {attach:?}"));
                    }
                    ExecAttached {
                        input_offset: seen.input.len() as u64,
                        signal_sequence: seen.signal_sequence,
                    }
                };
                link.send(Tell::Attached(answer)).await?;
                attach.output_offset
            }
            other => {
                self.lock().violations.push(format!("first message {other:?}"));
                return None;
            }
        };
        match self.plan.lie {
            Some(Lie::Gap) => {
                let data = Bytes::from_static(b"x");
                link.send(Tell::Output(ExecOutput { stream: 1, offset: 5, data })).await?;
            }
            Some(Lie::AckBeyond) => {
                link.send(Tell::InputAck(ExecInputAck { offset: 1 << 40, signal_sequence: 0 })).await?;
            }
            Some(Lie::Empty) => link.responses.send(Ok(ExecResponse { message: None })).await.ok()?,
            None => {}
        }
        let mut exited = false;
        loop {
            let next = self.output(output);
            let ready = {
                let seen = self.lock();
                next.is_none() && if self.plan.waits_for_signal { seen.signal.is_some() } else { seen.eof }
            };
            tokio::select! {
                asked = link.requests.recv() => {
                    link.count()?;
                    let mut acknowledge = false;
                    self.hear(asked?.message?, output, &mut acknowledge);
                    if acknowledge {
                        let (offset, signal_sequence) = { let seen = self.lock(); (seen.input.len() as u64, seen.signal_sequence) };
                        link.send(Tell::InputAck(ExecInputAck { offset, signal_sequence })).await?;
                    }
                    let seen = self.seen();
                    if seen.exit_acknowledged || seen.closed {
                        return Some(());
                    }
                }
                permit = link.responses.clone().reserve_owned(), if next.is_some() => {
                    let message = next?;
                    output += message.data.len() as u64;
                    { let mut seen = self.lock(); seen.sent = seen.sent.max(output); }
                    permit.ok()?.send(Ok(ExecResponse { message: Some(Tell::Output(message)) }));
                    link.count()?;
                }
                () = std::future::ready(()), if ready && !exited => {
                    exited = true;
                    let signal = self.lock().signal;
                    let how = match (signal, self.plan.exit) {
                        (Some(signal), _) => exec_exit::How::Signal(signal as i32),
                        (None, Exit::Signal(signal)) => exec_exit::How::Signal(signal),
                        (None, Exit::Code(code)) => exec_exit::How::Code(code),
                    };
                    link.send(Tell::Exit(ExecExit { how: Some(how) })).await?;
                }
            }
        }
    }

    fn hear(&self, asked: Ask, output: u64, acknowledge: &mut bool) {
        let mut seen = self.lock();
        let have = seen.input.len() as u64;
        match asked {
            Ask::Stdin(_) if !self.plan.takes_input => {}
            Ask::Stdin(input) if input.offset == have && !seen.eof && !input.data.is_empty() => {
                seen.input.extend_from_slice(&input.data);
                *acknowledge = true;
            }
            Ask::Eof(eof) if eof.offset == have || !self.plan.takes_input => seen.eof = true,
            Ask::Resize(size) => seen.size = Some((size.columns, size.rows)),
            Ask::Signal(signal) if signal.sequence == seen.signal_sequence + 1 => {
                seen.signal_sequence = signal.sequence;
                seen.signal = Some(signal.signal);
                *acknowledge = true;
            }
            Ask::Ack(ack) if ack.output_offset >= seen.acknowledged && ack.output_offset <= output => {
                seen.acknowledged = ack.output_offset;
                if ack.exit {
                    let all = (self.plan.stdout.len() + self.plan.stderr.len()) as u64;
                    if ack.output_offset != all && !seen.closed {
                        seen.violations.push(format!("exit acknowledged at {} of {all}", ack.output_offset));
                    }
                    seen.exit_acknowledged = true;
                }
            }
            Ask::Close(_) => seen.closed = true,
            other => {
                let text = format!("{other:?}");
                seen.violations.push(text.chars().take(80).collect());
            }
        }
    }
}

/// One connection, which breaks after some messages.
struct Link {
    requests: mpsc::Receiver<ExecRequest>,
    responses: mpsc::Sender<Result<ExecResponse, Status>>,
    left: Option<u32>,
}

impl Link {
    async fn send(&mut self, message: Tell) -> Option<()> {
        self.count()?;
        self.responses.send(Ok(ExecResponse { message: Some(message) })).await.ok()
    }

    /// Counts a message; `None` when the connection breaks instead.
    fn count(&mut self) -> Option<()> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        Some(())
    }
}

fn broken() -> Status {
    Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset)))
}

impl Transport for Arc<Peer> {
    async fn open(&self, first: ExecRequest) -> Result<Wire, Status> {
        let first = first.message.unwrap();
        if self.plan.never_opens {
            return std::future::pending().await;
        }
        let left = {
            let mut seen = self.lock();
            seen.dials += 1;
            if seen.refusals_left > 0 {
                seen.refusals_left -= 1;
                return Err(broken());
            }
            let left = self.plan.cuts.after.get(seen.connections).copied();
            seen.connections += 1;
            seen.refusals_left = if left.is_some() { self.plan.cuts.refused_dials } else { 0 };
            left
        };
        let refusal =
            if matches!(first, Ask::Start(_)) { &self.plan.refuse_start } else { &self.plan.refuse_attach };
        if let Some(status) = refusal {
            return Err(status.clone());
        }
        let (requests, asked) = mpsc::channel(4);
        let (told, mut responses) = mpsc::channel(4);
        let link = Link { requests: asked, responses: told.clone(), left };
        let peer = Arc::clone(self);
        tokio::spawn(async move {
            if peer.serve(link, first).await.is_none() {
                let _ = told.send(Err(broken())).await;
            }
        });
        let responses = futures::stream::poll_fn(move |context| responses.poll_recv(context));
        Ok(Wire { requests, responses: Box::pin(responses) })
    }
}
