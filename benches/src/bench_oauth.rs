//! Measures sign-in: what a token check costs, how many refreshes a second the token endpoint answers, and the control MCP.
//!
//! Reads one JSON object from standard input (see [`Plan`]) and prints one JSON line per figure.

mod measure;

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use cocoonbox_core::{SystemEntropy, Timestamp, random_secret};
use cocoonbox_oauth::testkit::account::{access, grant};
use cocoonbox_oauth::testkit::user;
use cocoonbox_oauth::{AgentIndex, AgentToken, LivingGrant, OauthKey};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use measure::{Better, alone, beside, median};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;

/// What to measure.
#[derive(Debug, Deserialize)]
struct Plan {
    /// Ours, on each database.
    servers: Vec<Server>,
    /// Another authorization server, with refresh tokens that it gave out.
    peer: Option<Peer>,
    /// How long each is asked for refreshes.
    seconds: u64,
    /// How many refresh at once.
    at_once: usize,
    /// How many sessions of the control MCP are open.
    sessions: usize,
}

#[derive(Debug, Deserialize)]
struct Server {
    name: String,
    address: String,
    /// The link of the first start.
    link: String,
    /// The server's process.
    process: i32,
}

#[derive(Debug, Deserialize)]
struct Peer {
    name: String,
    address: String,
    path: String,
    client: String,
    tokens: Vec<String>,
}

/// One kept connection.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, host: address.to_owned() })
    }

    async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<Response<hyper::body::Incoming>> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.sender.ready().await?;
        Ok(self.sender.send_request(request.body(Full::new(body.into()))?).await?)
    }

    async fn form(&mut self, path: &str, members: &[(&str, &str)]) -> Result<Value> {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(members).finish();
        let kind = [("content-type", "application/x-www-form-urlencoded")];
        read(self.send("POST", path, &kind, body).await?).await
    }
}

async fn read(answer: Response<hyper::body::Incoming>) -> Result<Value> {
    let status = answer.status();
    let bytes = answer.into_body().collect().await?.to_bytes();
    ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
    Ok(serde_json::from_slice(&bytes)?)
}

fn text(value: &Value, name: &str) -> Result<String> {
    value[name].as_str().map(str::to_owned).with_context(|| format!("{name} in {value}"))
}

/// An agent that was let in.
struct Agent {
    client: String,
    access: String,
    refresh: String,
}

/// Signs the administrator in and lets `count` agents in.
async fn let_in(server: &Server, count: usize) -> Result<Vec<Agent>> {
    let origin = format!("http://{}", server.address);
    let mut page = Connection::open(&server.address).await?;
    let json_kind = ("content-type", "application/json");
    let link = server.link.rsplit('=').next().unwrap_or_default();
    let body = json!({ "link": link, "password": "a password of the bench" }).to_string();
    let answer = page.send("POST", "/cb/api/login/link", &[json_kind, ("origin", &origin)], body).await?;
    let cookie = answer.headers().get("set-cookie").context("no cookie")?.to_str()?.to_owned();
    let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
    answer.into_body().collect().await?;
    let redirect = "http://127.0.0.1:1/cb";
    let metadata = json!({ "redirect_uris": [redirect] }).to_string();
    let client = read(page.send("POST", "/cocoonbox.oauth/register", &[json_kind], metadata).await?).await?;
    let client = text(&client, "client_id")?;
    let mut agents = Vec::new();
    for _ in 0..count {
        let verifier = random_secret(&SystemEntropy, "")?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let query = format!(
            "response_type=code&client_id={client}&redirect_uri={redirect}&code_challenge={challenge}&code_challenge_method=S256"
        );
        let headers = [json_kind, ("origin", &origin), ("cookie", &cookie)];
        let body = json!({ "query": query }).to_string();
        let there = read(page.send("POST", "/cb/api/oauth/approve", &headers, body).await?).await?;
        let there = text(&there, "redirect")?;
        let code = form_urlencoded::parse(there.split_once('?').context("a query")?.1.as_bytes())
            .find_map(|(name, value)| (name == "code").then(|| value.into_owned()))
            .context("a code")?;
        let members = [
            ("grant_type", "authorization_code"),
            ("client_id", &client),
            ("code", &code),
            ("redirect_uri", redirect),
            ("code_verifier", &verifier),
        ];
        let tokens = page.form("/cocoonbox.oauth/token", &members).await?;
        agents.push(Agent {
            client: client.clone(),
            access: text(&tokens, "access_token")?,
            refresh: text(&tokens, "refresh_token")?,
        });
    }
    Ok(agents)
}

/// Returns how many refreshes a second are answered when each of `tokens` is refreshed again and again over a connection of
/// its own.
async fn refreshes(
    address: &str,
    path: &str,
    client: &str,
    tokens: Vec<String>,
    seconds: u64,
) -> Result<f64> {
    let mut runs = tokio::task::JoinSet::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    let begun = Instant::now();
    for mut token in tokens {
        let (address, path, client) = (address.to_owned(), path.to_owned(), client.to_owned());
        runs.spawn(async move {
            let mut connection = Connection::open(&address).await?;
            let mut count = 0_u64;
            while Instant::now() < end {
                let members =
                    [("grant_type", "refresh_token"), ("client_id", &client), ("refresh_token", &token)];
                let next = text(&connection.form(&path, &members).await?, "refresh_token")?;
                ensure!(next != token, "the token did not rotate");
                token = next;
                count += 1;
            }
            Ok(count)
        });
    }
    let counts: Vec<u64> = runs.join_all().await.into_iter().collect::<Result<_>>()?;
    Ok(counts.iter().sum::<u64>() as f64 / begun.elapsed().as_secs_f64())
}

/// A session of the control MCP on a connection of its own.
struct Session {
    connection: Connection,
    token: String,
    id: String,
}

impl Session {
    async fn open(address: &str, token: &str) -> Result<Self> {
        let mut session =
            Self { connection: Connection::open(address).await?, token: token.to_owned(), id: String::new() };
        let hello = json!({
            "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": { "name": "bench", "version": "1" } } });
        let answer = session.post(&hello).await?;
        session.id = answer.headers().get("mcp-session-id").context("no session")?.to_str()?.to_owned();
        answer.into_body().collect().await?;
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        session.post(&ready).await?.into_body().collect().await?;
        Ok(session)
    }

    async fn post(&mut self, message: &Value) -> Result<Response<hyper::body::Incoming>> {
        let bearer = format!("Bearer {}", self.token);
        let mut headers = vec![
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("authorization", bearer.as_str()),
            ("mcp-protocol-version", "2025-11-25"),
        ];
        if !self.id.is_empty() {
            headers.push(("mcp-session-id", self.id.as_str()));
        }
        self.connection.send("POST", "/cocoonbox.mcp/control", &headers, message.to_string()).await
    }

    async fn list(&mut self, id: u32) -> Result<()> {
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "box_list", "arguments": {} } });
        let bytes = self.post(&call).await?.into_body().collect().await?.to_bytes();
        ensure!(bytes.windows(7).any(|part| part == b"\"boxes\""), "{}", String::from_utf8_lossy(&bytes));
        Ok(())
    }
}

/// Returns what a process has alone and its share of the rest, in MiB.
fn proportional(process: i32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// Nanoseconds of one check among 100,000 tokens, the median of rounds over all of them in an order that no cache knows.
fn check() -> Result<f64> {
    const COUNT: usize = 100_000;
    let at = cocoonbox_oauth::testkit::AT;
    let key = OauthKey::new("a key of tests".to_owned());
    let somebody = user("somebody");
    let mut tokens: Vec<AgentToken> = Vec::with_capacity(COUNT);
    let living = (0..COUNT).map(|_| {
        let grant = grant(&somebody.id);
        tokens.push(key.access(&grant.id, 1));
        LivingGrant { user: somebody.clone(), access: vec![access(&grant.id, 1)], grant }
    });
    let index = AgentIndex::of(living.collect(), at);
    ensure!(index.len() == COUNT, "{} tokens are known", index.len());
    let now = Timestamp::from_micros(at.micros() + 1);
    let mut rounds = Vec::new();
    for round in 0..11 {
        let begun = Instant::now();
        for step in 0..COUNT {
            // a stride that visits all and stays nowhere
            let token = &tokens[(step * 7919 + round) % COUNT];
            black_box(index.check(token, now)).map_err(|_| anyhow::anyhow!("a token is refused"))?;
        }
        rounds.push(begun.elapsed().as_nanos() as f64 / COUNT as f64);
    }
    Ok(median(rounds))
}

#[tokio::main]
async fn main() -> Result<()> {
    let plan: Plan = serde_json::from_reader(std::io::stdin()).context("the plan on standard input")?;
    alone("token-check", check()? / 1000.0, "µs")?;
    let peer = match &plan.peer {
        Some(peer) => {
            let tokens = peer.tokens.iter().take(plan.at_once).cloned().collect();
            Some((peer, refreshes(&peer.address, &peer.path, &peer.client, tokens, plan.seconds).await?))
        }
        None => None,
    };
    let mut first = None;
    for server in &plan.servers {
        // one more, whose access token stays as it is
        let mut agents = let_in(server, plan.at_once + 1).await?;
        let Some(one) = agents.pop() else { bail!("nobody was let in") };
        let (client, access) = (one.client.clone(), one.access.clone());
        if first.is_none() {
            first = Some((server, access));
        }
        let tokens = agents.into_iter().map(|agent| agent.refresh).collect();
        let ours =
            refreshes(&server.address, "/cocoonbox.oauth/token", &client, tokens, plan.seconds).await?;
        let figure = format!("token-refresh-{}", server.name);
        match &peer {
            Some((peer, theirs)) => beside(&figure, ours, &peer.name, *theirs, "1/s", Better::More)?,
            None => alone(&figure, ours, "1/s")?,
        }
    }
    let Some((server, access)) = first else { return Ok(()) };
    let mut session = Session::open(&server.address, &access).await?;
    let mut times = Vec::new();
    for round in 0..420 {
        let begun = Instant::now();
        session.list(round + 2).await?;
        if round >= 20 {
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
        }
    }
    alone("mcp-box-list", median(times), "ms")?;
    let mut open = vec![session];
    while open.len() < plan.sessions {
        open.push(Session::open(&server.address, &access).await?);
    }
    for session in &mut open {
        session.list(9000).await?;
    }
    alone("mcp-500-mib", proportional(server.process)?, "MiB")?;
    Ok(())
}
