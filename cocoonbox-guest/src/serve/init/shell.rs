//! Persistent shells on the guest channel: a bash each, which commands are typed to one after the other.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_core::{Entropy as _, SystemEntropy};
use cocoonbox_wire::silkd::Response;
use rustix::process::{Pid, Signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::Guest;
use super::channel::{Failure, Output, Refusal};
use crate::limit::{check_argv, check_env, check_path};
use crate::serve::children::Ending;
use crate::serve::ends::{self, Sink, Source};
use crate::sys::{self, Launch};

/// The most shells at a time.
const MAX_SHELLS: usize = 64;
/// How long a shell waits for its next command.
const IDLE: Duration = Duration::from_mins(30);
/// The longest name.
const MAX_NAME: usize = 64;

const CHUNK: usize = 64 * 1024;

/// A shell that commands are typed to.
#[derive(Debug)]
struct Shell {
    pid: Pid,
    /// When it was last used.
    used: Mutex<Instant>,
    /// Held by whose command runs.
    io: Arc<tokio::sync::Mutex<Ends>>,
}

#[derive(Debug)]
struct Ends {
    stdin: Sink,
    stdout: Source,
    ending: Option<oneshot::Receiver<Ending>>,
}

/// All of them, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Shells(Arc<Mutex<BTreeMap<String, Arc<Shell>>>>);

impl Shells {
    fn hold(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Shell>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.hold().keys().cloned().collect()
    }

    fn find(&self, name: &str) -> Result<Arc<Shell>, Refusal> {
        self.hold().get(name).cloned().ok_or_else(|| Refusal::not_found("no such session"))
    }

    /// Ends a shell and what it started.
    pub(super) fn remove(&self, name: &str) -> Result<(), Refusal> {
        let shell = self.hold().remove(name).ok_or_else(|| Refusal::not_found("no such session"))?;
        let _ = rustix::process::kill_process_group(shell.pid, Signal::KILL);
        Ok(())
    }

    fn forget(&self, name: &str, pid: Pid) {
        let mut shells = self.hold();
        if shells.get(name).is_some_and(|shell| shell.pid == pid) {
            shells.remove(name);
        }
    }

    pub(super) fn create(
        &self,
        name: Option<String>,
        cwd: Option<String>,
        env: BTreeMap<String, String>,
        guest: &Guest,
    ) -> Result<String, Refusal> {
        let name = match name.filter(|name| !name.is_empty()) {
            Some(name) => name,
            None => format!("shell-{}", random()?),
        };
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name.len() > MAX_NAME || !name.bytes().all(letter) {
            return Err(Refusal::bad(format!(
                "a session's id is 1 to {MAX_NAME} of A-Z, a-z, 0-9, -, _ and ."
            )));
        }
        let variables = || env.iter().map(|(name, value)| (name.as_str(), OsStr::new(value)));
        check_env(variables()).map_err(Refusal::bad)?;
        check_path(OsStr::new(cwd.as_deref().unwrap_or_default())).map_err(Refusal::bad)?;
        let directory = guest.base.directory(cwd.as_deref().map(Path::new));
        if !directory.is_dir() {
            return Err(Refusal::bad("cwd is no directory"));
        }
        let claim = guest.claim_env.variables();
        let env = guest.base.with_claim(&claim, variables().map(|(name, value)| (OsStr::new(name), value)));
        // what the shell itself complains of goes where its commands write
        let script = "exec /bin/bash --noprofile --norc -O expand_aliases 2>&1";
        let argv = ["/bin/sh", "-c", script].map(OsString::from);
        let launch = Launch { argv: argv.into(), arg0: None, directory, env };
        let mut shells = self.hold();
        if shells.len() >= MAX_SHELLS {
            return Err(Refusal::internal(format!("at most {MAX_SHELLS} sessions")));
        }
        if shells.contains_key(&name) {
            return Err(Refusal::bad("a session of that id is there already"));
        }
        let started = guest.children.start(|| sys::launch(&launch, None));
        let (pid, pipes, ending) = started.map_err(|error| Refusal::internal(format!("bash: {error}")))?;
        let (stdin, stdout, _, _) = ends::open(pipes)?;
        let io = Arc::new(tokio::sync::Mutex::new(Ends { stdin, stdout, ending: Some(ending) }));
        let shell = Arc::new(Shell { pid, used: Mutex::new(Instant::now()), io });
        shells.insert(name.clone(), Arc::clone(&shell));
        drop(shells);
        tokio::spawn(self.clone().reap(name.clone(), shell));
        Ok(name)
    }

    /// Ends a shell that nobody has used for long.
    async fn reap(self, name: String, shell: Arc<Shell>) {
        loop {
            let until = *shell.used.lock().unwrap_or_else(PoisonError::into_inner) + IDLE;
            sleep_until(until).await;
            let known = self.hold().get(&name).is_some_and(|known| known.pid == shell.pid);
            if !known {
                return;
            }
            // a command that runs holds it
            let Ok(_io) = shell.io.try_lock() else {
                *shell.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                continue;
            };
            if shell.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= IDLE {
                let _ = self.remove(&name);
                return;
            }
        }
    }

    /// Runs one command in a shell.
    pub(super) async fn run(
        &self,
        name: &str,
        argv: Vec<String>,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let words: Vec<OsString> = argv.iter().map(OsString::from).collect();
        check_argv(&words).map_err(Refusal::bad)?;
        let shell = self.find(name)?;
        let mut io = Arc::clone(&shell.io).lock_owned().await;
        // it may have been ended while this command waited
        self.find(name)?;
        let mark = random()?;
        let line = typed(&argv, &mark);
        let mut said = Said::new(&mark);
        let code = if io.stdin.write_all(line.as_bytes()).await.is_err() {
            None
        } else {
            let mut buffer = vec![0; CHUNK];
            loop {
                let count = io.stdout.read(&mut buffer).await.unwrap_or(0);
                if count == 0 {
                    break None;
                }
                let (data, code) = said.take(&buffer[..count]);
                if !data.is_empty()
                    && output.send(&Response::Stdout { data: Bytes::from(data) }).await.is_err()
                {
                    // nobody listens any more: the shell is there for the next command once this one is over
                    if code.is_none() {
                        tokio::spawn(drain(io, said));
                    }
                    return Err(Failure::Gone);
                }
                if code.is_some() {
                    break code;
                }
            }
        };
        *shell.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let code = if let Some(code) = code {
            code
        } else {
            // the shell itself is over
            self.forget(name, shell.pid);
            let rest = said.rest();
            if !rest.is_empty() {
                output.send(&Response::Stdout { data: Bytes::from(rest) }).await?;
            }
            match io.ending.take() {
                Some(ending) => ending.await.unwrap_or(Ending::Code(-1)).shell_code(),
                None => -1,
            }
        };
        output.send(&Response::Exit { code }).await
    }
}

/// Reads what a command says to the end and lets it go.
async fn drain(mut io: tokio::sync::OwnedMutexGuard<Ends>, mut said: Said) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count) = io.stdout.read(&mut buffer).await {
        if count == 0 || said.take(&buffer[..count]).1.is_some() {
            return;
        }
    }
}

fn random() -> Result<String, Refusal> {
    let mut bytes = [0; 16];
    SystemEntropy.fill(&mut bytes).map_err(Refusal::internal)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

/// Returns the line that runs `argv` in the shell itself and says `mark` and its code at the end.
fn typed(argv: &[String], mark: &str) -> String {
    let words: Vec<String> = argv.iter().map(|word| quoted(word)).collect();
    // one printf is one write, which nothing comes into
    format!("{{ {}; }} </dev/null 2>&1; printf '%s %d\\n' {mark} $?\n", words.join(" "))
}

/// Returns a word as a shell reads it back; a plain one stays plain, so that aliases and assignments work.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:=@%+,-".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// What a shell says, up to the mark.
#[derive(Debug)]
struct Said {
    mark: Vec<u8>,
    kept: Vec<u8>,
}

impl Said {
    fn new(mark: &str) -> Self {
        Self { mark: format!("{mark} ").into_bytes(), kept: Vec::new() }
    }

    /// Takes in more and returns what is output for sure, and the code once the mark's line is whole.
    fn take(&mut self, more: &[u8]) -> (Vec<u8>, Option<i32>) {
        self.kept.extend_from_slice(more);
        let found = self.kept.windows(self.mark.len()).position(|part| part == self.mark);
        if let Some(at) = found {
            let line = &self.kept[at + self.mark.len()..];
            let code = line
                .iter()
                .position(|byte| *byte == b'\n')
                .map(|end| String::from_utf8_lossy(&line[..end]).trim().parse().unwrap_or(-1));
            let output = self.kept[..at].to_vec();
            if code.is_some() {
                self.kept.clear();
            } else {
                self.kept.drain(..at);
            }
            return (output, code);
        }
        // the mark may have begun
        let start = self.kept.len().saturating_sub(self.mark.len());
        let sure = (start..self.kept.len())
            .find(|at| self.mark.starts_with(&self.kept[*at..]))
            .unwrap_or(self.kept.len());
        (self.kept.drain(..sure).collect(), None)
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.kept)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_words_stay_plain_and_others_are_quoted() {
        for (word, expected) in [
            ("ls", "ls"),
            ("A=b", "A=b"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("$x", "'$x'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    proptest! {
        #[test]
        fn output_comes_out_whole_however_it_is_cut(
            output in proptest::collection::vec(any::<u8>(), 0..200),
            code in 0..256_i32,
            cuts in proptest::collection::vec(1..50_usize, 1..40),
        ) {
            let mark = "0123456789abcdef";
            let whole = [&output[..], format!("{mark} {code}\n").as_bytes()].concat();
            let mut said = Said::new(mark);
            let (mut heard, mut ended, mut at) = (Vec::new(), None, 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(whole.len());
                let (data, code) = said.take(&whole[at..end]);
                heard.extend(data);
                ended = code;
                at = end;
                if at == whole.len() {
                    break;
                }
            }
            prop_assert_eq!((heard, ended), (output, Some(code)));
        }
    }
}
