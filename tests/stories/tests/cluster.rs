//! Boxes on several nodes: a server finds its way, says what it does not know, and loses nothing.

use std::fs;

use cocoonbox_stories::{Account, Link, Node, Server, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Two nodes, each behind a link of its own, and a server that keeps its boxes there.
struct Cluster {
    server: Server,
    nodes: [Node; 2],
    links: [Link; 2],
}

impl Cluster {
    /// None when the tests do not run as root.
    fn start() -> Option<Self> {
        let links = [Link::make()?, Link::make()?];
        let nodes = [Node::start_behind(&links[0]), Node::start_behind(&links[1])];
        let addresses = nodes.each_ref().map(|node| format!("http://{}", node.address())).join(",");
        let token = nodes[0].token_file();
        let mut server = Server::prepare(Account::Own)
            .with_variable("COCOONBOX_NODE", &addresses)
            .with_variable("COCOONBOX_NODE_TOKEN_FILE", &token.display().to_string());
        server.start_again();
        Some(Self { server, nodes, links })
    }

    /// Returns the box of this name as it is listed.
    fn listed(&self, name: &str) -> Value {
        let listed = self.server.json(&["box", "ls"]);
        let boxes = listed["boxes"].as_array().cloned().unwrap_or_default();
        let found = boxes.into_iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not in {listed}"))
    }

    /// Returns what `doctor` says of each node: whether boxes can be kept there, and why not.
    fn diagnosed(&self) -> Vec<(String, String)> {
        let said = self.server.json(&["doctor"]);
        let checks = said["checks"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let nodes = checks.iter().filter(|check| check["name"] == "node");
        nodes
            .map(|check| (text(&check["status"]), format!("{} {}", check["detail"], check["reason"])))
            .collect()
    }

    fn state(&self, name: &str) -> String {
        self.listed(name)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the ids of the boxes that a node holds, as its own files have it.
    fn held(&self, nth: usize) -> Vec<String> {
        let folders = fs::read_dir(self.nodes[nth].data().join("claims")).expect("the node has a folder");
        let mut held: Vec<String> = folders
            .map(|entry| fs::read(entry.expect("it is listed").path().join("claim.json")).expect("a record"))
            .map(|bytes| serde_json::from_slice::<Value>(&bytes).expect("a record is JSON"))
            .map(|record| record["claim_ref"].as_str().unwrap_or_default().to_owned())
            .collect();
        held.sort();
        held
    }

    fn sh(&self, name: &str, script: &str) -> String {
        self.server.cli(&["rsh", "--box", name, "--", "sh", "-c", script]).ok()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // what was cut and failed must not keep the boxes from being removed
        self.links.iter().for_each(Link::heal);
    }
}

#[test]
fn a_node_that_is_cut_off_is_missed_and_nothing_on_it_is_lost() {
    let Some(mut cluster) = Cluster::start() else {
        eprintln!("left out: network namespaces need root");
        return;
    };
    for name in ["one", "two"] {
        cluster.server.cli(&["box", "create", name]).ok();
        cluster.sh(name, &format!("echo {name} > /workspace/name && sync"));
    }
    let before = [cluster.held(0), cluster.held(1)];
    assert_eq!(before.each_ref().map(Vec::len), [1, 1], "each node has one");
    // which of the two is where
    let second = cluster.listed("two")["id"].as_str().unwrap_or_default().to_owned();
    let (near, far, lost) = if before[1].contains(&second) { ("one", "two", 1) } else { ("two", "one", 0) };
    let network = cluster.sh(far, "readlink /proc/self/ns/net");
    let address = cluster.nodes[lost].address();

    let said = cluster.diagnosed();
    assert!(
        said.len() == 2 && said.iter().all(|(status, text)| status == "yes" && text.contains("boxes 1")),
        "{said:?}"
    );
    cluster.links[lost].cut();
    let away = |cluster: &Cluster| {
        let found = cluster.listed(far);
        let reason = found["failure"].as_str().unwrap_or_default().to_owned();
        (found["state"] == "failed").then_some(reason)
    };
    let reason = eventually("the box on the lost node is failed", || away(&cluster));
    assert!(reason.contains(&address) && reason.contains("has not answered since"), "{reason}");
    let said = cluster.diagnosed();
    assert_eq!(said[1 - lost].0, "yes", "{said:?}");
    assert!(said[lost].0 == "no" && said[lost].1.contains(&address), "{said:?}");
    assert_eq!(cluster.state(near), "running");
    assert_eq!(cluster.sh(near, "cat /workspace/name"), near, "the other one works");
    for words in
        [&["rsh", "--box", far, "--", "true"][..], &["box", "ensure", far], &["box", "rm", far, "--yes"]]
    {
        let refused = cluster.server.cli(words);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        assert!(refused.stderr.contains(&address), "it says which node: {refused:?}");
    }
    // a server that starts meanwhile knows as much
    assert!(cluster.server.end(Signal::SIGTERM).success());
    cluster.server.start_again();
    assert!(away(&cluster).is_some_and(|reason| reason.contains(&address)), "{}", cluster.listed(far));
    assert_eq!(cluster.sh(near, "cat /workspace/name"), near);
    assert_eq!([cluster.held(0), cluster.held(1)], before, "nothing was claimed or released");

    cluster.links[lost].heal();
    eventually("the box runs again", || (cluster.state(far) == "running").then_some(()));
    assert_eq!(cluster.sh(far, "cat /workspace/name"), far);
    assert_eq!(cluster.sh(far, "readlink /proc/self/ns/net"), network, "it never stopped");
    assert_eq!([cluster.held(0), cluster.held(1)], before);

    // a node that is killed and started again gives back what it had
    cluster.nodes[lost].kill();
    cluster.nodes[lost].start_again();
    let again = eventually("the box answers", || {
        let said = cluster.server.cli(&["rsh", "--box", far, "--", "readlink", "/proc/self/ns/net"]);
        (said.code == Some(0)).then(|| said.ok())
    });
    assert_eq!(again, network);
    for name in ["one", "two"] {
        cluster.server.cli(&["box", "rm", name, "--yes"]).ok();
    }
    assert_eq!([cluster.held(0), cluster.held(1)], [Vec::<String>::new(), Vec::new()]);
}
