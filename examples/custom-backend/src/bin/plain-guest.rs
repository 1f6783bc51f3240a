//! What runs in each sandbox of the example: it answers `info` on the listening socket that it gets as its stdin.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

/// The longest request line that is read.
const MAX_LINE: u64 = 8 * 1024 * 1024;

fn main() -> std::io::Result<()> {
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || serve(stream));
    }
    Ok(())
}

fn serve(stream: UnixStream) -> std::io::Result<()> {
    let mut requests = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if requests.by_ref().take(MAX_LINE).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let request: Option<serde_json::Value> = serde_json::from_str(&line).ok();
        let answer = match request.as_ref().and_then(|request| request["op"].as_str()) {
            Some("info") => serde_json::json!({
                "type": "info", "version": format!("plain-guest {}", std::process::id()), "proto": 2,
                "uptime_secs": 0, "procs": 1, "sessions": 0,
            }),
            Some(_) => {
                serde_json::json!({ "type": "error", "kind": "unimplemented", "message": "only info" })
            }
            None => serde_json::json!({ "type": "error", "kind": "bad_request", "message": "not a request" }),
        };
        (&stream).write_all(format!("{answer}\n").as_bytes())?;
    }
}
