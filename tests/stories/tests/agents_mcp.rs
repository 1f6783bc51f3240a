//! Agents that other people wrote sign in to the control MCP and use it: two libraries, and two coding agents whose
//! model is ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use cocoonbox_stories::{
    Account, Beside, CONTROL_TOOLS, Internet, PASSWORD, Run, Server, browser, claude, codex, one_time_link,
    output, plain_browser, python, server_of_a_person,
};
use serde_json::{Value, json};

/// A server of a person, and where its clients are.
struct Scene {
    server: Server,
    /// The network of them all, where it is not this machine's.
    internet: Option<Internet>,
}

impl Scene {
    fn here() -> Self {
        Self { server: server_of_a_person(), internet: None }
    }

    /// A network on which `document` is published at its own address; none without root.
    fn with(document: &Value) -> Option<Self> {
        let address = document["client_id"].as_str().expect("an address");
        let host = address.split('/').nth(2).expect("a host");
        let internet = Internet::make(&[host])?;
        internet.publish(address, document);
        let authority = internet.authority();
        let mut server =
            Server::prepare(Account::Own).with_variable("SSL_CERT_FILE", &authority.to_string_lossy());
        let words = internet.within(&server.scratch());
        server.start_within(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let link = one_time_link(&server);
        let scene = Self { server, internet: Some(internet) };
        output(scene.python("person.py").args(["password", &scene.server.endpoint(), &link]), b"").ok();
        Some(scene)
    }

    fn internet(&self) -> &Internet {
        self.internet.as_ref().expect("it has a network of its own")
    }

    fn control(&self) -> String {
        format!("{}/cocoonbox.mcp/control", self.server.endpoint())
    }

    /// Where the person's browser keeps what it was asked.
    fn saw(&self) -> PathBuf {
        self.server.scratch().join("saw")
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut plain = self.server.command(program);
        plain.env("PERSON_PASSWORD", PASSWORD).env("PERSON_SAW", self.saw());
        match &self.internet {
            Some(internet) => internet.command(&plain),
            None => plain,
        }
    }

    fn python(&self, name: &str) -> Command {
        let client = python(name);
        let mut command = self.command(client.get_program());
        // opened beside the client, which goes on
        command.args(client.get_args()).env("BROWSER", format!("{} &", browser("allow")));
        command
    }

    fn person(&self, words: &[&str]) -> Value {
        let said = output(self.python("person.py").args(words), b"").ok();
        serde_json::from_str(&said).expect("JSON")
    }

    /// The name and the verified host of each agent that is let in.
    fn agents(&self) -> Vec<(String, String)> {
        let listed = self.person(&["call", &self.server.endpoint(), "GET", "agents"]);
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let agents = listed["agents"].as_array().expect("a list");
        agents.iter().map(|agent| (text(&agent["client_name"]), text(&agent["client_host"]))).collect()
    }

    /// The person shuts all agents out.
    fn shut_out(&self) {
        let listed = self.person(&["call", &self.server.endpoint(), "GET", "agents"]);
        for agent in listed["agents"].as_array().expect("a list") {
            let path = format!("agents/{}", agent["id"].as_str().expect("an id"));
            self.person(&["call", &self.server.endpoint(), "DELETE", &path]);
        }
    }

    /// What the consent page asks when `client` wants in.
    fn asks(&self, client: &str, redirect: &str) -> Value {
        let query = format!(
            "response_type=code&client_id={client}&redirect_uri={redirect}&state=0123456789abcdef&scope=boxes\
             &code_challenge={}&code_challenge_method=S256&resource={}",
            "A".repeat(43),
            self.control()
        );
        self.person(&["ask", &format!("{}/cb/oauth/authorize?{query}", self.server.endpoint())])
    }

    /// What the person's browser was asked last.
    fn asked_last(&self) -> Value {
        let saw = std::fs::read_to_string(self.saw()).expect("somebody was asked");
        serde_json::from_str(saw.lines().last().expect("a line")).expect("JSON")
    }
}

/// A coding agent, at home in the scene's scratch folder.
struct Coder<'a> {
    scene: &'a Scene,
    model: String,
    _model: Beside,
}

impl<'a> Coder<'a> {
    fn at(scene: &'a Scene) -> Self {
        let (beside, model) = Beside::start(&mut scene.python("model.py"));
        Self { scene, model, _model: beside }
    }

    fn codex(&self, words: &[&str]) -> Run {
        let home = self.scene.server.scratch().join(".codex");
        std::fs::create_dir_all(&home).expect("own folder");
        let settings = format!(
            "model = \"told\"\nmodel_provider = \"told\"\ncheck_for_update_on_startup = false\n\
             mcp_oauth_credentials_store = \"file\"\n\
             [analytics]\nenabled = false\n[features]\nplugins = false\napps = false\n\
             [model_providers.told]\nname = \"told\"\nbase_url = \"{}/v1\"\nwire_api = \"responses\"\n\
             [mcp_servers.cocoonbox]\nurl = \"{}\"\n",
            self.model,
            self.scene.control()
        );
        std::fs::write(home.join("config.toml"), settings).expect("own folder");
        let mut command = self.scene.command(codex());
        output(command.args(words).env("CODEX_HOME", home).env("BROWSER", browser("allow")), b"")
    }

    /// What codex says when its model is told `prompt`.
    fn codex_turn(&self, prompt: &str) -> String {
        let unasked = "--dangerously-bypass-approvals-and-sandbox";
        self.codex(&["exec", "--skip-git-repo-check", unasked, prompt]).ok()
    }

    fn claude(&self, program: impl AsRef<Path>, words: &[&str]) -> Run {
        let mut command = self.scene.command(program);
        command.args(words);
        for (name, value) in [
            ("ANTHROPIC_BASE_URL", self.model.as_str()),
            ("ANTHROPIC_API_KEY", "none"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("ENABLE_TOOL_SEARCH", "false"),
            // it refuses to run as root elsewhere
            ("IS_SANDBOX", "1"),
        ] {
            command.env(name, value);
        }
        output(command.env("CLAUDE", claude()).env("BROWSER", plain_browser()), b"")
    }

    fn claude_turn(&self, prompt: &str) -> String {
        self.claude(claude(), &["-p", prompt, "--dangerously-skip-permissions"]).ok()
    }

    /// What the agent keeps in `file` of its home.
    fn kept(&self, file: &str) -> Value {
        let text =
            std::fs::read_to_string(self.scene.server.scratch().join(file)).expect("it keeps something");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Has the token that is kept in `file` be over, as its member `until` says.
    fn age(&self, file: &str, until: &str) {
        let mut kept = self.kept(file);
        *member(&mut kept, until).expect("it knows how long") = json!(1000);
        std::fs::write(self.scene.server.scratch().join(file), kept.to_string()).expect("own folder");
    }
}

/// The first member of that name, however deep.
fn member<'a>(value: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let members = value.as_object_mut()?;
    if members.contains_key(name) {
        return members.get_mut(name);
    }
    members.values_mut().find_map(|inner| member(inner, name))
}

/// What a coding agent that runs on its person's computer publishes of itself.
fn document(address: &str, name: &str) -> Value {
    json!({
        "client_id": address,
        "client_name": name,
        "redirect_uris": ["http://localhost/callback", "http://127.0.0.1/callback"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    })
}

fn named(name: &str, host: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), host.to_owned())]
}

fn json_of(run: &Run) -> Value {
    serde_json::from_str(&run.ok()).expect("JSON")
}

#[test]
fn fastmcp_signs_in_and_uses_a_box() {
    let scene = Scene::here();
    let said = json_of(&output(scene.python("fast.py").arg(scene.control()), b""));
    let expected = json!({
        "tools": CONTROL_TOOLS,
        "made": "running",
        "listed": ["by-fastmcp"],
        "one_more": true,
        "deleted": true,
    });
    assert_eq!(said, expected);
    assert_eq!(scene.agents(), named("FastMCP Client", ""));
}

#[test]
fn the_python_sdk_renews_its_token_and_asks_again_when_it_is_shut_out() {
    let scene = Scene::here();
    let said = json_of(&output(scene.python("sdk.py").arg(scene.server.endpoint()), b""));
    assert_eq!((&said["server"], &said["tools"]), (&json!("cocoonbox"), &json!(CONTROL_TOOLS)));
    assert_eq!((&said["boxes"], &said["boxes_again"]), (&json!([]), &json!([])));
    assert_eq!((&said["renewed"], &said["asked"]), (&json!(true), &json!(1)), "the person is asked once");
    assert_ne!(said["in"], 401);
    assert_eq!((&said["out"], &said["asked_again"]), (&json!(401), &json!(2)));
    assert!(said["over"].is_string(), "a session ends with what it was allowed: {said}");
    assert_eq!(said["agents"], json!(["A story's SDK"]));
}

#[test]
fn codex_registers_itself_and_makes_a_box() {
    let scene = Scene::here();
    let coder = Coder::at(&scene);
    coder.codex(&["mcp", "login", "cocoonbox", "--oauth-client-registration", "dcr"]).ok();
    assert_eq!(scene.asked_last()["client_host"], "", "nothing that it says is verified");
    assert_eq!(scene.agents(), named("Codex", ""));
    let said = coder.codex_turn(r#"[[box_create {"name":"by-codex"}]] [[box_list {}]]"#);
    assert!(said.contains(r#""name":"by-codex""#), "{said}");
    let listed = scene.person(&["call", &scene.server.endpoint(), "GET", "agents"]);
    assert_eq!(listed["agents"][0]["boxes"][0]["name"], "by-codex", "{listed}");

    // its hour is over
    let file = ".codex/.credentials.json";
    let token = || member(&mut coder.kept(file), "access_token").expect("a token").take();
    let first = token();
    coder.age(file, "expires_at");
    assert!(coder.codex_turn("[[box_list {}]]").contains(r#""name":"by-codex""#));
    assert_ne!(token(), first);

    scene.shut_out();
    assert!(coder.codex_turn("[[box_list {}]]").contains("there is no box_list"));
    coder.codex(&["mcp", "logout", "cocoonbox"]).ok();
    assert!(!scene.server.scratch().join(file).exists());
}

#[test]
fn codex_is_known_by_its_document() {
    let document = document("https://chatgpt.com/oauth/codex/client.json", "Codex");
    let Some(scene) = Scene::with(&document) else { return };
    let coder = Coder::at(&scene);
    coder.codex(&["mcp", "login", "cocoonbox"]).ok();
    let asked = scene.asked_last();
    assert_eq!((&asked["client_id"], &asked["client_host"]), (&document["client_id"], &json!("chatgpt.com")));
    assert_eq!(scene.agents(), named("Codex", "chatgpt.com"));
    assert!(coder.codex_turn("[[box_list {}]]").contains(r#"{"boxes":[]}"#));
}

#[test]
fn claude_is_known_by_its_document() {
    let document = document("https://claude.ai/oauth/claude-code-client-metadata", "Claude Code");
    let Some(scene) = Scene::with(&document) else { return };
    let coder = Coder::at(&scene);
    let claude = |words: &[&str]| coder.claude(claude(), words).ok();
    // it signs in at a terminal alone
    let login = || coder.claude("script", &["-qfc", "\"$CLAUDE\" mcp login cocoonbox", "/dev/null"]).ok();
    claude(&["mcp", "add", "--transport", "http", "cocoonbox", &scene.control()]);
    assert!(claude(&["mcp", "list"]).contains("Needs authentication"));
    let said = login();
    assert!(said.contains("Authenticated"), "{said}");
    let asked = scene.asked_last();
    assert_eq!((&asked["client_id"], &asked["client_host"]), (&document["client_id"], &json!("claude.ai")));
    assert_eq!(scene.agents(), named("Claude Code", "claude.ai"));
    assert!(claude(&["mcp", "list"]).contains("Connected"));
    assert_eq!(coder.claude_turn("[[box_list {}]]"), r#"{"boxes":[]}"#);

    // its hour is over
    let file = ".claude/.credentials.json";
    let token = || member(&mut coder.kept(file), "accessToken").expect("a token").take();
    let first = token();
    coder.age(file, "expiresAt");
    assert_eq!(coder.claude_turn("[[box_list {}]]"), r#"{"boxes":[]}"#);
    assert_ne!(token(), first);

    scene.shut_out();
    assert_eq!(coder.claude_turn("[[box_list {}]]"), "there is no box_list");
    assert!(claude(&["mcp", "list"]).contains("Needs authentication"));
    // who signs out leaves nothing behind
    login();
    assert_eq!(scene.agents(), named("Claude Code", "claude.ai"));
    claude(&["mcp", "logout", "cocoonbox"]);
    assert_eq!(scene.agents(), []);
}

#[test]
fn a_document_counts_from_a_public_address_with_a_certificate_alone() {
    let address = "https://agents.example/client.json";
    let Some(scene) = Scene::with(&document(address, "An agent")) else { return };
    let redirect = "http://127.0.0.1:4242/callback";
    let not_public = || scene.server.log().matches("at an address that is not public").count();

    // the same hosts are there, too
    scene.internet().resolve_to(Internet::PRIVATE);
    let refused = scene.asks(address, redirect);
    assert_eq!((&refused["refused"], not_public()), (&json!(400), 1), "{refused}");
    scene.internet().resolve();
    let asked = scene.asks(address, redirect);
    assert_eq!(
        (&asked["client_name"], &asked["client_host"]),
        (&json!("An agent"), &json!("agents.example"))
    );

    let unproven = format!("https://{}/client.json", Internet::UNPROVEN);
    scene.internet().publish(&unproven, &document(&unproven, "An agent"));
    let refused = scene.asks(&unproven, redirect);
    assert_eq!((&refused["refused"], not_public()), (&json!(400), 1), "{refused}");
    // where it may be sent back to is the document's to say
    assert_eq!(scene.asks(address, "http://127.0.0.1:4242/elsewhere")["refused"], 400);
}
