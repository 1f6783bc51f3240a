//! `rsh`: a command or a shell in a box.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncRead;

use super::super::args::Global;
use super::super::environment::{Environment, Io};
use super::super::error::{CliError, exit};
use super::super::render::report_verb;
use super::super::rsh_args::{RshArgs, RshCommand, RshError, TtyWish};
use super::super::terminfo;
use super::serve;
use crate::exec::{Command, ExecError, Exit, Notice, RunOptions, Stdio, Terminal};

/// What a shell shows for a program that SIGPIPE ended.
const BROKEN_PIPE: u8 = 128 + 13;

/// Looks for an sftp server where distributions put it; `sh` runs it, so that no profile writes into the stream.
const SFTP: &str = "for server in /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server /usr/libexec/sftp-server \
/usr/lib/ssh/sftp-server /usr/lib/misc/sftp-server; do [ -x \"$server\" ] && exec \"$server\"; done; \
command -v sftp-server >/dev/null 2>&1 && exec sftp-server; \
echo 'cocoonbox: this box has no sftp-server; use scp -O, rsync or cocoonbox cp' >&2; exit 127";

/// Returns the exit status: the command's, or 255 when that is not known.
pub(super) async fn run(
    args: Result<RshArgs, RshError>,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> u8 {
    let done = match args {
        Ok(args) => command(&args, global, environment, io).await,
        Err(error) => Err(CliError::Usage(error.to_string())),
    };
    match done {
        Ok(exit) => exit.status(),
        Err(CliError::Exec(ExecError::Output(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
            BROKEN_PIPE
        }
        Err(CliError::Exec(ExecError::Interrupted { signal })) => {
            128_u8.wrapping_add(u8::try_from(signal).unwrap_or_default())
        }
        Err(error) => {
            let _ = report_verb(io.stderr, &error, global.json);
            exit::UNKNOWN
        }
    }
}

async fn command(
    args: &RshArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<Exit, CliError> {
    let client = environment.client(global).await?;
    let mut command = match &args.command {
        RshCommand::Login => Command::login_shell(),
        RshCommand::Argv(words) => Command::argv(words.iter().map(|word| word.as_bytes())),
        RshCommand::Shell(line) => Command::shell(line.as_bytes()),
        RshCommand::Sftp => Command::argv(["/bin/sh", "-c", SFTP]),
    };
    for pattern in &args.send_env {
        for (name, value) in environment.matching(pattern).filter(|(name, _)| !name.starts_with("COCOONBOX_"))
        {
            command = command.with_variable(name, value.as_bytes());
        }
    }
    for (name, value) in &args.set_env {
        command = command.with_variable(name, value.as_bytes());
    }
    let wants_terminal = match args.tty {
        TtyWish::Force => true,
        TtyWish::Never => false,
        TtyWish::Auto => args.command == RshCommand::Login && io.terminal.is_some(),
    };
    if wants_terminal {
        command = command.with_terminal(terminal(environment, io));
    }
    let raw = serve::SharedRaw::new(Mutex::new(None));
    let local = io.terminal.clone().filter(|_| wants_terminal);
    let restore = Restore(Arc::clone(&raw));
    let mut controls = serve::controls(local.clone().map(|tty| (tty, Arc::clone(&raw))));
    let in_place = Arc::clone(&raw);
    let loud = io.stderr_is_terminal;
    let stderr = &mut io.stderr;
    let mut notice = |notice| {
        let text = match notice {
            // only now: while the box wakes, Ctrl-C is still the person's own
            Notice::Started => {
                if let Some(tty) = &local
                    && let Ok(mode) = tty.raw()
                {
                    *in_place.lock().unwrap_or_else(PoisonError::into_inner) = Some(mode);
                }
                return;
            }
            Notice::Lost => "cocoonbox: the connection was lost; taking it up again",
            Notice::Back => "cocoonbox: the connection is back",
        };
        if loud {
            // raw mode needs its own carriage return
            let _ = write!(stderr, "\r{text}\r\n").and_then(|()| stderr.flush());
        }
    };
    let stdin: Box<dyn AsyncRead + Send + Unpin> = if args.no_stdin {
        Box::new(tokio::io::empty())
    } else {
        std::mem::replace(&mut io.stdin, Box::new(tokio::io::empty()))
    };
    let stdio = Stdio { stdin, stdout: &mut io.command_stdout, stderr: &mut io.command_stderr };
    let options = RunOptions::default().with_controls(&mut controls).with_notice(&mut notice);
    let ended = client.exec(args.name.as_ref()).run(command, stdio, options).await;
    // the terminal is the person's again before anything is said
    drop(restore);
    Ok(ended?)
}

/// Puts the terminal back when dropped, though listeners for signals still share its raw mode.
struct Restore(serve::SharedRaw);

impl Drop for Restore {
    fn drop(&mut self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn terminal(environment: &Environment, io: &Io<'_>) -> Terminal {
    let (columns, rows) = io.terminal.as_ref().map_or((80, 24), super::super::terminal::Tty::size);
    let name = environment.variable("TERM").and_then(OsStr::to_str).unwrap_or("dumb");
    Terminal::new(columns, rows, name)
        .with_terminfo(terminfo::entry(name, &environment.terminfo_directories()))
}
