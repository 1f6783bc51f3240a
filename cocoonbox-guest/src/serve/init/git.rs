//! `git_*` on the guest channel: the box's own git, as its user.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use cocoonbox_wire::silkd::{ErrorKind, GitFile, Response};

use super::Guest;
use super::channel::{Failure, Output, Refusal};
use super::files::path;
use crate::serve::ends::{self, Source};
use crate::sys::{self, Launch};

/// The most bytes of git's answer that are read.
const MAX_ANSWER: usize = 1024 * 1024;
/// The most files of one request.
const MAX_FILES: usize = 4096;

/// Says why nothing is fetched.
pub(super) fn no_network() -> Refusal {
    Refusal::new(ErrorKind::Unimplemented, "this box has no network for git: bring the tree in with fs_push")
}

/// What git said.
struct Said {
    stdout: Vec<u8>,
    truncated: bool,
}

struct Git<'a> {
    tree: PathBuf,
    guest: &'a Guest,
}

impl<'a> Git<'a> {
    fn at(tree: &str, guest: &'a Guest) -> Result<Self, Refusal> {
        let tree = path(tree, guest)?;
        if tree.is_dir() { Ok(Self { tree, guest }) } else { Err(Refusal::not_found("no such directory")) }
    }

    async fn run(&self, arguments: &[&str], env: &[(&str, &str)]) -> Result<Said, Refusal> {
        let mut argv = vec![OsString::from("git")];
        argv.extend(arguments.iter().map(OsString::from));
        let claim = self.guest.claim_env.variables();
        let own = [("GIT_TERMINAL_PROMPT", "0"), ("GIT_OPTIONAL_LOCKS", "0"), ("LC_ALL", "C.UTF-8")];
        let over = own.iter().chain(env).map(|(name, value)| (OsStr::new(*name), OsStr::new(*value)));
        let env = self.guest.base.with_claim(&claim, over);
        let launch = Launch { argv, arg0: None, directory: self.tree.clone(), env };
        let started = self.guest.children.start(|| sys::launch(&launch, None));
        let (_, pipes, ending) = started.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Refusal::new(ErrorKind::Unimplemented, "this box has no git"),
            _ => Refusal::internal(error),
        })?;
        let (stdin, mut stdout, stderr, _) = ends::open(pipes)?;
        drop(stdin);
        let (said, complained) = tokio::join!(read(&mut stdout), async {
            match stderr {
                Some(mut stderr) => read(&mut stderr).await,
                None => (Vec::new(), false),
            }
        });
        match ending.await {
            Ok(ending) if ending.shell_code() == 0 => Ok(Said { stdout: said.0, truncated: said.1 }),
            _ => {
                let words = String::from_utf8_lossy(&complained.0);
                Err(Refusal::internal(words.trim().chars().take(1024).collect::<String>()))
            }
        }
    }
}

/// Reads to the end and keeps the first part.
async fn read(source: &mut Source) -> (Vec<u8>, bool) {
    let (mut kept, mut buffer, mut truncated) = (Vec::new(), vec![0; 64 * 1024], false);
    while let Ok(count) = source.read(&mut buffer).await {
        if count == 0 {
            break;
        }
        let room = MAX_ANSWER - kept.len();
        truncated |= count > room;
        kept.extend_from_slice(&buffer[..count.min(room)]);
    }
    (kept, truncated)
}

pub(super) async fn status(tree: &str, guest: &Guest, output: &mut Output) -> Result<(), Failure> {
    let git = Git::at(tree, guest)?;
    let said = git.run(&["status", "--porcelain=v2", "--branch", "-z"], &[]).await?;
    let mut status = parse_status(&said.stdout);
    if let Response::GitStatusResult { truncated, files, .. } = &mut status
        && said.truncated
    {
        // the last one may be cut
        files.pop();
        *truncated = true;
    }
    output.send(&status).await
}

/// Reads git's porcelain format, version 2, with NUL ends.
fn parse_status(bytes: &[u8]) -> Response {
    let (mut branch, mut ahead, mut behind, mut files) = (String::new(), 0, 0, Vec::new());
    let mut parts = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    while let Some(part) = parts.next() {
        if let Some(head) = part.strip_prefix("# branch.head ") {
            head.clone_into(&mut branch);
            if branch == "(detached)" {
                branch.clear();
            }
        } else if let Some(counts) = part.strip_prefix("# branch.ab ") {
            let mut numbers =
                counts.split(' ').map(|text| text.trim_start_matches(['+', '-']).parse().unwrap_or(0));
            ahead = numbers.next().unwrap_or(0);
            behind = numbers.next().unwrap_or(0);
        } else if let Some(path) = part.strip_prefix("? ") {
            files.push(GitFile { path: path.to_owned(), staged: "?".to_owned(), unstaged: "?".to_owned() });
        } else if let Some(rest) = part.strip_prefix("1 ").or_else(|| part.strip_prefix("u ")) {
            let fields = if part.starts_with('1') { 8 } else { 10 };
            files.extend(changed(rest, fields));
        } else if let Some(rest) = part.strip_prefix("2 ") {
            files.extend(changed(rest, 9));
            // where it was renamed from
            parts.next();
        }
    }
    Response::GitStatusResult { branch, ahead, behind, files, truncated: false }
}

/// Reads one changed entry whose path is the last of `fields`.
fn changed(rest: &str, fields: usize) -> Option<GitFile> {
    let path = rest.splitn(fields, ' ').nth(fields - 1)?;
    let mut letters = rest.chars();
    let (staged, unstaged) = (letters.next()?, letters.next()?);
    Some(GitFile { path: path.to_owned(), staged: staged.to_string(), unstaged: unstaged.to_string() })
}

pub(super) async fn add(
    tree: &str,
    files: &[String],
    guest: &Guest,
    output: &mut Output,
) -> Result<(), Failure> {
    if files.is_empty() || files.len() > MAX_FILES {
        return Err(Refusal::bad(format!("1 to {MAX_FILES} files")).into());
    }
    let mut arguments = vec!["add", "--"];
    arguments.extend(files.iter().map(String::as_str));
    Git::at(tree, guest)?.run(&arguments, &[]).await?;
    output.send(&Response::Done {}).await
}

pub(super) async fn commit(
    tree: &str,
    message: &str,
    author: &str,
    guest: &Guest,
    output: &mut Output,
) -> Result<(), Failure> {
    let git = Git::at(tree, guest)?;
    let named = author.trim().strip_suffix('>').and_then(|author| author.split_once('<'));
    let (name, address) = named.ok_or_else(|| Refusal::bad("an author is Name <address>"))?;
    let (name, address) = (name.trim(), address.trim());
    let env = [
        ("GIT_AUTHOR_NAME", name),
        ("GIT_AUTHOR_EMAIL", address),
        ("GIT_COMMITTER_NAME", name),
        ("GIT_COMMITTER_EMAIL", address),
    ];
    git.run(&["commit", "--quiet", "-m", message], &env).await?;
    let said = git.run(&["rev-parse", "HEAD"], &[]).await?;
    let hash = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    output.send(&Response::GitCommitResult { hash }).await
}

pub(super) async fn branch(
    tree: &str,
    action: &str,
    name: Option<&str>,
    guest: &Guest,
    output: &mut Output,
) -> Result<(), Failure> {
    let git = Git::at(tree, guest)?;
    if action == "list" {
        let current = git.run(&["branch", "--show-current"], &[]).await?;
        let all = git.run(&["branch", "--format=%(refname:short)"], &[]).await?;
        let text = |said: &Said| String::from_utf8_lossy(&said.stdout).trim().to_owned();
        let branches = text(&all).lines().map(str::to_owned).collect();
        return output.send(&Response::GitBranches { current: text(&current), branches }).await;
    }
    let name = name.filter(|name| !name.is_empty() && !name.starts_with('-'));
    let name = name.ok_or_else(|| Refusal::bad("a branch has a name that does not start with -"))?;
    let arguments = match action {
        "create" => ["branch", name],
        "checkout" => ["checkout", name],
        "delete" => ["branch", "-D"],
        _ => return Err(Refusal::bad("action: list, create, checkout or delete").into()),
    };
    if action == "delete" {
        git.run(&[arguments[0], arguments[1], name], &[]).await?;
    } else {
        git.run(&arguments, &[]).await?;
    }
    output.send(&Response::Done {}).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read() {
        let text = b"# branch.oid ab\0# branch.head main\0# branch.upstream o/main\0# branch.ab +2 -1\0\
            1 M. N... 100644 100644 100644 a b a file\x002 R. N... 100644 100644 100644 a b R100 new\0old\0? loose\0";
        let file = |path: &str, staged: &str, unstaged: &str| GitFile {
            path: path.into(),
            staged: staged.into(),
            unstaged: unstaged.into(),
        };
        assert_eq!(
            parse_status(text),
            Response::GitStatusResult {
                branch: "main".into(),
                ahead: 2,
                behind: 1,
                files: vec![file("a file", "M", "."), file("new", "R", "."), file("loose", "?", "?")],
                truncated: false,
            }
        );
        assert_eq!(parse_status(b"1 M\0u \x002 x"), parse_status(b""));
    }
}
