//! What a session still owes, decided without any IO.

use std::collections::VecDeque;

use bytes::Bytes;
use cocoonbox_wire::agent::v1::exec_request::Message;
use cocoonbox_wire::agent::v1::{
    ExecAck, ExecAttach, ExecAttached, ExecEof, ExecInput, ExecInputAck, ExecOutput, ExecRequest, ExecSignal,
    ExecStart, TerminalSize,
};

use super::{ExecError, MAX_UNACKNOWLEDGED};

/// The most bytes of one `stdin` message.
const CHUNK: usize = 256 * 1024;
/// Output is acknowledged at least this often.
const ACKNOWLEDGE_AFTER: u64 = 128 * 1024;
/// More signals than this do not wait; the agent would deliver them as one anyway.
const MAX_SIGNALS: usize = 64;

/// Whether the present stream is ready for what the session owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The stream began with `start`: input may follow at once.
    Starting,
    /// The stream began with `attach`: where input goes on is not known yet.
    Attaching,
    /// The agent answered.
    Open,
}

/// What is owed in either direction.
#[derive(Debug)]
pub(super) struct Session {
    start: ExecStart,
    id: Option<String>,
    phase: Phase,
    /// Input that the agent has not acknowledged; the first byte has offset `input_base`.
    input: VecDeque<Bytes>,
    input_base: u64,
    input_end: u64,
    input_sent: u64,
    /// Up to here the agent has passed input on. Its window counts from here: what it only has, as an attach tells,
    /// still takes room there.
    input_acknowledged: u64,
    eof: bool,
    eof_sent: bool,
    signals: VecDeque<ExecSignal>,
    last_signal: u64,
    signal_sent: u64,
    size: Option<TerminalSize>,
    size_sent: bool,
    /// Output taken from streams, written here, and acknowledged.
    received: u64,
    written: u64,
    acknowledged: u64,
}

impl Session {
    pub(super) fn new(start: ExecStart) -> Self {
        Self {
            start,
            id: None,
            phase: Phase::Starting,
            input: VecDeque::new(),
            input_base: 0,
            input_end: 0,
            input_sent: 0,
            input_acknowledged: 0,
            eof: false,
            eof_sent: false,
            signals: VecDeque::new(),
            last_signal: 0,
            signal_sent: 0,
            size: None,
            size_sent: true,
            received: 0,
            written: 0,
            acknowledged: 0,
        }
    }

    /// Returns whether the agent has said that the command runs.
    pub(super) fn is_started(&self) -> bool {
        self.id.is_some()
    }

    /// Returns whether the present stream's `started` or `attached` is still to come.
    pub(super) fn is_opening(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Returns the first message of a new stream and forgets what the last stream was sent.
    pub(super) fn first_message(&mut self) -> ExecRequest {
        let message = match &self.id {
            None => {
                self.phase = Phase::Starting;
                Message::Start(self.start.clone())
            }
            Some(id) => {
                self.phase = Phase::Attaching;
                self.eof_sent = false;
                self.size_sent = self.size.is_none();
                self.acknowledged = self.received;
                Message::Attach(ExecAttach { session_id: id.clone(), output_offset: self.received })
            }
        };
        ExecRequest { message: Some(message) }
    }

    /// Returns how many bytes of input may be taken in now.
    pub(super) fn room(&self) -> usize {
        // a terminal's input waits until the command runs: until then the terminal is the caller's own
        if self.eof || (self.start.tty.is_some() && self.id.is_none()) {
            return 0;
        }
        let waiting = usize::try_from(self.input_end - self.input_acknowledged).unwrap_or(usize::MAX);
        MAX_UNACKNOWLEDGED.saturating_sub(waiting).min(CHUNK)
    }

    pub(super) fn push_input(&mut self, data: Bytes) {
        self.input_end += data.len() as u64;
        self.input.push_back(data);
    }

    pub(super) fn push_eof(&mut self) {
        self.eof = true;
    }

    pub(super) fn push_signal(&mut self, signal: u32) {
        if self.signals.len() < MAX_SIGNALS {
            self.last_signal += 1;
            self.signals.push_back(ExecSignal { signal, sequence: self.last_signal });
        }
    }

    pub(super) fn push_size(&mut self, columns: u32, rows: u32) {
        self.size = Some(TerminalSize { columns, rows });
        self.size_sent = false;
    }

    pub(super) fn on_started(&mut self, session_id: String) -> Result<(), ExecError> {
        if self.phase != Phase::Starting || session_id.is_empty() {
            return Err(ExecError::PeerMisbehaved { what: "a session began twice or without an id" });
        }
        self.id = Some(session_id);
        self.phase = Phase::Open;
        Ok(())
    }

    pub(super) fn on_attached(&mut self, attached: ExecAttached) -> Result<(), ExecError> {
        if self.phase != Phase::Attaching {
            return Err(ExecError::PeerMisbehaved { what: "an attach was answered that was not asked for" });
        }
        if attached.input_offset < self.input_base || attached.input_offset > self.input_end {
            return Err(ExecError::PeerMisbehaved { what: "it attached at an input offset that cannot be" });
        }
        self.forget_input(attached.input_offset);
        self.forget_signals(attached.signal_sequence)?;
        self.input_sent = attached.input_offset;
        self.signal_sent = attached.signal_sequence;
        self.phase = Phase::Open;
        Ok(())
    }

    pub(super) fn on_input_ack(&mut self, ack: ExecInputAck) -> Result<(), ExecError> {
        if ack.offset > self.input_sent {
            return Err(ExecError::PeerMisbehaved { what: "it acknowledged input that was not sent" });
        }
        self.input_acknowledged = self.input_acknowledged.max(ack.offset);
        self.forget_input(ack.offset);
        self.forget_signals(ack.signal_sequence)
    }

    /// Returns the part of an output message that is new.
    pub(super) fn on_output(&mut self, output: &ExecOutput) -> Result<Bytes, ExecError> {
        if self.phase != Phase::Open {
            return Err(ExecError::PeerMisbehaved { what: "output came before the session was open" });
        }
        if output.offset > self.received {
            return Err(ExecError::PeerMisbehaved { what: "output is missing" });
        }
        let known = usize::try_from(self.received - output.offset).unwrap_or(usize::MAX);
        if known >= output.data.len() {
            return Ok(Bytes::new());
        }
        let new = output.data.slice(known..);
        self.received += new.len() as u64;
        Ok(new)
    }

    /// Notes that everything received was written.
    pub(super) fn on_written(&mut self) {
        self.written = self.received;
    }

    /// Returns the last message of a session whose exit was received.
    pub(super) fn farewell(&self) -> ExecRequest {
        ExecRequest { message: Some(Message::Ack(ExecAck { output_offset: self.written, exit: true })) }
    }

    /// Returns the next message that is owed, and counts it as sent on the present stream.
    pub(super) fn next_message(&mut self) -> Option<ExecRequest> {
        if self.phase == Phase::Attaching {
            return None;
        }
        let message =
            if let Some(signal) = self.signals.iter().find(|signal| signal.sequence > self.signal_sent) {
                self.signal_sent = signal.sequence;
                Message::Signal(*signal)
            } else if let (false, Some(size)) = (self.size_sent, self.size) {
                self.size_sent = true;
                Message::Resize(size)
            } else if self.written.saturating_sub(self.acknowledged) >= ACKNOWLEDGE_AFTER {
                self.acknowledged = self.written;
                Message::Ack(ExecAck { output_offset: self.written, exit: false })
            } else if let Some(data) = self.unsent_input() {
                let offset = self.input_sent;
                self.input_sent += data.len() as u64;
                Message::Stdin(ExecInput { offset, data })
            } else if self.eof && !self.eof_sent {
                self.eof_sent = true;
                Message::Eof(ExecEof { offset: self.input_end })
            } else {
                return None;
            };
        Some(ExecRequest { message: Some(message) })
    }

    fn unsent_input(&self) -> Option<Bytes> {
        let mut skip = usize::try_from(self.input_sent - self.input_base).unwrap_or(usize::MAX);
        for chunk in &self.input {
            if skip < chunk.len() {
                return Some(chunk.slice(skip..chunk.len().min(skip + CHUNK)));
            }
            skip -= chunk.len();
        }
        None
    }

    fn forget_input(&mut self, upto: u64) {
        while let Some(chunk) = self.input.front_mut() {
            let done =
                usize::try_from(upto.saturating_sub(self.input_base)).unwrap_or(usize::MAX).min(chunk.len());
            if done == 0 {
                return;
            }
            self.input_base += done as u64;
            if done < chunk.len() {
                *chunk = chunk.slice(done..);
                return;
            }
            self.input.pop_front();
        }
    }

    fn forget_signals(&mut self, upto: u64) -> Result<(), ExecError> {
        if upto > self.last_signal {
            return Err(ExecError::PeerMisbehaved { what: "it delivered a signal that was not sent" });
        }
        while self.signals.front().is_some_and(|signal| signal.sequence <= upto) {
            self.signals.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_that_an_attach_finds_there_still_fills_the_agents_window() -> Result<(), ExecError> {
        let mut session = Session::new(ExecStart::default());
        session.first_message();
        session.on_started("s".to_owned())?;
        while session.room() > 0 {
            session.push_input(vec![0; session.room()].into());
        }
        while session.next_message().is_some() {}
        session.first_message();
        // all of it was received, none of it was taken by the program
        let all = MAX_UNACKNOWLEDGED as u64;
        session.on_attached(ExecAttached { input_offset: all, signal_sequence: 0 })?;
        assert_eq!(session.room(), 0);
        session.on_input_ack(ExecInputAck { offset: 10, signal_sequence: 0 })?;
        assert_eq!(session.room(), 10);
        session.push_input(vec![1; 10].into());
        let Some(Message::Stdin(input)) = session.next_message().and_then(|ask| ask.message) else {
            panic!("input is owed");
        };
        assert_eq!((input.offset, input.data.len()), (all, 10));
        Ok(())
    }
}
