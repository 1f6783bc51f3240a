//! Two users of one server, and the end of a token.

use std::process::Stdio;

use cocoonbox_core::{Clock as _, Id, SystemClock, SystemEntropy};
use cocoonbox_db::{DatabaseUrl, Db, DbOptions};
use cocoonbox_oauth::{SqlUserStore, User, UserStore as _, renew_personal_token};
use cocoonbox_stories::{Run, Server, eventually, output};
use nix::sys::signal::Signal;

/// Makes a second user in the database of a server that does not run, and returns its token.
fn add_user(server: &Server, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (now, url) = (SystemClock.now(), DatabaseUrl::sqlite(server.data().join("cocoonbox.db")));
        let db = Db::open(&url, &DbOptions::default()).await?;
        let store = SqlUserStore::open(db.clone(), now).await?;
        let user = User {
            id: Id::random(&SystemEntropy)?,
            name: name.parse()?,
            admin: false,
            disabled: false,
            max_agent_boxes: None,
            created_at: now,
            revision: 1,
        };
        store.create_user(&user, &[]).await?;
        let token = renew_personal_token(&store, &user.id, now, &SystemEntropy).await?;
        db.close().await;
        Ok(token.reveal().to_owned())
    })
}

#[test]
fn another_users_box_does_not_exist() -> Result<(), Box<dyn std::error::Error>> {
    let mut server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    assert!(server.end(Signal::SIGINT).success());
    let token = add_user(&server, "other")?;
    server.start_again();
    let id = server.json(&["box", "show", "main"])["id"].as_str().ok_or("a box has an id")?.to_owned();
    let other = |words: &[&str]| -> Run {
        let mut command = server.command(server.program());
        command.env("COCOONBOX_TOKEN", &token).env("COCOONBOX_ENDPOINT", server.endpoint());
        output(command.args(words), b"")
    };

    assert!(!other(&["--json", "box", "ls"]).ok().contains("cb-"));
    let nowhere = "cb-aaaaaaaaaa";
    for words in [
        &["box", "show"][..],
        &["box", "ensure"][..],
        &["box", "hibernate"][..],
        &["box", "rm", "--yes"][..],
        &["rsh", "--box"][..],
    ] {
        let ask = |id: &str| {
            let mut all = words.to_vec();
            all.push(id);
            if words[0] == "rsh" {
                all.extend(["--", "true"]);
            }
            let run = other(&all);
            (run.code, run.stderr.replace(id, "ID"))
        };
        // somebody else's box and one that never was are answered alike
        let (theirs, never) = (ask(&id), ask(nowhere));
        assert_eq!(theirs, never, "{words:?}");
        assert!(theirs.0 != Some(0), "{words:?}: {theirs:?}");
    }
    assert_eq!(other(&["box", "rename", &id, "mine"]).code, Some(3));

    // the same name is free for another user, whose limit is one box
    other(&["box", "create", "main"]).ok();
    assert_eq!(other(&["rsh", "--box", "main", "--", "echo", "here"]).ok(), "here");
    assert_eq!(other(&["box", "create", "second"]).code, Some(3));
    let listed = server.json(&["box", "show", "main"]);
    assert_eq!(listed["id"], *id);
    other(&["box", "rm", "main", "--yes"]).ok();
    assert_eq!(server.json(&["box", "show", "main"])["state"], "running");
    Ok(())
}

#[test]
fn signing_out_ends_the_commands_that_the_token_runs() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let log = server.log();
    let link =
        log.split_whitespace().find(|word| word.contains("cbl_")).unwrap_or_else(|| panic!("no link: {log}"));
    let device = |words: &[&str]| {
        let mut command = server.command(server.program());
        command.env("COCOONBOX_CONFIG_DIR", server.scratch().join("device"));
        command.args(["--endpoint", &server.endpoint()]).args(words);
        command
    };
    output(&mut device(&["login", "--link"]), format!("{link}\n").as_bytes()).ok();
    let mut working = device(&["rsh", "--box", "main", "--", "sh", "-c", "echo begun; exec sleep 600"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command line can be started");
    eventually("the command runs", || {
        server.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 600").then_some(())
    });
    output(&mut device(&["logout"]), b"").ok();
    let status = eventually("the open command ends", || working.try_wait().expect("own child"));
    assert!(!status.success());
    assert_ne!(output(&mut device(&["box", "ls"]), b"").code, Some(0));
    // the administrator's own token goes on
    server.cli(&["box", "ls"]).ok();
}
