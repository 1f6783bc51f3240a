//! Boxes with file systems of their own. These tests are apart from others and take turns: a launch copies the machine's
//! table of mounts, so that boxes of another node keep a file system for a while that is let go here.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests, which say what they leave out")]

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cocoonbox_core::backend::{ClaimFilter, ClaimState, Enforcement, HibernateTo, SandboxBackend as _, Size};
use cocoonbox_sandbox::{BwrapBackend, BwrapConfig, DiskLimit, Limits, Tier};
use common::{Data, Outcome, as_root_and_as_a_user, claim, printed, sh};

static TURN: Mutex<()> = Mutex::new(());

async fn open(data: &Data, limits: Limits) -> Result<Arc<BwrapBackend>, Box<dyn std::error::Error>> {
    Ok(common::open(data.config().with_limits(limits)).await?)
}

/// Whether boxes have file systems of their own here; says so where they have not.
fn is_enforced(backend: &BwrapBackend) -> bool {
    let found = backend.capabilities().limits.disk;
    if found != Enforcement::Enforced {
        println!("left out: no loop device can be mounted on this machine, the disk is {found:?}");
    }
    found == Enforcement::Enforced
}

/// The images below `data` that loop devices have, by what the system says.
fn looped(data: &Path) -> usize {
    let files = std::fs::read_dir("/sys/block").into_iter().flatten().flatten().filter_map(|device| {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        Path::new(file.trim_end()).starts_with(data).then_some(())
    });
    files.count()
}

/// The mounts below `data`.
fn mounted(data: &Path) -> usize {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| Path::new(point).starts_with(data.join("claims")))
        .count()
}

/// Waits until `count` boxes have their file systems, and no loop device is left over.
async fn have_file_systems(data: &Path, count: usize) -> Outcome {
    common::eventually(&format!("{count} file systems are mounted"), async || {
        (looped(data), mounted(data)) == (count, count)
    })
    .await
}

/// Boxes with file systems of their own; the image leaves room for the file system's own tables.
fn loops() -> Limits {
    let tier = Tier::of(Size::Small).with_disk_bytes(64 << 20);
    Limits::default().with_tier(Size::Small, tier).with_disk(DiskLimit::Loop)
}

#[test]
fn a_box_with_a_file_system_of_its_own_fills_that_alone() -> Outcome {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    as_root_and_as_a_user("a_box_with_a_file_system_of_its_own_fills_that_alone", || async {
        let data = Data::new()?;
        let backend = open(&data, loops()).await?;
        if !common::is_root() {
            // what cannot be had is watched instead, and says so
            assert_eq!(backend.capabilities().limits.disk, Enforcement::Watched);
            return Ok(());
        }
        if !is_enforced(&backend) {
            return Ok(());
        }
        let neighbour = claim(&*backend).await?;
        let box_ = claim(&*backend).await?;
        have_file_systems(&data.path(), 2).await?;
        let fill = |count: u32| format!("dd if=/dev/zero of=/home/user/x bs=1M count={count} 2>&1");
        let full = sh(&*backend, &box_.id, &fill(80)).await?;
        assert!(full.code != 0 && full.out.contains("No space left"), "{full:?}");
        printed(&*backend, &neighbour.id, &fill(8)).await?;
        // the box goes on, and finds again what it wrote
        printed(&*backend, &box_.id, &format!("{} && echo kept >/workspace/kept", fill(8))).await?;
        for (refused, why) in
            [("mknod /workspace/null c 1 3", "device nodes"), ("ls /dev | grep -q loop", "loop devices")]
        {
            assert_ne!(sh(&*backend, &box_.id, refused).await?.code, 0, "{why}");
        }
        backend.hibernate(&box_.id, HibernateTo::Disk).await?;
        have_file_systems(&data.path(), 1).await?;
        drop(backend);
        let backend = open(&data, loops()).await?;
        backend.wake(&box_.id).await?;
        have_file_systems(&data.path(), 2).await?;
        assert_eq!(
            printed(&*backend, &box_.id, "cat /workspace/kept; wc -c </home/user/x").await?,
            "kept\n8388608"
        );
        for claim in backend.find(&ClaimFilter::all()).await? {
            backend.release(&claim.id).await?;
        }
        have_file_systems(&data.path(), 0).await
    })
}

const KILLED: &str = "COCOONBOX_TEST_KILLED";

#[test]
#[ignore = "the node that another test ends"]
fn a_node_that_is_ended_over_file_systems() -> Outcome {
    let Some(data) = std::env::var_os(KILLED) else { return Ok(()) };
    common::run(|| async {
        let config = BwrapConfig::new(data, common::agent());
        let backend = common::open(config.with_limits(loops())).await?;
        println!("ready");
        loop {
            let box_ = claim(&*backend).await?;
            backend.hibernate(&box_.id, HibernateTo::Disk).await?;
            backend.wake(&box_.id).await?;
            backend.release(&box_.id).await?;
        }
    })
}

#[test]
fn a_node_ended_at_any_time_leaves_no_file_system_behind() -> Outcome {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    common::run(|| async {
        if !common::is_root() {
            println!("left out: only root can mount file systems");
            return Ok(());
        }
        let data = Data::new()?;
        for round in 0..5_u64 {
            let mut node = std::process::Command::new(std::env::current_exe()?)
                .args(["--exact", "a_node_that_is_ended_over_file_systems", "--ignored", "--nocapture"])
                .env(KILLED, data.path())
                .stdout(std::process::Stdio::piped())
                .spawn()?;
            let mut said = std::io::BufReader::new(node.stdout.take().ok_or("it has an output")?);
            let mut line = String::new();
            while !line.contains("ready") {
                line.clear();
                if std::io::BufRead::read_line(&mut said, &mut line)? == 0 {
                    return Err("the node did not start".into());
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(50 + round * 170)).await;
            node.kill()?;
            node.wait()?;
            let backend = open(&data, loops()).await?;
            if !is_enforced(&backend) {
                return Ok(());
            }
            let found = backend.find(&ClaimFilter::all()).await?;
            let running = found.iter().filter(|claim| claim.state == ClaimState::Running).count();
            have_file_systems(&data.path(), running).await?;
            for claim in found {
                backend.release(&claim.id).await?;
            }
            have_file_systems(&data.path(), 0).await?;
            let left = |part: &str| std::fs::read_dir(data.path().join(part)).map(Iterator::count);
            assert_eq!((left("claims")?, left("trash")?), (0, 0));
        }
        Ok(())
    })
}
