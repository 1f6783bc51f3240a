//! The guest channel over a real socket, running real programs.

use std::fs;
use std::path::{Path, PathBuf};

use cocoonbox_wire::MAX_FRAME_BYTES;
use cocoonbox_wire::silkd::{
    Door, DoorHello, ErrorKind, LineCodec, Request, Response, decode_response, request_line,
};
use futures::StreamExt as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::codec::FramedRead;

use super::*;

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const PATIENCE: Duration = Duration::from_secs(20);

struct Guesthouse {
    home: TempDir,
    socket: PathBuf,
}

impl Guesthouse {
    fn start() -> Result<Self> {
        let home = tempfile::tempdir()?;
        let socket = home.path().join(".channel");
        let channel = std::os::unix::net::UnixListener::bind(&socket)?;
        let uid = rustix::process::getuid().as_raw();
        let passwd = format!("me:x:{uid}:{uid}::{}:/bin/bash", home.path().display());
        tokio::spawn(run(InitOptions::new(channel, Base::of_this_user(&passwd, false))));
        Ok(Self { home, socket })
    }

    async fn connect(&self) -> Result<Line> {
        let (read, write) = UnixStream::connect(&self.socket).await?.into_split();
        Ok(Line { read: FramedRead::new(read, LineCodec::default()), write })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}

struct Line {
    read: FramedRead<OwnedReadHalf, LineCodec>,
    write: OwnedWriteHalf,
}

impl Line {
    async fn raw(&mut self, bytes: &[u8]) -> Result {
        Ok(self.write.write_all(bytes).await?)
    }

    async fn ask(&mut self, request: &Request) -> Result {
        self.raw(&request_line(request)).await
    }

    async fn next(&mut self) -> Result<Response> {
        let line = timeout(PATIENCE, self.read.next()).await?.ok_or("the connection ended")??;
        Ok(decode_response(&line)?)
    }

    async fn call(&mut self, request: &Request) -> Result<Response> {
        self.ask(request).await?;
        self.next().await
    }

    /// Reads to a terminal line; returns output, errors and that line.
    async fn finish(&mut self) -> Result<(Vec<u8>, Vec<u8>, Response)> {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            match self.next().await? {
                Response::Stdout { data } | Response::Data { data } => out.extend_from_slice(&data),
                Response::Stderr { data } => err.extend_from_slice(&data),
                Response::Started { .. } | Response::Ready {} => {}
                last => return Ok((out, err, last)),
            }
        }
    }

    async fn started(&mut self, request: &Request) -> Result<u32> {
        match self.call(request).await? {
            Response::Started { pid } => Ok(pid),
            other => Err(format!("{other:?}").into()),
        }
    }
}

fn exec(command: &str) -> Request {
    run_in_shell(command, false)
}

fn run_in_shell(command: &str, detach: bool) -> Request {
    Request::Exec {
        argv: vec!["/bin/sh".into(), "-c".into(), command.into()],
        cwd: None,
        env: Some([("V".to_owned(), "value".to_owned())].into()),
        user: None,
        detach: Some(detach),
        session: None,
    }
}

fn error_kind(response: &Response) -> Option<ErrorKind> {
    match response {
        Response::Error { kind, .. } => Some(*kind),
        _ => None,
    }
}

fn alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[tokio::test]
async fn requests_follow_each_other_on_a_connection() -> Result {
    let guest = Guesthouse::start()?;
    let mut line = guest.connect().await?;
    assert!(matches!(line.call(&Request::Info {}).await?, Response::Info { proto: 2, procs: 0, .. }));
    // sent before the first is answered, with input of the first between
    let all = [
        request_line(&exec("cat; echo $V $HOME >&2; exit 4")),
        request_line(&Request::Stdin { data: "in".into() }),
        request_line(&Request::StdinClose {}),
        request_line(&Request::Info {}),
        request_line(&Request::Stdin { data: "stray".into() }),
        request_line(&Request::Ps {}),
    ];
    line.raw(&all.concat()).await?;
    let (out, err, last) = line.finish().await?;
    assert_eq!((&out[..], &last), (&b"in"[..], &Response::Exit { code: 4 }));
    assert_eq!(String::from_utf8(err)?, format!("value {}\n", guest.home.path().display()));
    assert!(matches!(line.next().await?, Response::Info { .. }));
    assert!(
        matches!(line.next().await?, Response::Procs { procs } if procs.len() == 1 && procs[0].exit_code == Some(4))
    );
    // a request ends the input of the one before it
    line.ask(&exec("cat; kill -KILL $$")).await?;
    line.ask(&Request::Info {}).await?;
    assert_eq!(line.finish().await?.2, Response::Exit { code: 137 });
    assert!(matches!(line.next().await?, Response::Info { .. }));
    Ok(())
}

#[tokio::test]
async fn lines_that_are_no_requests_are_answered_and_the_next_one_is_served() -> Result {
    let guest = Guesthouse::start()?;
    let mut line = guest.connect().await?;
    for (text, kind) in [
        ("nonsense", ErrorKind::BadRequest),
        ("{}", ErrorKind::BadRequest),
        (r#"{"v":1,"op":"exec","argv":[]}"#, ErrorKind::BadRequest),
        (r#"{"v":1,"op":"exec","argv":["/no/such"]}"#, ErrorKind::BadRequest),
        (r#"{"v":1,"op":"exec","argv":["/etc/passwd"]}"#, ErrorKind::BadRequest),
        (r#"{"v":1,"op":"exec","argv":["true"],"cwd":"/no/such"}"#, ErrorKind::BadRequest),
        (r#"{"v":1,"op":"exec","argv":["true"],"user":"nobody-else"}"#, ErrorKind::BadRequest),
        (r#"{"v":1,"op":"exec","argv":["true"],"env":{"A=B":"c"}}"#, ErrorKind::BadRequest),
        (r#"{"v":1,"op":"exec","argv":["true"],"session":"s"}"#, ErrorKind::NotFound),
        (r#"{"v":1,"op":"fs_frob","path":"/","pattern":"x"}"#, ErrorKind::Unimplemented),
        (r#"{"v":1,"op":"kill","pid":1}"#, ErrorKind::NotFound),
        (r#"{"v":1,"op":"attach","pid":1}"#, ErrorKind::NotFound),
        (r#"{"v":1,"op":"x_relay","port":1}"#, ErrorKind::NotFound),
        (r#"{"v":1,"op":"port_forward","port":1}"#, ErrorKind::NotFound),
        (r#"{"v":1,"op":"fs_read","path":"/no/such"}"#, ErrorKind::NotFound),
        (r#"{"v":1,"op":"fs_read","path":"/dev/zero"}"#, ErrorKind::BadRequest),
        (r#"{"v":1,"op":"fs_read","path":""}"#, ErrorKind::BadRequest),
        (r#"{"v":1,"op":"fs_pull","path":"/no/such"}"#, ErrorKind::NotFound),
    ] {
        line.raw(format!("{text}\n").as_bytes()).await?;
        let response = line.next().await?;
        assert_eq!(error_kind(&response), Some(kind), "{text}: {response:?}");
    }
    assert!(matches!(line.call(&Request::Info {}).await?, Response::Info { .. }));
    Ok(())
}

#[tokio::test]
async fn a_line_without_end_costs_its_connection_alone() -> Result {
    let guest = Guesthouse::start()?;
    let mut line = guest.connect().await?;
    let piece = vec![b'a'; 1024 * 1024];
    let mut sent = 0;
    while sent < 4 * MAX_FRAME_BYTES && line.raw(&piece).await.is_ok() {
        sent += piece.len();
    }
    assert!(sent < 4 * MAX_FRAME_BYTES);
    // what it was told may be lost with what it sent
    if let Ok(response) = line.next().await {
        assert_eq!(error_kind(&response), Some(ErrorKind::BadRequest));
    }
    assert!(line.next().await.is_err());
    let mut other = guest.connect().await?;
    assert!(matches!(other.call(&Request::Info {}).await?, Response::Info { .. }));
    Ok(())
}

#[tokio::test]
async fn a_detached_program_is_followed_listed_and_killed() -> Result {
    let guest = Guesthouse::start()?;
    let mut line = guest.connect().await?;
    let pid = line.started(&run_in_shell("echo out; echo err >&2; exec sleep 60", true)).await?;
    let mut follower = guest.connect().await?;
    follower.ask(&Request::Attach { pid }).await?;
    assert!(matches!(follower.next().await?, Response::Stdout { .. } | Response::Stderr { .. }));
    let logs = loop {
        line.ask(&Request::Logs { pid }).await?;
        let logs = line.finish().await?;
        if logs.0.len() + logs.1.len() == 8 {
            break logs;
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(logs, (b"out\n".to_vec(), b"err\n".to_vec(), Response::Done {}));
    assert_eq!(line.call(&Request::Kill { pid, signal: Some(15) }).await?, Response::Done {});
    assert_eq!(follower.finish().await?.2, Response::Exit { code: 143 });
    assert_eq!(line.call(&Request::Kill { pid, signal: None }).await?, Response::Done {});
    let kind = error_kind(&line.call(&Request::Kill { pid, signal: Some(65) }).await?);
    assert_eq!(kind, Some(ErrorKind::BadRequest));
    line.ask(&Request::Logs { pid }).await?;
    assert_eq!(line.finish().await?.2, Response::Exit { code: 143 });
    assert_eq!(line.next().await?, Response::Done {});
    // the last of much output is kept
    let pid = line.started(&run_in_shell("seq 100000; exit 2", true)).await?;
    line.ask(&Request::Attach { pid }).await?;
    let (_, _, last) = line.finish().await?;
    assert_eq!(last, Response::Exit { code: 2 });
    line.ask(&Request::Logs { pid }).await?;
    let (out, _, _) = line.finish().await?;
    assert!(out.len() <= 256 * 1024 && out.ends_with(b"\n100000\n"), "{}", out.len());
    Ok(())
}

#[tokio::test]
async fn a_vanished_client_ends_a_noisy_program_and_not_a_silent_one() -> Result {
    let guest = Guesthouse::start()?;
    let mut line = guest.connect().await?;
    let noisy = line.started(&exec("while :; do echo x; sleep 0.05; done")).await?;
    drop(line);
    let mut line = guest.connect().await?;
    line.started(&exec("sleep 0.6; echo done > $HOME/proof")).await?;
    drop(line);
    sleep(Duration::from_millis(300)).await;
    assert!(!alive(noisy));
    sleep(Duration::from_millis(700)).await;
    assert_eq!(fs::read_to_string(guest.path("proof"))?, "done\n");
    Ok(())
}

#[tokio::test]
async fn a_reader_that_stands_still_holds_its_program_and_loses_nothing() -> Result {
    let guest = Guesthouse::start()?;
    let mut line = guest.connect().await?;
    line.ask(&exec("head -c 20000000 /dev/zero; echo > $HOME/written")).await?;
    sleep(Duration::from_millis(500)).await;
    assert!(!guest.path("written").exists(), "nobody read, and yet all was written");
    let (out, _, last) = line.finish().await?;
    assert_eq!((out.len(), last), (20_000_000, Response::Exit { code: 0 }));
    Ok(())
}

#[tokio::test]
async fn a_terminal_is_resized_and_goes_with_its_connection() -> Result {
    let guest = Guesthouse::start()?;
    let mut line = guest.connect().await?;
    let open = Request::PtyOpen { cols: 91, rows: 31, cwd: None, env: None, user: Some("me".into()) };
    let pid = line.started(&open).await?;
    let mut other = guest.connect().await?;
    assert_eq!(other.call(&Request::PtyResize { pid, cols: 77, rows: 21 }).await?, Response::Done {});
    line.ask(&Request::Stdin { data: "stty size; exit 6\n".into() }).await?;
    let (out, _, last) = line.finish().await?;
    assert!(String::from_utf8_lossy(&out).contains("21 77") && last == Response::Exit { code: 6 });
    let pid = line.started(&open).await?;
    drop(line);
    for _ in 0..100 {
        if !alive(pid) {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Err("the shell outlived its terminal".into())
}

#[tokio::test]
async fn files_are_written_read_listed_and_moved() -> Result {
    let guest = Guesthouse::start()?;
    let mut line = guest.connect().await?;
    let path = |name: &str| guest.path(name).to_string_lossy().into_owned();
    let data: Vec<u8> = (0..700_000_u32).map(|n| n as u8).collect();
    assert_eq!(
        line.call(&Request::FsMkdir { path: "a/b".into(), parents: Some(true) }).await?,
        Response::Done {}
    );
    line.ask(&Request::FsWrite { path: "a/b/f".into(), mode: Some(0o640) }).await?;
    for chunk in data.chunks(200_000) {
        line.ask(&Request::Data { data: chunk.to_vec().into() }).await?;
    }
    assert_eq!(line.call(&Request::DataEnd {}).await?, Response::Done {});
    line.ask(&Request::FsRead { path: path("a/b/f") }).await?;
    assert!(line.finish().await?.0 == data);
    let Response::Stat { info } = line.call(&Request::FsStat { path: path("a/b/f") }).await? else {
        return Err("no stat".into());
    };
    assert_eq!((info.size, info.mode), (700_000, 0o640));
    line.ask(&Request::FsList { path: path("a/b") }).await?;
    assert!(
        matches!(line.next().await?, Response::Entries { entries } if entries.len() == 1 && entries[0].name == "f")
    );
    assert_eq!(line.next().await?, Response::Done {});
    let rename = Request::FsRename { from: path("a/b/f"), to: path("g") };
    assert_eq!(line.call(&rename).await?, Response::Done {});
    assert!(error_kind(&line.call(&Request::FsRm { path: path("a"), recursive: None }).await?).is_some());
    assert_eq!(
        line.call(&Request::FsRm { path: path("a"), recursive: Some(true) }).await?,
        Response::Done {}
    );
    // a connection that goes before the end leaves the old file
    line.ask(&Request::FsWrite { path: path("g"), mode: None }).await?;
    line.ask(&Request::Data { data: "half".into() }).await?;
    drop(line);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(fs::read(guest.path("g"))?.len(), 700_000);
    assert_eq!(fs::read_dir(guest.home.path())?.count(), 2, "no temporary file stays");
    Ok(())
}

#[tokio::test]
async fn a_tree_is_pulled_and_pushed_or_left_alone() -> Result {
    let guest = Guesthouse::start()?;
    let mut line = guest.connect().await?;
    fs::create_dir(guest.path("from"))?;
    fs::write(guest.path("from/f"), vec![3; 3_000_000])?;
    line.ask(&Request::FsPull { path: "from".into() }).await?;
    let (tar, _, last) = line.finish().await?;
    assert_eq!(last, Response::Done {});
    line.ask(&Request::FsPush { dest: "to/deep".into() }).await?;
    for chunk in tar.chunks(1 << 20) {
        line.ask(&Request::Data { data: chunk.to_vec().into() }).await?;
    }
    assert_eq!(line.call(&Request::DataEnd {}).await?, Response::Done {});
    assert_eq!(fs::read(guest.path("to/deep/f"))?, vec![3; 3_000_000]);
    // refused at its first bytes: the rest is dropped and the connection goes on
    line.ask(&Request::FsPush { dest: "bad".into() }).await?;
    for _ in 0..20 {
        line.ask(&Request::Data { data: vec![b'x'; 100_000].into() }).await?;
    }
    line.ask(&Request::DataEnd {}).await?;
    assert_eq!(error_kind(&line.next().await?), Some(ErrorKind::BadRequest));
    assert!(matches!(line.call(&Request::Info {}).await?, Response::Info { .. }));
    // a connection that goes in the middle
    line.ask(&Request::FsPush { dest: "cut".into() }).await?;
    line.ask(&Request::Data { data: tar[..1_000_000].to_vec().into() }).await?;
    drop(line);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(fs::read_dir(guest.path("cut"))?.count(), 0);
    Ok(())
}

#[tokio::test]
async fn a_relay_carries_bytes_and_both_ends() -> Result {
    let guest = Guesthouse::start()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // everything comes back only after the other side's end
                let mut all = Vec::new();
                let _ = stream.read_to_end(&mut all).await;
                let _ = stream.write_all(&all).await;
            });
        }
    });
    let data: Vec<u8> = (0..2_000_000_u32).map(|n| (n % 253) as u8).collect();
    let mut line = guest.connect().await?;
    // bytes that come with the request belong to the port
    line.raw(&[&request_line(&Request::XRelay { port })[..], &data[..1000]].concat()).await?;
    assert_eq!(line.next().await?, Response::Ready {});
    line.raw(&data[1000..]).await?;
    line.write.shutdown().await?;
    let mut back = line.read.read_buffer().to_vec();
    line.read.into_inner().read_to_end(&mut back).await?;
    assert!(back == data);

    let mut line = guest.connect().await?;
    assert_eq!(line.call(&Request::PortForward { port }).await?, Response::Ready {});
    for chunk in data.chunks(300_000) {
        line.ask(&Request::Data { data: chunk.to_vec().into() }).await?;
    }
    line.ask(&Request::DataEnd {}).await?;
    let (back, _, last) = line.finish().await?;
    assert!(back == data && last == Response::Done {});
    assert!(matches!(line.call(&Request::Info {}).await?, Response::Info { .. }));
    Ok(())
}

#[tokio::test]
async fn a_door_says_which_it_is_and_carries_bytes_both_ways() -> Result {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("door.sock");
    let host = UnixListener::bind(&socket)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(door::serve(listener, Door::Gateway, socket));
    let mut program = TcpStream::connect(address).await?;
    program.write_all(b"question").await?;
    program.shutdown().await?;
    let (mut outer, _) = host.accept().await?;
    let mut all = Vec::new();
    outer.read_to_end(&mut all).await?;
    let hello = cocoonbox_wire::silkd::line(&DoorHello { door: Door::Gateway });
    assert_eq!(all, [&hello[..], b"question"].concat());
    outer.write_all(b"answer").await?;
    drop(outer);
    let mut answer = Vec::new();
    program.read_to_end(&mut answer).await?;
    assert_eq!(answer, b"answer");
    // a host that is gone closes, and does not hang
    drop(host);
    fs::remove_file(dir.path().join("door.sock"))?;
    let mut program = TcpStream::connect(address).await?;
    let _ = timeout(PATIENCE, program.read_to_end(&mut answer)).await?;
    Ok(())
}

#[tokio::test]
async fn the_agent_is_started_by_the_node_on_its_own_socket() -> Result {
    let answer = "import os,socket; s=socket.socket(fileno=int(os.environ['COCOONBOX_AGENT_NODE_FD'])); s.setblocking(True); \
                  c,_=s.accept(); c.sendall(b'agent'); c.close()";
    if !Path::new("/usr/bin/python3").exists() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("agent.sock");
    let node = std::os::unix::net::UnixListener::bind(&path)?;
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let children = Children::default();
    tokio::spawn(children.clone().reap(Children::listen()?, false));
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", answer]);
    agent::watch(free, Some(node), command, Base::of_this_user("", false), children.clone())?;
    for _ in 0..2 {
        let mut stream = UnixStream::connect(&path).await?;
        let mut said = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut said)).await??;
        assert_eq!(said, b"agent");
    }
    Ok(())
}

#[tokio::test]
async fn the_agent_is_started_by_who_comes_and_again_when_it_died() -> Result {
    // stands in for the agent: accepts one connection on the inherited listener, answers and ends
    let answer = "import os,socket; s=socket.socket(fileno=int(os.environ['COCOONBOX_AGENT_FD'])); s.setblocking(True); \
                  c,_=s.accept(); c.sendall(b'agent'); c.close()";
    if !Path::new("/usr/bin/python3").exists() {
        return Ok(());
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let children = Children::default();
    tokio::spawn(children.clone().reap(Children::listen()?, false));
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", answer]);
    agent::watch(free, None, command, Base::of_this_user("", false), children.clone())?;
    assert_eq!(children.count(), 0, "nobody came");
    for _ in 0..3 {
        let mut stream = TcpStream::connect(free).await?;
        let mut said = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut said)).await??;
        assert_eq!(said, b"agent");
    }
    Ok(())
}
