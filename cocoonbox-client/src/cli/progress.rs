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
    /// Where the phase's bytes began to be counted: phase, time, bytes.
    began: Option<(Phase, i64, i64)>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(stderr: &'a mut (dyn Write + Send), terminal: bool, quiet: bool) -> Self {
        Self { stderr, terminal, quiet, last: String::new(), began: None }
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
            if let Some(pace) = self.pace(event) {
                text = format!("{text}, {pace}");
            }
        }
        if !event.message.is_empty() {
            text = format!("{text}: {}", plain(&event.message));
        }
        self.show(text);
    }

    /// Returns how fast bytes move and how long the rest takes at that; nothing before a second is over.
    fn pace(&mut self, event: &OperationEvent) -> Option<String> {
        let began = self.began.filter(|began| began.0 == event.phase() && event.done_bytes >= began.2);
        let (_, at, from) =
            *self.began.insert(began.unwrap_or((event.phase(), event.at_ms, event.done_bytes)));
        let took = u64::try_from(event.at_ms.checked_sub(at)?).ok().filter(|took| *took >= 1000)?;
        let moved = event.done_bytes.checked_sub(from)?.unsigned_abs();
        let rate = moved.saturating_mul(1000) / took;
        let left = event.total_bytes.checked_sub(event.done_bytes)?.max(0).unsigned_abs();
        let left = left.checked_div(rate)?;
        Some(format!("{}/s, {} left", bytes(rate), span(left)))
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

fn span(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
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

    #[test]
    fn the_pace_is_told_once_it_is_known() {
        let mut out = Vec::new();
        let mut progress = Progress::new(&mut out, false, false);
        for (at, done) in [(0, 0), (500, 1 << 20), (2000, 4 << 20), (4000, 8 << 20)] {
            progress.event(&OperationEvent { at_ms: at, ..event(Phase::Saving, "", done, 200 << 20) });
        }
        // another phase counts anew
        progress.event(&OperationEvent { at_ms: 5000, ..event(Phase::Restoring, "", 0, 10) });
        drop(progress);
        let lines = "saving 0 B of 200.0 MiB\nsaving 1.0 MiB of 200.0 MiB\n\
            saving 4.0 MiB of 200.0 MiB, 2.0 MiB/s, 1m38s left\n\
            saving 8.0 MiB of 200.0 MiB, 2.0 MiB/s, 1m36s left\nrestoring 0 B of 10 B\n";
        assert_eq!(String::from_utf8_lossy(&out), lines);
    }
}
