//! What is run, and how it ended.

use bytes::Bytes;
use cocoonbox_wire::agent::v1 as wire;

/// A command for a box.
#[derive(Clone, Debug)]
pub struct Command {
    start: wire::ExecStart,
}

/// The terminal that a command gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Terminal {
    /// Columns; 0 is unknown.
    pub columns: u32,
    /// Rows; 0 is unknown.
    pub rows: u32,
    /// The caller's TERM.
    pub name: String,
    /// The compiled terminfo entry of `name`; empty when it is not known.
    pub terminfo: Vec<u8>,
}

impl Terminal {
    /// Makes a terminal of this size whose TERM is `name`.
    pub fn new(columns: u32, rows: u32, name: impl Into<String>) -> Self {
        Self { columns, rows, name: name.into(), terminfo: Vec::new() }
    }

    /// Sends a compiled terminfo entry along.
    pub fn with_terminfo(mut self, entry: Vec<u8>) -> Self {
        self.terminfo = entry;
        self
    }
}

impl Command {
    /// Makes a command from exact arguments; the first is the program.
    pub fn argv(words: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Self {
        let argv = words.into_iter().map(|word| Bytes::from(word.into())).collect();
        Self { start: wire::ExecStart { argv, ..Default::default() } }
    }

    /// Makes a command that the user's login shell reads, as ssh does.
    pub fn shell(line: impl Into<Vec<u8>>) -> Self {
        Self { start: wire::ExecStart { shell_command: Bytes::from(line.into()), ..Default::default() } }
    }

    /// Makes an interactive login shell.
    pub fn login_shell() -> Self {
        Self { start: wire::ExecStart::default() }
    }

    /// Runs it in a folder instead of the user's home.
    pub fn with_directory(mut self, path: impl Into<Vec<u8>>) -> Self {
        self.start.cwd = Bytes::from(path.into());
        self
    }

    /// Adds a variable to its environment.
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.start
            .env
            .push(wire::EnvironmentVariable { name: name.into(), value: Bytes::from(value.into()) });
        self
    }

    /// Gives it a terminal; standard error is part of standard output then.
    pub fn with_terminal(mut self, terminal: Terminal) -> Self {
        self.start.tty = Some(wire::Terminal {
            size: Some(wire::TerminalSize { columns: terminal.columns, rows: terminal.rows }),
            term: terminal.name,
            terminfo: Bytes::from(terminal.terminfo),
        });
        self
    }

    pub(crate) fn into_start(self) -> wire::ExecStart {
        self.start
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// It ended by itself.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Exit {
    /// Returns whether it ended well.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// Returns the exit status that a shell would show: the code, or 128 and the signal.
    pub fn status(self) -> u8 {
        match self {
            Self::Code(code) => code.to_le_bytes()[0],
            Self::Signal(signal) => 128_u8.wrapping_add(signal.to_le_bytes()[0] & 127),
        }
    }

    pub(crate) fn from_wire(exit: wire::ExecExit) -> Option<Self> {
        Some(match exit.how? {
            wire::exec_exit::How::Code(code) => Self::Code(code),
            wire::exec_exit::How::Signal(signal) => Self::Signal(signal),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_what_a_shell_shows() {
        for (exit, status) in
            [(Exit::Code(0), 0), (Exit::Code(7), 7), (Exit::Code(256), 0), (Exit::Signal(9), 137)]
        {
            assert_eq!(exit.status(), status, "{exit:?}");
        }
    }
}
