//! The node over the backend in memory: leases, tenants, keys, refusals, and what a kill at any step leaves.

#![cfg(feature = "http")]

mod answer;
#[path = "../common/api.rs"]
mod api;

use std::error::Error;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use api::{Api, ROOT};
use base64::Engine as _;
use cocoonbox_core::backend::{
    BoxedDuplex, ClaimFilter, Fault, FaultyBackend, MemoryBackend, MemoryOptions, Method, SandboxBackend,
    guest_fn,
};
use cocoonbox_core::{ManualClock, SystemEntropy, Timestamp};
use cocoonbox_sandbox::http::{Rate, router, router_with_rate};
use cocoonbox_sandbox::node::{Idle, ManualBootClock, Node, NodeOptions, NodeToken, SandboxKey};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

type Outcome = Result<(), Box<dyn Error>>;

/// A node's surroundings: what stays when it is killed.
struct Place {
    directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
    boot: Arc<ManualBootClock>,
    memory: MemoryBackend,
}

impl Place {
    fn new() -> Result<Self, Box<dyn Error>> {
        Self::with(MemoryOptions::default())
    }

    fn with(options: MemoryOptions) -> Result<Self, Box<dyn Error>> {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_700_000_000_000)));
        let memory = MemoryBackend::new(clock.clone(), Arc::new(SystemEntropy)).with_options(options);
        Ok(Self {
            directory: tempfile::tempdir()?,
            clock,
            boot: Arc::new(ManualBootClock::default()),
            memory,
        })
    }

    fn options(&self) -> NodeOptions {
        NodeOptions::new(self.directory.path().join("node"), SandboxKey::new("k".repeat(64)), "node:1")
            .with_token(NodeToken::new(ROOT.to_owned()))
            .with_clock(self.clock.clone())
            .with_boot_clock(self.boot.clone())
    }

    async fn open(&mut self) -> Result<Node, Box<dyn Error>> {
        self.memory = self.memory.reopen();
        let backend = self.memory.reopen();
        Ok(Node::open(self.options(), Arc::new(backend)).await?)
    }

    fn pass(&self, seconds: u64) {
        self.boot.advance(Duration::from_secs(seconds));
        self.clock.advance(Duration::from_secs(seconds));
    }
}

async fn serve(node: &Node) -> std::io::Result<Api> {
    Api::serve(router(node.clone())).await
}

async fn claim(api: &Api, body: Value) -> Result<(String, String, Value), Box<dyn Error>> {
    let (status, claim) = api.call("POST", "/v1/claim", Some(ROOT), &body.to_string()).await?;
    if status != 200 {
        return Err(format!("{status} {claim}").into());
    }
    let text = |name: &str| claim[name].as_str().map(str::to_owned).ok_or("a text");
    Ok((text("id")?, text("token")?, claim.clone()))
}

async fn listed(api: &Api) -> Result<Vec<Value>, Box<dyn Error>> {
    let (_, list) = api.call("GET", "/v1/sandboxes", Some(ROOT), "").await?;
    Ok(list["sandboxes"].as_array().cloned().unwrap_or_default())
}

fn at(text: &Value) -> Result<i64, Box<dyn Error>> {
    let text = text.as_str().ok_or("a time")?;
    let time = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339)?;
    Ok(time.unix_timestamp() - 1_700_000_000)
}

#[tokio::test]
async fn a_lease_is_granted_clamped_renewed_and_over() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    for (asked, granted) in [(json!(null), 300), (json!(0), 300), (json!(60), 60), (json!(1_000_000), 86_400)]
    {
        let (_, _, claim) = claim(&api, json!({ "template": "host", "ttl_seconds": asked })).await?;
        assert_eq!(at(&claim["deadline"])?, granted, "{asked}");
    }
    let rows = listed(&api).await?;
    let id = rows[2]["id"].as_str().ok_or("an id")?.to_owned();
    place.pass(59);
    node.tick().await;
    assert_eq!(listed(&api).await?.len(), 4);
    // root by id, with and without a body
    let renew = format!("/v1/sandboxes/{id}/renew");
    for (body, granted) in
        [("", 359), ("{}", 359), ("{\"ttl_seconds\":10}", 69), ("{\"ttl_seconds\":86401}", 86_459)]
    {
        let (status, said) = api.call("POST", &renew, Some(ROOT), body).await?;
        assert_eq!((status, at(&said["deadline"])?), (200, granted), "{body}");
    }
    for (body, status) in [("{\"ttl_seconds\":-1}", 400), ("[", 400), ("{\"on_expire\":\"keep\"}", 400)] {
        assert_eq!(api.call("POST", &renew, Some(ROOT), body).await?.0, status, "{body}");
    }
    place.pass(301);
    node.tick().await;
    let left = listed(&api).await?;
    assert_eq!(left.len(), 2, "the two that were granted a day: {left:?}");
    assert_eq!(left[0]["id"], json!(id));
    assert_eq!(place.memory.store().live(), 2);
    Ok(())
}

#[tokio::test]
async fn clock_jumps_and_time_that_the_node_was_down_end_no_lease() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    let (id, ..) = claim(&api, json!({ "template": "host", "ttl_seconds": 100 })).await?;
    let path = format!("/v1/sandboxes/{id}");
    let day = Duration::from_hours(24);
    for jump in [Timestamp::from_millis(1_700_086_400_000), Timestamp::from_millis(1_699_913_600_000)] {
        place.clock.set(jump);
        node.tick().await;
        let (status, row) = api.call("GET", &path, Some(ROOT), "").await?;
        assert_eq!(status, 200, "{row}");
        assert_eq!(at(&row["deadline"])?, jump.millis() / 1000 - 1_700_000_000 + 100);
    }
    place.boot.advance(Duration::from_secs(40));
    node.tick().await;
    api.stop.cancel();
    drop(node);
    // a weekend without a node, which the machine slept through or not
    place.boot.advance(day * 2);
    let node = place.open().await?;
    let api = serve(&node).await?;
    node.tick().await;
    assert_eq!(api.call("GET", &path, Some(ROOT), "").await?.0, 200);
    place.boot.advance(Duration::from_secs(59));
    node.tick().await;
    assert_eq!(api.call("GET", &path, Some(ROOT), "").await?.0, 200);
    place.boot.advance(Duration::from_secs(1));
    node.tick().await;
    assert_eq!(api.call("GET", &path, Some(ROOT), "").await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn an_archived_claim_is_kept_and_a_wake_grants_its_lease_again() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    let (id, token, _) =
        claim(&api, json!({ "template": "host", "ttl_seconds": 60, "on_expire": "archive" })).await?;
    let path = |verb: &str| format!("/v1/sandboxes/{id}/{verb}");
    place.pass(60);
    node.tick().await;
    let row = &listed(&api).await?[0];
    assert_eq!(
        (&row["archived"], &row["hibernated"], &row["x_memory"]),
        (&json!(true), &json!(true), &json!("lost"))
    );
    assert_eq!((&row["deadline"], &row["on_expire"]), (&Value::Null, &json!("archive")));
    let (_, info) = api.call("GET", "/v1/info", Some(ROOT), "").await?;
    assert_eq!((&info["claimed"], &info["archived"]), (&json!(1), &json!(1)));
    // for ever
    place.pass(1_000_000);
    node.tick().await;
    let (status, said) = api.call("POST", &path("renew"), Some(&token), "").await?;
    assert_eq!((status, &said["code"]), (409, &json!("conflict")));
    assert_eq!(api.upgrade(&path("ports/7"), Some(ROOT), "tcp").await?.0, 409);
    // over a restart, too
    api.stop.cancel();
    drop(node);
    let node = place.open().await?;
    let api = serve(&node).await?;
    assert_eq!(listed(&api).await?[0]["archived"], json!(true));
    // a relay wakes it, as it does one that only sleeps
    assert_eq!(api.upgrade(&path("ports/7"), Some(&token), "tcp").await?.0, 101);
    let row = &listed(&api).await?[0];
    assert_eq!((&row["archived"], &row["hibernated"]), (&Value::Null, &json!(false)));
    assert_eq!(at(&row["deadline"])?, 1_000_120);
    Ok(())
}

#[tokio::test]
async fn a_failed_archive_is_tried_again_and_never_a_release() -> Outcome {
    let place = Place::new()?;
    let faulty = Arc::new(FaultyBackend::new(place.memory.reopen()));
    let node = Node::open(place.options(), Arc::new(Arc::clone(&faulty))).await?;
    let api = serve(&node).await?;
    claim(&api, json!({ "template": "host", "ttl_seconds": 1, "on_expire": "archive" })).await?;
    faulty.fail_next(Method::Hibernate, Fault::Before);
    place.pass(2);
    node.tick().await;
    assert_eq!(listed(&api).await?[0]["archived"], Value::Null);
    node.tick().await;
    assert_eq!(listed(&api).await?[0]["archived"], json!(true));
    assert_eq!(faulty.calls(Method::Release), 0);
    Ok(())
}

/// Tells a node when what is like `host` without doors is idle.
async fn put_idle(api: &Api, hibernate: i64, archive: i64, delete: i64) -> Result<u16, Box<dyn Error>> {
    let pool = json!({ "template": "host", "egress": false, "warm": 0, "idle_hibernate_seconds": hibernate,
        "archive_after_seconds": archive, "archive_delete_after_seconds": delete });
    Ok(api.call("PUT", "/v1/pools", Some(ROOT), &json!({ "pools": [pool] }).to_string()).await?.0)
}

#[tokio::test]
async fn what_nobody_uses_sleeps_is_put_away_and_removed_as_its_pool_says() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    for bad in [(-1, 0, 0), (0, -5, 0), (0, 0, 1 << 40)] {
        assert_eq!(put_idle(&api, bad.0, bad.1, bad.2).await?, 400, "{bad:?}");
    }
    assert_eq!(put_idle(&api, 60, 300, 1000).await?, 200);
    let day = json!({ "template": "host", "egress": false, "ttl_seconds": 86_400 });
    let (idle, ..) = claim(&api, day.clone()).await?;
    let (busy, busy_token, _) = claim(&api, day.clone()).await?;
    let other = json!({ "template": "host", "egress": false, "size": "large", "ttl_seconds": 86_400 });
    let (other, ..) = claim(&api, other).await?;
    // the control: one that somebody is connected to, all the time
    let path = format!("/v1/sandboxes/{busy}/agent");
    let (status, mut relay) = api.upgrade(&path, Some(&busy_token), "silkd").await?;
    assert_eq!(status, 101);
    let state = async |api: &Api, id: &str| -> Result<&'static str, Box<dyn Error>> {
        let row = listed(api).await?.into_iter().find(|row| row["id"] == id);
        Ok(match row {
            None => "gone",
            Some(row) if row["archived"] == true => "archived",
            Some(row) if row["hibernated"] == true => "hibernated",
            Some(_) => "claimed",
        })
    };
    node.tick().await;
    place.pass(59);
    node.tick().await;
    assert_eq!(state(&api, &idle).await?, "claimed");
    place.pass(1);
    node.tick().await;
    let states = [state(&api, &idle).await?, state(&api, &busy).await?, state(&api, &other).await?];
    assert_eq!(states, ["hibernated", "claimed", "claimed"]);
    // a new use begins anew
    relay.shutdown().await?;
    drop(relay);
    tokio::time::sleep(Duration::from_millis(300)).await;
    node.tick().await;
    place.pass(59);
    node.tick().await;
    assert_eq!(state(&api, &busy).await?, "claimed");
    place.pass(2);
    node.tick().await;
    assert_eq!(state(&api, &busy).await?, "hibernated");

    // the node is killed and started again: it was told once
    drop(api);
    let node = place.open().await?;
    let api = serve(&node).await?;
    node.tick().await;
    place.pass(301);
    node.tick().await;
    let states = [state(&api, &idle).await?, state(&api, &busy).await?, state(&api, &other).await?];
    assert_eq!(states, ["archived", "archived", "claimed"]);
    assert_eq!(api.call("POST", &format!("/v1/sandboxes/{busy}/wake"), Some(ROOT), "").await?.0, 204);
    place.pass(1001);
    node.tick().await;
    let states = [state(&api, &idle).await?, state(&api, &busy).await?, state(&api, &other).await?];
    assert_eq!(states, ["gone", "claimed", "claimed"], "one that was waked is not removed, and counts anew");
    place.pass(61);
    node.tick().await;
    assert_eq!(state(&api, &busy).await?, "hibernated");
    assert_eq!((place.memory.store().live(), place.memory.store().held()), (1, 1));
    Ok(())
}

#[tokio::test]
async fn a_node_has_times_for_what_no_pool_speaks_of() -> Outcome {
    let place = Place::new()?;
    let own = Idle { hibernate_seconds: 600, archive_seconds: 60, delete_seconds: 0 };
    let node = Node::open(place.options().with_idle(own), Arc::new(place.memory.reopen())).await?;
    let api = serve(&node).await?;
    // this pool speaks of one time alone
    assert_eq!(put_idle(&api, 60, 0, 0).await?, 200);
    let (pooled, ..) =
        claim(&api, json!({ "template": "host", "egress": false, "ttl_seconds": 86_400 })).await?;
    let other = json!({ "template": "host", "egress": false, "size": "large", "ttl_seconds": 86_400 });
    let (other, ..) = claim(&api, other).await?;
    let sleeps = async |id: &str| -> Result<(bool, bool), Box<dyn Error>> {
        let row = listed(&api).await?.into_iter().find(|row| row["id"] == id).unwrap_or_default();
        Ok((row["hibernated"] == true, row["archived"] == true))
    };
    node.tick().await;
    place.pass(61);
    node.tick().await;
    assert_eq!((sleeps(&pooled).await?, sleeps(&other).await?), ((true, false), (false, false)));
    place.pass(61);
    node.tick().await;
    assert!(sleeps(&pooled).await?.1, "it is put away as the node says");
    place.pass(500);
    node.tick().await;
    assert_eq!(sleeps(&other).await?, (true, false));
    Ok(())
}

#[tokio::test]
async fn an_idempotency_key_claims_once() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    let body = json!({ "template": "host" }).to_string();
    let key = "idempotency-key: one\r\n";
    let asked = (0..8).map(|_| api.ask("POST", "/v1/claim", Some(ROOT), key, &body));
    let answers = futures::future::join_all(asked).await;
    let mut ids = std::collections::BTreeSet::new();
    for answer in answers {
        let answer = answer?;
        assert_eq!(answer.status, 200, "{answer:?}");
        ids.insert(answer.body["id"].to_string());
    }
    assert_eq!((ids.len(), place.memory.store().live()), (1, 1));
    let other = json!({ "template": "host", "size": "large" }).to_string();
    let answer = api.ask("POST", "/v1/claim", Some(ROOT), key, &other).await?;
    assert_eq!((answer.status, &answer.body["code"]), (422, &json!("key_reused")));
    for bad in
        ["idempotency-key: \r\n", "idempotency-key: a b\r\n", "idempotency-key: a\r\nidempotency-key: b\r\n"]
    {
        assert_eq!(api.ask("POST", "/v1/claim", Some(ROOT), bad, &body).await?.status, 400, "{bad}");
    }
    // a restart knows it, and what it claimed is gone when it is
    api.stop.cancel();
    drop(node);
    let node = place.open().await?;
    let api = serve(&node).await?;
    let again = api.ask("POST", "/v1/claim", Some(ROOT), key, &body).await?;
    assert_eq!(ids.first(), Some(&again.body["id"].to_string()));
    place.pass(301);
    node.tick().await;
    assert_eq!(place.memory.store().live(), 0);
    place.pass(80_000);
    node.tick().await;
    let gone = api.ask("POST", "/v1/claim", Some(ROOT), key, &body).await?;
    assert_eq!((gone.status, &gone.body["code"]), (410, &json!("gone")));
    api.stop.cancel();
    drop(node);
    let node = place.open().await?;
    let api = serve(&node).await?;
    assert_eq!(api.ask("POST", "/v1/claim", Some(ROOT), key, &body).await?.status, 410);
    // a day later it is another request's
    place.pass(86_400);
    node.tick().await;
    assert_eq!(api.ask("POST", "/v1/claim", Some(ROOT), key, &body).await?.status, 200);
    // a claim that fails leaves the key free
    let unknown = json!({ "template": "debian:13" }).to_string();
    let key = "idempotency-key: two\r\n";
    assert_eq!(api.ask("POST", "/v1/claim", Some(ROOT), key, &unknown).await?.status, 404);
    assert_eq!(api.ask("POST", "/v1/claim", Some(ROOT), key, &body).await?.status, 200);
    Ok(())
}

const TENANT: &str = "token-of-tenant-one";

#[tokio::test]
async fn tenants_see_and_hold_what_is_theirs() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    let put = |name: &str, body: Value| {
        let path = format!("/v1/tenants/{name}");
        let api = &api;
        async move { api.call("PUT", &path, Some(ROOT), &body.to_string()).await }
    };
    assert_eq!(put("us/one", json!({ "token": TENANT, "max_claims": 2 })).await?.0, 204);
    for (name, body, status) in [
        ("-x", json!({ "max_claims": 1 }), 400),
        ("two", json!({ "token": TENANT, "max_claims": 1 }), 400),
        ("two", json!({ "token": ROOT, "max_claims": 1 }), 400),
        ("two", json!({ "token": "short", "max_claims": 1 }), 400),
        ("two", json!({ "token": "with a space in it", "max_claims": 1 }), 400),
        ("two", json!({ "max_claims": -1 }), 400),
        ("two", json!({ "max_claims": 1, "max_claim": 2 }), 400),
        ("two", json!({ "max_claims": 1, "egress_class": "wide" }), 400),
        ("two", json!({ "max_claims": 0 }), 204),
    ] {
        let (got, said) = put(name, body.clone()).await?;
        assert_eq!(got, status, "{body} {said}");
        assert!(!said.to_string().contains(TENANT), "a token is not told back");
    }
    let (status, root_claim) =
        api.call("POST", "/v1/claim", Some(ROOT), "{\"template\":\"host\",\"x_tenant\":\"two\"}").await?;
    assert_eq!(status, 200);
    let body = json!({ "template": "host", "env": { "A": { "value": "1" } } }).to_string();
    let (status, one) = api.call("POST", "/v1/claim", Some(TENANT), &body).await?;
    assert_eq!(status, 200, "{one}");
    let foreign = json!({ "template": "host", "x_tenant": "two" }).to_string();
    assert_eq!(api.call("POST", "/v1/claim", Some(TENANT), &foreign).await?.0, 403);
    assert_eq!(api.call("POST", "/v1/claim", Some(TENANT), &body).await?.0, 200);
    let (status, said) = api.call("POST", "/v1/claim", Some(TENANT), &body).await?;
    assert_eq!((status, &said["code"]), (429, &json!("quota_tenant")));
    assert!(
        said["error"].as_str().is_some_and(|text| text.contains("tenant us/one") && text.contains("2 of 2")),
        "{said}"
    );

    // its own alone, and nothing of the node's
    let (_, list) = api.call("GET", "/v1/sandboxes", Some(TENANT), "").await?;
    assert_eq!(list["sandboxes"].as_array().map(Vec::len), Some(2));
    let (_, list) = api.call("GET", "/v1/sandboxes?tenant=two", Some(TENANT), "").await?;
    assert_eq!(list["sandboxes"], json!([]));
    let id = |claim: &Value| claim["id"].as_str().unwrap_or_default().to_owned();
    let env = |claim: &Value| format!("/v1/sandboxes/{}/env", id(claim));
    assert_eq!(api.call("GET", &env(&one), Some(TENANT), "").await?.0, 200);
    assert_eq!(api.call("GET", &env(&root_claim), Some(TENANT), "").await?.0, 404);
    assert_eq!(api.call("PUT", &env(&root_claim), Some(TENANT), "{\"env\":{}}").await?.0, 404);
    for (method, path) in [
        ("GET", "/v1/info".to_owned()),
        ("GET", "/metrics".to_owned()),
        ("GET", "/v1/tenants".to_owned()),
        ("PUT", "/v1/tenants".to_owned()),
        ("PUT", "/v1/tenants/two".to_owned()),
        ("DELETE", "/v1/tenants/two".to_owned()),
        ("PUT", "/v1/pools".to_owned()),
        ("POST", "/v1/drain".to_owned()),
        ("DELETE", "/v1/drain".to_owned()),
        ("POST", "/v1/config/reload".to_owned()),
        ("GET", "/v1/checkpoints/x/blob".to_owned()),
        ("GET", format!("/v1/sandboxes/{}", id(&one))),
        ("GET", format!("/v1/sandboxes/{}/stats", id(&one))),
        ("PUT", format!("/v1/sandboxes/{}/instance-metadata", id(&one))),
    ] {
        assert_eq!(api.call(method, &path, Some(TENANT), "{}").await?.0, 403, "{method} {path}");
        assert_eq!(api.call(method, &path, Some("nobody"), "{}").await?.0, 401, "{method} {path}");
    }
    // a tenant's token is not its sandbox's
    let release = format!("/v1/sandboxes/{}/release", id(&one));
    assert_eq!(api.call("POST", &release, Some(TENANT), "").await?.0, 404);

    // over a restart; only the hash is on the disk
    api.stop.cancel();
    drop(node);
    let stored = std::fs::read_to_string(place.directory.path().join("node/tenants.json"))?;
    assert!(!stored.contains(TENANT) && stored.contains("us/one"), "{stored}");
    let node = place.open().await?;
    let api = serve(&node).await?;
    assert_eq!(api.call("POST", "/v1/claim", Some(TENANT), &body).await?.0, 429);
    let (_, tenants) = api.call("GET", "/v1/tenants", Some(ROOT), "").await?;
    assert_eq!(tenants["tenants"][1], json!({ "name": "us/one", "max_claims": 2, "claims": 2 }));
    let (_, page) = api.call("GET", "/v1/tenants?after=two&limit=1", Some(ROOT), "").await?;
    assert_eq!((page["tenants"].as_array().map(Vec::len), &page["digest"]), (Some(1), &tenants["digest"]));

    // a tenant that is removed: no token, no new lease, and an end even where an archive was asked for
    let renew = format!("/v1/sandboxes/{}/renew", id(&one));
    assert_eq!(api.call("POST", &renew, Some(ROOT), "{\"on_expire\":\"archive\"}").await?.0, 200);
    assert_eq!(api.call("DELETE", "/v1/tenants/us/one", Some(ROOT), "").await?.0, 204);
    assert_eq!(api.call("DELETE", "/v1/tenants/us/one", Some(ROOT), "").await?.0, 404);
    assert_eq!(api.call("GET", "/v1/sandboxes", Some(TENANT), "").await?.0, 401);
    assert_eq!(api.call("POST", &renew, Some(ROOT), "").await?.0, 403);
    let (_, tenants) = api.call("GET", "/v1/tenants", Some(ROOT), "").await?;
    assert_eq!(tenants["tenants"][1]["removed"], json!(true));
    let (_, list) = api.call("GET", "/v1/sandboxes?tenant=us/one", Some(ROOT), "").await?;
    assert_eq!(list["sandboxes"].as_array().map(Vec::len), Some(2));
    place.pass(301);
    node.tick().await;
    assert_eq!(listed(&api).await?, Vec::<Value>::new());
    // the set as a whole
    let set = json!({ "tenants": [{ "name": "three", "token": "token-of-tenant-three", "max_claims": 1 }] });
    assert_eq!(api.call("PUT", "/v1/tenants", Some(ROOT), &set.to_string()).await?.0, 204);
    let (_, tenants) = api.call("GET", "/v1/tenants", Some(ROOT), "").await?;
    assert_eq!(tenants["tenants"], json!([{ "name": "three", "max_claims": 1, "claims": 0 }]));
    Ok(())
}

#[tokio::test]
async fn no_cap_is_exceeded_by_claims_at_once() -> Outcome {
    let place = Place::new()?;
    let options = place.options().with_max_claims(5);
    let node = Node::open(options, Arc::new(place.memory.reopen())).await?;
    let api = serve(&node).await?;
    let body = json!({ "template": "host" }).to_string();
    let asked = (0..32).map(|_| api.call("POST", "/v1/claim", Some(ROOT), &body));
    let mut held = 0;
    for answer in futures::future::join_all(asked).await {
        let (status, said) = answer?;
        if status == 200 {
            held += 1;
        } else {
            assert_eq!((status, &said["code"]), (429, &json!("quota_node")), "{said}");
        }
    }
    assert_eq!((held, place.memory.store().live()), (5, 5));
    // asleep ones count
    let id = listed(&api).await?[0]["id"].as_str().ok_or("an id")?.to_owned();
    assert_eq!(api.call("POST", &format!("/v1/sandboxes/{id}/hibernate"), Some(ROOT), "").await?.0, 204);
    assert_eq!(api.call("POST", "/v1/claim", Some(ROOT), &body).await?.0, 429);
    assert_eq!(api.call("POST", &format!("/v1/sandboxes/{id}/release"), Some(ROOT), "").await?.0, 204);
    assert_eq!(api.call("POST", "/v1/claim", Some(ROOT), &body).await?.0, 200);
    // drained
    let (status, info) = api.call("POST", "/v1/drain", Some(ROOT), "").await?;
    assert_eq!((status, &info["draining"]), (200, &json!(true)));
    assert_eq!(api.call("POST", "/v1/claim", Some(ROOT), &body).await?.1["code"], json!("draining"));
    let (_, info) = api.call("DELETE", "/v1/drain", Some(ROOT), "").await?;
    assert_eq!(info["draining"], json!(false));
    Ok(())
}

#[tokio::test]
async fn a_failed_step_leaves_no_claim() -> Outcome {
    for fault in [Fault::Before, Fault::After] {
        for method in [Method::Claim, Method::Release] {
            let place = Place::new()?;
            let faulty = Arc::new(FaultyBackend::new(place.memory.reopen()));
            let node = Node::open(place.options(), Arc::new(Arc::clone(&faulty))).await?;
            let api = serve(&node).await?;
            let body = json!({ "template": "host" }).to_string();
            let claims = place.directory.path().join("node/claims");
            if method == Method::Claim {
                faulty.fail_next(Method::Claim, fault);
            } else {
                // the second record cannot be written, and the way back is hard
                faulty.fail_next(Method::Release, fault);
                faulty.fail_next(Method::Claim, Fault::After);
            }
            let (status, said) = api.call("POST", "/v1/claim", Some(ROOT), &body).await?;
            assert_eq!((status, &said["code"]), (500, &json!("internal")), "{fault:?} {said}");
            assert_eq!(listed(&api).await?, Vec::<Value>::new(), "{fault:?} {method:?}");
            node.tick().await;
            assert_eq!(place.memory.store().live(), 0, "{fault:?} {method:?}");
            assert_eq!(std::fs::read_dir(&claims)?.count(), 0, "{fault:?} {method:?}");
        }
    }
    // no room for the record: nothing is claimed
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    let (id, ..) = claim(&api, json!({ "template": "host" })).await?;
    let claims = place.directory.path().join("node/claims");
    std::fs::rename(&claims, place.directory.path().join("away"))?;
    let (status, said) = api.call("POST", "/v1/claim", Some(ROOT), "{\"template\":\"host\"}").await?;
    assert_eq!(status, 500, "{said}");
    assert_eq!(place.memory.store().live(), 1);
    // and what is held stays as it is
    for (method, verb, body) in
        [("POST", "release", ""), ("POST", "renew", ""), ("PUT", "env", "{\"env\":{}}")]
    {
        let (status, _) = api.call(method, &format!("/v1/sandboxes/{id}/{verb}"), Some(ROOT), body).await?;
        assert_eq!(status, 500, "{verb}");
    }
    assert_eq!(listed(&api).await?.len(), 1);
    std::fs::rename(place.directory.path().join("away"), &claims)?;
    assert_eq!(api.call("POST", &format!("/v1/sandboxes/{id}/release"), Some(ROOT), "").await?.0, 204);
    Ok(())
}

/// Kills the node where its backend's `method` stands still, and opens it again.
async fn killed_at(
    method: Method,
    fault: Fault,
    act: impl AsyncFn(&Api, &str),
) -> Result<(Place, Node), Box<dyn Error>> {
    let mut place = Place::new()?;
    let faulty = Arc::new(FaultyBackend::new(place.memory.reopen()));
    let node = Node::open(place.options(), Arc::new(Arc::clone(&faulty))).await?;
    let api = serve(&node).await?;
    let (id, ..) =
        claim(&api, json!({ "template": "host", "ttl_seconds": 100, "claim_ref": "kept" })).await?;
    faulty.fail_next(method, fault);
    let calls = faulty.calls(method);
    tokio::select! {
        () = act(&api, &id) => return Err("it did not stand still".into()),
        () = async {
            while faulty.calls(method) == calls {
                tokio::task::yield_now().await;
            }
            // what comes after the call's effect would have come by now
            tokio::time::sleep(Duration::from_millis(30)).await;
        } => {}
    }
    // the old node goes on waiting for an answer that never comes, and cannot reach the data any more
    api.stop.cancel();
    let node = place.open().await?;
    Ok((place, node))
}

#[tokio::test]
async fn a_kill_at_each_step_leaves_what_was_acknowledged_and_nothing_else() -> Outcome {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let act = async |api: &Api, _: &str| {
            drop(api.call("POST", "/v1/claim", Some(ROOT), "{\"template\":\"host\"}").await);
        };
        let (place, node) = killed_at(Method::Claim, fault, act).await?;
        let rows = listed(&serve(&node).await?).await?;
        assert_eq!((rows.len(), &rows[0]["claim_ref"]), (1, &json!("kept")), "claim {fault:?}");
        assert_eq!(place.memory.store().live(), 1, "claim {fault:?}");

        let act = async |api: &Api, id: &str| {
            drop(api.call("POST", &format!("/v1/sandboxes/{id}/release"), Some(ROOT), "").await);
        };
        let (place, node) = killed_at(Method::Release, fault, act).await?;
        assert_eq!(listed(&serve(&node).await?).await?, Vec::<Value>::new(), "release {fault:?}");
        assert_eq!(place.memory.store().live(), 0, "release {fault:?}");

        let act = async |api: &Api, id: &str| {
            let env =
                json!({ "env": { "A": { "value": "new" }, "B": { "value": "canary", "guest": false } } });
            drop(api.call("PUT", &format!("/v1/sandboxes/{id}/env"), Some(ROOT), &env.to_string()).await);
        };
        let (place, node) = killed_at(Method::PutHostFile, fault, act).await?;
        let api = serve(&node).await?;
        let id = listed(&api).await?[0]["id"].as_str().ok_or("an id")?.to_owned();
        // what is stored is not in the guest yet: the same again brings it there
        let path = format!("/v1/sandboxes/{id}/env");
        let (_, env) = api.call("GET", &path, Some(ROOT), "").await?;
        assert_eq!(env["env"]["A"]["value"], json!("new"), "env {fault:?}");
        assert_eq!(api.call("PATCH", &path, Some(ROOT), "{\"env\":{}}").await?.0, 204);
        let sandbox = place.memory.store().sandbox(&id.parse()?).ok_or("it is there")?;
        let file = sandbox.host_file(&"silkd.env".parse()?).ok_or("a file")?;
        assert_eq!(file, b"A=\"new\"\n", "env {fault:?}");
    }
    // a lease whose archive was under way
    for fault in [Fault::Hang, Fault::HangAfter] {
        let mut place = Place::new()?;
        let faulty = Arc::new(FaultyBackend::new(place.memory.reopen()));
        let node = Node::open(place.options(), Arc::new(Arc::clone(&faulty))).await?;
        let api = serve(&node).await?;
        claim(&api, json!({ "template": "host", "ttl_seconds": 1, "on_expire": "archive" })).await?;
        faulty.fail_next(Method::Hibernate, fault);
        place.pass(1);
        let _ = tokio::time::timeout(Duration::from_millis(200), node.tick()).await;
        let node = place.open().await?;
        node.tick().await;
        let rows = listed(&serve(&node).await?).await?;
        assert_eq!((rows.len(), &rows[0]["archived"]), (1, &json!(true)), "{fault:?}");
    }
    Ok(())
}

#[tokio::test]
async fn claims_of_others_on_the_same_backend_are_seen_and_have_no_lease() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    let backend = place.memory.reopen();
    let node_again = Node::open(place.options(), Arc::new(backend)).await?;
    drop((node, api));
    let api = serve(&node_again).await?;
    let (own, ..) = claim(&api, json!({ "template": "host" })).await?;
    let memory = place.memory.reopen();
    let request = cocoonbox_core::backend::ClaimRequest::new(
        "cb-abcdefghij".parse()?,
        cocoonbox_core::ImageName::host(),
    );
    let foreign = memory.claim(request).await?;
    let node = Node::open(place.options(), Arc::new(memory)).await?;
    let api = serve(&node).await?;
    place.pass(1_000_000);
    node.tick().await;
    let rows = listed(&api).await?;
    assert_eq!(rows.len(), 1, "{own} is over, the other has no end: {rows:?}");
    assert_eq!((&rows[0]["id"], &rows[0]["deadline"]), (&json!(foreign.id.as_str()), &Value::Null));
    assert!(!rows[0].to_string().contains("cocoonbox.mark"));
    Ok(())
}
