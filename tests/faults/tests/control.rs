//! The controls of the storm: what it looks for is found when somebody puts it there.

use std::error::Error;
use std::fs;

use cocoonbox_fault_tests::{Cgroups, Entry, Found, Oracle, claims, clear, leftovers, residents};
use cocoonbox_stories::Server;
use nix::sys::signal::Signal;

type Outcome = Result<(), Box<dyn Error>>;

#[test]
fn a_box_whose_claim_was_forgotten_is_found_as_an_orphan() -> Outcome {
    let mut server = Server::start();
    let node = server.data().join("node");
    server.cli(&["box", "ensure"]).ok();
    let mut cgroups = Cgroups::default();
    let claim = claims(&node)?.pop().ok_or("a box has a claim")?;
    cgroups.look(std::slice::from_ref(&claim));
    assert!(residents(&node).len() >= 2, "{:?}", residents(&node));
    assert_eq!(leftovers(&node, &cgroups, Some(server.id())), Vec::<String>::new());

    // a node that died between moving a box away and ending it: the record goes, the processes stay
    server.end(Signal::SIGKILL);
    let (kept, aside) = (node.join("claims").join(&claim.id), node.join("trash").join(&claim.id));
    fs::rename(&kept, &aside)?;
    let left = leftovers(&node, &cgroups, None);
    assert!(left.iter().any(|line| line.starts_with("process ") && line.contains(&claim.id)), "{left:?}");
    let in_cgroup = left.iter().any(|line| line.starts_with("cgroup ") && line.contains(&claim.id));
    assert!(in_cgroup || cgroups.seen() == 0, "{left:?}");

    // a record that a crash tore
    fs::create_dir(&kept)?;
    fs::write(kept.join("claim.json"), "{\"version\":1,")?;
    assert!(leftovers(&node, &cgroups, None)[0].starts_with("journal: "));
    fs::remove_dir_all(&kept)?;
    fs::rename(&aside, &kept)?;
    // one whose processes are gone while its record says that it runs
    clear(&node, &mut cgroups);
    let left = leftovers(&node, &cgroups, None);
    assert!(left.iter().any(|line| line.contains("without a process")), "{left:?}");
    Ok(())
}

#[test]
fn numbers_that_a_disk_lost_are_missed() -> Outcome {
    let server = Server::start();
    let id = server.json(&["box", "ensure"])["box"]["id"].as_str().ok_or("an id")?.to_owned();
    let mut oracle = Oracle::default();
    oracle.note(&Entry::Created { user: 0, name: "main".to_owned(), id: id.clone() });
    for number in 1..=3 {
        server.sh(&format!("echo {number} >> /workspace/count && sync /workspace/count"));
        oracle.note(&Entry::Counted { id: id.clone(), number });
    }
    let found = || -> Result<Found, Box<dyn Error>> {
        let text = server.sh("cat /workspace/count");
        let numbers = text.lines().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let state = "running".to_owned();
        Ok(Found { user: 0, id: id.clone(), name: "main".to_owned(), state, numbers: Ok(numbers) })
    };
    assert_eq!(oracle.judge(&[found()?]), []);
    server.sh("sed -i '$d' /workspace/count");
    assert_eq!(oracle.judge(&[found()?]).len(), 1);
    Ok(())
}
