//! Shows how a program gets an authorization server of its own, in memory, and lets agents in by its tokens. It skips what
//! a server does besides: pages for people, a store that lasts, the loops of `cocoonbox_oauth::serve`.
//!
//! ```text
//! cargo run -p example-embed-authorization-server
//! ```

#![expect(clippy::print_stdout, reason = "it tells where it is")]

use std::error::Error;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::get;
use cocoonbox_core::{Clock, SystemClock, SystemEntropy, random_secret};
use cocoonbox_oauth::http::{AuthorityOptions, router};
use cocoonbox_oauth::{AgentIndex, AgentToken, MemoryUserStore, OauthKey, TokenIndex, ensure_admin};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let issuer = format!("http://{}", listener.local_addr()?);

    let store = Arc::new(MemoryUserStore::default());
    let first = ensure_admin(&*store, clock.now(), &*entropy).await?.ok_or("a store without users")?;
    let tokens = Arc::new(TokenIndex::load(&*store).await?);
    let agents = Arc::new(AgentIndex::load(&*store, clock.now()).await?);
    let key = Arc::new(OauthKey::new(random_secret(&*entropy, "")?));
    let options = AuthorityOptions::new(issuer.parse()?, store, tokens, agents.clone(), key, clock, entropy);

    let hello = get(async move |headers: HeaderMap| {
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = shown.and_then(|value| AgentToken::parse(value.strip_prefix("Bearer ")?).ok());
        match token.and_then(|token| agents.check(&token, SystemClock.now()).ok()) {
            Some(agent) => Ok(format!("hello, {} of {}\n", agent.grant().client_name, agent.user().name)),
            None => Err(StatusCode::UNAUTHORIZED),
        }
    });
    println!("{issuer}\n{issuer}/cb/#link={}", first.link.reveal());
    let served = router(options, Router::new()).route("/cocoonbox.mcp/hello", hello);
    Ok(axum::serve(listener, served).await?)
}
