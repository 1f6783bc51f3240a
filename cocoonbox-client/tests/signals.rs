//! What `rsh` does with signals and its terminal. Signals reach a whole process, so these stories share one test.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

#[path = "cli/server.rs"]
mod server;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use cocoonbox_client::cli::{self, Environment, Io, Outcome, Parsed, Tty};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{self, LocalModes, Winsize};

use crate::server::{Server, token};

type Done = Result<(), Box<dyn std::error::Error>>;

struct Desk {
    folder: tempfile::TempDir,
    server: Server,
}

impl Desk {
    async fn run(&self, words: &[&str], terminal: Option<Tty>) -> (u8, String) {
        let socket = self.folder.path().join("sock");
        let environment = Environment::new(
            [
                ("COCOONBOX_CONFIG_DIR", self.folder.path().to_str().unwrap()),
                ("COCOONBOX_ENDPOINT", &format!("unix:{}", socket.display())),
                ("COCOONBOX_TOKEN", &token(1)),
                ("TERM", "cocoon-test"),
                ("TERMINFO", self.folder.path().join("terminfo").to_str().unwrap()),
            ]
            .map(|(name, value)| (name.into(), value.into())),
            "a-desk",
        );
        let mut argv: Vec<OsString> = vec!["cocoonbox".into()];
        argv.extend(words.iter().map(OsString::from));
        let Parsed::Cli(cli) = cli::parse(argv) else { panic!("{words:?}") };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut io = Io {
            stdout: &mut stdout,
            stderr: &mut stderr,
            stdin: Box::new(tokio::io::empty()),
            command_stdout: Box::new(tokio::io::sink()),
            command_stderr: Box::new(tokio::io::sink()),
            terminal,
            stdout_is_terminal: false,
            stderr_is_terminal: false,
        };
        let Outcome::Exit(status) = cli::run(cli, &environment, &mut io).await else { panic!("{words:?}") };
        (status, String::from_utf8_lossy(&stderr).into_owned())
    }

    async fn until_heard(&self, expected: &str) {
        while !self.server.heard().iter().any(|heard| heard == expected) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn pseudo_terminal() -> std::io::Result<(OwnedFd, OwnedFd)> {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&controller)?;
    unlockpt(&controller)?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    let file = rustix::fs::open(&ptsname(&controller, Vec::new())?, flags, rustix::fs::Mode::empty())?;
    Ok((controller, file))
}

#[tokio::test]
async fn signals_sizes_and_modes_go_where_they_belong() -> Done {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir_all(folder.path().join("terminfo/c"))?;
    std::fs::write(folder.path().join("terminfo/c/cocoon-test"), [0x1a, 1, 0, 0, 0])?;
    let server = Server::start(&folder.path().join("sock"), folder.path().to_owned())?;
    let desk = Desk { folder, server };

    // without a terminal a signal is the command's
    let signalled = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        kill_process(getpid(), Signal::TERM)?;
        desk.until_heard("signal 15").await;
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    let (ended, sent) = tokio::join!(desk.run(&["rsh", "--", "sleep", "20"], None), signalled);
    sent?;
    assert_eq!(ended, (128 + 15, String::new()));

    // with one, keys are raw while the command runs, and a new size is told
    let (_controller, file) = pseudo_terminal()?;
    let tty = Tty::of(&file)?;
    let before = format!("{:?}", termios::tcgetattr(&file)?);
    let watched = async {
        while termios::tcgetattr(&file)?.local_modes.contains(LocalModes::ICANON) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        termios::tcsetwinsize(&file, Winsize { ws_col: 101, ws_row: 33, ws_xpixel: 0, ws_ypixel: 0 })?;
        kill_process(getpid(), Signal::WINCH)?;
        desk.until_heard("resize 101x33").await;
        kill_process(getpid(), Signal::TERM)?;
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    let (ended, watched) = tokio::join!(desk.run(&["rsh", "-t", "--", "sleep", "20"], tty), watched);
    watched?;
    assert_eq!(ended, (128 + 15, String::new()));
    assert_eq!(format!("{:?}", termios::tcgetattr(&file)?), before);
    let started = desk.server.heard().into_iter().find(|heard| heard.starts_with("tty")).unwrap_or_default();
    assert_eq!(started, "tty cocoon-test Some(TerminalSize { columns: 80, rows: 24 }) 5");
    Ok(())
}
