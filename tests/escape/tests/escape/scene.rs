//! What an attacker is after: a victim on the host with the box's own uid there, and what the node has.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::Uid;

use crate::guest::Ran;
use crate::{Error, attacker};

/// The victim, its secret, and the files and sockets that only the node may touch.
#[derive(Debug)]
pub(crate) struct Scene {
    /// A name that nothing else on the machine has.
    pub(crate) marker: String,
    /// What nobody but the victim knows.
    pub(crate) secret: String,
    /// A directory of the host that everybody may enter.
    pub(crate) folder: tempfile::TempDir,
    /// A key of System V shared memory.
    pub(crate) segment_key: u32,
    /// The box's uid on the host, which the victim has.
    pub(crate) uid: u32,
    /// What the victim said about itself.
    facts: BTreeMap<String, String>,
    /// Sockets of the node: of this box, of another, and its own.
    pub(crate) sockets: Vec<PathBuf>,
    /// Files of the node.
    pub(crate) files: Vec<PathBuf>,
    /// A file of the node's in the form that `open_by_handle_at` takes, where the file system has that.
    pub(crate) handle: Option<(i32, String)>,
    victim: Victim,
    last_harm: String,
    /// Listens in the node's data directory.
    _node: UnixListener,
}

#[derive(Debug)]
struct Victim {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Victim {
    fn drop(&mut self) {
        // the end of its input is its end, after it has cleaned up
        self.input = None;
        let _ = self.child.wait();
    }
}

impl Scene {
    /// Sets everything up for a box whose programs are `uid` on the host.
    pub(crate) fn set(data: &Path, uid: u32, places: Vec<PathBuf>) -> Result<Self, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let marker = format!("cocoonbox-escape-{}-{uid}-{number}", std::process::id());
        let secret = format!("the secret of {marker}");
        let segment_key = 0x4000_0000 | (std::process::id() & 0x003f_ffff) << 8 | number;
        let folder = tempfile::Builder::new().prefix("cocoonbox-escape-").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let program = folder.path().join("attacker");
        cocoonbox_stories::copy_program(&attacker(), &program)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        let own = folder.path().join("victim");
        fs::create_dir(&own)?;
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&own, Some(uid), Some(uid))?;
        }
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755))?;

        let words = [marker.clone(), secret.clone(), own.display().to_string(), segment_key.to_string()];
        let mut command = as_user(&program, uid);
        let mut child = command
            .arg("victim")
            .args(words)
            .env_clear()
            .env("VICTIM", &secret)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("a pipe")?);
        let mut victim = Victim { child, input, output };
        let mut line = String::new();
        victim.output.read_line(&mut line)?;
        let facts: BTreeMap<_, _> = line
            .split_whitespace()
            .filter_map(|word| word.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        if !facts.contains_key("pid") {
            return Err(format!("there is no victim: {line}").into());
        }
        // what the node's own socket would be, whatever it is called
        let node = data.join("victim-node.sock");
        let listener = UnixListener::bind(&node)?;
        let (mut sockets, files): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|place| place.extension().is_some_and(|kind| kind == "sock"));
        sockets.push(node);
        let handle = crate::handle::of(&own.join(format!("{marker}.secret")));
        Ok(Self {
            marker,
            secret,
            folder,
            segment_key,
            uid,
            facts,
            sockets,
            files,
            handle,
            victim,
            last_harm: String::new(),
            _node: listener,
        })
    }

    /// Returns what the victim said about itself.
    pub(crate) fn fact(&self, name: &str) -> String {
        self.facts.get(name).cloned().unwrap_or_default()
    }

    /// Returns a file with the secret: in the victim's own folder, in `/tmp`, or in `/dev/shm`.
    pub(crate) fn secret_file(&self, folder: &str) -> String {
        let folder = if folder == "own" { self.fact("folder") } else { folder.to_owned() };
        format!("{folder}/{}.secret", self.marker)
    }

    fn harm(&mut self) -> Result<String, Error> {
        self.victim.input.as_mut().ok_or("an input")?.write_all(b"\n")?;
        let mut line = String::new();
        self.victim.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Returns whether anything was done to the victim since this was asked last.
    pub(crate) fn was_harmed(&mut self) -> Result<bool, Error> {
        let now = self.harm()?;
        // what a signal left was taken away by the asking
        let harmed = now != self.last_harm;
        self.last_harm = now.replace("signals=1", "signals=0");
        Ok(harmed)
    }

    /// Tries a way on the host as the box's user there.
    pub(crate) fn on_host(&self, words: &[String]) -> Result<Ran, Error> {
        ran(as_user(&self.folder.path().join("attacker"), self.uid).args(words))
    }

    /// Tries a way as whoever runs the node.
    pub(crate) fn as_node(&self, words: &[String]) -> Result<Ran, Error> {
        ran(Command::new(self.folder.path().join("attacker")).args(words))
    }

    /// Tries a way on the host as root, where its mounts and names end with it.
    pub(crate) fn throw_away(&self, words: &[String]) -> Result<Ran, Error> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--uts", "--ipc", "--net", "--"]);
        ran(command.arg(self.folder.path().join("attacker")).args(words))
    }

    /// Tries a way on the host as root of namespaces of its own, which end with it.
    pub(crate) fn in_own_namespaces(&self, words: &[String]) -> Result<Ran, Error> {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork"]);
        command.args(["--mount-proc", "--"]);
        ran(command.arg(self.folder.path().join("attacker")).args(words))
    }
}

/// A command that runs `program` as `uid`; an ordinary user, who cannot become anybody else, is himself what a box is
/// after.
fn as_user(program: &Path, uid: u32) -> Command {
    if !Uid::effective().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", "--"]).arg(program);
    command
}

fn ran(command: &mut Command) -> Result<Ran, Error> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok(Ran {
        code: output.status.code().unwrap_or(-1).into(),
        said: String::from_utf8_lossy(&said).trim_end().to_owned(),
    })
}
