//! No descriptor is left: who waits is told, nothing spins, nothing dies, and when some are free all is as before.

use std::error::Error;
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use cocoonbox_fault_tests::{open_files, say, soaks};
use cocoonbox_stories::{Server, eventually, output};

type Outcome = Result<(), Box<dyn Error>>;

/// Lets a running server have `most` files open, for the time being.
fn limit(server: &Server, most: usize) {
    let most = format!("--nofile={most}:");
    output(Command::new("prlimit").arg("--pid").arg(server.id().to_string()).arg(most), b"").ok();
}

/// Returns how much processor time a process has used, in ticks of 10 ms.
fn ticks(pid: i32) -> Result<u64, Box<dyn Error>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<_> = text.rsplit_once(')').ok_or("a name")?.1.split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

#[test]
fn a_server_without_descriptors_refuses_and_recovers() -> Outcome {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh("echo kept > /workspace/file");
    limit(&server, 256);
    let connect = || TcpStream::connect(("127.0.0.1", server.port()));
    let mut held = (0..300).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
    eventually("no descriptor is left", || (open_files(server.id()) >= 250).then_some(()));

    // those for whom there is none are told at once, in words that HTTP/2 knows
    let mut told = 0;
    for stream in &mut held {
        stream.set_read_timeout(Some(Duration::from_millis(if told > 0 { 1 } else { 20 })))?;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        told += u32::from(answer.windows(19).any(|part| part == b"too many files open"));
    }
    assert!(told > 0, "nobody was told");
    let refused = server.cli(&["box", "ls"]);
    assert!(matches!(refused.code, Some(1 | 3)) && refused.stderr.contains("hint:"), "{refused:?}");
    assert!(!server.log().contains("panicked"), "{}", server.log());

    // a server that spins would use all of a processor
    let (before, start) = (ticks(server.id())?, Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks(server.id())? - before;
    let spun = start.elapsed().as_millis() as u64 / 10;
    assert!(used < spun / 2 + 20, "{used} ticks of {spun}: it spins");

    drop(held);
    eventually("calls are served again", || (server.cli(&["box", "ls"]).code == Some(0)).then_some(()));
    assert_eq!(server.sh("cat /workspace/file"), "kept");
    server.cli(&["box", "hibernate", "main"]).ok();
    server.cli(&["box", "ensure", "main"]).ok();
    Ok(())
}

#[test]
fn a_call_that_finds_no_descriptor_fails_alone() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh("echo kept > /workspace/file");
    // room for a connection or two, and for none of what a start needs
    for room in [2, 4, 8, 12, 16, 24] {
        limit(&server, open_files(server.id()) + room);
        for words in [
            &["box", "hibernate", "main"][..],
            &["box", "ensure", "main"],
            &["rsh", "--box", "main", "--", "true"],
            &["box", "create", "other"],
            &["box", "rm", "other", "--yes"],
        ] {
            let run = server.cli(words);
            assert!(matches!(run.code, Some(0 | 1 | 3 | 255)), "room for {room}: {run:?}");
            assert!(!server.log().contains("panicked"), "room for {room}: {}", server.log());
        }
        limit(&server, 4096);
        // whatever was refused: the box is there, and what it says of itself is true
        server.cli(&["box", "ensure", "main"]).ok();
        assert_eq!(server.sh("cat /workspace/file"), "kept", "room for {room}");
        let frozen = server.json(&["box", "hibernate", "main"]);
        assert_eq!(frozen["box"]["state"], "hibernated", "room for {room}: {frozen}");
        server.cli(&["box", "ensure", "main"]).ok();
        assert_eq!(server.sh("cat /workspace/file"), "kept", "room for {room}");
    }
}

#[test]
fn as_many_connections_as_the_machine_allows_are_outlived() {
    if !soaks() {
        say("left out: thousands of connections are made in the long form (COCOONBOX_SOAK=1)");
        return;
    }
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let mut held = Vec::new();
    // the server's own limit comes first; what this process may open comes next
    while held.len() < 19_000 {
        match TcpStream::connect(("127.0.0.1", server.port())) {
            Ok(stream) => held.push(stream),
            Err(error) => {
                say(&format!("{} connections, then: {error}", held.len()));
                break;
            }
        }
    }
    assert!(held.len() > 4096, "{} connections", held.len());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    drop(held);
    eventually("calls are served again", || (server.cli(&["box", "ls"]).code == Some(0)).then_some(()));
    assert_eq!(server.sh("echo here"), "here");
}
