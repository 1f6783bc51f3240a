//! What a client asks to be run, checked and turned into a program.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use bytes::Bytes;
use cocoonbox_wire::agent::v1::{ExecStart, TerminalSize};
use nix::libc;
use tonic::Status;

use crate::base::Base;
use crate::limit::{check_argv, check_env, check_path};
use crate::sys::{Launch, Size};
use crate::terminfo;

/// The most bytes of a program's name in a message.
const MAX_SHOWN: usize = 256;

/// Returns the program that `start` asks for, and its terminal's size if it wants one.
pub(super) fn launch(
    start: ExecStart,
    base: &Base,
    claim: &[(OsString, OsString)],
) -> Result<(Launch, Option<Size>), Status> {
    let invalid = |error: &dyn ToString| Status::invalid_argument(error.to_string());
    let text = |bytes: &Bytes| OsString::from_vec(bytes.to_vec());
    if !start.argv.is_empty() && !start.shell_command.is_empty() {
        return Err(invalid(&"argv and shell_command exclude each other"));
    }
    let shell = base.shell.clone().into_os_string();
    let (argv, arg0) = if !start.argv.is_empty() {
        (start.argv.iter().map(text).collect(), None)
    } else if !start.shell_command.is_empty() {
        (vec![shell, "-c".into(), text(&start.shell_command)], None)
    } else {
        let mut login = OsString::from("-");
        login.push(base.shell.file_name().unwrap_or(OsStr::new("sh")));
        (vec![shell], Some(login))
    };
    check_argv(&argv).map_err(|error| invalid(&error))?;
    let cwd = OsStr::from_bytes(&start.cwd);
    check_path(cwd).map_err(|error| invalid(&error))?;
    let variables =
        || start.env.iter().map(|variable| (variable.name.as_str(), OsStr::from_bytes(&variable.value)));
    check_env(variables()).map_err(|error| invalid(&error))?;
    let directory = base.directory(Some(Path::new(cwd)));
    if !directory.is_dir() {
        return Err(Status::invalid_argument("cwd is no directory"));
    }
    if rustix::fs::access(&directory, rustix::fs::Access::EXEC_OK).is_err() {
        return Err(Status::invalid_argument("cwd may not be entered"));
    }
    let mut term = None;
    let size = match &start.tty {
        None => None,
        Some(terminal) => {
            let name = terminfo::prepare(&base.home, &terminal.term, &terminal.terminfo);
            term = Some(OsString::from(name.map_err(|error| invalid(&error))?));
            Some(size(terminal.size.as_ref())?)
        }
    };
    // the terminal's name is the caller's to say, unless a variable says it better
    let term = term.as_deref().map(|term| (OsStr::new("TERM"), term));
    let over = term.into_iter().chain(variables().map(|(name, value)| (OsStr::new(name), value)));
    let env = base.with_claim(claim, over);
    Ok((Launch { argv, arg0, directory, env }, size))
}

/// A program that could not be started, as a shell reports one.
#[derive(Debug)]
pub(super) struct Failure {
    /// 127: it was not found; 126: it cannot be run.
    pub code: i32,
    pub message: Vec<u8>,
}

/// Returns how a program that could not be started ends.
///
/// # Errors
/// It is not the program: the box is out of something, or the arguments are too long.
pub(super) fn failure(launch: &Launch, error: &io::Error) -> Result<Failure, Status> {
    use io::ErrorKind::{ArgumentListTooLong, NotADirectory, NotFound, OutOfMemory, WouldBlock};
    let name = launch.argv.first().map_or(&b""[..], |name| name.as_bytes());
    let (code, reason) = match error.kind() {
        NotFound | NotADirectory if !name.contains(&b'/') => (127, "command not found".to_owned()),
        NotFound | NotADirectory => (127, reason(error)),
        ArgumentListTooLong => return Err(Status::invalid_argument("the arguments are too long")),
        WouldBlock | OutOfMemory => return Err(exhausted(error)),
        // no more descriptors, here or on the machine
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            return Err(exhausted(error));
        }
        _ => (126, reason(error)),
    };
    let shown = &name[..name.len().min(MAX_SHOWN)];
    Ok(Failure { code, message: [b"cocoonbox: ", shown, b": ", reason.as_bytes()].concat() })
}

fn exhausted(error: &io::Error) -> Status {
    Status::resource_exhausted(format!("no program can be started: {}", reason(error)))
}

/// Returns an error's words without the number that std adds.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Returns a terminal's size; 80 by 24 when there is none.
pub(super) fn size(asked: Option<&TerminalSize>) -> Result<Size, Status> {
    let Some(asked) = asked else { return Ok(Size { columns: 80, rows: 24 }) };
    let cells = |count: u32| {
        u16::try_from(count)
            .map_err(|_| Status::invalid_argument("a terminal has at most 65535 columns and rows"))
    };
    Ok(Size { columns: cells(asked.columns)?, rows: cells(asked.rows)? })
}

/// Returns a program's name without directories, for those who watch.
pub(super) fn program(launch: &Launch) -> String {
    let path = launch.argv.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let mut name = path.to_string_lossy().into_owned();
    name.truncate(name.floor_char_boundary(64));
    name
}
