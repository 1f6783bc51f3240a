//! The grammar of `rsh`: ssh's, as rsync, git, scp and sftp use it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use crate::{BoxRef, Endpoint};

/// What `cocoonbox rsh --help` prints.
pub(super) const HELP: &str = "\
Run a command or a shell in a box, as ssh would

Usage: cocoonbox rsh [OPTIONS] [USER@HOST] [-- ARGV...]
       cocoonbox rsh [OPTIONS] [USER@]HOST WORDS...

A host word names the box, unless --box does: then it is ignored. Words after the host are joined by spaces and read
by the box's login shell, as ssh does; words after -- are run exactly as they are. Without a command it is an
interactive login shell. A sleeping box is woken.

Options:
      --box <BOX>         The box, by name or id [default: the host word, else your first box]
  -t                      Give the command a terminal [default: an interactive shell on a terminal has one]
  -T                      Give it none
  -n                      Read nothing from standard input
  -s                      The command is a subsystem: sftp
  -o SendEnv=<NAME>       Send a variable of the environment; SetEnv=<NAME>=<VALUE> sends a value
      --endpoint <URL>    The server: http://host:port or unix:/path [env: COCOONBOX_ENDPOINT]
      --config-dir <DIR>  Where cli.json is [env: COCOONBOX_CONFIG_DIR]
      --json              Print this program's own errors as JSON; the command's output is left as it is
  -h, --help              Print this
Taken for ssh's sake and without effect: -4 -6 -A -a -C -k -q -v -x -X -Y and, with a value, -b -c -E -e -F -i -l -m
-p -S and other -o options. Forwarding (-L, -R, -D, -W, -w, -J, -N, -f) is refused.

Examples:
  cocoonbox rsh                                          a shell in your first box
  cocoonbox rsh --box work -- git -C /workspace status   exact arguments
  cocoonbox rsh work 'ls *.txt | wc -l'                  read by the shell in the box
  tar c src | cocoonbox rsh -- tar x -C /workspace       streams
  rsync -a -e 'cocoonbox rsh' ./src/ work:/workspace/src/
  GIT_SSH_COMMAND='cocoonbox rsh' git clone work:/workspace/project
  ln -s \"$(command -v cocoonbox)\" ~/bin/cocoonbox-rsh && scp -S cocoonbox-rsh notes.txt work:

Exit status: the command's own; 128 and the signal's number when one ended it; 255 when cocoonbox itself failed.
A lost connection is taken up again for 60 seconds, and nothing that went over it is lost or doubled.
";

/// Whether the command gets a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TtyWish {
    /// An interactive shell does, when standard input is a terminal.
    #[default]
    Auto,
    /// It does.
    Force,
    /// It does not.
    Never,
}

/// What is run in the box.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RshCommand {
    /// An interactive login shell.
    #[default]
    Login,
    /// Exact arguments.
    Argv(Vec<OsString>),
    /// A line for the login shell.
    Shell(OsString),
    /// The sftp server found in the box.
    Sftp,
}

/// What the words of `rsh` mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RshArgs {
    /// The box; `None` is the first.
    pub name: Option<BoxRef>,
    /// Whether the command gets a terminal.
    pub tty: TtyWish,
    /// What is run.
    pub command: RshCommand,
    /// Reads nothing from standard input.
    pub no_stdin: bool,
    /// Variables to send: names, where `*` stands for any letters.
    pub send_env: Vec<String>,
    /// Variables to send with these values.
    pub set_env: Vec<(String, OsString)>,
    /// The server.
    pub endpoint: Option<Endpoint>,
    /// Where cli.json is.
    pub config_dir: Option<PathBuf>,
    /// Prints errors as JSON.
    pub json: bool,
}

/// Why the words say nothing to run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RshError {
    /// Help was asked for.
    #[error("help was asked for")]
    Help,
    /// The version was asked for.
    #[error("the version was asked for")]
    Version,
    /// The configuration for a host was asked for (`-G`), as git does to tell ssh from others.
    #[error("the configuration was asked for")]
    Configuration(String),
    /// The words are wrong.
    #[error("{0}")]
    Usage(String),
}

/// Options of ssh that have no effect here.
const IGNORED: &[u8] = b"46AaCgKkMqvXxYy";
/// Options of ssh that take a value and have no effect here.
const IGNORED_WITH_VALUE: &[u8] = b"BbcEeFIilmpPSO";
/// Options of ssh that would forward something, or leave the terminal.
const REFUSED: &[u8] = b"DfJLNQRWw";

/// How much of the grammar is ours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// `cocoonbox rsh`: what follows `--` is exact arguments.
    Ours,
    /// `cocoonbox-rsh`: `--` ends the options, and the host follows.
    Ssh,
}

impl RshArgs {
    /// Reads the words after `cocoonbox rsh`.
    ///
    /// # Errors
    /// As [`RshError`].
    pub fn parse(words: &[OsString]) -> Result<Self, RshError> {
        Reader::new(words, Dialect::Ours).read()
    }

    /// Reads the words after `cocoonbox-rsh`, which stands in for ssh.
    ///
    /// # Errors
    /// As [`RshError`].
    pub fn parse_as_ssh(words: &[OsString]) -> Result<Self, RshError> {
        Reader::new(words, Dialect::Ssh).read()
    }
}

struct Reader<'a> {
    words: &'a [OsString],
    dialect: Dialect,
    args: RshArgs,
    host: Option<&'a OsStr>,
    subsystem: bool,
    configuration: bool,
}

impl<'a> Reader<'a> {
    fn new(words: &'a [OsString], dialect: Dialect) -> Self {
        Self { words, dialect, args: RshArgs::default(), host: None, subsystem: false, configuration: false }
    }

    fn next(&mut self) -> Option<&'a OsStr> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn read(mut self) -> Result<RshArgs, RshError> {
        let mut exact = None;
        while let Some(word) = self.words.first().map(OsString::as_os_str) {
            let bytes = word.as_bytes();
            if bytes == b"--" {
                self.next();
                if self.dialect == Dialect::Ours {
                    exact = Some(std::mem::take(&mut self.words));
                } else if self.host.is_none() {
                    self.host = self.next();
                }
                break;
            }
            if bytes.starts_with(b"--") {
                self.next();
                self.long(word)?;
            } else if bytes.len() > 1 && bytes[0] == b'-' {
                self.next();
                self.short(&bytes[1..])?;
            } else if self.host.is_none() {
                self.host = self.next();
            } else {
                break;
            }
        }
        self.finish(exact)
    }

    fn finish(mut self, exact: Option<&[OsString]>) -> Result<RshArgs, RshError> {
        if self.args.name.is_none()
            && let Some(host) = self.host
        {
            self.args.name = Some(box_of_host(host)?);
        }
        if self.configuration {
            let name = self.args.name.map_or_else(|| "main".to_owned(), |name| name.to_string());
            return Err(RshError::Configuration(name));
        }
        let words = exact.unwrap_or(self.words);
        self.args.command = if self.subsystem {
            match words {
                [only] if only == "sftp" => RshCommand::Sftp,
                _ => return Err(usage("the only subsystem is sftp")),
            }
        } else if words.is_empty() {
            RshCommand::Login
        } else if exact.is_some() {
            RshCommand::Argv(words.to_vec())
        } else {
            RshCommand::Shell(words.join(OsStr::new(" ")))
        };
        Ok(self.args)
    }

    fn long(&mut self, word: &OsStr) -> Result<(), RshError> {
        let text = word.to_str().ok_or_else(|| usage("an option is not text"))?;
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (text, None),
        };
        let flag = matches!(name, "--json" | "--help");
        let value = match (flag, inline) {
            (true, None) => OsString::new(),
            (true, Some(_)) => return Err(usage(format!("{name} takes no value"))),
            (false, Some(value)) => value,
            (false, None) => match name {
                "--box" | "--endpoint" | "--config-dir" => {
                    self.next().ok_or_else(|| usage(format!("{name} needs a value")))?.to_owned()
                }
                _ => return Err(usage(format!("there is no option {name}"))),
            },
        };
        let word = || value.to_str().ok_or_else(|| usage(format!("the value of {name} is not text")));
        match name {
            "--box" => {
                self.args.name = Some(word()?.parse().map_err(|error| usage(format!("--box: {error}")))?);
            }
            "--endpoint" => {
                self.args.endpoint =
                    Some(word()?.parse().map_err(|error| usage(format!("--endpoint: {error}")))?);
            }
            "--config-dir" => self.args.config_dir = Some(value.into()),
            "--json" => self.args.json = true,
            "--help" => return Err(RshError::Help),
            _ => return Err(usage(format!("there is no option {name}"))),
        }
        Ok(())
    }

    /// Reads one word of short options, such as `-4Cp22`.
    fn short(&mut self, mut letters: &'a [u8]) -> Result<(), RshError> {
        while let Some((&letter, rest)) = letters.split_first() {
            letters = rest;
            match letter {
                b't' => self.args.tty = TtyWish::Force,
                b'T' => self.args.tty = TtyWish::Never,
                b'n' => self.args.no_stdin = true,
                b's' => self.subsystem = true,
                b'G' => self.configuration = true,
                b'V' => return Err(RshError::Version),
                b'h' if self.dialect == Dialect::Ours => return Err(RshError::Help),
                letter if IGNORED.contains(&letter) => {}
                letter if letter == b'o' || IGNORED_WITH_VALUE.contains(&letter) => {
                    let value = if rest.is_empty() {
                        self.next().ok_or_else(|| usage(format!("-{} needs a value", char::from(letter))))?
                    } else {
                        OsStr::from_bytes(rest)
                    };
                    if letter == b'o' {
                        self.option(value.as_bytes())?;
                    }
                    return Ok(());
                }
                letter if REFUSED.contains(&letter) => {
                    return Err(usage(format!(
                        "-{} is ssh's and not offered: rsh runs commands and forwards nothing",
                        char::from(letter)
                    )));
                }
                letter if letter.is_ascii_graphic() => {
                    return Err(usage(format!("there is no option -{}", char::from(letter))));
                }
                _ => return Err(usage("an option is not a letter")),
            }
        }
        Ok(())
    }

    /// Reads the value of `-o`: `Name=value` or `Name value`; names that are not ours are ssh's business.
    fn option(&mut self, text: &[u8]) -> Result<(), RshError> {
        let split = text.iter().position(|byte| matches!(byte, b'=' | b' ' | b'\t')).unwrap_or(text.len());
        let name = text[..split].to_ascii_lowercase();
        let value = text.get(split + 1..).unwrap_or_default().trim_ascii();
        let value = OsStr::from_bytes(value);
        match name.as_slice() {
            b"sendenv" => {
                let names = value.to_str().ok_or_else(|| usage("SendEnv: a name is not text"))?;
                self.args.send_env.extend(names.split_ascii_whitespace().map(str::to_owned));
            }
            b"setenv" => {
                let bytes = value.as_bytes();
                let at = bytes
                    .iter()
                    .position(|byte| *byte == b'=')
                    .filter(|at| *at > 0)
                    .ok_or_else(|| usage("SetEnv: use NAME=VALUE"))?;
                let name =
                    std::str::from_utf8(&bytes[..at]).map_err(|_| usage("SetEnv: a name is not text"))?;
                let text = bytes[at + 1..].strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
                self.args
                    .set_env
                    .push((name.to_owned(), OsString::from_vec(text.unwrap_or(&bytes[at + 1..]).to_vec())));
            }
            b"requesttty" => {
                self.args.tty = match value.as_bytes() {
                    b"no" => TtyWish::Never,
                    b"yes" | b"force" => TtyWish::Force,
                    _ => TtyWish::Auto,
                };
            }
            b"stdinnull" => self.args.no_stdin = value == "yes",
            _ => {}
        }
        Ok(())
    }
}

/// Returns the box that `[user@]host` names.
fn box_of_host(host: &OsStr) -> Result<BoxRef, RshError> {
    let text = host.to_str().unwrap_or_default();
    let name = text.rsplit_once('@').map_or(text, |(_, host)| host);
    name.parse().map_err(|error| usage(format!("{name:?} names no box: {error}")))
}

fn usage(text: impl Into<String>) -> RshError {
    RshError::Usage(text.into())
}

#[cfg(test)]
mod tests;
