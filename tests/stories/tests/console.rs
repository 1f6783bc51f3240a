//! The pages of a real server in a real browser.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use cocoonbox_stories::{Server, node, output};
use serde_json::{Value, json};

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn a_person_signs_in_makes_a_box_and_lets_the_command_line_in() {
    let server = Server::start();
    let log = server.log();
    let link = log.split_whitespace().find(|word| word.contains("#link=cbl_")).expect("a link is printed");
    let asked = server.scratch().join("asked");
    let plan = json!({
        "link": link, "password": "a password of the stories", "signIn": asked,
        "worked": server.scratch().join("worked"),
        "pictures": own("../../target/console-stories"),
    });
    let browser =
        node("console.mjs").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut browser = browser.expect("node can be started");
    let mut stdin = browser.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut stdin, plan.to_string().as_bytes()).expect("it reads");
    drop(stdin);

    // the command line's browser is the one that is open already
    let opener = server.scratch().join("opener");
    std::fs::write(&opener, format!("printf %s \"$1\" > {0}.new && mv {0}.new {0}\n", asked.display()))
        .expect("own folder");
    let mut login = server.command(server.program());
    login.args(["--endpoint", &server.endpoint(), "login"]);
    login.env("COCOONBOX_CONFIG_DIR", server.scratch().join("fresh"));
    login.env("BROWSER", format!("sh {} %s", opener.display()));
    output(&mut login, b"").ok();
    let command_line = |arguments: &[&str]| {
        let mut command = server.command(server.program());
        command.args(["--endpoint", &server.endpoint()]).args(arguments);
        output(command.env("COCOONBOX_CONFIG_DIR", server.scratch().join("fresh")), b"")
    };
    let boxes: Value = serde_json::from_str(&command_line(&["box", "ls", "--json"]).ok()).expect("JSON");
    assert_eq!(boxes["boxes"][0]["state"], "running", "{boxes}");
    std::fs::write(server.scratch().join("worked"), "").expect("own folder");

    let done = browser.wait_with_output().expect("it ends");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let seen: Value = serde_json::from_slice(&done.stdout).expect("what was seen");
    assert_eq!(seen["linkInAddress"], false, "the secret leaves the address bar at once");
    assert_eq!((&seen["landed"], &seen["faults"]), (&json!("/callback"), &json!([])), "{seen}");
    assert_eq!(command_line(&["whoami"]).code, Some(3), "its device was signed out in the page");
}
