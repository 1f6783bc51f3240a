//! A guest's first process in the place of ours: it lies on the guest channel and on the agent's port.
//!
//! What it does follows from the box's host name: `start-…` lies from the first answer on, `late-…` to everything but
//! `info`, `h2-…` on the agent's port, `inject-…` types its name into the node's terminal; any other name gets the true
//! agent, which lies behind this program's own bytes.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use nix::libc;

use crate::sys::{Stop, call, own, text};
use crate::{archive, terminal};

/// What stands at the end of a program that carries the true agent, after the agent's length.
const TRAILER: &[u8; 8] = b"COCOAGNT";
/// Words for a terminal: another title, a clean screen, colour by one byte, letters in the other direction.
const OWNED: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31mowned\u{202e}";
const INFO: &str = r#"{"type":"info","version":"0.0.0","proto":2,"uptime_secs":1,"procs":1,"sessions":0}"#;

pub(crate) fn init() -> ! {
    let name = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    if !["start-", "late-", "h2-", "inject-"].iter().any(|kind| name.starts_with(kind)) {
        true_agent(&["init"]);
    }
    // what a node repeats of this to a person
    eprintln(OWNED);
    match name.as_str() {
        "start-exit" => std::process::exit(3),
        name if name.starts_with("inject-") => eprintln(&format!("{:?}", terminal::inject(&[name]))),
        _ => {}
    }
    if let (Some(how), Some(agent)) =
        (name.strip_prefix("h2-").map(str::to_owned), handed("COCOONBOX_AGENT_NODE_FD"))
    {
        std::thread::spawn(move || {
            each(&agent, |stream| {
                let (how, lines) = (how.clone(), BufReader::new(stream.try_clone()?));
                std::thread::spawn(move || drop(agent_port(lines, stream, &how)));
                Ok(())
            });
        });
    }
    let Some(channel) = handed("COCOONBOX_GUEST_FD") else { std::process::exit(4) };
    each(&channel, |stream| {
        let name = name.clone();
        std::thread::spawn(move || drop(answer(stream, &name)));
        Ok(())
    })
}

/// A listener that the node hands over under the number in a variable.
fn handed(variable: &str) -> Option<UnixListener> {
    let descriptor = std::env::var(variable).ok()?.parse().ok()?;
    // SAFETY: the node hands this descriptor over, and nobody else in this process has it.
    let listener = unsafe { UnixListener::from_raw_fd(descriptor) };
    let _ = listener.set_nonblocking(false);
    Some(listener)
}

/// Hands every connection to `serve`.
fn each(listener: &UnixListener, serve: impl Fn(UnixStream) -> Io) -> ! {
    loop {
        if let Ok((stream, _)) = listener.accept() {
            drop(serve(stream));
        }
    }
}

/// Becomes the agent that lies behind this program's own bytes.
pub(crate) fn true_agent(words: &[&str]) -> ! {
    let become_it = || -> Result<(), Stop> {
        let mut this = File::open("/proc/self/exe").map_err(Stop::of("open"))?;
        let mut end = [0; 16];
        this.seek(SeekFrom::End(-16)).map_err(Stop::of("seek"))?;
        this.read_exact(&mut end).map_err(Stop::of("read"))?;
        if !end.ends_with(TRAILER) {
            return Err(Stop::Cannot("no agent is carried".to_owned()));
        }
        let length = u64::from_le_bytes(end[..8].try_into().unwrap_or_default());
        let back = -16_i64 - length.cast_signed();
        this.seek(SeekFrom::End(back)).map_err(Stop::of("seek"))?;
        let name = text("agent");
        let mut agent = File::from(own(call("memfd", libc::SYS_memfd_create, &[name.as_ptr() as usize, 0])?));
        std::io::copy(&mut this.take(length), &mut agent).map_err(Stop::of("copy"))?;
        // a file that is open for writing cannot be run
        let path = format!("/proc/self/fd/{}", agent.as_raw_fd());
        let read_only = File::open(path).map_err(Stop::of("open"))?;
        drop(agent);
        let path = format!("/proc/self/fd/{}", read_only.as_raw_fd());
        Err(Stop::of("run")(std::process::Command::new(path).args(words).exec()))
    };
    if let Err(stop) = become_it() {
        eprintln(&format!("{stop:?}"));
    }
    std::process::exit(5)
}

fn eprintln(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

type Io = std::io::Result<()>;

fn answer(stream: UnixStream, name: &str) -> Io {
    let mut out = stream.try_clone()?;
    if let Some(how) = name.strip_prefix("start-") {
        return lie(&mut out, how);
    }
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line.contains("\"info\"") {
            out.write_all(format!("{INFO}\n").as_bytes())?;
        } else if let (Some(how), true) = (name.strip_prefix("h2-"), line.contains("\"x_relay\"")) {
            out.write_all(b"{\"type\":\"ready\"}\n")?;
            return agent_port(lines, out, how);
        } else if let Some(how) = name.strip_prefix("late-") {
            return lie(&mut out, how);
        } else {
            out.write_all(b"{\"type\":\"error\",\"kind\":\"unimplemented\",\"message\":\"no\"}\n")?;
        }
    }
}

/// Answers a request with what is no answer.
fn lie(out: &mut UnixStream, how: &str) -> Io {
    match how {
        "garbage" => out.write_all(b"\x00\xff\x1b[2J\xfe{]\n")?,
        "closed" => return out.shutdown(std::net::Shutdown::Both),
        "silent" => std::thread::sleep(Duration::from_hours(1)),
        "endless" => loop {
            out.write_all(&[b'x'; 16_000])?;
        },
        "frames" => loop {
            out.write_all(b"{\"type\":\"stdout\",\"data\":\"eHh4eHh4eHh4eHh4\"}\n".repeat(1000).as_slice())?;
        },
        "huge" => {
            out.write_all(b"{\"type\":\"stdout\",\"data\":\"")?;
            for _ in 0..1200 {
                out.write_all(&[b'A'; 16_000])?;
            }
            out.write_all(b"\"}\n{\"type\":\"exit\",\"code\":0}\n")?;
        }
        "words" => out.write_all(
            b"{\"type\":\"error\",\"kind\":\"internal\",\"message\":\"\\u001b]0;owned\\u0007\\u001b[2J\\u009b31mowned\"}\n",
        )?,
        "slow" => {
            for byte in INFO.bytes() {
                out.write_all(&[byte])?;
                std::thread::sleep(Duration::from_millis(700));
            }
        }
        _ => out.write_all(b"{}\n")?,
    }
    // whoever asked decides when this is over
    let mut rest = [0; 4096];
    while out.read(&mut rest)? > 0 {}
    Ok(())
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(out: &mut impl Write, kind: u8, flags: u8, stream: u32, body: &[u8]) -> Io {
    let length = (body.len() as u32).to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(body);
    out.write_all(&bytes)
}

/// A list of headers, none compressed.
fn headers(status: &str, others: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in [(":status", status)].iter().chain(others) {
        bytes.extend_from_slice(&[0, name.len() as u8]);
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(value.len() as u8);
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes
}

const GRPC: (&str, &str) = ("content-type", "application/grpc");

/// A message as gRPC frames it.
fn message(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// A field with a length, as protobuf writes it.
fn part(field: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![field << 3 | 2];
    bytes.extend(varint(body.len() as u64));
    bytes.extend_from_slice(body);
    bytes
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// HTTP/2 as no agent speaks it.
fn agent_port(mut lines: BufReader<UnixStream>, mut out: UnixStream, how: &str) -> Io {
    match how {
        "closed" => return out.shutdown(std::net::Shutdown::Both),
        "garbage" => out.write_all(&[0xa5; 4096])?,
        "http1" => out.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")?,
        _ => {}
    }
    if matches!(how, "garbage" | "http1" | "silent") {
        let mut rest = [0; 4096];
        while lines.read(&mut rest)? > 0 {}
        return Ok(());
    }
    let mut preface = [0; 24];
    lines.read_exact(&mut preface)?;
    frame(&mut out, SETTINGS, 0, 0, &[])?;
    // until the first request; what comes after it is read and thrown away beside
    let stream = loop {
        let (kind, flags, stream) = next(&mut lines)?;
        match kind {
            SETTINGS if flags & 1 == 0 => frame(&mut out, SETTINGS, 1, 0, &[])?,
            HEADERS => break stream,
            _ => {}
        }
    };
    let mut pings = out.try_clone()?;
    std::thread::spawn(move || {
        while let Ok((kind, flags, _)) = next(&mut lines) {
            // a peer that is alive and says nothing
            if kind == PING && flags & 1 == 0 {
                drop(frame(&mut pings, PING, 1, 0, &[0; 8]));
            }
        }
    });
    misbehave(&mut out, stream, how)?;
    std::thread::sleep(Duration::from_hours(1));
    Ok(())
}

/// Reads a frame; its body is thrown away.
fn next(from: &mut impl std::io::Read) -> std::io::Result<(u8, u8, u32)> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let length = u64::from(u32::from_be_bytes([0, head[0], head[1], head[2]]));
    std::io::copy(&mut from.take(length), &mut std::io::sink())?;
    Ok((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]])))
}

fn misbehave(out: &mut UnixStream, stream: u32, how: &str) -> Io {
    match how {
        "settings" => loop {
            frame(out, SETTINGS, 0, 0, &[])?;
        },
        "pings" => loop {
            frame(out, PING, 0, 0, &[7; 8])?;
        },
        "continuation" => {
            frame(out, HEADERS, 0, stream, &headers("200", &[GRPC]))?;
            loop {
                frame(out, CONTINUATION, 0, stream, &headers("200", &[("x-more", "and more")])[13..])?;
            }
        }
        "headers" => {
            let mut list = headers("200", &[GRPC]);
            let one = headers("200", &[("x-more", &"m".repeat(100))]);
            for _ in 0..2000 {
                list.extend_from_slice(&one[13..]);
            }
            let pieces: Vec<_> = list.chunks(16_000).collect();
            for (at, piece) in pieces.iter().enumerate() {
                let last = if at + 1 == pieces.len() { END_HEADERS } else { 0 };
                frame(out, if at == 0 { HEADERS } else { CONTINUATION }, last, stream, piece)?;
            }
        }
        "data" => {
            frame(out, HEADERS, END_HEADERS, stream, &headers("200", &[GRPC]))?;
            // a message of 4 GiB that never ends, and no word of windows
            frame(out, DATA, 0, stream, &[0, 0xff, 0xff, 0xff, 0xff])?;
            loop {
                frame(out, DATA, 0, stream, &[b'x'; 16_000])?;
            }
        }
        "message" => {
            frame(out, HEADERS, END_HEADERS, stream, &headers("200", &[GRPC]))?;
            frame(out, DATA, 0, stream, &[0, 0, 0, 0, 6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])?;
        }
        "words" => {
            let owned = "%1B]0;owned%07%1B[2J%C2%9B31mowned%E2%80%AE";
            let list = headers("200", &[GRPC, ("grpc-status", "9"), ("grpc-message", owned)]);
            frame(out, HEADERS, END_HEADERS | END_STREAM, stream, &list)?;
        }
        "status" => {
            let list = headers("200", &[GRPC, ("grpc-status", "banana")]);
            frame(out, HEADERS, END_HEADERS | END_STREAM, stream, &list)?;
        }
        "elsewhere" => {
            let list = headers("302", &[("location", "http://127.0.0.1:1/")]);
            frame(out, HEADERS, END_HEADERS | END_STREAM, stream, &list)?;
        }
        _ if how.starts_with("tar-") => {
            frame(out, HEADERS, END_HEADERS, stream, &headers("200", &[GRPC]))?;
            frame(out, DATA, 0, stream, &message(&part(1, &[part(1, b"hostile"), vec![0x10, 5]].concat())))?;
            let mut offset = 0;
            for piece in archive::of(&how[4..]).chunks(8000) {
                let mut output = vec![0x08, 1, 0x10];
                output.extend(varint(offset));
                output.extend(part(3, piece));
                frame(out, DATA, 0, stream, &message(&part(3, &output)))?;
                offset += piece.len() as u64;
            }
            frame(out, DATA, 0, stream, &message(&part(5, &[0x08, 0])))?;
            let end = headers("200", &[("grpc-status", "0")]);
            frame(out, HEADERS, END_HEADERS | END_STREAM, stream, &end[13..])?;
        }
        "reset" => frame(out, RESET, 0, stream, &[0, 0, 0, 0xff])?,
        "away" => frame(out, GO_AWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 11])?,
        "html" => {
            let list = headers("200", &[("content-type", "text/html")]);
            frame(out, HEADERS, END_HEADERS, stream, &list)?;
            frame(out, DATA, END_STREAM, stream, b"<html>")?;
        }
        _ => {}
    }
    Ok(())
}
