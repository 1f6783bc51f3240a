//! The service over real connections, running real programs.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cocoonbox_core::{BoxId, ManualClock, SystemClock, WakeId};
use cocoonbox_wire::agent::v1::exec_request::Message as Ask;
use cocoonbox_wire::agent::v1::exec_response::Message as Say;
use cocoonbox_wire::agent::v1::session_client::SessionClient;
use cocoonbox_wire::agent::v1::{
    EnvironmentVariable, ExecAck, ExecAttach, ExecClose, ExecEof, ExecInput, ExecSignal, ExecStart, Terminal,
    TerminalSize, exec_exit::How,
};
use cocoonbox_wire::call_token::{self, MethodClass};
use cocoonbox_wire::identity::Identity;
use ed25519_dalek::SigningKey;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use super::*;

mod reattach;

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PATIENCE: Duration = Duration::from_secs(20);

struct Agent {
    address: SocketAddr,
    home: TempDir,
    identity: TempDir,
    clock: Arc<ManualClock>,
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}
fn box_id() -> BoxId {
    "cb-abcdefghij".parse().unwrap()
}
fn wake(letter: &str) -> WakeId {
    format!("wk_{}", letter.repeat(26)).parse().unwrap()
}

fn put_identity(directory: &Path, wake: &WakeId) -> Result {
    let identity = Identity::new(box_id(), wake.clone(), None, &key().verifying_key());
    let temporary = directory.join("temporary");
    fs::write(&temporary, identity.to_bytes())?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o644))?;
    Ok(fs::rename(temporary, directory.join("identity"))?)
}

impl Agent {
    /// None when not root: an identity is then not the host's to believe.
    fn start() -> Result<Option<Self>> {
        Self::start_with(|_| {})
    }

    fn start_with(change: impl FnOnce(&mut AgentOptions)) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let (home, identity) = (tempfile::tempdir()?, tempfile::tempdir()?);
        fs::set_permissions(identity.path(), fs::Permissions::from_mode(0o755))?;
        put_identity(identity.path(), &wake("a"))?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let passwd = format!("box:x:0:0::{}:/bin/bash", home.path().display());
        let mut options = AgentOptions::new(listener, Base::new(0, &passwd, false));
        let clock = Arc::new(ManualClock::new(SystemClock.now()));
        options.clock = clock.clone();
        options.identity = identity.path().into();
        change(&mut options);
        tokio::spawn(run(options));
        Ok(Some(Self { address, home, identity, clock }))
    }

    fn token(&self, class: MethodClass, wake: &WakeId) -> String {
        call_token::mint(&key(), &box_id(), wake, class, self.clock.now())
    }

    fn request<T>(&self, class: MethodClass, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(call_token::METADATA, self.token(class, &wake("a")).parse().unwrap());
        request
    }

    async fn talk(&self, first: Ask) -> Result<Line, Status> {
        self.talk_at(self.address, first).await
    }

    async fn talk_at(&self, address: SocketAddr, first: Ask) -> Result<Line, Status> {
        self.talk_over(format!("http://{address}"), first).await
    }

    async fn talk_over(&self, url: String, first: Ask) -> Result<Line, Status> {
        let client = SessionClient::connect(url).await;
        let mut client = client.map_err(|error| Status::unavailable(error.to_string()))?;
        let (sender, receiver) = mpsc::channel(16);
        let _ = sender.send(ExecRequest { message: Some(first) }).await;
        let request = self.request(MethodClass::Exec, ReceiverStream::new(receiver));
        Ok(Line { sender, says: client.exec(request).await?.into_inner() })
    }

    async fn start_shell(&self, command: &str) -> Result<(Line, String), Status> {
        self.talk(Ask::Start(shell(command))).await?.started().await
    }
}

/// One stream from the client's side.
struct Line {
    sender: mpsc::Sender<ExecRequest>,
    says: Streaming<ExecResponse>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    out: Vec<u8>,
    err: Vec<u8>,
    how: Option<How>,
}

impl Outcome {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

impl Line {
    async fn ask(&self, ask: Ask) {
        let _ = self.sender.send(ExecRequest { message: Some(ask) }).await;
    }

    async fn next(&mut self) -> Result<Option<Say>, Status> {
        let next = timeout(PATIENCE, self.says.message()).await;
        let next = next.map_err(|_| Status::deadline_exceeded("nothing came"))?;
        Ok(next?.and_then(|response| response.message))
    }

    async fn started(mut self) -> Result<(Self, String), Status> {
        match self.next().await? {
            Some(Say::Started(started)) => Ok((self, started.session_id)),
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    /// Reads until output holds `text`.
    async fn until(&mut self, text: &str) -> Result<String, Status> {
        let mut seen = String::new();
        while !seen.contains(text) {
            match self.next().await? {
                Some(Say::Output(output)) => seen.push_str(&String::from_utf8_lossy(&output.data)),
                Some(Say::Exit(exit)) => return Err(Status::internal(format!("{exit:?} after {seen:?}"))),
                None => return Err(Status::internal(format!("the end after {seen:?}"))),
                _ => {}
            }
        }
        Ok(seen)
    }

    /// Reads to the exit, acknowledging all.
    async fn finish(&mut self) -> Result<Outcome, Status> {
        let mut outcome = Outcome::default();
        let mut expected = None;
        loop {
            match self.next().await? {
                Some(Say::Output(output)) => {
                    assert_eq!(*expected.get_or_insert(output.offset), output.offset);
                    let end = output.offset + output.data.len() as u64;
                    expected = Some(end);
                    match output.stream() {
                        exec_output_stream::Stderr => outcome.err.extend_from_slice(&output.data),
                        _ => outcome.out.extend_from_slice(&output.data),
                    }
                    self.ask(Ask::Ack(ExecAck { output_offset: end, exit: false })).await;
                }
                Some(Say::Exit(exit)) => {
                    outcome.how = exit.how;
                    let end = expected.unwrap_or(0);
                    self.ask(Ask::Ack(ExecAck { output_offset: end, exit: true })).await;
                    assert!(self.next().await?.is_none(), "the exit is the last message");
                    return Ok(outcome);
                }
                Some(_) => {}
                None => return Err(Status::internal("the end without an exit")),
            }
        }
    }
}

use cocoonbox_wire::agent::v1::exec_output::Stream as exec_output_stream;

fn shell(command: &str) -> ExecStart {
    ExecStart { shell_command: command.to_owned().into(), ..ExecStart::default() }
}

fn argv(words: &[&[u8]]) -> ExecStart {
    ExecStart {
        argv: words.iter().map(|word| Bytes::copy_from_slice(word)).collect(),
        ..ExecStart::default()
    }
}

fn on_terminal(mut start: ExecStart, term: &str, terminfo: &[u8]) -> ExecStart {
    start.tty = Some(Terminal {
        size: Some(TerminalSize { columns: 101, rows: 33 }),
        term: term.into(),
        terminfo: Bytes::copy_from_slice(terminfo),
    });
    start
}

fn input(offset: u64, data: &[u8]) -> Ask {
    Ask::Stdin(ExecInput { offset, data: Bytes::copy_from_slice(data) })
}

#[tokio::test]
async fn the_node_has_a_way_in_of_its_own() -> Result {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&path)?;
    let Some(agent) = Agent::start_with(|options| options.node = Some(listener))? else { return Ok(()) };
    let url = format!("unix://{}", path.display());
    for command in ["echo one", "echo two"] {
        let mut line = agent.talk_over(url.clone(), Ask::Start(shell(command))).await?;
        assert_eq!(line.finish().await?.text(), format!("{}\n", &command[5..]));
    }
    // and the port stays what it was
    let (mut line, _) = agent.start_shell("echo three").await?;
    assert_eq!(line.finish().await?.text(), "three\n");
    Ok(())
}

#[tokio::test]
async fn a_program_gets_its_arguments_as_they_are_and_its_streams_apart() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let mut start =
        argv(&[b"/bin/sh", b"-c", b"printf %s \"$1$V\"; pwd >&2; exit 7", b"x", b"\xff\xfe \"'\n"]);
    start.cwd = "/usr".into();
    start.env = vec![EnvironmentVariable { name: "V".into(), value: Bytes::from_static(b"\x80v") }];
    let outcome = agent.talk(Ask::Start(start)).await?.finish().await?;
    let want =
        Outcome { out: b"\xff\xfe \"'\n\x80v".to_vec(), err: b"/usr\n".to_vec(), how: Some(How::Code(7)) };
    assert_eq!(outcome, want);
    Ok(())
}

#[tokio::test]
async fn the_login_shell_runs_commands_at_home_and_finds_tools() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let outcome = agent
        .talk(Ask::Start(shell("pwd; echo $0 $HOME; command -v ls >/dev/null && echo $((1+1))")))
        .await?;
    let home = agent.home.path().display();
    let mut outcome = outcome;
    assert_eq!(outcome.finish().await?.text(), format!("{home}\n/bin/bash {home}\n2\n"));
    let mut login = agent.talk(Ask::Start(ExecStart::default())).await?;
    login.ask(input(0, b"echo $0; shopt -q login_shell && echo login\n")).await;
    login.ask(Ask::Eof(ExecEof { offset: 44 })).await;
    assert_eq!(login.finish().await?.text(), "-bash\nlogin\n");
    Ok(())
}

#[tokio::test]
async fn an_end_by_a_signal_is_told_as_one() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let outcome = agent.talk(Ask::Start(shell("echo last; kill -TERM $$"))).await?.finish().await?;
    assert_eq!((outcome.text().as_str(), outcome.how), ("last\n", Some(How::Signal(15))));
    Ok(())
}

#[tokio::test]
async fn input_ends_where_it_ends_and_output_goes_on() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let mut line = agent.talk(Ask::Start(shell("cat; sleep 0.1; echo after"))).await?;
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let sender = line.sender.clone();
    let copy = data.clone();
    tokio::spawn(async move {
        for (number, chunk) in copy.chunks(100_000).enumerate() {
            let ask = input(number as u64 * 100_000, chunk);
            let _ = sender.send(ExecRequest { message: Some(ask) }).await;
        }
        let _ = sender.send(ExecRequest { message: Some(Ask::Eof(ExecEof { offset: 3_000_000 })) }).await;
    });
    let outcome = line.finish().await?;
    assert!(outcome.out == [&data[..], b"after\n"].concat());
    Ok(())
}

#[tokio::test]
async fn unacknowledged_output_stops_at_the_window_and_goes_on_with_an_acknowledgement() -> Result {
    const TOTAL: u64 = 100_000_000;
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let (mut line, _) = agent.start_shell(&format!("head -c {TOTAL} /dev/zero")).await?;
    let mut received = 0;
    while let Ok(next) = timeout(Duration::from_millis(700), line.next()).await {
        if let Some(Say::Output(output)) = next? {
            received += output.data.len() as u64;
        }
    }
    assert_eq!(received, crate::replay::WINDOW);
    // meanwhile others are served
    let other = agent.talk(Ask::Start(shell("echo here"))).await?.finish().await?;
    assert_eq!(other.text(), "here\n");
    let before = resident()?;
    line.ask(Ask::Ack(ExecAck { output_offset: received, exit: false })).await;
    let mut peak = before;
    loop {
        match line.next().await? {
            Some(Say::Output(output)) => {
                assert_eq!(output.offset, received);
                received += output.data.len() as u64;
                if received % (1 << 20) < output.data.len() as u64 {
                    line.ask(Ask::Ack(ExecAck { output_offset: received, exit: false })).await;
                    peak = peak.max(resident()?);
                }
            }
            Some(Say::Exit(exit)) => break assert_eq!(exit.how, Some(How::Code(0))),
            Some(_) => {}
            None => return Err("the end without an exit".into()),
        }
    }
    assert_eq!(received, TOTAL);
    assert!(peak < before + (64 << 20), "{before} grew to {peak}");
    Ok(())
}

#[tokio::test]
async fn an_attach_acknowledges_what_the_client_has() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let (mut line, session_id) = agent.start_shell("head -c 20000000 /dev/zero").await?;
    let mut received = 0;
    while received < crate::replay::WINDOW {
        if let Some(Say::Output(output)) = line.next().await? {
            received += output.data.len() as u64;
        }
    }
    // the acknowledgement that the client sent is lost with its connection, and the program waits for room
    drop(line);
    let mut line = agent.talk(Ask::Attach(ExecAttach { session_id, output_offset: received })).await?;
    loop {
        match timeout(Duration::from_secs(10), line.next()).await?? {
            Some(Say::Output(output)) => {
                assert_eq!(output.offset, received);
                received += output.data.len() as u64;
                line.ask(Ask::Ack(ExecAck { output_offset: received, exit: false })).await;
            }
            Some(Say::Exit(exit)) => break assert_eq!(exit.how, Some(How::Code(0))),
            Some(_) => {}
            None => return Err("the end without an exit".into()),
        }
    }
    assert_eq!(received, 20_000_000);
    Ok(())
}

fn resident() -> Result<u64> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    Ok(pages.split(' ').nth(1).ok_or("no resident size")?.parse::<u64>()? * 4096)
}

#[tokio::test]
async fn a_client_that_never_reads_stops_its_program_alone() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(agent.talk(Ask::Start(shell("yes"))).await?);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let outcome = agent.talk(Ask::Start(shell("echo here"))).await?.finish().await?;
    assert_eq!(outcome.text(), "here\n");
    for mut line in silent {
        line.ask(Ask::Close(ExecClose {})).await;
        assert_eq!(line.finish().await?.how, Some(How::Signal(1)));
    }
    Ok(())
}

#[tokio::test]
async fn who_closes_and_goes_leaves_nothing_behind() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let (line, id) = agent.start_shell("yes").await?;
    line.ask(Ask::Close(ExecClose {})).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(line);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let attach = Ask::Attach(ExecAttach { session_id: id, output_offset: 0 });
    let gone = agent.talk(attach).await.map(drop).expect_err("it was closed");
    assert_eq!(gone.code(), Code::NotFound);
    Ok(())
}

#[tokio::test]
async fn a_signal_is_delivered_once_whatever_is_sent_again() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let command = "n=0; trap 'n=$((n+1)); echo got $n' USR1; trap 'echo end; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let (mut line, _) = agent.start_shell(command).await?;
    line.until("ready").await?;
    for sequence in [1, 1, 1] {
        line.ask(Ask::Signal(ExecSignal { signal: 10, sequence })).await;
    }
    line.until("got 1").await?;
    line.ask(Ask::Signal(ExecSignal { signal: 10, sequence: 1 })).await;
    line.ask(Ask::Signal(ExecSignal { signal: 10, sequence: 2 })).await;
    line.until("got 2").await?;
    line.ask(Ask::Signal(ExecSignal { signal: 15, sequence: 3 })).await;
    let outcome = line.finish().await?;
    assert_eq!((outcome.text().as_str(), outcome.how), ("end\n", Some(How::Code(3))));
    Ok(())
}

#[tokio::test]
async fn a_terminal_has_a_size_a_foreground_and_an_end() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let start = on_terminal(
        shell("trap 'stty size' WINCH; tty; stty size; echo $TERM; while :; do sleep 0.05; done"),
        "xterm",
        b"",
    );
    let (mut line, _) = agent.talk(Ask::Start(start)).await?.started().await?;
    let seen = line.until("xterm").await?;
    assert!(seen.contains("/dev/pts/") && seen.contains("33 101"), "{seen}");
    line.ask(Ask::Resize(TerminalSize { columns: 55, rows: 22 })).await;
    line.until("22 55").await?;
    line.ask(Ask::Close(ExecClose {})).await;
    assert_eq!(line.finish().await?.how, Some(How::Signal(1)));

    // a job in the foreground of a shell is what an interrupt is for, and the shell goes on
    let mut line = agent.talk(Ask::Start(on_terminal(ExecStart::default(), "xterm", b""))).await?;
    line.ask(input(0, b"PS1=; sh -c 'echo rea''dy; exec sleep 60'\n")).await;
    line.until("ready").await?;
    line.ask(Ask::Signal(ExecSignal { signal: 2, sequence: 1 })).await;
    line.ask(input(42, b"echo $?; exit 8\n")).await;
    let outcome = line.finish().await?;
    assert!(outcome.text().contains("130") && outcome.how == Some(How::Code(8)), "{outcome:?}");

    let (mut line, _) =
        agent.talk(Ask::Start(on_terminal(shell("cat; echo over"), "", b""))).await?.started().await?;
    line.ask(input(0, b"typed\n")).await;
    line.ask(Ask::Eof(ExecEof { offset: 6 })).await;
    let outcome = line.finish().await?;
    assert_eq!((outcome.text().as_str(), outcome.how), ("typed\r\ntyped\r\nover\r\n", Some(How::Code(0))));
    Ok(())
}

#[tokio::test]
async fn a_terminal_the_box_does_not_know_works() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let entry =
        ["/lib/terminfo/x/xterm", "/usr/share/terminfo/x/xterm"].iter().find_map(|path| fs::read(path).ok());
    let entry = entry.ok_or("this machine knows no xterm")?;
    let start = on_terminal(shell("echo $TERM; tput cup 0 0 && echo moved"), "xterm-mine", &entry);
    let outcome = agent.talk(Ask::Start(start)).await?.finish().await?;
    assert!(outcome.text().contains("xterm-mine") && outcome.text().contains("moved"), "{}", outcome.text());
    assert_eq!(outcome.how, Some(How::Code(0)));
    let start = on_terminal(shell("echo $TERM"), "xterm-theirs", b"");
    assert_eq!(agent.talk(Ask::Start(start)).await?.finish().await?.text(), "xterm-256color\r\n");
    Ok(())
}

#[tokio::test]
async fn what_stays_behind_neither_holds_the_exit_nor_dies_of_it() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let began = std::time::Instant::now();
    let command = "(sleep 3; echo late; sleep 0.1; echo alive > $HOME/proof) & echo first";
    let outcome = agent.talk(Ask::Start(shell(command))).await?.finish().await?;
    assert_eq!((outcome.text().as_str(), outcome.how), ("first\n", Some(How::Code(0))));
    assert!(began.elapsed() < Duration::from_millis(2900), "{:?}", began.elapsed());
    // output that follows without a pause of two seconds is not lost
    let outcome = agent
        .talk(Ask::Start(shell("(sleep 1; echo a; sleep 1.5; echo b) & exit 4")))
        .await?
        .finish()
        .await?;
    assert_eq!((outcome.text().as_str(), outcome.how), ("a\nb\n", Some(How::Code(4))));
    assert_eq!(fs::read_to_string(agent.home.path().join("proof"))?, "alive\n");
    Ok(())
}

#[tokio::test]
async fn a_program_that_cannot_be_started_ends_as_a_shell_says_it() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let plain = agent.home.path().join("plain");
    fs::write(&plain, "#!/no/such/interpreter\n")?;
    let plain = plain.to_str().ok_or("a path that is text")?;
    let cases: [(&str, i32, &str); 5] = [
        ("no-such-program", 127, "cocoonbox: no-such-program: command not found\n"),
        ("/no/such/program", 127, "cocoonbox: /no/such/program: No such file or directory\n"),
        ("/etc/passwd/x", 127, "cocoonbox: /etc/passwd/x: Not a directory\n"),
        ("/etc/passwd", 126, "cocoonbox: /etc/passwd: Permission denied\n"),
        (plain, 126, &format!("cocoonbox: {plain}: Permission denied\n")),
    ];
    for (program, code, text) in cases {
        // input that was sent with it is taken and dropped
        let mut line = agent.talk(Ask::Start(argv(&[program.as_bytes()]))).await?;
        line.ask(input(0, b"for nobody")).await;
        line.ask(Ask::Signal(ExecSignal { signal: 15, sequence: 1 })).await;
        let outcome = line.finish().await?;
        assert_eq!(outcome, Outcome { out: Vec::new(), err: text.into(), how: Some(How::Code(code)) });
        let terminal = on_terminal(argv(&[program.as_bytes()]), "xterm", b"");
        let outcome = agent.talk(Ask::Start(terminal)).await?.finish().await?;
        assert_eq!(outcome.text(), text.replace('\n', "\r\n"));
        assert_eq!(outcome.how, Some(How::Code(code)));
    }
    // who lost the connection meanwhile learns the same
    let (line, id) = agent.talk(Ask::Start(argv(&[b"no-such-program"]))).await?.started().await?;
    drop(line);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let attach = Ask::Attach(ExecAttach { session_id: id, output_offset: 0 });
    let outcome = agent.talk(attach).await?.finish().await?;
    assert_eq!(outcome.how, Some(How::Code(127)));
    Ok(())
}

#[tokio::test]
async fn programs_start_with_every_signal_at_its_default() -> Result {
    const UNDER: &str = "UNDER_IGNORED_SIGNALS";
    if std::env::var_os(UNDER).is_none() {
        // once more in a process as nohup and a background job leave it
        let name = "serve::agent::tests::programs_start_with_every_signal_at_its_default";
        let status = std::process::Command::new("env")
            .arg("--ignore-signal=HUP,INT,QUIT,USR1")
            .arg(std::env::current_exe()?)
            .args(["--exact", name])
            .env(UNDER, "1")
            .status()?;
        assert!(status.success());
        return Ok(());
    }
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let mut line = agent.talk(Ask::Start(argv(&[b"grep", b"^SigIgn", b"/proc/self/status"]))).await?;
    let text = line.finish().await?.text();
    let ignored = u64::from_str_radix(text.trim_start_matches("SigIgn:").trim(), 16)?;
    // 32 and 33 belong to the C library
    assert_eq!(ignored & !(0b11 << 31), 0, "{text}");
    Ok(())
}

#[tokio::test]
async fn rules_that_are_broken_are_named() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let both = ExecStart { shell_command: "x".into(), ..argv(&[b"x"]) };
    let many = ExecStart {
        env: (0..65).map(|n| EnvironmentVariable { name: format!("V{n}"), value: Bytes::new() }).collect(),
        ..shell("true")
    };
    let starts = [
        (Code::InvalidArgument, Ask::Start(both)),
        (Code::InvalidArgument, Ask::Start(many)),
        (Code::InvalidArgument, Ask::Start(ExecStart { cwd: "/nope".into(), ..shell("true") })),
        (Code::InvalidArgument, Ask::Start(argv(&[b""]))),
        (Code::InvalidArgument, Ask::Start(argv(&[b"a\0b"]))),
        (Code::InvalidArgument, Ask::Start(on_terminal(shell("true"), "../x", b""))),
        (Code::InvalidArgument, Ask::Start(on_terminal(shell("true"), "new", b"not compiled"))),
        (Code::InvalidArgument, Ask::Start(argv(&[b"/bin/true", &vec![b'a'; 200_000]]))),
        (Code::InvalidArgument, input(0, b"x")),
        (Code::NotFound, Ask::Attach(ExecAttach { session_id: "nonsense".into(), output_offset: 0 })),
    ];
    for (code, start) in starts {
        let status = agent.talk(start.clone()).await.map(drop).expect_err("refused");
        assert_eq!(status.code(), code, "{start:?}: {status}");
    }
    let later = [
        (Code::InvalidArgument, input(5, b"gap")),
        (Code::InvalidArgument, Ask::Eof(ExecEof { offset: 9 })),
        (Code::InvalidArgument, Ask::Ack(ExecAck { output_offset: 99, exit: false })),
        (Code::InvalidArgument, Ask::Signal(ExecSignal { signal: 65, sequence: 1 })),
        (Code::InvalidArgument, Ask::Signal(ExecSignal { signal: 0, sequence: 1 })),
        (Code::InvalidArgument, Ask::Resize(TerminalSize { columns: 1, rows: 1 })),
        (Code::InvalidArgument, Ask::Start(shell("true"))),
    ];
    for (code, ask) in later {
        let (mut line, _) = agent.start_shell("cat").await?;
        line.ask(ask.clone()).await;
        let status = loop {
            match line.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return Err(format!("{ask:?} was taken").into()),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), code, "{ask:?}: {status}");
    }
    Ok(())
}

#[tokio::test]
async fn each_call_shows_a_token_for_its_kind_and_wake() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let mut client = SessionClient::connect(format!("http://{}", agent.address)).await?;
    let mut events = async |token: Option<String>| -> Result<(), Status> {
        let mut request = Request::new(EventsRequest { cursor: 0 });
        if let Some(token) = token {
            request.metadata_mut().insert(call_token::METADATA, token.parse().unwrap());
        }
        client.events(request).await.map(drop)
    };
    let denied =
        |result: Result<(), Status>| result.err().map(|status| status.code()) == Some(Code::Unauthenticated);
    assert!(denied(events(None).await));
    assert!(denied(events(Some("nonsense".into())).await));
    assert!(denied(events(Some(agent.token(MethodClass::Exec, &wake("a")))).await));
    assert!(denied(events(Some(agent.token(MethodClass::Watch, &wake("b")))).await));
    let token = agent.token(MethodClass::Watch, &wake("a"));
    events(Some(token.clone())).await?;
    agent.clock.advance(Duration::from_secs(91));
    assert!(denied(events(Some(token)).await));

    put_identity(agent.identity.path(), &wake("b"))?;
    events(Some(agent.token(MethodClass::Watch, &wake("b")))).await?;
    assert!(denied(events(Some(agent.token(MethodClass::Watch, &wake("a")))).await));
    fs::set_permissions(agent.identity.path(), fs::Permissions::from_mode(0o777))?;
    assert!(denied(events(Some(agent.token(MethodClass::Watch, &wake("c")))).await));
    assert!(
        denied(events(Some(agent.token(MethodClass::Watch, &wake("b")))).await),
        "one that is not believed is none"
    );
    Ok(())
}

#[tokio::test]
async fn events_are_replayed_and_followed_and_a_wake_is_one() -> Result {
    let Some(agent) = Agent::start()? else { return Ok(()) };
    let outcome = agent.talk(Ask::Start(argv(&[b"/bin/sh", b"-c", b"exit 5"]))).await?.finish().await?;
    assert_eq!(outcome.how, Some(How::Code(5)));
    let mut client = SessionClient::connect(format!("http://{}", agent.address)).await?;
    let mut events =
        client.events(agent.request(MethodClass::Watch, EventsRequest { cursor: 0 })).await?.into_inner();
    let mut next = async || -> Result<Event> {
        Ok(timeout(PATIENCE, events.message()).await??.ok_or("the end of events")?)
    };
    assert!(matches!(next().await?.what, Some(What::Woke(woke)) if woke.wake_id == wake("a").as_str()));
    assert!(
        matches!(next().await?.what, Some(What::SessionStarted(started)) if started.program == "sh" && !started.tty)
    );
    let ended = next().await?;
    assert_eq!(ended.cursor, 3);
    assert!(
        matches!(ended.what, Some(What::SessionEnded(ended)) if ended.exit.and_then(|exit| exit.how) == Some(How::Code(5)))
    );
    // no call is needed for a wake to be noticed
    put_identity(agent.identity.path(), &wake("b"))?;
    assert!(matches!(next().await?.what, Some(What::Woke(woke)) if woke.wake_id == wake("b").as_str()));
    Ok(())
}
