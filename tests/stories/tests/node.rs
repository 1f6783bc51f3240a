//! A node by itself: a foreign client, and what is left of it when it is killed.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use cocoonbox_stories::{Node, call, output, processes, python};
use serde_json::{Value, json};

#[test]
fn the_public_python_sdk_drives_a_node() {
    let node = Node::start(&[]);
    let run = output(python("sandbox.py").arg(node.address()), Node::token().as_bytes());
    let mut told = serde_json::Map::new();
    for line in run.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let Ok(Value::Object(finding)) = serde_json::from_slice(line) else {
            panic!("not a finding: {run:?}")
        };
        told.extend(finding);
    }
    assert_eq!(run.code, Some(0), "{run:?}\n{}", node.log());
    for (name, expected) in [
        ("before", json!([])),
        ("volumes", json!([])),
        ("checkpoints", json!([])),
        ("listed", json!([["stories/one", "host", true]])),
        ("token_listed", json!(false)),
        ("renewed", json!(true)),
        ("looked_up", json!(true)),
        ("not_found", json!(404)),
        ("echo", json!("hello\n")),
        ("stdin", json!("through and back")),
        ("cwd", json!("/tmp")),
        ("own_env", json!("mine")),
        ("exit", json!([7, "before", "why"])),
        ("timed_out", json!(true)),
        ("left_running", json!(0)),
        ("spawned", json!("started")),
        ("ended", json!(null)),
        ("killed", json!(137)),
        ("read_back", json!(true)),
        ("stat", json!(["file", 1_048_576, 0o640])),
        ("folder", json!(["deep"])),
        ("archived", json!(["deep", "deep/data"])),
        ("pushed", json!("1")),
        ("missing", json!("not_found")),
        ("removed", json!("not_found")),
        ("terminal", json!([true, true, 3])),
        ("page", json!("served from inside")),
        ("preview", json!("served from inside")),
        ("nobody_listens", json!("not_found")),
        ("asleep", json!([1, true])),
        ("awake", json!(0)),
        ("goes_on", json!(true)),
        ("shown", json!({ "SEEN": "a \"quoted\" $value", "SECRET": "" })),
        ("inside", json!("a \"quoted\" $value")),
        ("over", json!("asked")),
        ("changed", json!("changed")),
        ("secret_inside", json!(false)),
        ("control_inside", json!(true)),
        ("inject", json!(400)),
        ("null_guest", json!(400)),
        ("guest_entry_asleep", json!(409)),
        ("host_entry_asleep", json!("not refused")),
        ("still_asleep", json!(1)),
        ("found", json!([["a.txt", 2, "two three"]])),
        ("replaced", json!([1, 1])),
        ("rewritten", json!("one\ntwo ten\n")),
        ("bad_pattern", json!("bad_request")),
        ("shell", json!(["/workspace", "yes too"])),
        ("listed_shells", json!(true)),
        ("shell_exit", json!(9)),
        ("shells_left", json!([])),
        ("watched", json!(true)),
        ("commit", json!(true)),
        ("branches", json!(["main", ["main", "other"]])),
        ("clone", json!("unimplemented")),
        ("checkpoint", json!(501)),
        ("fork", json!(501)),
        ("promote", json!(501)),
        ("lsp", json!("not_found")),
        ("drained", json!(429)),
        ("after", json!([])),
        ("gone", json!(404)),
    ] {
        assert_eq!(told.get(name), Some(&expected), "{name} of {told:#?}");
    }
    assert!(!node.log().contains("canary"), "a host-only value is in the node's log");
}

/// What the clients of a node know: only what it acknowledged counts.
#[derive(Default)]
struct Known {
    /// Held, by id.
    held: BTreeSet<String>,
    /// Idempotency keys of claims that were asked for and not answered.
    asked: BTreeSet<String>,
    /// Ids whose release was asked for and not answered.
    leaving: BTreeSet<String>,
    next_key: u64,
}

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

const CLAIM: &str = r#"{"template":"host","egress":false,"ttl_seconds":86400}"#;

/// The most sandboxes that the node of the killing story holds.
const CAP: usize = 8;

/// Claims and releases until the node is gone.
fn work(address: &str, known: &Mutex<Known>, seed: u64) {
    let mut numbers = Numbers(seed);
    loop {
        let release = {
            let mut known = known.lock().expect("nobody panicked");
            let leave = known.held.len() >= 4 || (known.held.len() > 1 && numbers.below(3) == 0);
            if leave {
                let place = numbers.below(known.held.len() as u64) as usize;
                let id = known.held.iter().nth(place).cloned().expect("it is there");
                known.held.remove(&id);
                known.leaving.insert(id.clone());
                Ok(id)
            } else {
                known.next_key += 1;
                let key = format!("key-{}", known.next_key);
                known.asked.insert(key.clone());
                Err(key)
            }
        };
        let answered = match &release {
            Ok(id) => call(address, "POST", &format!("/v1/sandboxes/{id}/release"), "", None),
            Err(key) => call(address, "POST", "/v1/claim", CLAIM, Some(key)),
        };
        let Ok((status, body)) = answered else { return };
        settle(&mut known.lock().expect("nobody panicked"), &release, status, &body);
    }
}

/// Takes in an answer.
fn settle(known: &mut Known, asked: &Result<String, String>, status: u16, body: &Value) {
    match (asked, status) {
        (Ok(id), 204 | 404) => {
            known.leaving.remove(id);
        }
        (Err(key), 200) => {
            known.asked.remove(key);
            known.held.insert(body["id"].as_str().expect("a claim has an id").to_owned());
        }
        (Err(key), 429) => {
            known.asked.remove(key);
        }
        _ => panic!("{asked:?} was answered {status}: {body}"),
    }
}

#[test]
fn a_node_that_is_killed_at_random_keeps_what_it_acknowledged_and_nothing_else() {
    let kills = if std::env::var_os("COCOONBOX_SOAK").is_some() { 200 } else { 20 };
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").expect("it is there"), &mut bytes)
        .expect("it gives bytes");
    let seed = std::env::var("COCOONBOX_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(u64::from_le_bytes(bytes) | 1);
    println!("COCOONBOX_SEED={seed}");
    let mut numbers = Numbers(seed);
    let mut node = Node::start(&["--max-claims", &CAP.to_string()]);
    let known = Mutex::new(Known::default());
    let mut claimed = 0;
    for round in 1..=kills {
        let address = node.address();
        let span = Duration::from_millis(50 + numbers.below(600));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (address, known, seed) = (&address, &known, numbers.below(u64::MAX) | 1);
                scope.spawn(move || work(address, known, seed));
            }
            std::thread::sleep(span);
            node.kill();
        });
        node.start_again();
        let mut known = known.lock().expect("nobody panicked");
        // what was not answered is asked for again, as a client would
        for id in std::mem::take(&mut known.leaving) {
            let path = format!("/v1/sandboxes/{id}/release");
            let (status, body) = node.call("POST", &path, "", None).expect("the node answers");
            settle(&mut known, &Ok(id), status, &body);
        }
        for key in std::mem::take(&mut known.asked) {
            let (status, body) = node.call("POST", "/v1/claim", CLAIM, Some(&key)).expect("the node answers");
            settle(&mut known, &Err(key), status, &body);
        }
        let (_, list) = node.call("GET", "/v1/sandboxes", "", None).expect("the node answers");
        let rows = list["sandboxes"].as_array().expect("a list");
        let listed: BTreeSet<_> =
            rows.iter().filter_map(|row| row["id"].as_str().map(str::to_owned)).collect();
        assert_eq!(listed, known.held, "kill {round}, seed {seed}:\n{}", node.log());
        assert!(
            listed.len() <= CAP && rows.iter().all(|row| row["failed"] != true),
            "kill {round}: {rows:#?}"
        );
        let names = |folder: &str| -> BTreeSet<String> {
            let entries = std::fs::read_dir(node.data().join(folder)).expect("it is there");
            entries
                .map(|entry| entry.expect("it is there").file_name().to_string_lossy().into_owned())
                .collect()
        };
        assert_eq!(names("claims"), known.held, "kill {round}, seed {seed}");
        assert_eq!(names("trash"), BTreeSet::new(), "kill {round}, seed {seed}");
        let boxes: BTreeSet<_> = processes()
            .into_iter()
            .filter_map(|process| {
                let id = process.command_line.strip_prefix("cocoonbox-box ")?.split(' ').next()?.to_owned();
                known.held.contains(&id).then_some(id)
            })
            .collect();
        assert_eq!(boxes, known.held, "each runs: kill {round}, seed {seed}");
        claimed = known.next_key;
    }
    let journal = std::fs::read_to_string(node.data().join("node/usage.jsonl")).expect("it is there");
    for line in journal.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok_and(|event| event["ev"].is_string()), "{line}");
    }
    assert!(claimed > kills, "{claimed} claims in {kills} rounds are too few to tell anything");
}
