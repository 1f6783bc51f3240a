//! A control MCP on a port of its own, and a client that writes what it sends itself.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cocoonbox_boxes::edge::{Authenticate, serve};
use cocoonbox_boxes::mcp::{CONTROL_PATH, McpDoor, router};
use cocoonbox_boxes::store::{FaultyStore, MemoryStore};
use cocoonbox_boxes::usage::MemoryUsageStore;
use cocoonbox_boxes::{AgentGrant, Caller, Engine, EngineConfig, Limits, MemoryKeeper};
use cocoonbox_core::backend::{BoxedDuplex, FaultyBackend, MemoryBackend, MemoryOptions, Target, guest_fn};
use cocoonbox_core::{GrantId, ImageName, ManualClock, SystemEntropy, Timestamp, UserId};
use cocoonbox_wire::AGENT_PORT;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub(crate) const VERSION: &str = "2025-11-25";
/// What a box may be upgraded from.
pub(crate) const OLD: &str = "debian:12";
pub(crate) const NEW: &str = "debian:13";
pub(crate) const METADATA: &str = "https://box.example/.well-known/oauth-protected-resource/cocoonbox.mcp";

#[derive(Debug, Default)]
struct Tokens(Mutex<HashMap<String, Caller>>);

impl Authenticate for Tokens {
    fn authenticate(&self, bearer: &str) -> Option<Caller> {
        self.0.lock().unwrap().get(bearer).filter(|caller| !caller.ended.is_cancelled()).cloned()
    }
}

pub(crate) struct World {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) backend: Arc<FaultyBackend<Arc<MemoryBackend>>>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) ledger: MemoryUsageStore,
    pub(crate) store: Arc<FaultyStore<MemoryStore>>,
    tokens: Arc<Tokens>,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(|door| door).await
    }

    pub(crate) async fn with(change: impl FnOnce(McpDoor) -> McpDoor) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_014_400_000)));
        let entropy = Arc::new(SystemEntropy);
        let agent = guest_fn(|_, target| {
            let (ours, theirs) = tokio::io::duplex(64);
            // an agent that never says anything
            std::mem::forget(theirs);
            (target == Target::Port(AGENT_PORT.try_into().ok()?)).then(|| Box::new(ours) as BoxedDuplex)
        });
        let images =
            MemoryOptions::default().with_image(OLD.parse().unwrap()).with_image(NEW.parse().unwrap());
        let node = MemoryBackend::new(clock.clone(), entropy.clone()).with_guest(agent).with_options(images);
        let backend = Arc::new(FaultyBackend::new(Arc::new(node)));
        let key = ed25519_dalek::SigningKey::from_bytes(&[7; 32]).verifying_key();
        let config =
            EngineConfig::new(NEW.parse::<ImageName>().unwrap(), key).with_daily_cap_micros(1_000_000);
        let ledger = MemoryUsageStore::default();
        let store = Arc::new(FaultyStore::new(MemoryStore::default()));
        let engine = Engine::new(store.clone(), backend.clone(), clock.clone(), entropy, config)
            .with_keeper(Arc::new(MemoryKeeper::new(clock.clone())))
            .with_usage(Arc::new(ledger.clone()));
        engine.start().await.unwrap();
        let tokens = Arc::new(Tokens::default());
        let door = McpDoor::new(tokens.clone()).with_metadata_url(METADATA);
        let router = router(&engine, change(door));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, router, stop.clone()));
        Self { address, engine, backend, clock, ledger, store, tokens, stop }
    }

    /// Signs a new user in under `token`.
    pub(crate) fn user(&self, token: &str) -> Caller {
        self.caller(token, UserId::random(&SystemEntropy).unwrap(), None)
    }

    /// Gives `user` an agent that calls under `token`.
    pub(crate) fn agent(&self, token: &str, user: &UserId, max_boxes: u32, max_running: u32) -> Caller {
        let id = GrantId::random(&SystemEntropy).unwrap();
        self.caller(token, user.clone(), Some(AgentGrant { id, max_boxes, max_running }))
    }

    pub(crate) fn caller(&self, token: &str, user: UserId, agent: Option<AgentGrant>) -> Caller {
        let caller = Caller {
            user,
            admin: false,
            agent,
            limits: Limits { max_boxes: Some(2), max_running: Some(2), max_agent_boxes: Some(3) },
            ended: CancellationToken::new(),
        };
        self.tokens.0.lock().unwrap().insert(token.to_owned(), caller.clone());
        caller
    }

    /// Begins a request over a connection of its own.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    pub(crate) fn request(&self, method: Method, token: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(CONTROL_PATH)
            .header("host", self.address.to_string())
            .header("authorization", format!("Bearer {token}"))
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
    }

    /// Opens a session as `token`.
    pub(crate) async fn open(&self, token: &str) -> Client<'_> {
        self.try_open(token).await.unwrap()
    }

    pub(crate) async fn try_open(&self, token: &str) -> Result<Client<'_>, StatusCode> {
        let request = self.request(Method::POST, token).body(initialize()).unwrap();
        let response = self.send(request).await;
        if response.status() != StatusCode::OK {
            return Err(response.status());
        }
        let session = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let answer = Stream::new(response).answer().await;
        assert_eq!(answer["result"]["protocolVersion"], VERSION, "{answer}");
        let client = Client { world: self, token: token.to_owned(), session };
        let told = client.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        assert_eq!(told.status(), StatusCode::ACCEPTED);
        Ok(client)
    }
}

pub(crate) fn initialize() -> Full<Bytes> {
    let message = json!({
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": { "name": "story", "version": "1" },
        },
    });
    Full::new(message.to_string().into())
}

/// One session.
pub(crate) struct Client<'a> {
    world: &'a World,
    pub(crate) token: String,
    pub(crate) session: String,
}

impl Client<'_> {
    pub(crate) fn request(&self, method: Method) -> http::request::Builder {
        self.world
            .request(method, &self.token)
            .header("mcp-session-id", &self.session)
            .header("mcp-protocol-version", VERSION)
    }

    pub(crate) async fn post(&self, message: &Value) -> Response<Incoming> {
        let body = Full::new(message.to_string().into());
        self.world.send(self.request(Method::POST).body(body).unwrap()).await
    }

    /// Opens the session's own stream.
    pub(crate) async fn listen(&self) -> Response<Incoming> {
        self.world.send(self.request(Method::GET).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn end(&self) -> StatusCode {
        self.world.send(self.request(Method::DELETE).body(Full::default()).unwrap()).await.status()
    }

    pub(crate) async fn ask(&self, method: &str, params: Value) -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        Stream::new(self.post(&message).await).answer().await
    }

    /// Begins to call a tool, to be told under the token `p` how far it is.
    pub(crate) async fn begin(&self, tool: &str, arguments: Value) -> Stream {
        let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "p" } });
        let message = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
        Stream::new(self.post(&message).await)
    }

    /// Calls a tool; returns its result or error whole.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Calls a tool that does what it is asked; returns what it says in structure, which is what it says in words.
    pub(crate) async fn done(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.call(tool, arguments).await;
        let result = &answer["result"];
        assert_eq!(result["isError"], false, "{answer}");
        let content = result["content"].as_array().unwrap();
        assert_eq!((content.len(), &content[0]["type"]), (1, &json!("text")), "{answer}");
        let text: Value = serde_json::from_str(content[0]["text"].as_str().unwrap()).unwrap();
        let structure = result["structuredContent"].clone();
        assert_eq!(text, structure);
        structure
    }

    /// Calls a tool that refuses; returns why.
    pub(crate) async fn refused(&self, tool: &str, arguments: Value) -> String {
        let answer = self.call(tool, arguments).await;
        let result = answer["result"].as_object().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(result["isError"], true, "{answer}");
        assert!(!result.contains_key("structuredContent"), "{answer}");
        let content = result["content"].as_array().unwrap();
        assert_eq!(content.len(), 1);
        content[0]["text"].as_str().unwrap().to_owned()
    }

    /// Asks for something that is no fault of a tool; returns the error's code.
    pub(crate) async fn error(&self, method: &str, params: Value) -> i64 {
        let answer = self.ask(method, params).await;
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{answer}"))
    }
}

/// The events of an answer.
pub(crate) struct Stream {
    body: Incoming,
    text: String,
}

impl Stream {
    pub(crate) fn new(response: Response<Incoming>) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new() }
    }

    /// Returns the next message; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let data: String = event.lines().filter_map(|line| line.strip_prefix("data:")).collect();
                self.text = rest.to_string();
                // an event without data is there for its id
                if !data.trim().is_empty() {
                    return Some(serde_json::from_str(&data).unwrap());
                }
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.text.push_str(std::str::from_utf8(&data).unwrap());
            }
        }
    }

    /// Returns the message that answers the request.
    pub(crate) async fn answer(mut self) -> Value {
        loop {
            let message = self.next().await.expect("an answer");
            if message.get("id").is_some() {
                return message;
            }
        }
    }
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}
