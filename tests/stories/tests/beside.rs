//! Two servers over one PostgreSQL and one node: what ends at one ends at the other.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use cocoonbox_db::testkit::TestDb;
use cocoonbox_stories::{
    Account, Node, PASSWORD, Server, browser, eventually, one_time_link, output, person, python,
};
use serde_json::Value;

/// A client whose lines are read.
struct Client {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> String {
        self.lines.next().map(|line| line.expect("text")).unwrap_or_else(|| {
            let mut said = String::new();
            let stderr = self.child.stderr.as_mut().expect("a pipe");
            std::io::Read::read_to_string(stderr, &mut said).expect("text");
            panic!("it said no more: {said}");
        })
    }

    fn goes_on(&mut self) -> bool {
        self.child.try_wait().expect("own child").is_none()
    }
}

fn server(db: &TestDb, node: &Node) -> Server {
    let server = Server::prepare(Account::Own);
    let url = server.scratch().join("database-url");
    std::fs::write(&url, db.url()).expect("own folder");
    let url = url.display().to_string();
    let (node, token) = (format!("http://{}", node.address()), node.token_file().display().to_string());
    server
        .with_variable("COCOONBOX_DATABASE_URL_FILE", &url)
        .with_variable("COCOONBOX_NODE", &node)
        .with_variable("COCOONBOX_NODE_TOKEN_FILE", &token)
}

/// Starts two servers; the second has the keys of the first, as all servers of one database do.
fn two(db: &TestDb, node: &Node) -> [Server; 2] {
    let (first, second) = (server(db, node), server(db, node));
    // both are reached as the first
    let issuer = first.endpoint();
    let [mut first, mut second] =
        [first, second].map(|server| server.with_variable("COCOONBOX_OAUTH_PUBLIC_URL", &issuer));
    first.start_again();
    std::fs::create_dir_all(second.data()).expect("own folder");
    for entry in std::fs::read_dir(first.data()).expect("own folder") {
        let path = entry.expect("it is listed").path();
        if path.extension().is_some_and(|extension| extension == "key") {
            std::fs::copy(&path, second.data().join(path.file_name().expect("a name"))).expect("own folder");
        }
    }
    second.start_again();
    // of the two the first removes the boxes
    second.forget();
    person(&["password", &first.endpoint(), &one_time_link(&first)]).ok();
    [first, second]
}

/// Returns the command line of a device that signed in at `server`, at the server at `endpoint`.
fn device(server: &Server, endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = server.command(server.program());
    command.arg("--endpoint").arg(endpoint).args(arguments);
    command
        .env("COCOONBOX_CONFIG_DIR", server.scratch().join("device"))
        .env("BROWSER", browser("allow"))
        .env("PERSON_PASSWORD", PASSWORD);
    command
}

#[test]
fn what_is_revoked_at_one_server_ends_at_the_other() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let Some(db) = runtime.block_on(TestDb::postgres()) else { return };
    let node = Node::start(&[]);
    let [first, second] = two(&db, &node);
    let (here, there) = (first.endpoint(), second.endpoint());

    // a device that signed in here has a command open there
    output(&mut device(&first, &here, &["login"]), b"").ok();
    let settings = std::fs::read_to_string(first.scratch().join("device/cli.json")).expect("settings");
    let start = settings.find("cb_").expect("a token in them");
    let token = &settings[start..start + 67];
    let at_there = |arguments: &[&str]| {
        let mut command = device(&first, &there, arguments);
        command.env("COCOONBOX_TOKEN", token);
        command
    };
    output(&mut at_there(&["box", "ensure"]), b"").ok();
    let mut open = Client::start(&mut at_there(&["rsh", "--", "sh", "-c", "echo open; sleep 600"]));
    assert_eq!(open.next(), "open");
    // an agent that was let in here has a stream open there
    let mut agent = python("agent.py");
    let mut agent = Client::start(agent.args(["beside", &here, &there]).env("PERSON_PASSWORD", PASSWORD));
    assert_eq!(agent.next(), "open");
    assert!(open.goes_on() && agent.goes_on());

    let call = |method: &str, path: &str| -> Value {
        serde_json::from_str(&person(&["call", &here, method, path]).ok()).expect("JSON")
    };
    let agents = call("GET", "agents");
    let grant = agents["agents"][0]["id"].as_str().expect("an id");
    call("DELETE", &format!("agents/{grant}"));
    let told: Value = serde_json::from_str(&agent.next()).expect("JSON");
    assert_eq!((&told["stream"], &told["further"]), (&"ended".into(), &401.into()), "{told}");
    assert!(open.goes_on(), "that was the agent's");

    let devices = call("GET", "devices");
    let id = devices["devices"][0]["id"].as_str().expect("an id");
    assert!(id.starts_with("dev_") && id.len() == 20, "{id}");
    call("DELETE", &format!("devices/{id}"));
    let ended = eventually("the command ends", || open.child.try_wait().expect("own child"));
    assert!(!ended.success());
    assert_eq!(output(&mut at_there(&["whoami"]), b"").code, Some(3));
    drop(runtime);
}
