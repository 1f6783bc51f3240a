//! People, the command line and outside agents sign in at a real server.

use std::process::Command;

use cocoonbox_stories::{
    CONTROL_TOOLS, PASSWORD, Run, Server, browser, output, person, python, server_of_a_person,
};
use serde_json::{Value, json};

/// A command line that knows no token yet, whose browser is `verb` of our person.
fn fresh(server: &Server, verb: &str, arguments: &[&str]) -> Command {
    let settings = server.scratch().join("fresh");
    let mut command = server.command(server.program());
    command.arg("--endpoint").arg(server.endpoint()).args(arguments);
    command
        .env("COCOONBOX_CONFIG_DIR", settings)
        .env("BROWSER", browser(verb))
        .env("PERSON_PASSWORD", PASSWORD);
    command
}

fn run(server: &Server, arguments: &[&str]) -> Run {
    output(&mut fresh(server, "allow", arguments), b"")
}

fn json_of(run: &Run) -> Value {
    serde_json::from_str(&run.ok()).expect("an answer")
}

#[test]
fn the_command_line_signs_in_through_a_browser() {
    let server = server_of_a_person();
    assert_eq!(run(&server, &["whoami"]).code, Some(3), "nobody yet");
    assert!(run(&server, &["login"]).ok().contains("as admin"));
    assert_eq!(json_of(&run(&server, &["whoami", "--json"]))["user"]["name"], "admin");
    run(&server, &["box", "ls"]).ok();
    assert_eq!(json_of(&run(&server, &["status", "--json"]))["token_source"], "browser");
    let devices = json_of(&run(&server, &["devices", "--json"]));
    let own = devices["devices"].as_array().expect("a list").iter().find(|device| device["current"] == true);
    assert_eq!(own.expect("this device")["client"], "cocoonbox-cli");

    // a second sign-in ends the token of the first
    run(&server, &["login"]).ok();
    let devices = json_of(&run(&server, &["devices", "--json"]));
    assert_eq!(devices["devices"].as_array().map(Vec::len), Some(1));
    run(&server, &["logout"]).ok();
    let left: Value =
        serde_json::from_str(&person(&["call", &server.endpoint(), "GET", "devices"]).ok()).expect("JSON");
    assert_eq!(left["devices"], json!([]));
}

#[test]
fn a_person_may_say_no_and_a_browser_may_be_elsewhere() {
    let server = server_of_a_person();
    let refused = output(&mut fresh(&server, "deny", &["login"]), b"");
    assert!(refused.failed(3).contains("nothing was allowed at the browser"), "{refused:?}");

    // the address is opened on another computer, and what it leads to is pasted
    let elsewhere = fresh(&server, "allow", &["login", "--no-browser"]);
    let script = "exec 3>&1; \"$@\" 2>&1 >&3 | tee \"$HOME/said\"";
    let mut waiting = server.command("bash");
    let words = std::iter::once(elsewhere.get_program()).chain(elsewhere.get_args());
    waiting.args(["-c", script, "login"]).args(words);
    waiting.env("COCOONBOX_CONFIG_DIR", server.scratch().join("fresh"));
    let mut child = waiting
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let address = cocoonbox_stories::eventually("an address", || {
        let said = std::fs::read_to_string(server.scratch().join("said")).ok()?;
        let whole = said.contains("Address or code:");
        let address = said.split_whitespace().find(|word| word.contains("/cb/oauth/authorize?"))?;
        whole.then(|| address.to_owned())
    });
    let mut stdin = child.stdin.take().expect("a pipe");
    let lead = person(&["where", &address]).ok();
    std::io::Write::write_all(&mut stdin, format!("{lead}\n").as_bytes()).expect("it reads");
    drop(stdin);
    assert!(child.wait_with_output().expect("it ends").status.success());
    assert_eq!(json_of(&run(&server, &["status", "--json"]))["token_source"], "browser");
}

#[test]
fn an_outside_agent_gets_boxes_of_its_own_until_it_is_shut_out() {
    let server = server_of_a_person();
    let mut agent = python("agent.py");
    let agent = output(agent.args(["whole", &server.endpoint()]).env("PERSON_PASSWORD", PASSWORD), b"");
    let said: Value = serde_json::from_str(&agent.ok()).expect("JSON");
    assert_eq!(said["tools"], json!(CONTROL_TOOLS));
    assert_eq!(
        (&said["before"], &said["made"], &said["after"]),
        (&json!([]), &json!("running"), &json!(["by-agent"]))
    );
    assert!(said["one_more"].as_str().is_some_and(|text| text.contains("run at once")), "{said}");
    assert_eq!(said["listed"], json!([["A story's agent", "", false]]));
    assert_eq!((&said["deleted"], &said["revoked"]), (&json!(false), &json!(401)));
}

#[test]
fn signing_out_everywhere_leaves_no_way_in() {
    let server = server_of_a_person();
    run(&server, &["login"]).ok();
    // the administrator's own settings hold the personal token
    server.cli(&["whoami"]).ok();
    run(&server, &["logout", "--everywhere"]).ok();
    assert_eq!(run(&server, &["whoami"]).code, Some(3));
    assert_eq!(server.cli(&["whoami"]).code, Some(3));
}

#[test]
fn the_control_mcp_is_served_over_standard_streams() {
    let server = server_of_a_person();
    let messages = [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "story", "version": "1" } } }),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "id": "two", "method": "tools/call", "params": { "name": "box_ensure", "arguments": {} } }),
        json!({ "jsonrpc": "2.0", "id": 3, "method": "nothing/like/that" }),
    ];
    let input = messages.map(|message| message.to_string()).join("\n");
    let said = server.cli_with(&["mcp"], format!("{input}\nno JSON\n").as_bytes()).ok();
    let lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    let answer =
        |id: Value| lines.iter().find(|line| line["id"] == id).unwrap_or_else(|| panic!("{id} in {said}"));
    assert_eq!(answer(json!(1))["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(answer(json!("two"))["result"]["structuredContent"]["state"], "running");
    assert_eq!(answer(json!(3))["error"]["code"], -32601);
    assert_eq!(answer(Value::Null)["error"]["code"], -32700);
    assert_eq!(lines.len(), 4, "{said}");

    // without a token nobody waits for ever
    let refused = output(fresh(&server, "deny", &["mcp"]).env("COCOONBOX_TOKEN", "cb_0"), input.as_bytes());
    assert_ne!(refused.code, Some(0), "{refused:?}");
}

#[test]
fn the_authorization_server_passes_the_conformance_suite() {
    use std::io::{BufRead as _, BufReader};
    let server = server_of_a_person();
    let client = person(&["register", &server.endpoint(), "http://127.0.0.1/callback"]).ok();
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/mcp-conformance.sh");
    let mut suite = Command::new(script)
        .args(["authorization", "--url", &server.endpoint(), "--client-id", &client])
        .args(["--resource", &format!("{}/cocoonbox.mcp", server.endpoint()), "--port", &port.to_string()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let mut said = String::new();
    let mut allowed = false;
    for line in BufReader::new(suite.stdout.take().expect("a pipe")).lines() {
        let line = line.expect("text");
        if let Some(address) = line.split_whitespace().find(|word| word.contains("/cb/oauth/authorize?"))
            && !allowed
        {
            person(&["allow", address]).ok();
            allowed = true;
        }
        said.push_str(&line);
        said.push('\n');
    }
    assert!(suite.wait().expect("it ends").success() && allowed, "{said}");
    assert!(!said.contains("WARN") && !said.contains("FAIL"), "{said}");
}
