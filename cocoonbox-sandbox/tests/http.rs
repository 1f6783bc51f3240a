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

#[test]
fn a_command_runs_with_the_claims_environment_and_ends_with_its_caller() -> Outcome {
    run(|| async {
        let data = Data::new()?;
        let api = start(&data).await?;
        let env = json!({ "SEEN": { "value": "a $b" }, "KEY": { "value": "host-canary", "guest": false } });
        let body = json!({ "template": "host", "egress": false, "env": env }).to_string();
        let (status, claim) = api.call("POST", "/v1/claim", Some(ROOT), &body).await?;
        assert_eq!((status, claim["x_limits"].is_object()), (200, true), "{claim}");
        let (id, token) = (claim["id"].as_str().ok_or("id")?, claim["token"].as_str().ok_or("token")?);
        let path = |verb: &str| format!("/v1/sandboxes/{id}/{verb}");
        let exec = async |body: serde_json::Value| {
            api.call("POST", &path("exec"), Some(token), &body.to_string()).await
        };
        let sh = |script: &str| json!({ "argv": ["sh", "-c", script] });
        let (status, said) = exec(sh("echo \"$SEEN\"; echo err >&2; exit 5")).await?;
        assert_eq!((status, said), (200, json!({ "exit_code": 5, "stdout": "a $b\n", "stderr": "err\n" })));
        let over =
            json!({ "argv": ["sh", "-c", "echo $SEEN; pwd"], "cwd": "/tmp", "env": { "SEEN": "mine" } });
        assert_eq!(exec(over).await?.1["stdout"], json!("mine\n/tmp\n"));
        let (_, said) = exec(sh("env; cat /proc/*/environ /run/cocoonbox-identity/* 2>/dev/null; grep -rs canary /run /etc /tmp /home; echo done")).await?;
        let said = said["stdout"].as_str().ok_or("output")?.to_owned();
        assert!(said.contains("SEEN=a $b") && !said.contains("host-canary"), "{said}");
        for (body, status) in [
            (json!({ "argv": ["/no/such/program"] }), 400),
            (json!({ "argv": ["/etc/passwd"] }), 400),
            (json!({ "argv": ["true"], "cwd": "/no/such/place" }), 400),
            (json!({ "argv": ["true"], "env": { "A=B": "c" } }), 400),
            (json!({ "argv": ["sh", "-c", "head -c 9000000 /dev/zero"] }), 413),
            (json!({ "argv": ["sleep", "981"], "timeout_seconds": 1 }), 504),
        ] {
            let (got, said) = exec(body.clone()).await?;
            assert_eq!(got, status, "{body}: {said}");
        }
        let sleeps = async |which: &str| -> Result<String, Box<dyn Error>> {
            let found = exec(sh(&format!(
                "cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep [{}]{}' | wc -l",
                &which[..1],
                &which[1..]
            )))
            .await?;
            Ok(found.1["stdout"]
                .as_str()
                .unwrap_or_default()
                .trim()
                .lines()
                .last()
                .unwrap_or_default()
                .to_owned())
        };
        assert_eq!(sleeps("981").await?, "0", "a timeout leaves nothing running");
        let asked = json!({ "argv": ["sleep", "982"] }).to_string();
        let waiting = api.send("POST", &path("exec"), Some(token), "", &asked).await?;
        common::eventually("it runs", async || sleeps("982").await.is_ok_and(|count| count == "1")).await?;
        drop(waiting);
        common::eventually("it is killed", async || sleeps("982").await.is_ok_and(|count| count == "0"))
            .await?;
        // asleep, a command wakes it; what is for the host alone changes without
        assert_eq!(api.call("POST", &path("hibernate"), Some(token), "").await?.0, 204);
        let patch = |entry: serde_json::Value| json!({ "env": entry }).to_string();
        let host_only = patch(json!({ "KEY": { "value": "host-canary-2", "guest": false } }));
        assert_eq!(api.call("PATCH", &path("env"), Some(ROOT), &host_only).await?.0, 204);
        let seen = patch(json!({ "SEEN": { "value": "new" } }));
        assert_eq!(api.call("PATCH", &path("env"), Some(ROOT), &seen).await?.0, 409);
        assert_eq!(api.call("GET", "/v1/info", Some(ROOT), "").await?.1["hibernated"], 1);
        assert_eq!(exec(sh("echo $SEEN")).await?.1["stdout"], json!("a $b\n"));
        assert_eq!(api.call("PATCH", &path("env"), Some(ROOT), &seen).await?.0, 204);
        assert_eq!(exec(sh("echo $SEEN")).await?.1["stdout"], json!("new\n"));
        let (status, stats) = api.call("GET", &path("stats"), Some(ROOT), "").await?;
        assert_eq!((status, &stats["id"], &stats["cpu_count"]), (200, &json!(id), &json!(1)), "{stats}");
        assert!(stats["mem_used_measured"].is_boolean() && stats["measured_at"].is_string(), "{stats}");
        let metadata = json!({ "role": "test" }).to_string();
        assert_eq!(api.call("PUT", &path("instance-metadata"), Some(ROOT), &metadata).await?.0, 204);
        let (_, said) = exec(sh("cat /run/cocoonbox-identity/instance-metadata.json")).await?;
        assert_eq!(said["stdout"], json!(metadata));
        assert_eq!(api.call("POST", &path("release"), Some(ROOT), "").await?.0, 204);
        assert_eq!(api.call("POST", &path("exec"), Some(token), &asked).await?.0, 404);
        Ok(())
    })
}

#[test]
fn pools_fill_are_told_and_stand_empty_while_the_node_drains() -> Outcome {
    run(|| async {
        let data = Data::new()?;
        let api = start(&data).await?;
        let pool = json!({ "template": "host", "egress": false, "warm": 1 });
        let (status, info) =
            api.call("PUT", "/v1/pools", Some(ROOT), &json!({ "pools": [pool] }).to_string()).await?;
        assert_eq!((status, &info["pools"][0]["target"]), (200, &json!(1)), "{info}");
        assert_eq!(info["pools"][0]["key"], json!({ "template": "host", "net": "none", "size": "small" }));
        let warm = async || -> Option<u64> {
            let (_, info) = api.call("GET", "/v1/info", Some(ROOT), "").await.ok()?;
            Some(info["pools"].as_array()?.iter().filter_map(|pool| pool["warm"].as_u64()).sum())
        };
        common::eventually("the pool is full", async || warm().await == Some(1)).await?;
        let (_, list) = api.call("GET", "/v1/sandboxes", Some(ROOT), "").await?;
        assert_eq!(list["sandboxes"], json!([]), "a warm one is nobody's");
        assert_eq!(api.call("POST", "/v1/drain", Some(ROOT), "").await?.0, 200);
        common::eventually("the pool is empty", async || warm().await == Some(0)).await?;
        let body = json!({ "template": "host", "egress": false }).to_string();
        assert_eq!(api.call("POST", "/v1/claim", Some(ROOT), &body).await?.0, 429);
        assert_eq!(api.call("DELETE", "/v1/drain", Some(ROOT), "").await?.0, 200);
        common::eventually("the pool is full again", async || warm().await == Some(1)).await?;
        let twice = json!({ "pools": [pool, pool] }).to_string();
        assert_eq!(api.call("PUT", "/v1/pools", Some(ROOT), &twice).await?.0, 400);
        assert_eq!(api.call("PUT", "/v1/pools", Some(ROOT), "{\"pools\":[]}").await?.0, 200);
        common::eventually("nothing is left", async || processes_of(&data.path()).is_empty()).await?;
        Ok(())
    })
}
