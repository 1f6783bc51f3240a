//! Stories of the command line, told in process against a small server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

mod server;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use cocoonbox_client::cli::{self, Environment, Io, Outcome, Parsed};
use tokio::io::AsyncWrite;

use crate::server::{LINK, Server, token};

type Done = Result<(), Box<dyn std::error::Error>>;

/// A person's machine with a server beside it.
struct Desk {
    folder: tempfile::TempDir,
    server: Server,
    variables: Vec<(OsString, OsString)>,
}

/// What a command line did.
struct Did {
    status: u8,
    stdout: String,
    stderr: String,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl std::io::Write for Shared {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl AsyncWrite for Shared {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        self.0.lock().unwrap().extend_from_slice(data);
        Poll::Ready(Ok(data.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Desk {
    fn new() -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("box"))?;
        let socket = folder.path().join("sock");
        let server = Server::start(&socket, folder.path().join("box"))?;
        let variables = vec![
            ("COCOONBOX_CONFIG_DIR".into(), folder.path().join("config").into()),
            ("COCOONBOX_ENDPOINT".into(), format!("unix:{}", socket.display()).into()),
        ];
        Ok(Self { folder, server, variables })
    }

    async fn signed_in() -> Result<Self, Box<dyn std::error::Error>> {
        let desk = Self::new()?;
        assert_eq!(desk.type_in("login --token", &token(1)).await.status, 0);
        Ok(desk)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    async fn run(&self, line: &str) -> Did {
        self.type_in(line, "").await
    }

    async fn type_in(&self, line: &str, input: &str) -> Did {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        self.words(&words, input).await
    }

    async fn words(&self, words: &[&str], input: &str) -> Did {
        let mut argv: Vec<OsString> = vec!["cocoonbox".into()];
        argv.extend(words.iter().map(OsString::from));
        self.argv(argv, input).await
    }

    async fn argv(&self, argv: Vec<OsString>, input: &str) -> Did {
        let (out, err) = (Shared::default(), Shared::default());
        let environment = Environment::new(self.variables.clone(), "a-desk");
        let status = match cli::parse(argv) {
            Parsed::Print { text, to_stderr, status } => {
                use std::io::Write as _;
                if to_stderr { err.clone() } else { out.clone() }.write_all(text.as_bytes()).unwrap();
                status
            }
            Parsed::Cli(cli) => {
                let (mut stdout, mut stderr) = (out.clone(), err.clone());
                let mut io = Io {
                    stdout: &mut stdout,
                    stderr: &mut stderr,
                    stdin: Box::new(std::io::Cursor::new(input.as_bytes().to_vec())),
                    command_stdout: Box::new(out.clone()),
                    command_stderr: Box::new(err.clone()),
                    terminal: None,
                    stdout_is_terminal: false,
                    stderr_is_terminal: false,
                };
                match cli::run(cli, &environment, &mut io).await {
                    Outcome::Exit(status) => status,
                    Outcome::Up(..)
                    | Outcome::Doctor(..)
                    | Outcome::Config(..)
                    | Outcome::RotateMasterKey(..) => 99,
                }
            }
        };
        let here = self.folder.path().display().to_string();
        let text = |shared: &Shared| shared.text().replace(&here, "[DESK]");
        Did { status, stdout: text(&out), stderr: text(&err) }
    }

    /// Tells a story line by line.
    async fn tell(&self, lines: &[(&str, &str)]) -> String {
        let mut story = String::new();
        for (line, input) in lines {
            let did = self.type_in(line, input).await;
            let _ = write!(story, "$ cocoonbox {line}\n[{}]\n{}", did.status, did.stdout);
            story.extend(did.stderr.lines().map(|line| format!("! {line}\n")));
        }
        story
    }
}

#[tokio::test]
async fn help_teaches() {
    let desk = Desk::new().unwrap();
    let mut pages = String::new();
    for page in [
        "--help",
        "login --help",
        "status --help",
        "box --help",
        "box create --help",
        "box ensure --help",
        "box hibernate --help",
        "box rm --help",
        "box schedule --help",
        "rsh --help",
        "cp --help",
        "up --help",
        "config --help",
        "config show --help",
        "doctor --help",
        "completion --help",
    ] {
        let did = desk.run(page).await;
        assert_eq!((did.status, did.stderr.as_str()), (0, ""), "{page}");
        let _ = write!(pages, "$ cocoonbox {page}\n{}\n", did.stdout);
    }
    insta::assert_snapshot!("help", pages);
}

#[tokio::test]
async fn signing_in_is_asked_for_done_and_undone() -> Done {
    let desk = Desk::new()?;
    let story = desk
        .tell(&[
            ("status", ""),
            ("login", ""),
            ("login --no-browser", "cbc_1"),
            ("login --link --token", ""),
            ("login --token secret", ""),
            ("login --link", "wrong\n"),
            ("login --link", ""),
            ("login --token", "cb_short\n"),
            ("login --token", &token(9)),
            ("login --link", &format!("http://127.0.0.1:7420/cb/link/{LINK}\n")),
            ("status", ""),
            ("--json status", ""),
            ("whoami", ""),
            ("whoami --json", ""),
            ("devices", ""),
            ("devices --json", ""),
            ("devices revoke tk_1", ""),
            ("login --link --json", LINK),
            ("logout", ""),
            ("logout", ""),
            ("box ls", ""),
            ("box ls --json", ""),
        ])
        .await;
    // the second sign-in ended the first token, the sign-out the second
    assert_eq!(desk.server.ended_tokens(), ["tk_1".to_owned(), token(2), token(3)]);
    insta::assert_snapshot!("sign_in", story);
    Ok(())
}

#[tokio::test]
async fn signing_out_everywhere_forgets_the_token_here_too() -> Done {
    let desk = Desk::signed_in().await?;
    let story = desk.tell(&[("logout --everywhere", ""), ("status", "")]).await;
    assert_eq!(desk.server.ended_tokens(), [format!("everything of {}", token(1))]);
    insta::assert_snapshot!(story);
    Ok(())
}

#[tokio::test]
async fn no_token_is_ever_printed() -> Done {
    let desk = Desk::signed_in().await?;
    let story = desk
        .tell(&[
            ("login --token", &token(1)),
            ("login --token", &format!("{} x", token(1))),
            ("status", ""),
            ("status --json", ""),
            ("box ensure", ""),
            ("box ls --json", ""),
            ("--endpoint unix:/nowhere status", ""),
            ("logout --json", ""),
        ])
        .await;
    assert!(!story.contains(&token(1)[8..]), "{story}");
    Ok(())
}

#[tokio::test]
async fn a_box_lives_from_create_to_rm() -> Done {
    let desk = Desk::signed_in().await?;
    let story = desk
        .tell(&[
            ("box ls", ""),
            ("box show", ""),
            ("box ensure", ""),
            ("box create work", ""),
            ("box create work", ""),
            ("box create third", ""),
            ("box create Bad!", ""),
            ("box ls", ""),
            ("box show work", ""),
            ("box show gone", ""),
            ("box hibernate work", ""),
            ("box hibernate work", ""),
            ("box ensure work --json", ""),
            ("box hibernate work --to-disk", ""),
            ("box rename work play", ""),
            ("box schedule play", ""),
            ("box schedule play --cron x", ""),
            ("box usage", ""),
            ("box usage --json", ""),
            ("box rm play", "play\n"),
            ("box rm play --yes", ""),
            ("box rm main --yes --json", ""),
            ("box ls --json", ""),
        ])
        .await;
    insta::assert_snapshot!("box_life", story);
    let did = desk.words(&["box", "ensure"], "").await;
    assert_eq!(did.status, 0);
    let did = desk
        .words(
            &["box", "schedule", "--cron", "0 8 * * 1-5", "--time-zone", "Europe/Berlin", "--stay-up", "2h"],
            "",
        )
        .await;
    assert_eq!(
        did.stdout,
        "box main wakes at \"0 8 * * 1-5\" (Europe/Berlin), stays up 120 min, next 2023-11-16T02:00:00Z\n"
    );
    Ok(())
}

#[tokio::test]
async fn a_server_cannot_move_the_cursor() -> Done {
    let desk = Desk::signed_in().await?;
    desk.run("box ensure").await;
    desk.server.rename_first("\u{1b}[2J\u{9b}1mmain\u{7}");
    for line in ["box ls", "box show", "box ensure", "box rm cb-aaaaaaaaab", "box schedule", "box show gone"]
    {
        let did = desk.run(line).await;
        let printed = format!("{}{}", did.stdout, did.stderr);
        assert!(!printed.chars().any(|letter| letter.is_control() && letter != '\n'), "{line}: {printed:?}");
    }
    Ok(())
}

#[tokio::test]
async fn no_server_and_wrong_words_are_told_apart() -> Done {
    let desk = Desk::signed_in().await?;
    let mut story = desk
        .tell(&[
            ("", ""),
            ("bux", ""),
            ("box --json bux", ""),
            ("rsh --json --nope", ""),
            ("--endpoint https://x status", ""),
            ("cp a b", ""),
            ("cp a: b:", ""),
            ("cp missing main:", ""),
            ("rsh --nope", ""),
            ("rsh no/box true", ""),
            ("rsh gone true", ""),
            ("rsh --json gone true", ""),
            ("--json rsh gone true", ""),
            ("version", ""),
            ("version --json", ""),
        ])
        .await;
    let mut away = desk;
    away.variables[1].1 = "unix:/nowhere/sock".into();
    away.variables.push(("COCOONBOX_TOKEN".into(), token(1).into()));
    story += &away.tell(&[("box ls", ""), ("box ls --json", ""), ("rsh -- true", "")]).await;
    insta::assert_snapshot!("refusals", story);
    Ok(())
}

#[tokio::test]
async fn a_remote_command_is_a_filter() -> Done {
    let mut desk = Desk::signed_in().await?;
    desk.run("box ensure").await;
    let did = desk.type_in("rsh -- cat", "through\n").await;
    assert_eq!((did.status, did.stdout.as_str()), (0, "through\n"));
    let did = desk.words(&["rsh", "main", "echo out; echo err >&2; exit", "7"], "").await;
    assert_eq!((did.status, did.stdout.as_str(), did.stderr.as_str()), (7, "out\n", "err\n"));
    let did = desk.words(&["rsh", "--box", "main", "ignored", "kill -9 $$"], "").await;
    assert_eq!(did.status, 137);
    let did = desk.words(&["rsh", "--", "printf", "%s|", "a b", "*", ""], "").await;
    assert_eq!(did.stdout, "a b|*||");
    desk.variables.push(("GIT_PROTOCOL".into(), "version=2".into()));
    let did = desk
        .words(&["rsh", "-o", "SendEnv=GIT_PROTOCOL", "-oSetEnv=A=b", "main", "echo $GIT_PROTOCOL $A"], "")
        .await;
    assert_eq!(did.stdout, "version=2 b\n");
    let did = desk
        .argv(["/usr/bin/cocoonbox-rsh", "-x", "-s", "--", "main", "sftp"].map(OsString::from).to_vec(), "")
        .await;
    // the box is this machine: it has a server or says that it has none
    assert!(
        did.status == 0 || (did.status == 127 && did.stderr.contains("has no sftp-server")),
        "{}",
        did.stderr
    );
    let large = "0123456789".repeat(300_000);
    let did = desk.type_in("rsh -- cat", &large).await;
    assert!(did.stdout == large);
    Ok(())
}

#[tokio::test]
async fn folders_and_files_are_copied_both_ways() -> Done {
    let desk = Desk::signed_in().await?;
    desk.run("box ensure").await;
    let write = |name: &str, text: &str| {
        let path = desk.path(name);
        fs::create_dir_all(path.parent().unwrap()).and_then(|()| fs::write(path, text))
    };
    write("here/a/run.sh", "#!/bin/sh\n")?;
    write("here/-dash", "dash")?;
    fs::set_permissions(desk.path("here/a/run.sh"), fs::Permissions::from_mode(0o755))?;
    fs::create_dir(desk.path("box/there"))?;
    let copy = async |from: &str, to: &str| {
        let here = |side: &str| side.replace("HERE", &desk.path("").display().to_string());
        desk.words(&["cp", &here(from), &here(to)], "").await
    };
    let read = |name: &str| fs::read_to_string(desk.path(name));
    let did = copy("HEREhere", "main:there").await;
    assert_eq!((did.status, did.stdout.as_str()), (0, "sent 2 files, 14 B\n"), "{}", did.stderr);
    assert_eq!(read("box/there/here/a/run.sh")?, "#!/bin/sh\n");
    assert_eq!(fs::metadata(desk.path("box/there/here/a/run.sh"))?.permissions().mode() & 0o777, 0o755);
    assert_eq!(copy("HEREhere", ":copy").await.status, 0);
    assert_eq!(read("box/copy/-dash")?, "dash");
    assert_eq!(copy("HEREhere/-dash", "main:-x").await.status, 0);
    assert_eq!(read("box/-x")?, "dash");
    assert_eq!(copy("main:-x", "HEREback").await.status, 0);
    assert_eq!(read("back")?, "dash");
    assert_eq!(copy("main:copy/", "HEREhere").await.status, 0);
    assert_eq!(read("here/copy/a/run.sh")?, "#!/bin/sh\n");
    assert_eq!(copy("main:", "HEREhome").await.status, 0);
    assert_eq!(read("home/-x")?, "dash");
    for (from, to, status, part) in [
        ("HEREhere", "main:no/where", 3, "there is no folder in the box"),
        ("HEREhere", "main:-x", 3, "a folder cannot take its place"),
        ("HEREback", "main:new/", 3, "there is no folder new/"),
        ("main:missing", "HEREm", 1, "in the box: tar: "),
        ("main:copy", "HEREnone/x", 1, "cannot be written to"),
    ] {
        let did = copy(from, to).await;
        assert!(
            did.status == status && did.stderr.contains(part),
            "{from} {to}: {} {}",
            did.status,
            did.stderr
        );
    }
    assert!(!Path::new(&desk.path("m")).exists());
    Ok(())
}

#[tokio::test]
async fn each_shell_gets_its_completions() -> Done {
    let desk = Desk::new()?;
    for shell in ["bash", "zsh", "fish"] {
        let did = desk.run(&format!("completion {shell}")).await;
        assert!(did.status == 0 && did.stdout.contains("hibernate"), "{shell}");
    }
    Ok(())
}

#[tokio::test]
async fn serving_and_checking_are_the_binarys() -> Done {
    let desk = Desk::new()?;
    for line in ["up --listen 127.0.0.1:1", "doctor --json"] {
        assert_eq!(desk.run(line).await.status, 99, "{line}");
    }
    assert_eq!(desk.run("up --listen nowhere").await.status, 2);
    Ok(())
}
