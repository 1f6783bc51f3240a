//! Boxes outlive the node, and the node finds them again.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use cocoonbox_core::backend::{
    BackendError, ClaimFilter, ClaimState, Doors, HibernateTo, Memory, NetworkMode, PoolKey, PoolTarget,
    QuotaScope, SandboxBackend as _, Size,
};
use common::{
    Data, Outcome, as_root_and_as_a_user, claim, eventually, is_root, kill, open, printed, processes_of,
    request, run, sh_detached,
};

#[test]
fn processes_and_tmux_outlive_a_restart_of_the_node() -> Outcome {
    as_root_and_as_a_user("processes_and_tmux_outlive_a_restart_of_the_node", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = backend.claim(request("lasts").with_doors(Doors::Bound)).await?;
        sh_detached(
            &*backend,
            &claim.id,
            "n=0; while :; do n=$((n+1)); echo $n >/tmp/.n; mv /tmp/.n /tmp/n; sleep 0.02; done",
        )
        .await?;
        printed(&*backend, &claim.id, "tmux new-session -d -s kept 'sleep 1000'").await?;
        eventually("the counter runs", async || printed(&*backend, &claim.id, "cat /tmp/n").await.is_ok())
            .await?;
        let before = processes_of(&data.path());
        drop(backend);

        let backend = data.open().await?;
        assert_eq!(backend.find(&ClaimFilter::all()).await?, std::slice::from_ref(&claim));
        let after = processes_of(&data.path());
        // the counter starts a process each round, and only those may be others now
        let kept = before.iter().filter(|pid| after.contains(pid)).count();
        assert!(kept >= 5 && after.len() <= kept + 1, "{before:?} {after:?}");
        let count = async || {
            printed(&*backend, &claim.id, "cat /tmp/n").await.ok().and_then(|text| text.parse::<u64>().ok())
        };
        let first = count().await;
        eventually("the counter goes on", async || count().await > first).await?;
        assert!(printed(&*backend, &claim.id, "tmux ls").await?.starts_with("kept:"));
        let door = "printf '{\"door\":\"http\"}\\nGET http://a/ HTTP/1.1\\r\\n\\r\\n' | timeout 5 python3 -c 'import socket,sys\n\
            s=socket.socket(socket.AF_UNIX); s.connect(\"/run/cocoonbox-doors/door.sock\"); s.sendall(sys.stdin.buffer.read()); print(s.recv(12).decode())'";
        assert_eq!(printed(&*backend, &claim.id, door).await?, "HTTP/1.1 403");

        // frozen over a restart, too
        assert_eq!(backend.hibernate(&claim.id, HibernateTo::Memory).await?, Memory::Kept);
        drop(backend);
        let backend = data.open().await?;
        assert_eq!(
            backend.find(&ClaimFilter::all()).await?[0].state,
            ClaimState::Hibernated { memory: Memory::Kept }
        );
        assert_eq!(backend.wake(&claim.id).await?, Memory::Kept);
        assert!(printed(&*backend, &claim.id, "tmux ls").await?.starts_with("kept:"));

        // one that died while nobody looked
        drop(backend);
        processes_of(&data.path()).into_iter().for_each(kill);
        let backend = data.open().await?;
        assert!(matches!(backend.find(&ClaimFilter::all()).await?[0].state, ClaimState::Failed { .. }));
        assert_eq!(backend.wake(&claim.id).await?, Memory::Lost);
        backend.release(&claim.id).await?;
        Ok(())
    })
}

#[test]
fn a_box_whose_death_is_seen_after_adoption_is_failed() -> Outcome {
    as_root_and_as_a_user("a_box_whose_death_is_seen_after_adoption_is_failed", || async {
        let data = Data::new()?;
        drop({
            let backend = data.open().await?;
            claim(&*backend).await?;
            backend
        });
        let backend = data.open().await?;
        processes_of(&data.path()).into_iter().for_each(kill);
        eventually("it is failed", async || {
            let found = backend.find(&ClaimFilter::all()).await;
            matches!(found.as_deref(), Ok([claim]) if matches!(claim.state, ClaimState::Failed { .. }))
        })
        .await
    })
}

#[test]
fn a_claim_that_cannot_be_ended_holds_up_no_other() -> Outcome {
    as_root_and_as_a_user("a_claim_that_cannot_be_ended_holds_up_no_other", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let (stuck, well) = (backend.claim(request("stuck")).await?, backend.claim(request("well")).await?);
        for claim in [&stuck, &well] {
            backend.hibernate(&claim.id, HibernateTo::Disk).await?;
        }
        drop(backend);
        // somebody whom nobody can end holds the box's lock
        let held = std::fs::File::open(data.path().join("claims").join(stuck.id.as_str()).join("lock"))?;
        rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;

        let backend = open(data.config().with_end_limit(Duration::from_millis(300))).await?;
        let found = backend.find(&ClaimFilter::all()).await?;
        assert_eq!(found.len(), 2);
        for claim in &found {
            match &claim.state {
                ClaimState::Failed { reason } => {
                    assert!(claim.id == stuck.id && reason.contains("did not end"), "{claim:?}");
                }
                ClaimState::Hibernated { memory: Memory::Lost } => assert_eq!(claim.id, well.id),
                other => return Err(format!("{other:?}").into()),
            }
        }
        let error = backend.wake(&stuck.id).await.err().ok_or("it cannot be started")?;
        assert!(matches!(error, BackendError::Unavailable { .. }), "{error:?}");
        assert_eq!(backend.wake(&well.id).await?, Memory::Lost);
        printed(&*backend, &well.id, "true").await?;
        // whatever held it is gone
        drop(held);
        assert_eq!(backend.wake(&stuck.id).await?, Memory::Lost);
        printed(&*backend, &stuck.id, "true").await?;
        Ok(())
    })
}

#[test]
fn programs_are_asked_to_end_before_a_box_goes_to_disk() -> Outcome {
    as_root_and_as_a_user("programs_are_asked_to_end_before_a_box_goes_to_disk", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        let program = "trap 'echo written >/workspace/last; exit' TERM; touch /workspace/ready; while :; do sleep 0.05; done";
        // one that does not listen does not keep the box
        let deaf = "trap '' TERM HUP; touch /workspace/ready; while :; do sleep 0.05; done";
        for (command, expected) in [(program, "written"), (deaf, "")] {
            sh_detached(&*backend, &claim.id, command).await?;
            eventually("it runs", async || {
                printed(&*backend, &claim.id, "rm /workspace/ready").await.is_ok()
            })
            .await?;
            assert_eq!(backend.hibernate(&claim.id, HibernateTo::Disk).await?, Memory::Lost);
            assert_eq!(processes_of(&data.path()), Vec::<i32>::new());
            backend.wake(&claim.id).await?;
            let said =
                printed(&*backend, &claim.id, "cat /workspace/last 2>/dev/null; rm -f /workspace/last")
                    .await?;
            assert_eq!(said, expected);
        }
        Ok(())
    })
}

#[test]
fn caps_and_order_outlive_a_restart() -> Outcome {
    run(|| async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let tenant: cocoonbox_core::TenantName = "us_a".parse()?;
        backend.tenants().ok_or("tenants")?.put_tenant(&tenant, 2).await?;
        let mut made = Vec::new();
        for label in ["a", "b"] {
            made.push(backend.claim(request(label).with_tenant(tenant.clone())).await?);
        }
        backend.hibernate(&made[0].id, HibernateTo::Disk).await?;
        drop(backend);
        let backend = open(data.config().with_max_claims(3)).await?;
        let over = backend.claim(request("c").with_tenant(tenant.clone())).await;
        assert!(matches!(over, Err(BackendError::Quota { scope: QuotaScope::Tenant, limit: 2 })), "{over:?}");
        made.push(backend.claim(request("d")).await?);
        let over = backend.claim(request("e")).await;
        assert!(matches!(over, Err(BackendError::Quota { scope: QuotaScope::Node, limit: 3 })), "{over:?}");
        let ids = |claims: &[cocoonbox_core::backend::Claim]| {
            claims.iter().map(|claim| claim.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&backend.find(&ClaimFilter::all()).await?), ids(&made));
        Ok(())
    })
}

/// Claims, freezes, wakes and releases without end in the directory it is given; run by the test below as a process
/// of its own, to be killed in the middle.
#[test]
#[ignore = "a part of another test"]
fn a_node_at_work() -> Outcome {
    let Some(path) = std::env::var_os("COCOONBOX_TEST_NODE") else { return Ok(()) };
    run(|| async {
        let backend = open(cocoonbox_sandbox::BwrapConfig::new(path, common::agent())).await?;
        loop {
            let claim = claim(&*backend).await?;
            backend.hibernate(&claim.id, HibernateTo::Memory).await?;
            backend.wake(&claim.id).await?;
            backend.hibernate(&claim.id, HibernateTo::Disk).await?;
            backend.wake(&claim.id).await?;
            backend.release(&claim.id).await?;
        }
    })
}

/// Keeps a pool and claims out of it without end, saying of each claim that it was answered and under which name; run by
/// the test below as a process of its own, to be killed in the middle.
#[test]
#[ignore = "a part of another test"]
fn a_node_with_a_pool_at_work() -> Outcome {
    let Some(path) = std::env::var_os("COCOONBOX_TEST_NODE") else { return Ok(()) };
    run(|| async {
        let backend = open(cocoonbox_sandbox::BwrapConfig::new(path, common::agent())).await?;
        let pools = backend.pools().ok_or("pools")?;
        pools.put_pools(vec![pool(2)]).await?;
        for nth in backend.find(&ClaimFilter::all()).await?.len().. {
            // half of them find a warm one
            if nth % 2 == 0 {
                tokio::time::sleep(Duration::from_millis(130)).await;
            }
            let asked = request("pooled").with_doors(Doors::Bound).with_hostname(format!("box-{nth}"));
            let claim = backend.claim(asked).await?;
            println!("\nanswered {} box-{nth} {}", claim.id, pools.pools().await?[0].warm);
        }
        Ok(())
    })
}

fn pool(warm: u32) -> PoolTarget {
    let key =
        PoolKey { image: cocoonbox_core::ImageName::host(), network: NetworkMode::None, size: Size::Small };
    PoolTarget { key, warm }
}

#[test]
fn a_node_killed_over_its_pool_loses_no_claim_and_leaks_no_box() -> Outcome {
    as_root_and_as_a_user("a_node_killed_over_its_pool_loses_no_claim_and_leaks_no_box", || async {
        use std::io::BufRead as _;
        let data = Data::new()?;
        let mut answered = std::collections::BTreeMap::new();
        for round in 0..6_u64 {
            let mut node = Command::new(std::env::current_exe()?)
                .args(["--ignored", "--exact", "a_node_with_a_pool_at_work", "--nocapture"])
                .env("COCOONBOX_TEST_NODE", data.path())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()?;
            let mut said = std::io::BufReader::new(node.stdout.take().ok_or("a pipe")?);
            // from an answer on, in odd steps, so that the blow falls somewhere else each time
            let mut line = String::new();
            while !line.starts_with("answered") {
                line.clear();
                if said.read_line(&mut line)? == 0 {
                    return Err("the node claimed nothing".into());
                }
            }
            tokio::time::sleep(Duration::from_millis(round * 83 % 290)).await;
            node.kill()?;
            node.wait()?;
            let rest = said.lines().map_while(Result::ok).collect::<Vec<_>>();
            for line in rest.iter().map(String::as_str).chain([line.trim_end()]) {
                let mut words = line.split(' ');
                if let (Some("answered"), Some(id), Some(name)) = (words.next(), words.next(), words.next())
                    && words.next().is_some()
                {
                    let twice = answered.insert(id.to_owned(), name.to_owned());
                    assert_eq!(twice, None, "{id} was handed out once");
                }
            }
        }
        let backend = data.open().await?;
        let found = backend.find(&ClaimFilter::all()).await?;
        for id in answered.keys() {
            assert!(found.iter().any(|claim| claim.id.as_str() == id), "{id} was answered and is there");
        }
        // an answer may have been lost with each node
        assert!(found.len() <= answered.len() + 6, "{} of {}", found.len(), answered.len());
        let mut names = std::collections::BTreeSet::new();
        for claim in &found {
            let name = printed(&*backend, &claim.id, "cat /proc/sys/kernel/hostname").await?;
            if let Some(said) = answered.get(claim.id.as_str()) {
                assert_eq!(name, *said);
                assert!(names.insert(name), "each has its own");
            }
        }
        // what no claim has is nobody's: the pool's, and it goes with the pool
        backend.pools().ok_or("pools")?.put_pools(Vec::new()).await?;
        let claims = data.path().join("claims");
        eventually("only claims are left", async || {
            std::fs::read_dir(&claims).is_ok_and(|left| left.count() == found.len())
        })
        .await?;
        for claim in &found {
            backend.release(&claim.id).await?;
        }
        assert_eq!(processes_of(&data.path()), Vec::<i32>::new());
        Ok(())
    })
}

#[test]
fn a_warm_box_that_dies_is_replaced_and_those_that_wait_end_with_the_node() -> Outcome {
    as_root_and_as_a_user(
        "a_warm_box_that_dies_is_replaced_and_those_that_wait_end_with_the_node",
        || async {
            let data = Data::new()?;
            let backend = data.open().await?;
            let pools = backend.pools().ok_or("pools")?;
            pools.put_pools(vec![pool(1)]).await?;
            let full =
                async || pools.pools().await.is_ok_and(|pools| pools.iter().all(|pool| pool.warm == 1));
            eventually("the pool is full", full).await?;
            let before = processes_of(&data.path());
            assert!(!before.is_empty());
            before.iter().copied().for_each(kill);
            eventually("another one waits", async || {
                let now = processes_of(&data.path());
                full().await && !now.is_empty() && now.iter().all(|pid| !before.contains(pid))
            })
            .await?;
            let claim = backend.claim(request("a").with_doors(Doors::Bound)).await?;
            printed(&*backend, &claim.id, "true").await?;
            eventually("the pool is full again", full).await?;
            let of_claim = |pid: &i32| {
                std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))
                    .is_ok_and(|mounts| mounts.contains(&format!("/{}/", claim.id)))
                    || std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                        .is_ok_and(|line| line.contains(claim.id.as_str()))
            };
            drop(backend);
            eventually("only the claim's processes are left", async || {
                let left = processes_of(&data.path());
                !left.is_empty() && left.iter().all(of_claim)
            })
            .await?;
            let backend = data.open().await?;
            printed(&*backend, &claim.id, "true").await?;
            Ok(())
        },
    )
}

/// Finds a frozen box, or makes one; run by the test below in one place of the hierarchy of cgroups, then in another.
#[test]
#[ignore = "a part of another test"]
fn a_node_in_its_place() -> Outcome {
    let Some(path) = std::env::var_os("COCOONBOX_TEST_NODE") else { return Ok(()) };
    run(|| async {
        let backend = open(cocoonbox_sandbox::BwrapConfig::new(path, common::agent())).await?;
        let found = backend.find(&ClaimFilter::all()).await?;
        println!("frozen by {:?}", backend.capabilities().freeze);
        let Some(found) = found.first() else {
            let claim = claim(&*backend).await?;
            sh_detached(&*backend, &claim.id, "while :; do date +%s%N >/tmp/.n; mv /tmp/.n /tmp/n; done")
                .await?;
            assert_eq!(backend.hibernate(&claim.id, HibernateTo::Memory).await?, Memory::Kept);
            return Ok(());
        };
        assert_eq!(backend.wake(&found.id).await?, Memory::Kept);
        printed(&*backend, &found.id, "cat /tmp/n").await?;
        assert_eq!(backend.hibernate(&found.id, HibernateTo::Memory).await?, Memory::Kept);
        Ok(())
    })
}

#[test]
fn a_frozen_box_wakes_whatever_cgroups_its_next_node_may_make() -> Outcome {
    run(|| async {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let mount =
            mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
        let (Some(mount), true) = (mount, is_root()) else { return Ok(()) };
        let data = Data::new()?;
        let home = data.path().parent().ok_or("has one")?.to_owned();
        let owner: u32 = common::ORDINARY.parse()?;
        std::os::unix::fs::chown(&home, Some(owner), Some(owner))?;
        // a cgroup that was delegated to an ordinary user, as a session manager does
        let delegated = std::path::Path::new(mount).join(format!("delegated-{}", std::process::id()));
        std::fs::create_dir(&delegated)?;
        for path in [delegated.clone(), delegated.join("cgroup.procs")] {
            std::os::unix::fs::chown(path, Some(owner), Some(owner))?;
        }
        let node = |place: &str| -> Result<String, Box<dyn std::error::Error>> {
            let output = Command::new("sh")
                .args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec setpriv --reuid \"$1\" --regid \"$1\" --clear-groups -- \"$2\" --ignored --exact a_node_in_its_place --nocapture"])
                .arg(place)
                .arg(common::ORDINARY)
                .arg(std::env::current_exe()?)
                .env("COCOONBOX_TEST_NODE", data.path())
                .output()?;
            let said = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            if output.status.success() { Ok(said) } else { Err(said.into()) }
        };
        let outcome = (|| -> Outcome {
            let delegated = delegated.display().to_string();
            for (place, how) in
                [(delegated.as_str(), "Kernel"), (mount, "Signals"), (delegated.as_str(), "Kernel")]
            {
                let said = node(place)?;
                assert!(said.contains(&format!("frozen by {how}")), "{said}");
            }
            Ok(())
        })();
        drop(data);
        let _ = std::fs::remove_dir(&delegated);
        outcome
    })
}

#[test]
fn a_node_killed_at_any_time_leaves_nothing_half_done() -> Outcome {
    as_root_and_as_a_user("a_node_killed_at_any_time_leaves_nothing_half_done", || async {
        let data = Data::new()?;
        for round in 0..12_u64 {
            let mut node = Command::new(std::env::current_exe()?)
                .args(["--ignored", "--exact", "a_node_at_work"])
                .env("COCOONBOX_TEST_NODE", data.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            // odd steps, so that the blow falls somewhere else each time
            tokio::time::sleep(Duration::from_millis(15 + round * 37 % 290)).await;
            node.kill()?;
            node.wait()?;
            let backend = data.open().await?;
            for claim in backend.find(&ClaimFilter::all()).await? {
                if claim.state == ClaimState::Running {
                    printed(&*backend, &claim.id, "true").await?;
                } else {
                    backend.wake(&claim.id).await?;
                    printed(&*backend, &claim.id, "true").await?;
                }
                backend.release(&claim.id).await?;
            }
            assert_eq!(processes_of(&data.path()), Vec::<i32>::new(), "round {round}");
            for directory in ["claims", "trash"] {
                assert_eq!(
                    std::fs::read_dir(data.path().join(directory))?.count(),
                    0,
                    "{directory}, round {round}"
                );
            }
        }
        Ok(())
    })
}
