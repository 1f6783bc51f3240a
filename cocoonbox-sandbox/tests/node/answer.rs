//! What a node answers: to hostile guests, bad input, watchers and callers that ask too often.

use super::*;

/// A guest that runs `say` on each connection to its channel.
fn guest<F>(say: F) -> Arc<dyn cocoonbox_core::backend::MemoryGuest>
where
    F: Fn(Value, tokio::io::DuplexStream) -> futures::future::BoxFuture<'static, ()>
        + Send
        + Sync
        + Clone
        + 'static,
{
    guest_fn(move |_, target| {
        if !matches!(target, cocoonbox_core::backend::Target::Channel) {
            return None;
        }
        let (mine, theirs) = tokio::io::duplex(1 << 20);
        let say = say.clone();
        tokio::spawn(async move {
            let mut stream = mine;
            let mut line = Vec::new();
            while let Ok(byte) = stream.read_u8().await {
                if byte == b'\n' {
                    break;
                }
                line.push(byte);
            }
            say(serde_json::from_slice(&line).unwrap_or_default(), stream).await;
        });
        Some(Box::new(theirs) as BoxedDuplex)
    })
}

#[tokio::test]
async fn a_hostile_guest_gets_typed_answers_and_no_more_room_than_there_is() -> Outcome {
    let killed = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = killed.clone();
    let say = move |request: Value, mut stream: tokio::io::DuplexStream| {
        let seen = seen.clone();
        let work: futures::future::BoxFuture<'static, ()> = Box::pin(async move {
            if request["op"] == "kill" {
                seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(request["pid"].clone());
                let _ = stream.write_all(b"{\"type\":\"done\"}\n").await;
                return;
            }
            let word = request["argv"][0].as_str().unwrap_or_default().to_owned();
            let started = b"{\"type\":\"started\",\"pid\":7}\n";
            let chunk = base64::engine::general_purpose::STANDARD.encode(vec![b'x'; 192 * 1024]);
            let output = format!("{{\"type\":\"stdout\",\"data\":\"{chunk}\"}}\n");
            let _ = match word.as_str() {
                "garbage" => stream.write_all(b"\xff\xfe not json\n").await,
                "silent" => return,
                "error" => {
                    stream.write_all(b"{\"type\":\"error\",\"kind\":\"internal\",\"message\":\"no\"}\n").await
                }
                "missing" => stream
                    .write_all(
                        b"{\"type\":\"error\",\"kind\":\"bad_request\",\"message\":\"no such program\"}\n",
                    )
                    .await,
                "endless-line" => {
                    let piece = vec![b'a'; 1 << 20];
                    loop {
                        if let Err(error) = stream.write_all(&piece).await {
                            break Err(error);
                        }
                    }
                }
                "flood" | "much" => {
                    let _ = stream.write_all(started).await;
                    let mut left = if word == "much" { 40 } else { usize::MAX };
                    while left > 0 && stream.write_all(output.as_bytes()).await.is_ok() {
                        left -= 1;
                    }
                    if word == "much" {
                        // 7.5 MiB, and then it runs on
                        let mut rest = Vec::new();
                        stream.read_to_end(&mut rest).await.map(drop)
                    } else {
                        Ok(())
                    }
                }
                "hang" => {
                    let _ = stream.write_all(started).await;
                    let mut rest = Vec::new();
                    stream.read_to_end(&mut rest).await.map(drop)
                }
                "bytes" => {
                    let _ = stream.write_all(started).await;
                    stream
                        .write_all(b"{\"type\":\"stdout\",\"data\":\"/w==\"}\n{\"type\":\"stderr\",\"data\":\"YQ==\"}\n{\"type\":\"exit\",\"code\":3}\n")
                        .await
                }
                _ => stream.write_all(b"{\"type\":\"entries\",\"entries\":[]}\n").await,
            };
        });
        work
    };
    let place = Place::new()?;
    let backend = MemoryBackend::new(place.clock.clone(), Arc::new(SystemEntropy)).with_guest(guest(say));
    let node = Node::open(place.options(), Arc::new(backend)).await?;
    let api = serve(&node).await?;
    let (id, token, _) = claim(&api, json!({ "template": "host" })).await?;
    let path = format!("/v1/sandboxes/{id}/exec");
    let kills = || killed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len();
    let (status, said) = api.call("POST", &path, Some(&token), "{\"argv\":[\"bytes\"]}").await?;
    assert_eq!((status, said), (200, json!({ "exit_code": 3, "stdout": "\u{fffd}", "stderr": "a" })));
    for (word, status, killed) in [
        ("garbage", 502, 0),
        ("silent", 502, 0),
        ("error", 502, 0),
        ("missing", 400, 0),
        ("endless-line", 502, 0),
        ("nonsense", 502, 0),
        ("flood", 413, 1),
    ] {
        let before = kills();
        let body = json!({ "argv": [word] }).to_string();
        let (got, said) = api.call("POST", &path, Some(&token), &body).await?;
        assert_eq!((got, kills() - before), (status, killed), "{word}: {said}");
    }
    let (status, said) =
        api.call("POST", &path, Some(&token), "{\"argv\":[\"hang\"],\"timeout_seconds\":1}").await?;
    assert_eq!((status, &said["code"], kills()), (504, &json!("timeout"), 2));
    // a caller that leaves takes its command along
    let gone = api.send("POST", &path, Some(&token), "", "{\"argv\":[\"hang\"]}").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(gone);
    for _ in 0..500 {
        if kills() == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(kills(), 3);
    // nine times 7.5 MiB are more than the node holds
    let body = json!({ "argv": ["much"], "timeout_seconds": 20 }).to_string();
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(api.send("POST", &path, Some(&token), "", &body).await?);
    }
    let mut refused = None;
    for _ in 0..100 {
        let answer =
            api.ask("POST", &path, Some(&token), "", &json!({ "argv": ["flood"] }).to_string()).await?;
        if answer.status == 503 {
            refused = Some(answer);
            break;
        }
        assert_eq!(answer.status, 413);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let refused = refused.ok_or("the room is never full")?;
    assert_eq!(refused.body["code"], json!("busy"));
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    drop(held);
    Ok(())
}

#[tokio::test]
async fn bad_input_has_its_status() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    let (id, token, _) = claim(&api, json!({ "template": "host" })).await?;
    let sandbox = |verb: &str| format!("/v1/sandboxes/{id}/{verb}");
    let with_token = |mut body: Value| {
        body["token"] = json!(token);
        body.to_string()
    };
    let own = Some(token.as_str());
    let root = Some(ROOT);
    let large = format!("{{\"env\":{{\"A\":{{\"value\":\"{}\"}}}}}}", "x".repeat(1024 * 1024));
    for (method, path, token, body, status, code) in [
        ("POST", sandbox("exec"), own, "{}".to_owned(), 400, "invalid"),
        ("POST", sandbox("exec"), own, "{\"argv\":[]}".to_owned(), 400, "invalid"),
        ("POST", sandbox("exec"), own, "{\"argv\":[\"\"]}".to_owned(), 400, "invalid"),
        ("POST", sandbox("exec"), own, "{\"argv\":\"ls\"}".to_owned(), 400, "invalid"),
        ("POST", sandbox("exec"), own, "{\"argv\":[\"ls\"],\"stdin\":\"x\"}".to_owned(), 400, "invalid"),
        (
            "POST",
            sandbox("exec"),
            own,
            "{\"argv\":[\"ls\"],\"timeout_seconds\":-1}".to_owned(),
            400,
            "invalid",
        ),
        ("POST", sandbox("exec"), root, "{\"argv\":[\"ls\"]}".to_owned(), 404, "not_found"),
        ("POST", sandbox("exec"), None, "{\"argv\":[\"ls\"]}".to_owned(), 401, "unauthorized"),
        ("PUT", sandbox("env"), root, "{}".to_owned(), 400, "invalid"),
        ("PUT", sandbox("env"), root, "{\"env\":{},\"more\":1}".to_owned(), 400, "invalid"),
        ("PUT", sandbox("env"), root, "{\"env\":{\"A\":null}}".to_owned(), 400, "invalid"),
        ("PUT", sandbox("env"), root, large, 400, "invalid"),
        ("PUT", sandbox("env"), own, "{\"env\":{}}".to_owned(), 401, "unauthorized"),
        ("GET", "/v1/sandboxes/sb_none/env".to_owned(), root, String::new(), 404, "not_found"),
        ("PUT", sandbox("instance-metadata"), root, "[]".to_owned(), 400, "invalid"),
        ("PUT", sandbox("instance-metadata"), root, "{".to_owned(), 400, "invalid"),
        (
            "PUT",
            sandbox("instance-metadata"),
            root,
            json!({ "a": "x".repeat(5000) }).to_string(),
            400,
            "invalid",
        ),
        ("POST", sandbox("preview"), root, with_token(json!({ "port": 80 })), 501, "unsupported"),
        ("POST", sandbox("preview"), root, with_token(json!({ "port": 0 })), 400, "invalid"),
        ("POST", sandbox("preview"), root, json!({ "token": "", "port": 80 }).to_string(), 404, "not_found"),
        ("POST", sandbox("fork"), root, with_token(json!({ "count": 2 })), 501, "unsupported"),
        ("POST", sandbox("fork"), root, json!({ "token": "", "count": 2 }).to_string(), 501, "unsupported"),
        ("POST", sandbox("checkpoint"), root, json!({ "token": "wrong" }).to_string(), 404, "not_found"),
        ("POST", sandbox("promote"), None, with_token(json!({ "template": "a" })), 401, "unauthorized"),
        (
            "POST",
            sandbox("volumes/attach"),
            own,
            "{\"volumes\":[{\"name\":\"a\"}]}".to_owned(),
            400,
            "invalid",
        ),
        ("POST", "/v1/checkpoints/ck_x/claim".to_owned(), root, "{}".to_owned(), 404, "not_found"),
        ("DELETE", "/v1/checkpoints/ck_x".to_owned(), root, String::new(), 404, "not_found"),
        ("DELETE", "/v1/templates?template=a".to_owned(), root, String::new(), 404, "unknown_template"),
        (
            "PUT",
            "/v1/pools".to_owned(),
            root,
            "{\"pools\":[{\"template\":\"host\",\"warm\":1,\"wram\":2}]}".to_owned(),
            400,
            "invalid",
        ),
        ("GET", sandbox("stats"), root, String::new(), 501, "unsupported"),
        ("POST", "/v1/config/reload".to_owned(), root, String::new(), 501, "unsupported"),
        ("GET", "/v1/sandboxes?metadata=a".to_owned(), root, String::new(), 400, "invalid"),
        ("GET", "/v1/sandboxes?tenant=-".to_owned(), root, String::new(), 400, "invalid"),
        (
            "POST",
            "/v1/claim".to_owned(),
            root,
            "{\"template\":\"host\",\"require_promoted\":true}".to_owned(),
            404,
            "unknown_template",
        ),
        (
            "POST",
            "/v1/claim".to_owned(),
            root,
            "{\"template\":\"host\",\"net\":\"egress\"}".to_owned(),
            409,
            "conflict",
        ),
        (
            "POST",
            "/v1/claim".to_owned(),
            root,
            "{\"template\":\"host\",\"on_expire\":\"keep\"}".to_owned(),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/claim".to_owned(),
            root,
            "{\"template\":\"host\",\"ttl_seconds\":-5}".to_owned(),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/claim".to_owned(),
            root,
            "{\"template\":\"host\",\"metadata\":{\"cocoonbox.mark\":\"x\"}}".to_owned(),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/claim".to_owned(),
            root,
            "{\"template\":\"host\",\"env\":{\"A\":{\"value\":\"b\",\"guest\":null}}}".to_owned(),
            400,
            "invalid",
        ),
        (
            "POST",
            "/v1/claim".to_owned(),
            root,
            "{\"template\":\"host\",\"env\":{\"A\":{\"value\":\"b\",\"guest\":false,\"inject\":{}}}}"
                .to_owned(),
            400,
            "invalid",
        ),
        ("GET", "/v1/claim".to_owned(), root, String::new(), 405, "method_not_allowed"),
        ("GET", "/v1/nothing".to_owned(), root, String::new(), 501, "unsupported"),
        ("GET", "/elsewhere".to_owned(), root, String::new(), 404, "not_found"),
    ] {
        let (got, said) = api.call(method, &path, token, &body).await?;
        assert_eq!((got, said["code"].as_str()), (status, Some(code)), "{method} {path} {body:.80}: {said}");
        assert!(said["error"].as_str().is_some_and(|text| !text.is_empty()), "{said}");
    }
    // what is wrong is said without what was sent
    let body = "{\"template\":\"host\",\"env\":{\"A\":{\"value\":\"b\",\"guest\":\"canary\"}}}";
    let (_, said) = api.call("POST", "/v1/claim", root, body).await?;
    assert!(!said.to_string().contains("canary"), "{said}");
    let (_, peers) = api.call("GET", "/v1/peers", root, "").await?;
    assert_eq!(peers, json!({ "peers": [] }));
    let (_, owner) = api.call("GET", &sandbox("owner"), own, "").await?;
    assert_eq!(owner, json!({ "owner_addr": "node:1" }));
    assert_eq!(listed(&api).await?.len(), 1, "nothing that was refused is held");
    assert_eq!(place.memory.store().live(), 1);
    Ok(())
}

#[tokio::test]
async fn a_host_only_value_is_nowhere_but_in_the_nodes_own_record() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    let env = json!({ "SEEN": { "value": "open" }, "KEY": { "value": "canary", "guest": false } });
    let (id, token, claimed) = claim(&api, json!({ "template": "host", "env": env })).await?;
    let sandbox = place.memory.store().sandbox(&id.parse()?).ok_or("it is there")?;
    let guest = || sandbox.host_file(&"silkd.env".parse().expect("a name")).unwrap_or_default();
    assert_eq!(guest(), b"SEEN=\"open\"\n");
    let path = format!("/v1/sandboxes/{id}/env");
    let mut said = vec![claimed.to_string()];
    for (method, path, token, body) in [
        ("GET", path.clone(), ROOT, ""),
        ("PATCH", path.clone(), ROOT, "{\"env\":{\"KEY\":{\"value\":\"canary-2\",\"guest\":false}}}"),
        ("PATCH", path.clone(), ROOT, "{\"env\":{\"KEY\":{\"value\":\"canary\\u0000\",\"guest\":false}}}"),
        ("GET", path.clone(), ROOT, ""),
        ("GET", "/v1/sandboxes".to_owned(), ROOT, ""),
        ("GET", format!("/v1/sandboxes/{id}"), ROOT, ""),
        ("GET", "/v1/info".to_owned(), ROOT, ""),
        ("GET", "/metrics".to_owned(), ROOT, ""),
        ("GET", "/v1/x/events?follow=0".to_owned(), ROOT, ""),
        ("GET", format!("/v1/sandboxes/{id}/owner"), &token, ""),
    ] {
        let answer = api.ask(method, &path, Some(token), "", body).await?;
        said.push(format!("{} {}", answer.head, answer.body));
    }
    for text in &said {
        assert!(!text.contains("canary"), "{text}");
    }
    assert_eq!(guest(), b"SEEN=\"open\"\n");
    for entry in std::fs::read_dir(place.directory.path().join("node"))? {
        let path = entry?.path();
        if path.is_file() {
            assert!(!std::fs::read_to_string(&path)?.contains("canary"), "{}", path.display());
        }
    }
    // the control: it is kept, for the owner's eyes alone
    let record =
        std::fs::read_dir(place.directory.path().join("node/claims"))?.next().ok_or("a record")??.path();
    assert!(std::fs::read_to_string(&record)?.contains("canary-2"));
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&record)?.permissions().mode() & 0o777, 0o600);
    // taken back from the guest
    assert_eq!(api.call("PUT", &path, Some(ROOT), "{\"env\":{}}").await?.0, 204);
    assert_eq!(guest(), b"");
    Ok(())
}

#[tokio::test]
async fn events_are_read_from_a_cursor_on() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let api = serve(&node).await?;
    let (id, ..) = claim(&api, json!({ "template": "host" })).await?;
    for verb in ["hibernate", "hibernate", "wake", "wake", "release"] {
        assert_eq!(api.call("POST", &format!("/v1/sandboxes/{id}/{verb}"), Some(ROOT), "").await?.0, 204);
    }
    let read = async |query: &str| -> Result<Vec<Value>, Box<dyn Error>> {
        let answer = api.ask("GET", &format!("/v1/x/events?follow=0{query}"), Some(ROOT), "", "").await?;
        let text = match answer.body {
            Value::String(text) => text,
            whole => whole.to_string(),
        };
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object).collect())
    };
    let events = read("").await?;
    let kinds: Vec<_> = events.iter().map(|event| event["ev"].as_str().unwrap_or_default()).collect();
    assert_eq!(kinds, ["claim", "hibernate", "wake", "release"], "only what changed something");
    let cursor = events[1]["cursor"].as_str().ok_or("a cursor")?;
    let rest = read(&format!("&cursor={cursor}")).await?;
    assert_eq!(rest, events[2..]);
    let lost = read("&cursor=of-another-start-9").await?;
    assert_eq!((lost[0]["ev"].as_str(), lost.len()), (Some("lost"), 5));
    let journal = std::fs::read_to_string(place.directory.path().join("node/usage.jsonl"))?;
    let written: Vec<Value> = journal.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!(written.len(), 4);
    assert_eq!((&written[0]["ev"], &written[0]["id"]), (&json!("claim"), &json!(id)));
    // what happens while somebody follows is told at once
    let mut stream = api.send("GET", "/v1/x/events", Some(ROOT), "", "").await?;
    claim(&api, json!({ "template": "host" })).await?;
    let mut heard = String::new();
    while heard.matches("\"ev\":\"claim\"").count() < 2 {
        let mut buffer = [0; 4096];
        let count = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut buffer)).await??;
        assert!(count > 0, "the stream goes on: {heard}");
        heard.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    // the metrics count the same
    let answer = api.ask("GET", "/metrics", Some(ROOT), "", "").await?;
    let text = answer.body.as_str().unwrap_or_default().to_owned();
    for line in
        ["sandboxd_claimed 1", "sandboxd_verbs_total{verb=\"claim\"} 2", "sandboxd_draining 0", "# EOF"]
    {
        assert!(text.contains(line), "{line} in {text}");
    }
    Ok(())
}

#[tokio::test]
async fn a_caller_that_asks_too_often_is_told_to_wait() -> Outcome {
    let mut place = Place::new()?;
    let node = place.open().await?;
    let few = |count| NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
    let api = Api::serve(router_with_rate(node.clone(), Rate::new(few(1), few(3)))).await?;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(api.ask("GET", "/v1/peers", Some(ROOT), "", "").await?);
    }
    assert!(statuses.iter().take(3).all(|answer| answer.status == 200), "{statuses:?}");
    let last = statuses.last().ok_or("an answer")?;
    assert_eq!((last.status, &last.body["code"]), (429, &json!("rate_limited")));
    assert!(last.head.contains("retry-after: 1"), "{}", last.head);
    // the others have their own; who has no token counts by address, whatever is drawn
    let mut strangers = Vec::new();
    for number in 0..5 {
        strangers.push(api.call("GET", "/v1/peers", Some(&format!("drawn-{number}")), "").await?.0);
    }
    assert_eq!((strangers[0], strangers[4]), (401, 429), "{strangers:?}");
    assert_eq!(api.call("GET", "/healthz", None, "").await?.0, 200);
    let filter = ClaimFilter::all();
    assert_eq!(place.memory.reopen().find(&filter).await?.len(), 0);
    Ok(())
}
