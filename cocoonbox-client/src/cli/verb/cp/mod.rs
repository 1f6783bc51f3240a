//! `cp`: files and folders, as a tar stream over a command in the box.

mod extract;
mod pack;
mod serve;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use serde_json::json;

use super::super::args::{CpArgs, Global};
use super::super::environment::{Environment, Io};
use super::super::error::CliError;
use super::super::progress::Progress;
use super::super::render::{bytes, plain};
use super::{print, print_json};
use crate::BoxRef;
use crate::exec::{Command, Exec, Exit};

/// The most bytes of what a command in the box says that are kept for an error.
const MAX_WORDS: usize = 16 * 1024;

/// Says what a path in the box is: `folder`, `file`, `none`, or `no-parent`.
const PROBE: &str = "if [ -d \"$1\" ]; then echo folder; elif [ -e \"$1\" ] || [ -h \"$1\" ]; then echo file; \
elif [ -d \"$2\" ]; then echo none; else echo no-parent; fi";
const UNPACK: &str = "cd \"$1\" && exec tar -xpof -";
const PACK: &str = "cd \"$1\" && exec tar -cf - \"$2\"";

/// How much was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Sockets, devices and the like.
    pub(super) skipped: u64,
}

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side {
    Here(PathBuf),
    Box(Option<BoxRef>, Vec<u8>),
}

pub(super) async fn run(
    args: &CpArgs,
    global: &Global,
    environment: &Environment,
    io: &mut Io<'_>,
) -> Result<(), CliError> {
    let sides = (side(&args.source)?, side(&args.destination)?);
    let (copied, text) = match sides {
        (Side::Here(from), Side::Box(name, to)) => {
            let plan = Upload::plan(&from)?;
            let exec = environment.client(global).await?.exec(name.as_ref());
            let mut progress =
                Progress::new(io.stderr, io.stderr_is_terminal, global.json || !io.stderr_is_terminal);
            (upload(&exec, &plan, &to, &mut progress).await?, "sent")
        }
        (Side::Box(name, from), Side::Here(to)) => {
            let plan = Download::plan(&from, &to)?;
            let exec = environment.client(global).await?.exec(name.as_ref());
            let mut progress =
                Progress::new(io.stderr, io.stderr_is_terminal, global.json || !io.stderr_is_terminal);
            (download(&exec, plan, &mut progress).await?, "fetched")
        }
        _ => return Err(CliError::Usage("exactly one side of a copy is BOX:PATH".to_owned())),
    };
    if global.json {
        return print_json(
            io,
            &json!({ "files": copied.files, "bytes": copied.bytes, "skipped": copied.skipped }),
        );
    }
    let skipped = match copied.skipped {
        0 => String::new(),
        count => format!(", {count} skipped that are no files, folders or links"),
    };
    print(io, &format!("{text} {} files, {}{skipped}\n", copied.files, bytes(copied.bytes)))
}

/// Reads `PATH` or `BOX:PATH`; a `/` before the first `:` makes it a path here, as with scp.
fn side(word: &OsStr) -> Result<Side, CliError> {
    let text = word.as_bytes();
    let stop = text.iter().position(|byte| matches!(byte, b':' | b'/'));
    let Some(colon) = stop.filter(|at| text[*at] == b':') else {
        if text.is_empty() {
            return Err(CliError::Usage("a path is empty".to_owned()));
        }
        return Ok(Side::Here(PathBuf::from(word)));
    };
    let name = match &text[..colon] {
        b"" => None,
        name => {
            let name = String::from_utf8_lossy(name);
            Some(
                name.parse()
                    .map_err(|error| CliError::Usage(format!("{:?} names no box: {error}", plain(&name))))?,
            )
        }
    };
    let path = &text[colon + 1..];
    let path = path.strip_prefix(b"~/").unwrap_or(if path == b"~" { b"" } else { path });
    if path.contains(&0) {
        return Err(CliError::Usage("a path holds a zero byte".to_owned()));
    }
    Ok(Side::Box(name, path.to_vec()))
}

/// Splits a path in a box into its folder and its last name; a path without a last name is a folder.
fn split(path: &[u8]) -> (Vec<u8>, Option<Vec<u8>>) {
    // `./` before a relative path: nothing that follows is taken for an option
    let rooted = |path: &[u8]| match path {
        [b'/', ..] => path.to_vec(),
        path => [b"./", path].concat(),
    };
    let trimmed = path.iter().rposition(|byte| *byte != b'/').map_or(&b""[..], |last| &path[..=last]);
    if trimmed.is_empty() {
        return (rooted(if path.is_empty() { b"" } else { b"/" }), None);
    }
    let (folder, name) = match trimmed.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&trimmed[..=at], &trimmed[at + 1..]),
        None => (&b""[..], trimmed),
    };
    if matches!(name, b"." | b"..") { (rooted(trimmed), None) } else { (rooted(folder), Some(name.to_vec())) }
}

struct Upload {
    source: PathBuf,
    name: OsString,
    is_folder: bool,
}

impl Upload {
    fn plan(source: &Path) -> Result<Self, CliError> {
        let failed = |error| CliError::io(format!("{} cannot be read", source.display()), error);
        let is_folder = std::fs::metadata(source).map_err(failed)?.is_dir();
        let name = match source.components().next_back() {
            Some(Component::Normal(name)) => name.to_owned(),
            // `.` and `..` have no name of their own
            _ => match source.canonicalize().map_err(failed)?.file_name() {
                Some(name) => name.to_owned(),
                None => return Err(CliError::Usage("the whole file system is too much to copy".to_owned())),
            },
        };
        Ok(Self { source: source.to_owned(), name, is_folder })
    }
}

async fn upload(
    exec: &Exec,
    plan: &Upload,
    to: &[u8],
    progress: &mut Progress<'_>,
) -> Result<Copied, CliError> {
    let shown = plain(&String::from_utf8_lossy(to));
    let (folder, name) = split(to);
    let whole = [&folder[..], name.as_deref().unwrap_or_default()].concat();
    let probe = Command::argv([b"/bin/sh", &b"-c"[..], PROBE.as_bytes(), b"sh", &whole, &folder]);
    let found = exec.output(probe, b"", MAX_WORDS).await?;
    let (folder, name) = match (found.stdout.trim_ascii(), name) {
        (b"folder", _) => (whole, plan.name.clone().into_vec()),
        (b"file", Some(_)) if plan.is_folder => {
            return Err(CliError::Refused {
                message: format!("{shown} is a file; a folder cannot take its place"),
                hint: None,
            });
        }
        (b"file" | b"none", Some(_)) if to.ends_with(b"/") => {
            return Err(CliError::Refused {
                message: format!("there is no folder {shown} in the box"),
                hint: None,
            });
        }
        (b"file" | b"none", Some(name)) => (folder, name),
        _ => {
            return Err(CliError::Refused {
                message: format!("there is no folder in the box to put {shown} into"),
                hint: Some("make it with `cocoonbox rsh -- mkdir -p FOLDER`"),
            });
        }
    };
    let command = Command::argv([b"/bin/sh", &b"-c"[..], UNPACK.as_bytes(), b"sh", &folder]);
    serve::send(exec, command, plan.source.clone(), PathBuf::from(OsString::from_vec(name)), progress).await
}

struct Download {
    folder: Vec<u8>,
    /// The last name in the box; `None` is the folder itself.
    base: Option<OsString>,
    into: extract::Destination,
}

impl Download {
    fn plan(from: &[u8], to: &Path) -> Result<Self, CliError> {
        let (folder, base) = split(from);
        let base = base.map(OsString::from_vec);
        let into = extract::Destination::choose(to, base.as_deref())
            .map_err(|error| CliError::io(format!("{} cannot be written to", to.display()), error))?;
        Ok(Self { folder, base, into })
    }
}

async fn download(exec: &Exec, plan: Download, progress: &mut Progress<'_>) -> Result<Copied, CliError> {
    let base = match &plan.base {
        None => b".".to_vec(),
        // `./`: a name that begins with a dash is no option
        Some(base) => [b"./", base.as_bytes()].concat(),
    };
    let command = Command::argv([b"/bin/sh", &b"-c"[..], PACK.as_bytes(), b"sh", &plan.folder, &base]);
    serve::fetch(exec, command, plan.into, plan.base, progress).await
}

/// Says why tar in the box failed.
fn tar_failure(exit: Exit, words: &[u8]) -> CliError {
    if exit == Exit::Code(127) {
        return CliError::failed(
            "the box has no tar",
            Some("install tar in the box's image, or use rsync -e 'cocoonbox rsh'"),
        );
    }
    let words = plain(String::from_utf8_lossy(words).trim());
    let message = if words.is_empty() {
        format!("tar in the box ended with {}", exit.status())
    } else {
        format!("in the box: {words}")
    };
    CliError::failed(message, None)
}
