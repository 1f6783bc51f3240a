//! Progress on standard error: one line that is rewritten on a terminal, plain lines otherwise.

use std::io::Write;

use crate::control::{OperationEvent, Phase};

use super::render::{bytes, plain};

/// Shows how far something is.
pub(super) struct Progress<'a> {
    stderr: &'a mut (dyn Write + Send),
    terminal: bool,
    quiet: bool,
    last: String,
}

impl<'a> Progress<'a> {
    pub(super) fn new(stderr: &'a mut (dyn Write + Send), terminal: bool, quiet: bool) -> Self {
        Self { stderr, terminal, quiet, last: String::new() }
    }

    /// Shows an operation's event.
    pub(super) fn event(&mut self, event: &OperationEvent) {
        if matches!(event.phase(), Phase::Done | Phase::Failed) {
            return;
        }
        let mut text = phase(event.phase()).to_owned();
        if event.total_bytes > 0 {
            let (done, total) = (event.done_bytes.max(0).unsigned_abs(), event.total_bytes.unsigned_abs());
            text = format!("{text} {} of {}", bytes(done), bytes(total));
        }
        if !event.message.is_empty() {
            text = format!("{text}: {}", plain(&event.message));
        }
        self.show(text);
    }

    /// Shows a line of text; on a terminal it takes the place of the one before.
    pub(super) fn show(&mut self, text: String) {
        if self.quiet || text == self.last {
            return;
        }
        // progress that cannot be shown stops nothing
        let _ = if self.terminal {
            let short: String = text.chars().take(78).collect();
            write!(self.stderr, "\r\x1b[K{short}").and_then(|()| self.stderr.flush())
        } else {
            writeln!(self.stderr, "{text}")
        };
        self.last = text;
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.terminal && !self.last.is_empty() {
            let _ = write!(self.stderr, "\r\x1b[K").and_then(|()| self.stderr.flush());
        }
    }
}

pub(super) fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Unspecified => "working",
        Phase::Creating => "creating",
        Phase::Waking => "waking",
        Phase::Snapshotting => "snapshotting",
        Phase::Saving => "saving",
        Phase::Restoring => "restoring",
        Phase::Deleting => "deleting",
        Phase::Done => "done",
        Phase::Failed => "failed",
        Phase::RestoringFiles => "restoring files",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(phase: Phase, message: &str, done: i64, total: i64) -> OperationEvent {
        OperationEvent {
            phase: phase.into(),
            message: message.to_owned(),
            done_bytes: done,
            total_bytes: total,
            ..OperationEvent::default()
        }
    }

    #[test]
    fn a_file_gets_lines_and_a_terminal_one_line() {
        let events = [
            event(Phase::Waking, "", 0, 0),
            event(Phase::Waking, "", 0, 0),
            event(Phase::Saving, "\u{1b}[0m", 1024, 2048),
            event(Phase::Done, "", 0, 0),
        ];
        for (terminal, expected) in [
            (false, "waking\nsaving 1.0 KiB of 2.0 KiB: \\x1b[0m\n"),
            (true, "\r\x1b[Kwaking\r\x1b[Ksaving 1.0 KiB of 2.0 KiB: \\x1b[0m\r\x1b[K"),
        ] {
            let mut out = Vec::new();
            let mut progress = Progress::new(&mut out, terminal, false);
            for event in &events {
                progress.event(event);
            }
            drop(progress);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }
}
