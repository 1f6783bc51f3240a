//! Boxes' state outlives their sandboxes, sealed.

use std::fs;

use cocoonbox_stories::{Account, Node, Server, files};
use nix::sys::signal::Signal;

/// Makes a tree with all kinds of entries.
const TREE: &str = "set -e; cd; mkdir -p .config/app deep/a/b/c /workspace/project/src; \
    echo canary-content > .config/app/canary-name; head -c 5000000 /dev/urandom > /workspace/project/big; \
    ln -s ../nowhere deep/link; ln .config/app/canary-name deep/hard; mkfifo deep/pipe; chmod 640 deep/hard; \
    truncate -s 1G deep/sparse; printf x | dd of=deep/sparse bs=1 seek=1000000 conv=notrunc status=none; \
    : > deep/a/b/c/empty; touch -d '2001-02-03 04:05:06.789012345' deep/a/b/c/empty; \
    printf 'not utf-8' > \"deep/$(printf '\\377\\376')\"; mkdir -p ~/.cache/big; head -c 100000 /dev/zero > ~/.cache/big/x; \
    for i in $(seq 300); do echo $i > /workspace/project/src/$i; done";

/// Tells everything of home and workspace but caches, and what a restore replaced and is being removed.
const LOOK: &str = "cd /; for root in home/user workspace; do \
    find $root \\( -path home/user/.cache -o -path \"$root/.cocoonbox-replaced\" \\) -prune -o -printf '%y %m %s %T@ %l %p\\n' | sort; \
    find $root -path \"$root/.cocoonbox-replaced\" -prune -o -type f -links +1 -printf '%n %p\\n' | sort; \
    find $root \\( -path home/user/.cache -o -path \"$root/.cocoonbox-replaced\" \\) -prune -o -type f -size -900M -print0 | sort -z | xargs -0 sha256sum; done";

fn look(server: &Server) -> String {
    // a name in it is not UTF-8
    String::from_utf8_lossy(&server.rsh(&["sh", "-c", LOOK]).stdout).into_owned()
}

/// Compares what `look` told, and shows the first lines that differ.
fn same(one: &str, other: &str) {
    let differing: Vec<_> =
        one.lines().zip(other.lines()).filter(|(one, other)| one != other).take(5).collect();
    assert!(one == other, "{} and {} lines; {differing:#?}", one.lines().count(), other.lines().count());
}

fn newest_hash(server: &Server) -> String {
    server.cli(&["save", "main"]).ok();
    server.saves()[0]["root_hash"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn what_a_restore_brings_back_is_what_was_saved_and_what_it_replaces_is_kept() {
    let mut server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh(TREE);
    let before = look(&server);
    let hash = newest_hash(&server);
    assert_eq!(hash.len(), 64, "{hash}");

    // again: nothing new is stored
    assert_eq!(newest_hash(&server), hash);
    assert_eq!(server.saves()[0]["new_bytes"], 0, "{:?}", server.saves()[0]);

    server.sh(
        "rm -rf ~/.config ~/deep /workspace/project/src; echo mine > ~/mine; echo > /workspace/project/big",
    );
    let other = look(&server);
    let wake = server.json(&["box", "show", "main"])["last_used_at"].clone();
    assert!(!wake.is_null());
    // a regular save of the other state first: the restored one is older than the newest
    server.cli(&["save", "main"]).ok();
    let older = server.saves()[1]["id"].as_str().unwrap_or_default().to_owned();
    server.cli(&["restore", "--box", "main", "--save", &older]).ok();
    same(&look(&server), &before);
    server.sh("test ! -e ~/.cocoonbox-restore || exit 1; for nth in $(seq 100); do test -e ~/.cocoonbox-replaced || exit 0; \
        sleep 0.1; done; exit 1");

    // should the sandbox be lost now, the box comes back with what was restored
    assert!(server.end(Signal::SIGTERM).success(), "{}", server.log());
    for claim in fs::read_dir(server.data().join("node/claims")).expect("the node's folder").flatten() {
        fs::remove_dir_all(claim.path()).expect("own folder");
    }
    server.start_again();
    server.cli(&["box", "ensure", "main"]).ok();
    same(&look(&server), &before);

    // and back again, to what the restore replaced
    let kept: Vec<_> = server.saves().into_iter().filter(|save| save["kept"] == "before a restore").collect();
    assert_eq!(kept.len(), 1, "{:?}", server.saves());
    server.cli(&["restore", "--box", "main", "--save", kept[0]["id"].as_str().unwrap_or_default()]).ok();
    same(&look(&server), &other);
    server.cli(&["restore", "--box", "main", "--save", &older]).ok();
    assert_eq!(newest_hash(&server), hash);
}

#[test]
fn a_box_that_lost_its_sandbox_comes_back_with_its_files() {
    let mut server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh(TREE);
    let before = look(&server);
    // going to sleep saves by itself
    server.cli(&["box", "hibernate", "main", "--to-disk"]).ok();
    assert_eq!(server.saves().len(), 1);
    assert!(server.end(Signal::SIGTERM).success(), "{}", server.log());
    for claim in fs::read_dir(server.data().join("node/claims")).expect("the node's folder").flatten() {
        fs::remove_dir_all(claim.path()).expect("own folder");
    }
    server.start_again();
    assert_eq!(server.json(&["box", "show", "main"])["state"], "failed");
    server.cli(&["box", "ensure", "main"]).ok();
    same(&look(&server), &before);

    // a box whose saves cannot be had does not come back empty
    server.cli(&["box", "hibernate", "main", "--to-disk"]).ok();
    assert!(server.end(Signal::SIGTERM).success(), "{}", server.log());
    for claim in fs::read_dir(server.data().join("node/claims")).expect("the node's folder").flatten() {
        fs::remove_dir_all(claim.path()).expect("own folder");
    }
    let (state, aside) = (server.data().join("state"), server.scratch().join("state-aside"));
    fs::rename(&state, &aside).expect("own folder");
    server.start_again();
    let refused = server.cli(&["box", "ensure", "main"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert_eq!(server.json(&["box", "show", "main"])["state"], "failed");
    assert!(server.end(Signal::SIGTERM).success(), "{}", server.log());
    let _ = fs::remove_dir_all(&state);
    fs::rename(&aside, &state).expect("own folder");
    server.start_again();
    server.cli(&["box", "ensure", "main"]).ok();
    same(&look(&server), &before);
}

#[test]
fn chosen_files_come_back_beside_what_there_is_and_saves_are_looked_into_without_a_box() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh(TREE);
    server.cli(&["save", "main"]).ok();
    let first = server.saves()[0]["id"].as_str().unwrap_or_default().to_owned();
    let big = server.rsh(&["cat", "/workspace/project/big"]).stdout;
    server.sh("echo changed > ~/.config/app/canary-name; rm -r ~/deep/a; echo mine > ~/mine");
    server.cli(&["restore", "--box", "main", "/home/user/.config/app/canary-name", "/home/user/deep/a"]).ok();
    // what a chosen file replaced is in a save of its own
    let replaced = server.saves()[0]["id"].as_str().unwrap_or_default().to_owned();
    let words =
        ["browse", "--box", "main", "--save", &replaced, "--cat", "/home/user/.config/app/canary-name"];
    assert_eq!(server.cli(&words).ok(), "changed");
    let held = server.sh("cat ~/.config/app/canary-name ~/mine; stat -c %y ~/deep/a/b/c/empty");
    assert_eq!(held.lines().collect::<Vec<_>>()[..2], ["canary-content", "mine"]);
    assert!(held.contains("2001-02-03 04:05:06.789012345"), "{held}");

    server.cli(&["box", "hibernate", "main", "--to-disk"]).ok();
    let listed = server.json(&["browse", "--box", "main", "/home/user/.config/app"]);
    assert_eq!(listed["entries"][0]["name"], "canary-name");
    assert_eq!(listed["entries"][0]["bytes"], 15);
    // whole files, too: one of many chunks, and one that is mostly a hole
    let read = |path: &str| {
        let words = ["browse", "--box", "main", "--save", &first, "--cat", path];
        let read = server.command(server.program()).args(words).output().expect("it runs");
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        read.stdout
    };
    assert_eq!(read("/home/user/.config/app/canary-name"), b"canary-content\n");
    assert!(read("/workspace/project/big") == big, "a file of many chunks is read as it was");
    assert_eq!(server.json(&["box", "show", "main"])["state"], "hibernated", "nobody woke it");

    for (words, told) in [
        (&["restore", "--box", "main", "--save", "nope"][..], "save nope"),
        (&["restore", "--box", "main", "/etc/passwd"][..], "absolute paths under /home/user or /workspace"),
        (&["restore", "--box", "main", "/home/user/../../etc"][..], "paths"),
        (&["browse", "--box", "main", "/home/user/none"][..], "path"),
        (&["browse", "--box", "main", "/workspace/project/big"][..], "no folder"),
        (&["browse", "--box", "main", "--cat", "/workspace/project"][..], "no file"),
        (&["save", "none"][..], "none"),
    ] {
        let refused = server.cli(words);
        let said = refused.stderr.clone();
        assert_ne!(refused.code, Some(0), "{words:?}");
        assert!(said.contains(told), "{words:?}: {said}");
    }
}

#[test]
fn the_store_tells_nothing_and_boxes_share_what_they_have_in_common() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    server.sh(TREE);
    server.cli(&["save", "main"]).ok();
    let stored = files(&server.data().join("state"));
    assert!(!stored.is_empty());
    for file in &stored {
        let bytes = fs::read(file).expect("own file");
        for canary in ["canary-content", "canary-name", "project/src"] {
            let found = bytes.windows(canary.len()).any(|window| window == canary.as_bytes());
            assert!(!found, "{} holds {canary}", file.display());
        }
        assert!(!file.to_string_lossy().contains("canary"), "{}", file.display());
    }
    // the positive control: the box itself does hold them
    assert_eq!(server.sh("cat ~/.config/app/canary-name"), "canary-content");
    let log = server.log();
    assert!(!log.contains("cocoonbox.state/"), "a URL was logged: {log}");
    for secret in ["master.key", "state-url.key"] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(server.data().join(secret)).expect("a key").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }

    server.cli(&["box", "create", "second"]).ok();
    let big = server.rsh(&["cat", "/workspace/project/big"]).stdout;
    server.cli_with(&["rsh", "--box", "second", "--", "sh", "-c", "cat > /workspace/same"], &big);
    server.cli(&["save", "second"]).ok();
    let second = server.json(&["saves", "second"])["saves"][0].clone();
    assert!(second["bytes"].as_u64() >= Some(5_000_000), "{second}");
    assert!(second["new_bytes"].as_u64() < Some(1_000_000), "{second}");
}

#[test]
fn a_box_on_a_node_elsewhere_is_saved_and_moves_to_another_node_with_its_files() {
    let server = Server::prepare(Account::Own);
    // all that a box reaches of the edge is the door to its saves, through its node
    let edge = server.endpoint().trim_start_matches("http://").to_owned();
    let nodes = [Node::start(&["--edge", &edge]), Node::start(&["--edge", &edge])];
    let addresses = nodes.each_ref().map(|node| format!("http://{}", node.address())).join(",");
    let mut server = server
        .with_variable("COCOONBOX_NODE", &addresses)
        .with_variable("COCOONBOX_NODE_TOKEN_FILE", &nodes[0].token_file().display().to_string());
    server.start_again();
    server.cli(&["box", "ensure"]).ok();
    server.sh(TREE);
    let before = look(&server);
    let hash = newest_hash(&server);
    // the node that has it loses it: the box starts anew where there is room, with its files
    let id = server.json(&["box", "show", "main"])["id"].clone();
    let mut released = 0;
    for node in &nodes {
        let (_, list) = node.call("GET", "/v1/sandboxes", "", None).expect("the node answers");
        for row in list["sandboxes"].as_array().into_iter().flatten() {
            let path = format!("/v1/sandboxes/{}/release", row["id"].as_str().unwrap_or_default());
            released += u32::from(node.call("POST", &path, "", None).expect("the node answers").0 < 300);
        }
    }
    assert!(released > 0);
    server.cli(&["box", "ensure", "main"]).ok();
    assert_eq!(server.json(&["box", "show", "main"])["id"], id);
    same(&look(&server), &before);
    assert_eq!(newest_hash(&server), hash);
}

#[test]
fn a_node_that_was_not_told_of_the_edge_says_what_is_missing() {
    let node = Node::start(&[]);
    let mut server = Server::prepare(Account::Own)
        .with_variable("COCOONBOX_NODE", &format!("http://{}", node.address()))
        .with_variable("COCOONBOX_NODE_TOKEN_FILE", &node.token_file().display().to_string());
    server.start_again();
    server.cli(&["box", "ensure"]).ok();
    let refused = server.cli(&["save", "main"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("start it with --edge"), "{}", refused.stderr);
    // it sleeps all the same
    server.cli(&["box", "hibernate", "main"]).ok();
    server.cli(&["box", "ensure", "main"]).ok();
}
