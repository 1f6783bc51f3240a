//! One stream of `Session.Exec`.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_wire::agent::v1::exec_output;
use cocoonbox_wire::agent::v1::exec_request::Message as Ask;
use cocoonbox_wire::agent::v1::exec_response::Message as Say;
use cocoonbox_wire::agent::v1::{
    ExecAttached, ExecInputAck, ExecOutput, ExecRequest, ExecResponse, ExecStarted,
};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::session::{Session, Sessions, exit};
use super::{Answer, start};
use crate::replay::Reader;
use crate::ring::Stream;

/// How long a client has to say what it wants.
const FIRST: Duration = Duration::from_secs(30);

/// How long the stream is held open for the client to say that it has the exit.
const LAST: Duration = Duration::from_secs(5);

type Sender = mpsc::Sender<Result<ExecResponse, Status>>;

/// Serves a stream: its first message starts a session or attaches to one.
pub(super) async fn serve(
    sessions: &Sessions,
    mut asks: Streaming<ExecRequest>,
) -> Result<Answer<ExecResponse>, Status> {
    let first =
        timeout(FIRST, asks.message()).await.map_err(|_| Status::deadline_exceeded("no first message"))??;
    let (session, stream, offset, hello) = match first.and_then(|first| first.message) {
        Some(Ask::Start(start)) => {
            let session = sessions.start(start)?;
            let pid = session.pid.map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
            let hello = Say::Started(ExecStarted { session_id: session.id.to_string(), pid });
            (session, 1, 0, hello)
        }
        Some(Ask::Attach(attach)) => {
            let (session, stream) = sessions.attach(&attach.session_id, attach.output_offset)?;
            let (input_offset, signal_sequence) = {
                let state = session.state();
                (state.input.received(), state.signals)
            };
            let hello = Say::Attached(ExecAttached { input_offset, signal_sequence });
            (session, stream, attach.output_offset, hello)
        }
        _ => return Err(Status::invalid_argument("the first message is start or attach")),
    };
    let (sender, receiver) = mpsc::channel(4);
    let sessions = sessions.clone();
    tokio::spawn(async move {
        let talk = Talk { sessions, session, stream };
        talk.run(asks, sender, offset, hello).await;
    });
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

/// How a stream ended.
enum End {
    /// The client has the exit.
    Done,
    /// The client may come again.
    Lost,
    /// The client broke a rule.
    Refused(Status),
    /// Another stream attached.
    Replaced,
}

struct Talk {
    sessions: Sessions,
    session: Arc<Session>,
    stream: u64,
}

impl Talk {
    async fn run(self, mut asks: Streaming<ExecRequest>, sender: Sender, offset: u64, hello: Say) {
        let mut streams = self.session.streams.subscribe();
        let end = {
            let replaced = streams.wait_for(|last| *last != self.stream);
            let talk = self.talk(&mut asks, &sender, offset, hello);
            tokio::select! {
                biased;
                _ = replaced => End::Replaced,
                end = talk => end,
            }
        };
        match end {
            End::Done => self.sessions.forget(&self.session),
            End::Lost => self.sessions.lost(&self.session, self.stream),
            End::Refused(status) => {
                self.sessions.lost(&self.session, self.stream);
                let _ = timeout(LAST, sender.send(Err(status))).await;
            }
            End::Replaced => {
                let status = Status::aborted("another stream attached to the session");
                let _ = timeout(LAST, sender.send(Err(status))).await;
            }
        }
    }

    async fn talk(&self, asks: &mut Streaming<ExecRequest>, sender: &Sender, offset: u64, hello: Say) -> End {
        let say = self.say(sender, offset, hello);
        tokio::pin!(say);
        let mut heard_all = false;
        loop {
            tokio::select! {
                said = &mut say => match said {
                    Ok(()) => break,
                    Err(()) => return End::Lost,
                },
                () = sender.closed() => return End::Lost,
                ask = asks.message(), if !heard_all => match self.hear(ask) {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(Heard::Exit)) => return End::Done,
                    Ok(ControlFlow::Break(Heard::All)) => heard_all = true,
                    Ok(ControlFlow::Break(Heard::Nothing)) => return End::Lost,
                    Err(status) => return End::Refused(status),
                },
            }
        }
        // all was said; the client may still say that it has it
        let heard = async {
            if heard_all {
                return End::Lost;
            }
            loop {
                match self.hear(asks.message().await) {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(Heard::Exit)) => return End::Done,
                    Ok(ControlFlow::Break(_)) | Err(_) => return End::Lost,
                }
            }
        };
        timeout(LAST, heard).await.unwrap_or(End::Lost)
    }

    /// Says all there is to say, the exit last.
    async fn say(&self, sender: &Sender, offset: u64, hello: Say) -> Result<(), ()> {
        let mut news = self.session.news.subscribe();
        let mut reader = Reader { offset };
        let mut said = ExecInputAck::default();
        if let Say::Attached(attached) = &hello {
            said.signal_sequence = attached.signal_sequence;
        }
        let send =
            |say| async move { sender.send(Ok(ExecResponse { message: Some(say) })).await.map_err(drop) };
        send(hello).await?;
        loop {
            news.borrow_and_update();
            let (taken, output, ending) = {
                let state = self.session.state();
                let taken = ExecInputAck { offset: state.input.written(), signal_sequence: state.signals };
                (taken, reader.next(&state.output), state.ending)
            };
            if taken != said {
                said = taken;
                send(Say::InputAck(taken)).await?;
            }
            match (output, ending) {
                (Some((stream, offset, data)), _) => {
                    let stream = match stream {
                        Stream::Out => exec_output::Stream::Stdout,
                        Stream::Err => exec_output::Stream::Stderr,
                    };
                    send(Say::Output(ExecOutput { stream: stream.into(), offset, data })).await?;
                }
                (None, Some(ending)) => return send(Say::Exit(exit(ending))).await,
                (None, None) => news.changed().await.map_err(drop)?,
            }
        }
    }

    fn hear(&self, ask: Result<Option<ExecRequest>, Status>) -> Result<ControlFlow<Heard>, Status> {
        let session = &self.session;
        let ask = match ask {
            Ok(Some(ask)) => ask.message,
            // a client that says no more has no more input either
            Ok(None) => {
                session.feed(|input| {
                    input.finish_here();
                    Ok::<_, Status>(())
                })?;
                return Ok(ControlFlow::Break(Heard::All));
            }
            // too large, or not a message: its doing; anything else is the connection's
            Err(status)
                if matches!(status.code(), tonic::Code::OutOfRange | tonic::Code::ResourceExhausted) =>
            {
                return Err(Status::invalid_argument(status.message().to_owned()));
            }
            Err(_) => return Ok(ControlFlow::Break(Heard::Nothing)),
        };
        match ask {
            Some(Ask::Stdin(input)) => session.feed(|known| known.accept(input.offset, input.data))?,
            Some(Ask::Eof(eof)) => session.feed(|known| known.finish(eof.offset))?,
            Some(Ask::Ack(ack)) => {
                session.acknowledge(ack.output_offset)?;
                if ack.exit && session.state().ending.is_some() {
                    return Ok(ControlFlow::Break(Heard::Exit));
                }
            }
            Some(Ask::Signal(signal)) => session.signal(signal.signal, signal.sequence)?,
            Some(Ask::Resize(size)) => {
                let size = start::size(Some(&size))?;
                let master = session.master.as_ref();
                let master = master.ok_or_else(|| Status::invalid_argument("the session has no terminal"))?;
                // a terminal that is gone has no size to change
                let _ = master.resize(size);
            }
            Some(Ask::Close(_)) => session.close(self.sessions.grace()),
            Some(Ask::Start(_) | Ask::Attach(_)) => {
                return Err(Status::invalid_argument("start and attach are first messages"));
            }
            None => return Err(Status::invalid_argument("a message of no known kind")),
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// What ends hearing.
enum Heard {
    /// The client has the exit.
    Exit,
    /// The client says no more.
    All,
    /// The connection is lost.
    Nothing,
}
