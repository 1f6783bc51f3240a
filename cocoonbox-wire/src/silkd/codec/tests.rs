use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::message::{EventKind, FileEntry, FileInfo, FileKind, GitFile, ProcessEntry, ProcessState};
use super::*;

fn requests() -> Vec<Request> {
    let env = Some(BTreeMap::from([("A".to_owned(), "b \"c\"".to_owned())]));
    vec![
        Request::Info {},
        Request::Exec {
            argv: vec!["sh".into(), "-c".into(), "echo ä".into()],
            cwd: Some("/tmp".into()),
            env: env.clone(),
            user: None,
            detach: Some(true),
            session: None,
        },
        Request::Kill { pid: 7, signal: Some(15) },
        Request::Attach { pid: 7 },
        Request::Logs { pid: 7 },
        Request::Ps {},
        Request::FsWrite { path: "/a".into(), mode: Some(0o644) },
        Request::FsRead { path: "/a".into() },
        Request::FsList { path: "/".into() },
        Request::FsStat { path: "/a".into() },
        Request::FsMkdir { path: "/b".into(), parents: Some(true) },
        Request::FsRm { path: "/b".into(), recursive: Some(true) },
        Request::FsRename { from: "/a".into(), to: "/b".into() },
        Request::FsPush { dest: "/b".into() },
        Request::FsPull { path: "/b".into() },
        Request::PtyOpen { cols: 80, rows: 24, cwd: None, env: env.clone(), user: Some("user".into()) },
        Request::PtyResize { pid: 7, cols: 100, rows: 30 },
        Request::PortForward { port: 80 },
        Request::XRelay { port: 7443 },
        Request::SessionCreate { id: Some("a".into()), cwd: None, env: env.clone() },
        Request::SessionList {},
        Request::SessionRm { id: "a".into() },
        Request::FsFind { path: "/a".into(), pattern: "b+".into(), glob: Some("*.c".into()) },
        Request::FsReplace { files: vec!["/a".into()], pattern: "b".into(), replacement: "$1".into() },
        Request::FsWatch { path: "/a".into(), recursive: Some(true) },
        Request::GitClone { url: "https://a.example/b".into(), path: "b".into() },
        Request::GitStatus { path: "b".into() },
        Request::GitAdd { path: "b".into(), files: vec!["c".into()] },
        Request::GitCommit { path: "b".into(), message: "c".into(), author: "D <e@f>".into() },
        Request::GitPush { path: "b".into() },
        Request::GitPull { path: "b".into() },
        Request::GitBranch { path: "b".into(), action: "create".into(), name: Some("c".into()) },
        Request::LspStart { language: "rust".into() },
        Request::LspAttach { server_id: "1".into() },
        Request::LspStop { server_id: "1".into() },
        Request::Stdin { data: Bytes::from_static(b"in\0\xff") },
        Request::StdinClose {},
        Request::Data { data: Bytes::from_static(b"up") },
        Request::DataEnd {},
    ]
}

fn responses() -> Vec<Response> {
    let info = FileInfo { kind: FileKind::File, size: 3, mode: 0o644, mtime_epoch_secs: 1 };
    vec![
        Response::Info { version: "0.1.0".into(), proto: 2, uptime_secs: 1, procs: 2, sessions: 3 },
        Response::Ready {},
        Response::Started { pid: 7 },
        Response::Stdout { data: Bytes::from_static(b"out") },
        Response::Stderr { data: Bytes::from_static(b"") },
        Response::Exit { code: 137 },
        Response::Data { data: Bytes::from_static(b"\0") },
        Response::Done {},
        Response::Procs {
            procs: vec![ProcessEntry {
                pid: 7,
                argv: vec!["sleep".into(), "1".into()],
                detached: true,
                state: ProcessState::Exited,
                exit_code: Some(0),
                started_at_epoch_secs: 1,
            }],
        },
        Response::Entries { entries: vec![FileEntry { name: "a".into(), info: info.clone() }] },
        Response::Stat { info },
        Response::SessionCreated { id: "a".into() },
        Response::Sessions { sessions: vec!["a".into()] },
        Response::Match { file: "/a".into(), line: 3, content: "ä".into() },
        Response::Replaced { file: "/a".into(), replacements: 2 },
        Response::Event { kind: EventKind::Create, path: "/a".into() },
        Response::GitStatusResult {
            branch: "main".into(),
            ahead: 0,
            behind: 1,
            files: vec![GitFile { path: "a".into(), staged: "?".into(), unstaged: "?".into() }],
            truncated: true,
        },
        Response::GitCommitResult { hash: "ab".into() },
        Response::GitBranches { current: "main".into(), branches: vec!["main".into()] },
        Response::Error { kind: ErrorKind::NotFound, message: "no such \"file\"".into() },
    ]
}

/// Regenerate with `COCOONBOX_BLESS=1 cargo test -p cocoonbox-wire the_lines_keep_their_bytes`.
#[test]
fn the_lines_keep_their_bytes() {
    let mut lines = requests().iter().flat_map(request_line).collect::<Vec<_>>();
    lines.extend(responses().iter().flat_map(response_line));
    lines.extend(line(&super::super::DoorHello { door: super::super::Door::Http }));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/silkd-v1.jsonl");
    if std::env::var_os("COCOONBOX_BLESS").is_some() {
        std::fs::write(path, &lines).unwrap();
    }
    assert_eq!(String::from_utf8(lines).unwrap(), std::fs::read_to_string(path).unwrap());
}

#[test]
fn each_message_reads_back() {
    for request in requests() {
        let bytes = request_line(&request);
        assert_eq!(decode_request(&bytes[..bytes.len() - 1]).as_ref(), Ok(&request));
    }
    for response in responses() {
        let bytes = response_line(&response);
        assert_eq!(decode_response(&bytes[..bytes.len() - 1]).as_ref(), Ok(&response));
    }
    assert_eq!(requests().len(), Request::OPERATIONS.len());
}

#[test]
fn unknown_fields_are_ignored_and_unknown_operations_are_named() {
    let known = decode_request(br#"{"x":[1],"op":"kill","v":1,"pid":3,"later":{}}"#);
    assert_eq!(known, Ok(Request::Kill { pid: 3, signal: None }));
    let unknown = decode_request(br#"{"v":1,"op":"fs_frob","path":"/"}"#).unwrap_err();
    assert_eq!(unknown, DecodeError::Unknown { name: "fs_frob".into() });
    assert_eq!(unknown.kind(), ErrorKind::Unimplemented);
    assert_eq!(decode_request(br#"{"v":2,"op":"info"}"#), Err(DecodeError::Version { version: 2 }));
    for bad in [
        "",
        "{",
        "null",
        "[]",
        r#"{"op":"info"}"#,
        r#"{"v":1}"#,
        r#"{"v":1,"op":"kill"}"#,
        r#"{"v":1,"op":"data","data":"*"}"#,
        r#"{"v":1,"op":"x_relay","port":65536}"#,
        r#"{"v":1,"op":"exec","argv":"ls"}"#,
    ] {
        let kind = decode_request(bad.as_bytes()).map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::BadRequest), "{bad}");
    }
    let long = format!(r#"{{"v":1,"op":"{}"}}"#, "ä".repeat(500));
    assert!(
        matches!(decode_request(long.as_bytes()), Err(DecodeError::Unknown { name }) if name.len() == 64)
    );
    assert!(matches!(decode_response(br#"{"type":"new"}"#), Err(DecodeError::Unknown { .. })));
}

#[test]
fn a_line_over_the_limit_is_refused_before_it_is_whole() {
    let mut codec = LineCodec::with_limit(8);
    assert!(
        matches!(codec.decode(&mut BytesMut::from(&b"1234567\n"[..])), Ok(Some(line)) if &line[..] == b"1234567")
    );
    assert!(matches!(
        codec.decode(&mut BytesMut::from(&b"12345678\n"[..])),
        Err(FrameError::TooLong { limit: 8 })
    ));
    let mut codec = LineCodec::with_limit(8);
    assert!(matches!(codec.decode(&mut BytesMut::from(&b"1234567"[..])), Ok(None)));
    assert!(matches!(codec.decode(&mut BytesMut::from(&b"12345678"[..])), Err(FrameError::TooLong { .. })));
}

#[test]
fn a_connection_that_ends_inside_a_line_says_so() {
    let mut codec = LineCodec::default();
    let mut buffer = BytesMut::from(&b"one\ntw"[..]);
    assert!(matches!(codec.decode_eof(&mut buffer), Ok(Some(line)) if &line[..] == b"one"));
    assert!(matches!(codec.decode_eof(&mut buffer), Err(FrameError::Truncated)));
    assert!(matches!(codec.decode_eof(&mut BytesMut::new()), Ok(None)));
}

proptest! {
    #[test]
    fn data_of_any_bytes_round_trips(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let request = Request::Stdin { data: data.clone().into() };
        let bytes = request_line(&request);
        // by hand and by the JSON reader alike
        let spaced = [b" ", &bytes[..bytes.len() - 1]].concat();
        prop_assert_eq!(decode_request(&bytes[..bytes.len() - 1]), Ok(request.clone()));
        prop_assert_eq!(decode_request(&spaced), Ok(request));
        let response = Response::Stderr { data: data.into() };
        let bytes = response_line(&response);
        prop_assert_eq!(decode_response(&bytes[..bytes.len() - 1]), Ok(response));
    }

    #[test]
    fn text_of_any_kind_round_trips(argv in proptest::collection::vec(".{0,20}", 0..5), path in ".{0,40}") {
        for request in [
            Request::Exec { argv, cwd: Some(path.clone()), env: None, user: None, detach: None, session: None },
            Request::FsRename { from: path.clone(), to: path },
        ] {
            let bytes = request_line(&request);
            prop_assert_eq!(bytes.iter().position(|byte| *byte == b'\n'), Some(bytes.len() - 1));
            prop_assert_eq!(decode_request(&bytes[..bytes.len() - 1]), Ok(request));
        }
    }

    #[test]
    fn no_line_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_request(&bytes);
        let _ = decode_response(&bytes);
    }

    #[test]
    fn lines_are_cut_the_same_however_they_arrive(
        lines in proptest::collection::vec("[a-z]{0,9}", 0..8),
        cuts in proptest::collection::vec(1_usize..7, 1..50),
    ) {
        let whole = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect::<Vec<_>>();
        let (mut codec, mut buffer, mut seen, mut at) = (LineCodec::default(), BytesMut::new(), Vec::new(), 0);
        for cut in cuts.iter().cycle() {
            if at == whole.len() {
                break;
            }
            let end = (at + cut).min(whole.len());
            buffer.extend_from_slice(&whole[at..end]);
            at = end;
            while let Some(line) = codec.decode(&mut buffer).unwrap() {
                seen.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        prop_assert_eq!(seen, lines);
    }
}
