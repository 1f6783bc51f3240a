//! The node's HTTP API over real boxes.

#![cfg(feature = "http")]

#[path = "common/api.rs"]
mod api;
mod common;

use std::error::Error;
use std::sync::Arc;

use api::{Api, ROOT};
use cocoonbox_sandbox::http::router;
use cocoonbox_sandbox::node::{Node, NodeOptions, NodeToken, SandboxKey};
use common::{Data, Outcome, processes_of, run};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

fn options(data: &Data, address: &str) -> NodeOptions {
    NodeOptions::new(data.path().join("node"), SandboxKey::new("k".repeat(64)), address)
}

async fn start(data: &Data) -> Result<Api, Box<dyn Error>> {
    let backend = data.open().await?;
    let listener = Api::listen().await?;
    let address = listener.local_addr()?.to_string();
    let options = options(data, &address).with_token(NodeToken::new(ROOT.to_owned()));
    Ok(Api::serve_on(listener, router(Node::open(options, Arc::new(backend)).await?)))
}

#[test]
fn a_sandbox_lives_over_http() -> Outcome {
    run(|| async {
        let data = Data::new()?;
        let api = start(&data).await?;
        assert_eq!(api.call("GET", "/healthz", None, "").await?, (200, json!("ok")));
        let body = json!({ "template": "host", "egress": false, "claim_ref": "cb-abcdefghij", "metadata": { "a": "b" }, "unknown": 1 });
        let (status, claim) = api.call("POST", "/v1/claim", Some(ROOT), &body.to_string()).await?;
        assert_eq!((status, &claim["net_route"]), (200, &json!("none")), "{claim}");
        let (id, token) = (claim["id"].as_str().ok_or("an id")?, claim["token"].as_str().ok_or("a token")?);

        let (status, row) = api.call("GET", &format!("/v1/sandboxes/{id}"), Some(ROOT), "").await?;
        assert_eq!((status, &row["token"], &row["hibernated"]), (200, &json!(token), &json!(false)));
        assert_eq!(row["key"], json!({ "template": "host", "net": "none", "size": "small" }));
        for (query, count) in [
            ("", 1),
            ("?claim_ref=cb-abcdefghij", 1),
            ("?claim_ref=other", 0),
            ("?metadata=a%3Db", 1),
            ("?metadata=a%3Dc", 0),
        ] {
            let (status, list) = api.call("GET", &format!("/v1/sandboxes{query}"), Some(ROOT), "").await?;
            assert_eq!((status, list["sandboxes"].as_array().map(Vec::len)), (200, Some(count)), "{query}");
            assert!(!list.to_string().contains(token), "a listing holds no token");
        }

        let path = |verb: &str| format!("/v1/sandboxes/{id}/{verb}");
        assert_eq!(api.call("POST", &path("hibernate"), Some(token), "").await?.0, 204);
        assert_eq!(api.call("GET", "/v1/info", Some(ROOT), "").await?.1["hibernated"], 1);
        assert_eq!(api.upgrade(&path("ports/80"), Some(ROOT), "tcp").await?.0, 409);
        assert_eq!(api.call("GET", &path("agent"), Some(token), "").await?.0, 426);
        assert_eq!(api.call("GET", "/v1/info", Some(ROOT), "").await?.1["hibernated"], 1);

        // a relay wakes, and bytes go both ways
        let (status, mut guest) = api.upgrade(&path("agent"), Some(token), "silkd").await?;
        assert_eq!(status, 101);
        guest.write_all(b"{\"v\":1,\"op\":\"info\"}\n").await?;
        guest.shutdown().await?;
        let mut answer = String::new();
        guest.read_to_string(&mut answer).await?;
        assert!(answer.contains("\"type\":\"info\""), "{answer}");

        assert_eq!(api.upgrade(&path("ports/49151"), Some(token), "tcp").await?.0, 502);
        for port in ["0", "65536", "http", "+22"] {
            assert_eq!(
                api.upgrade(&path(&format!("ports/{port}")), Some(token), "tcp").await?.0,
                400,
                "{port}"
            );
        }
        assert_eq!(api.call("POST", &path("wake"), Some(token), "").await?.0, 204);
        assert_eq!(api.call("POST", &path("release"), Some(token), "").await?.0, 204);
        assert_eq!(api.call("POST", &path("release"), Some(token), "").await?.0, 404);
        assert_eq!(processes_of(&data.path()), Vec::<i32>::new());
        api.stop.cancel();
        api.served.await??;
        Ok(())
    })
}

#[test]
fn strangers_and_bad_bodies_are_refused() -> Outcome {
    run(|| async {
        let data = Data::new()?;
        let api = start(&data).await?;
        for (method, path) in [
            ("POST", "/v1/claim"),
            ("GET", "/v1/sandboxes"),
            ("GET", "/v1/info"),
            ("GET", "/v1/sandboxes/sb_x"),
            ("GET", "/v1/pools"),
            ("GET", "/v1/x/nothing"),
        ] {
            for token in [None, Some("wrong"), Some("")] {
                let (status, body) = api.call(method, path, token, "").await?;
                assert_eq!(status, 401, "{path} {token:?}");
                assert!(body["error"].is_string());
            }
        }
        let (_, claim) =
            api.call("POST", "/v1/claim", Some(ROOT), &json!({ "template": "host" }).to_string()).await?;
        let id = claim["id"].as_str().ok_or("an id")?;
        let token = claim["token"].as_str().ok_or("a token")?;
        for verb in ["release", "hibernate", "wake"] {
            let path = format!("/v1/sandboxes/{id}/{verb}");
            assert_eq!(api.call("POST", &path, None, "").await?.0, 401);
            assert_eq!(api.call("POST", &path, Some("sbt_of_another"), "").await?.0, 404);
            let path = format!("/v1/sandboxes/sb_other/{verb}");
            assert_eq!(api.call("POST", &path, Some(token), "").await?.0, 404);
        }
        assert_eq!(api.upgrade(&format!("/v1/sandboxes/{id}/agent"), Some("wrong"), "silkd").await?.0, 404);
        assert_eq!(api.upgrade(&format!("/v1/sandboxes/{id}/agent"), None, "silkd").await?.0, 401);

        let large = format!("{{\"template\":\"{}\"}}", "x".repeat(1024 * 1024));
        for (body, expected) in [
            ("", 400),
            ("{", 400),
            ("[]", 400),
            ("{\"template\":\"../x\"}", 400),
            ("{\"template\":\"host\",\"size\":\"huge\"}", 400),
            ("{\"template\":\"host\",\"x_hostname\":\"Upper\"}", 400),
            ("{\"template\":\"debian:13\"}", 404),
            ("{\"template\":\"host\",\"net\":\"egress\"}", 409),
            ("{\"template\":\"host\",\"volumes\":[{}]}", 400),
            (&large, 400),
        ] {
            let (status, said) = api.call("POST", "/v1/claim", Some(ROOT), body).await?;
            assert_eq!(status, expected, "{body:.60} {said}");
            assert!(said["error"].is_string(), "{said}");
        }
        assert_eq!(api.call("GET", "/v1/x/nothing", Some(ROOT), "").await?.0, 501);
        assert_eq!(api.call("GET", "/v1/pools", Some(ROOT), "").await?.0, 405);
        assert_eq!(api.call("GET", "/nowhere", Some(ROOT), "").await?.0, 404);
        assert_eq!(api.call("POST", &format!("/v1/sandboxes/{id}/release"), Some(ROOT), "").await?.0, 204);
        Ok(())
    })
}

#[test]
fn a_full_node_says_429() -> Outcome {
    run(|| async {
        let data = Data::new()?;
        let backend = common::open(data.config().with_max_claims(1)).await?;
        let node = Node::open(options(&data, "node"), Arc::new(backend)).await?;
        let api = Api::serve(router(node)).await?;
        let body = json!({ "template": "host" }).to_string();
        assert_eq!(api.call("POST", "/v1/claim", None, &body).await?.0, 200);
        let (status, said) = api.call("POST", "/v1/claim", None, &body).await?;
        assert_eq!((status, &said["error"]), (429, &json!("the node is full (1 claims at most)")));
        Ok(())
    })
}

#[test]
fn a_claim_without_a_token_is_refused_before_its_body_comes() -> Outcome {
    run(|| async {
        let data = Data::new()?;
        let api = start(&data).await?;
        for token in ["", "authorization: Bearer wrong\r\n"] {
            let mut stream = TcpStream::connect(api.address).await?;
            let head =
                format!("POST /v1/claim HTTP/1.1\r\nhost: node\r\n{token}content-length: 1000\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            let mut answer = [0; 12];
            tokio::time::timeout(std::time::Duration::from_secs(5), stream.read_exact(&mut answer)).await??;
            assert_eq!(&answer, b"HTTP/1.1 401");
        }
        Ok(())
    })
}

#[test]
fn relays_are_cut_when_the_node_stops() -> Outcome {
    run(|| async {
        let data = Data::new()?;
        let api = start(&data).await?;
        let body = json!({ "template": "host" }).to_string();
        let (status, claim) = api.call("POST", "/v1/claim", Some(ROOT), &body).await?;
        assert_eq!(status, 200, "{claim}");
        let (id, token) = (claim["id"].as_str().ok_or("id")?, claim["token"].as_str().ok_or("token")?);
        let path = format!("/v1/sandboxes/{id}/agent");
        let (status, mut relay) = api.upgrade(&path, Some(token), "silkd").await?;
        assert_eq!(status, 101);
        relay.write_all(b"{\"v\":1,\"op\":\"info\"}\n").await?;
        assert_eq!(relay.read_u8().await?, b'{');
        api.stop.cancel();
        let within = std::time::Duration::from_secs(5);
        tokio::time::timeout(within, api.served).await???;
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(within, relay.read_to_end(&mut rest)).await?;
        Ok(())
    })
}
