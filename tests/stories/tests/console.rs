//! The pages of a real server in a real browser.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use cocoonbox_stories::{
    PASSWORD, Server, eventually, node, output, processes_in_network, python, server_of_a_person,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

fn pictures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/console-stories")
}

/// A client that is told what happens elsewhere, and tells: a line each. Dropping it ends it.
struct Talk {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Talk {
    fn start(command: &mut Command) -> Self {
        let child = command.env("PERSON_PASSWORD", PASSWORD).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdin, stdout }
    }

    /// A browser that does what `script` says.
    fn browser(script: &str, mut plan: Value) -> Self {
        plan["password"] = json!(PASSWORD);
        plan["pictures"] = json!(pictures());
        let mut browser = Self::start(&mut node(script));
        browser.tell(&plan);
        browser
    }

    /// An outside agent, and the address that it wants opened.
    fn agent(server: &Server) -> (Self, String) {
        let mut agent = Self::start(python("agent.py").args(["asks", &server.endpoint()]));
        let address = agent.hear();
        (agent, address)
    }

    fn tell(&mut self, what: &Value) {
        writeln!(self.stdin, "{what}").expect("it listens");
    }

    /// Returns the next line; each client gives up by itself what does not happen.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        assert!(!line.is_empty(), "it ended: what it said of that is above");
        line.trim_end().to_owned()
    }

    fn hear_json(&mut self) -> Value {
        serde_json::from_str(&self.hear()).expect("JSON")
    }

    /// Waits until a browser is closed; returns what was seen in it.
    fn seen(mut self) -> Value {
        let seen = self.hear_json();
        assert_eq!(seen["faults"], json!([]), "what the pages threw, or were kept from");
        assert_eq!(seen["sideways"], json!([]), "these run over the edge");
        seen
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // one that is done has ended, or is about to
        let _ = self.child.kill();
        drop(self.child.wait());
    }
}

#[test]
fn a_person_signs_in_makes_a_box_and_lets_the_command_line_in() {
    let server = Server::start();
    let log = server.log();
    let link = log.split_whitespace().find(|word| word.contains("#link=cbl_")).expect("a link is printed");
    let mut browser = Talk::browser("console.mjs", json!({ "link": link }));

    // the command line's browser is the one that is open already
    let asked = server.scratch().join("asked");
    let opener = server.scratch().join("opener");
    std::fs::write(&opener, format!("printf %s \"$1\" > {0}.new && mv {0}.new {0}\n", asked.display()))
        .expect("own folder");
    let fresh = server.scratch().join("fresh");
    let command_line = |arguments: &[&str]| {
        let mut command = server.command(server.program());
        command.args(["--endpoint", &server.endpoint()]).args(arguments);
        command.env("COCOONBOX_CONFIG_DIR", &fresh).env("BROWSER", format!("sh {} %s", opener.display()));
        output(&mut command, b"")
    };
    std::thread::scope(|scope| {
        let login = scope.spawn(|| command_line(&["login"]));
        let address = eventually("an address to open", || std::fs::read_to_string(&asked).ok());
        browser.tell(&json!(address));
        login.join().expect("it does not panic").ok();
    });
    let boxes: Value = serde_json::from_str(&command_line(&["box", "ls", "--json"]).ok()).expect("JSON");
    assert_eq!(boxes["boxes"][0]["state"], "running", "{boxes}");

    browser.tell(&json!("it works"));
    let seen = browser.seen();
    assert_eq!(seen["linkInAddress"], false, "the secret leaves the address bar at once");
    assert_eq!(seen["landed"], "/callback");
    assert_eq!(command_line(&["whoami"]).code, Some(3), "its device was signed out in the page");
}

/// Looks for sentences of a page.
fn says(page: &Value, sentences: &[&str]) {
    let text = page.as_str().unwrap_or_else(|| panic!("no text: {page}"));
    for sentence in sentences {
        assert!(text.contains(sentence), "{sentence:?} is not in:\n{text}");
    }
}

#[test]
fn an_outside_agent_is_allowed_within_limits_and_shut_out_while_it_works() {
    let server = server_of_a_person();
    server.cli(&["box", "ensure"]).ok();
    let (mut agent, address) = Talk::agent(&server);
    let mut browser = Talk::browser("consent.mjs", json!({ "ask": address }));
    assert_eq!(agent.hear(), "made");
    browser.tell(&json!("made"));

    // from now on its box answers nobody: a call about it is under way until somebody ends it
    let network = server.cli(&["rsh", "--box", "by-agent", "--", "readlink", "/proc/self/ns/net"]).ok();
    let box_gets = |signal: Signal| {
        let mut guests = processes_in_network(&network);
        guests.retain(|process| process.command_line.contains("cocoonbox-agent init"));
        assert!(!guests.is_empty(), "no guest in {network}");
        for guest in guests {
            kill(Pid::from_raw(guest.id), signal).expect("it runs");
        }
    };
    box_gets(Signal::SIGSTOP);
    agent.tell(&json!("go on"));
    assert_eq!(agent.hear(), "open");
    browser.tell(&json!("open"));
    let said = agent.hear_json();
    assert_eq!(
        said,
        json!({
            "made": "running", "sees": ["by-agent"], "more": [false, true],
            "ends": { "stream": "ended", "call": "ended" },
            "further": [401, true], "refresh": [400, "invalid_grant"],
        })
    );
    // nothing but the revocation ended the call, and what it began goes on
    let saves = || server.json(&["saves", "by-agent"])["saves"].as_array().map(Vec::len);
    assert_eq!(saves(), Some(0), "the call could have ended by itself");
    box_gets(Signal::SIGCONT);
    eventually("the save is done", || saves().filter(|saves| *saves == 1));
    server.cli(&["rsh", "--box", "by-agent", "--", "true"]).ok();

    let (mut second, address) = Talk::agent(&server);
    browser.tell(&json!(address));
    assert_eq!(second.hear_json(), json!({ "error": "access_denied" }));

    let seen = browser.seen();
    let asked = [
        "Signed in as admin",
        "A story's agent",
        "nobody: unverified",
        "Anybody can register a client under any name.",
        "127.0.0.1",
        "The answer goes to a program on this computer.",
        "It may make boxes, work in them and delete them, within these limits.",
        "It sees none of your other boxes, and can use neither your saved keys nor your connected accounts.",
    ];
    says(&seen["consent"], &asked);
    assert_eq!((&seen["caps"], &seen["allowRests"]), (&json!(["2", "1", "30"]), &json!("true")));
    says(
        &seen["boxes"],
        &["since your last look: A story's agent unverified", "by-agent", "Made by an agent"],
    );
    // seven days, less a moment
    let row = ["unverified", "New", "in 6 days", "Boxes: 3, running at once: 2", "by-agent, second"];
    says(&seen["agents"], &row);
    says(&seen["agentsAfter"], &["No agent has access."]);
    says(&seen["boxesAfter"], &["main", "by-agent", "second"]);
    assert!(!seen["boxesAfter"].as_str().is_some_and(|text| text.contains("since your last look")), "{seen}");
    says(&seen["broken"], &["This request is refused", "nothing was sent back"]);
    assert_eq!(seen["waysOn"], 0);
}
