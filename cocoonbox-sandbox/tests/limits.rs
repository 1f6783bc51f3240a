//! What a box uses up is its own alone. Each attack has a control: the same program, with the limit switched off, goes
//! past where it was stopped.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests, which say what they leave out")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use cocoonbox_core::backend::{
    BackendError, Claim, ClaimFilter, ClaimState, Enforcement, HibernateTo, LimitCapabilities, Memory,
    SandboxBackend, SandboxId, Size,
};
use cocoonbox_sandbox::{BwrapBackend, Limits, ProcessLimit, Reserve, Tier};
use common::{
    Data, Outcome, as_root_and_as_a_user, cgroups_of, claim, printed, processes_of, sh, sh_detached,
};

const MIB: u64 = 1024 * 1024;

/// A size that a test can fill.
fn tiny() -> Tier {
    Tier::of(Size::Small)
        .with_memory_bytes(96 * MIB)
        .with_millicpus(50)
        .with_pids(64)
        .with_disk_bytes(32 * MIB)
}

/// Limits at which a small box is tiny.
fn limits() -> Limits {
    Limits::default()
        .with_reserve(Reserve::default().with_disk_bytes(64 * MIB))
        .with_tier(Size::Small, tiny())
}

/// The same without the slow processor, for tests of other limits.
fn limits_but_cpu() -> Limits {
    Limits::default()
        .with_reserve(Reserve::default().with_disk_bytes(64 * MIB))
        .with_tier(Size::Small, tiny().with_millicpus(2000))
}

async fn open(data: &Data, limits: Limits) -> Result<Arc<BwrapBackend>, Box<dyn std::error::Error>> {
    Ok(common::open(data.config().with_limits(limits)).await?)
}

/// Whether a limit is enforced here; says so where it is not.
fn is_enforced(
    backend: &BwrapBackend,
    what: &str,
    of: impl FnOnce(&LimitCapabilities) -> Enforcement,
) -> bool {
    let found = of(&backend.capabilities().limits);
    if found != Enforcement::Enforced {
        println!("left out: {what} is {found:?} on this machine, there is no cgroup for it");
    }
    found == Enforcement::Enforced
}

/// A box that lives beside an attack: one process of it counts on.
struct Neighbour<'a> {
    backend: &'a BwrapBackend,
    claim: Claim,
    pid: String,
}

impl<'a> Neighbour<'a> {
    async fn of(backend: &'a BwrapBackend) -> Result<Self, Box<dyn std::error::Error>> {
        let claim = claim(backend).await?;
        let pid = printed(backend, &claim.id, "sleep 1000 >/dev/null 2>&1 & echo $!").await?;
        Ok(Self { backend, claim, pid })
    }

    /// It answers, and the process it had is there.
    async fn is_well(&self) -> Outcome {
        let name = printed(self.backend, &self.claim.id, &format!("cat /proc/{}/comm", self.pid)).await?;
        assert_eq!(name, "sleep");
        Ok(())
    }
}

/// The file of one of these names, in the cgroup that the boxes of `data` have in common.
fn shared_file(data: &Path, names: [&str; 2]) -> PathBuf {
    let all = processes_of(data).into_iter().flat_map(cgroups_of);
    let parents = all.filter_map(|cgroup| cgroup.parent().map(Path::to_owned));
    let files = parents.flat_map(|parent| names.map(|name| parent.join(name)));
    files.into_iter().find(|file| file.exists()).unwrap()
}

fn number(path: &Path) -> u64 {
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// Takes memory and says so.
fn hog(mib: u64) -> String {
    format!(
        "python3 -c 'b = bytearray({mib} << 20); b[::4096] = b\"x\" * len(b[::4096]); print(\"took it\")'"
    )
}

#[test]
fn a_memory_hog_ends_alone() -> Outcome {
    common::run(|| async {
        let data = Data::new()?;
        let backend = open(&data, limits_but_cpu()).await?;
        if !is_enforced(&backend, "memory", |limits| limits.memory) {
            return Ok(());
        }
        let neighbour = Neighbour::of(&backend).await?;
        let box_ = claim(&*backend).await?;
        let shm = "dd if=/dev/zero of=/dev/shm/x bs=1M count=160 2>/dev/null && echo took it";
        for attack in [hog(160), shm.to_owned()] {
            let ran = sh(&*backend, &box_.id, &attack).await?;
            assert!(ran.code != 0 && ran.out.is_empty(), "{attack}: {ran:?}");
            neighbour.is_well().await?;
            assert_eq!(printed(&*backend, &box_.id, "rm -f /dev/shm/x; echo here").await?, "here");
        }
        // what fits is had
        assert_eq!(printed(&*backend, &box_.id, &hog(48)).await?, "took it");

        let free = Data::new()?;
        let control = open(&free, Limits::off()).await?;
        let box_ = claim(&*control).await?;
        for attack in [hog(160), shm.to_owned()] {
            assert_eq!(printed(&*control, &box_.id, &attack).await?, "took it");
        }
        Ok(())
    })
}

/// Makes processes until it may not, at most 150, and says how many there were.
const BOMB: &str = "cat >/tmp/bomb.py <<'END'\n\
    import os, signal, sys, time\n\
    made = []\n\
    try:\n\
    \x20   while len(made) < 150:\n\
    \x20       pid = os.fork()\n\
    \x20       if pid == 0:\n\
    \x20           time.sleep(int(sys.argv[1])); os._exit(0)\n\
    \x20       made.append(pid)\n\
    except OSError: pass\n\
    print(len(made), flush=True)\n\
    for pid in made: os.waitpid(pid, 0)\n\
    END\n\
    python3 /tmp/bomb.py";

#[test]
fn a_fork_bomb_stays_in_its_box() -> Outcome {
    as_root_and_as_a_user("a_fork_bomb_stays_in_its_box", || async {
        // a user has the second in either case, but for one with a cgroup of its own
        let ways = [ProcessLimit::Cgroup, ProcessLimit::Advice];
        for by in ways.into_iter().skip(usize::from(!common::is_root())) {
            let data = Data::new()?;
            let backend = open(&data, limits_but_cpu().with_processes(by)).await?;
            let pids = backend.capabilities().limits.pids;
            if by == ProcessLimit::Advice {
                assert_eq!(pids, Enforcement::Advisory);
            }
            let neighbour = Neighbour::of(&backend).await?;
            let box_ = claim(&*backend).await?;
            // the neighbour has as many of its own at the same time
            for id in [&neighbour.claim.id, &box_.id] {
                let out = format!("{BOMB} 2 >/tmp/made 2>&1");
                sh_detached(&*backend, id, &out).await?;
            }
            for id in [&neighbour.claim.id, &box_.id] {
                let made =
                    printed(&*backend, id, "while [ ! -s /tmp/made ]; do sleep 0.1; done; cat /tmp/made");
                let made: u32 = if let Ok(made) = made.await {
                    made.parse()?
                } else {
                    // a box that is full may not have a process left for the question
                    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
                    printed(&*backend, id, "cat /tmp/made").await?.parse()?
                };
                assert!((20..64).contains(&made), "{by:?}: {made} processes");
            }
            neighbour.is_well().await?;
            // one that never stops
            sh_detached(&*backend, &box_.id, "f() { f | f & }; f").await?;
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            neighbour.is_well().await?;
            assert!(processes_of(&data.path()).len() < 2 * 64 + 16);
            backend.release(&box_.id).await?;
            neighbour.is_well().await?;
        }
        if !common::is_root() {
            return Ok(());
        }
        let free = Data::new()?;
        let control = open(&free, Limits::off()).await?;
        let box_ = claim(&*control).await?;
        assert_eq!(printed(&*control, &box_.id, &format!("{BOMB} 0")).await?, "150");
        Ok(())
    })
}

/// The seconds of processor time that the boxes of `data` have used, and those that passed since `since`, no fewer.
fn used(data: &Path, since: Instant) -> (f64, f64) {
    let ticks = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_ascii_whitespace().map(str::to_owned).collect();
        Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
    };
    // a tick is a hundredth of a second wherever Linux shows it to programs
    let ticks: u64 = processes_of(data).into_iter().filter_map(ticks).sum();
    (f64::from(u32::try_from(ticks).unwrap()) / 100.0, since.elapsed().as_secs_f64())
}

#[test]
fn a_busy_loop_has_its_share_alone() -> Outcome {
    common::run(|| async {
        const LOOPS: &str = "for i in 1 2 3 4; do while :; do :; done & done; sleep 1000";
        // what starting takes, and what a throttled group may be over
        const SLACK: f64 = 0.8;
        let data = Data::new()?;
        let backend = open(&data, limits()).await?;
        if !is_enforced(&backend, "cpu", |limits| limits.cpu) {
            return Ok(());
        }
        let since = Instant::now();
        let neighbour = Neighbour::of(&backend).await?;
        let box_ = claim(&*backend).await?;
        sh_detached(&*backend, &box_.id, LOOPS).await?;
        let (free, off) = (Data::new()?, Limits::off());
        let control = open(&free, off).await?;
        let other = claim(&*control).await?;
        let start = Instant::now();
        sh_detached(&*control, &other.id, LOOPS).await?;
        // on a busy machine it takes its time, and is all the same past what the limit would allow
        loop {
            let (used, passed) = used(&free.path(), start);
            if used > passed * 0.05 * 2.0 + SLACK {
                break;
            }
            assert!(passed < 60.0, "a loop without a limit used {used} s of {passed}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        control.release(&other.id).await?;
        let (used, passed) = used(&data.path(), since);
        assert!(used <= passed * 0.05 * 2.0 + SLACK, "{used} s of {passed}");
        neighbour.is_well().await
    })
}

#[test]
fn all_boxes_together_leave_the_machine_its_reserve() -> Outcome {
    common::run(|| async {
        const TOGETHER: u64 = 224 * MIB;
        let memory = std::fs::read_to_string("/proc/meminfo")?;
        let memory: u64 = memory.split_ascii_whitespace().nth(1).unwrap().parse::<u64>()? * 1024;
        let pids = ["pid_max", "threads-max"].map(|name| number(&Path::new("/proc/sys/kernel").join(name)));
        let pids = pids.into_iter().min().unwrap() as u32;
        let reserve = Reserve::default().with_memory_bytes(memory - TOGETHER).with_pids(pids - 90);
        let tier = tiny().with_millicpus(2000).with_memory_bytes(160 * MIB);
        let data = Data::new()?;
        let backend =
            open(&data, Limits::default().with_tier(Size::Small, tier).with_reserve(reserve)).await?;
        let enforced = |what, of: fn(&LimitCapabilities) -> Enforcement| is_enforced(&backend, what, of);
        if !enforced("memory", |limits| limits.memory) || !enforced("pids", |limits| limits.pids) {
            return Ok(());
        }
        let (one, other) = (claim(&*backend).await?, claim(&*backend).await?);
        // each is within its own limit, and both are over what there is
        let hold = format!("{} && sleep 3", hog(120).replace("print(", "import time; time.sleep(3); print("));
        let both = tokio::join!(sh(&*backend, &one.id, &hold), sh(&*backend, &other.id, &hold));
        let codes = [both.0?.code, both.1?.code];
        assert!(codes.iter().any(|code| *code != 0), "{codes:?}");
        let most = number(&shared_file(&data.path(), ["memory.max_usage_in_bytes", "memory.peak"]));
        assert!((120 * MIB..=TOGETHER).contains(&most), "{most} bytes");
        let bomb = format!("{BOMB} 2");
        let bombs = tokio::join!(printed(&*backend, &one.id, &bomb), printed(&*backend, &other.id, &bomb));
        let made =
            [bombs.0, bombs.1].map(|made| made.ok().and_then(|made| made.parse::<u64>().ok()).unwrap_or(0));
        assert!(made.iter().sum::<u64>() < 90, "{made:?}");
        assert_eq!(number(&shared_file(&data.path(), ["pids.max"; 2])), 90);
        for id in [&one.id, &other.id] {
            assert_eq!(printed(&*backend, id, "echo here").await?, "here");
        }
        Ok(())
    })
}

/// Writes ten files of 8 MiB, one after the other.
const FILLER: &str = "for i in 1 2 3 4 5 6 7 8 9 10; do dd if=/dev/zero of=/workspace/$i bs=1M count=8 2>/dev/null; \
                      sleep 0.3; done; echo done >/workspace/done";
/// The same into files that have no name any more.
const HIDDEN: &str = "cat >/tmp/hide.py <<'END'\n\
    import os, time\n\
    files = []\n\
    for i in range(4):\n\
    \x20   files.append(open('/tmp/x', 'wb', buffering=0)); os.unlink('/tmp/x')\n\
    \x20   files[-1].write(bytes(16 << 20))\n\
    time.sleep(1000)\n\
    END\n\
    python3 /tmp/hide.py";

/// A claim as it is shown now.
async fn shown(backend: &BwrapBackend, id: &SandboxId) -> Option<Claim> {
    backend.find(&ClaimFilter::by_id(id.clone())).await.ok()?.pop()
}

/// Waits until the node holds a box still, and returns why.
async fn held(backend: &BwrapBackend, id: &SandboxId) -> Result<String, Box<dyn std::error::Error>> {
    let held = async || shown(backend, id).await.and_then(|claim| claim.held);
    let start = Instant::now();
    while held().await.is_none() {
        // what it is held for takes its time on a busy machine
        assert!(start.elapsed().as_secs() < 60, "the node did not hold a box still");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let claim = shown(backend, id).await.ok_or("it is there")?;
    assert_eq!(claim.state, ClaimState::Hibernated { memory: Memory::Kept });
    Ok(claim.held.ok_or("it is held")?)
}

#[test]
fn a_disk_filler_is_held_still_and_can_tidy_up() -> Outcome {
    as_root_and_as_a_user("a_disk_filler_is_held_still_and_can_tidy_up", || async {
        let data = Data::new()?;
        let backend = open(&data, limits_but_cpu()).await?;
        assert_eq!(backend.capabilities().limits.disk, Enforcement::Watched);
        let neighbour = Neighbour::of(&backend).await?;
        let (box_, hidden) = (claim(&*backend).await?, claim(&*backend).await?);
        sh_detached(&*backend, &box_.id, FILLER).await?;
        sh_detached(&*backend, &hidden.id, HIDDEN).await?;
        for id in [&box_.id, &hidden.id] {
            let reason = held(&backend, id).await?;
            assert!(reason.contains("32 MiB at most"), "{reason}");
        }
        let refusal = sh(&*backend, &box_.id, "true").await.expect_err("it is hibernated").to_string();
        assert!(refusal.contains("32 MiB at most"), "{refusal}");
        neighbour.is_well().await?;
        // another node finds it so
        drop(neighbour);
        drop(backend);
        let backend = open(&data, limits_but_cpu()).await?;
        let claim = shown(&backend, &box_.id).await.ok_or("it is there")?;
        assert!(claim.held.is_some_and(|reason| reason.contains("32 MiB at most")));
        // woken it has time to tidy up
        backend.wake(&box_.id).await?;
        printed(&*backend, &box_.id, "pkill sh; rm -f /workspace/*; echo gone").await.ok();
        backend.wake(&box_.id).await?;
        assert_eq!(shown(&backend, &box_.id).await.and_then(|claim| claim.held), None);
        printed(&*backend, &box_.id, "rm -f /workspace/*").await?;
        if !common::is_root() {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
        // and is measured by its size again
        sh_detached(&*backend, &box_.id, FILLER).await?;
        held(&backend, &box_.id).await?;
        backend.release(&box_.id).await?;

        let free = Data::new()?;
        let control = open(&free, Limits::off()).await?;
        let box_ = common::claim(&*control).await?;
        printed(&*control, &box_.id, FILLER).await?;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let claim = shown(&control, &box_.id).await.ok_or("it is there")?;
        assert_eq!((claim.state, claim.held), (ClaimState::Running, None));
        Ok(())
    })
}

#[test]
fn a_machine_short_of_disk_holds_who_goes_on_writing() -> Outcome {
    common::run(|| async {
        if !common::is_root() {
            println!("left out: only root can make a small file system");
            return Ok(());
        }
        let data = Data::new()?;
        let _small = Mounted::tmpfs(&data.path(), 96)?;
        let tier = tiny().with_millicpus(2000).with_memory_bytes(512 * MIB).with_disk_bytes(1024 * MIB);
        let reserve = Reserve::default().with_disk_bytes(48 * MIB);
        let backend =
            open(&data, Limits::default().with_tier(Size::Small, tier).with_reserve(reserve)).await?;
        let neighbour = Neighbour::of(&backend).await?;
        let box_ = claim(&*backend).await?;
        sh_detached(&*backend, &box_.id, FILLER).await?;
        let reason = held(&backend, &box_.id).await?;
        assert!(reason.contains("short of disk"), "{reason}");
        neighbour.is_well().await
    })
}

/// A small file system under a data directory, there with its boxes until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(place: &Path, mib: u64) -> Result<Self, Box<dyn std::error::Error>> {
        std::fs::create_dir(place)?;
        let size = std::ffi::CString::new(format!("size={mib}m,mode=700"))?;
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(c"tmpfs", place, c"tmpfs", flags, size.as_c_str())?;
        Ok(Self(place.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // what is mounted here is not found by its path
        let cgroups: std::collections::BTreeSet<_> =
            processes_of(&self.0).into_iter().flat_map(cgroups_of).collect();
        for cgroup in &cgroups {
            let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
        }
        let mut left: Vec<_> = cgroups.into_iter().collect();
        for _ in 0..200 {
            left.retain(|cgroup| std::fs::remove_dir(cgroup).is_err());
            if left.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_meter_tells_what_a_box_holds_in_memory() -> Outcome {
    as_root_and_as_a_user("a_meter_tells_what_a_box_holds_in_memory", || async {
        let data = Data::new()?;
        let backend = open(&data, limits_but_cpu()).await?;
        let meter = backend.meter().ok_or("it has one")?;
        let box_ = claim(&*backend).await?;
        let limited = backend.capabilities().limits.memory == Enforcement::Enforced;
        let before = meter.measure(&box_.id).await?;
        assert_eq!(before.memory_limit_bytes, limited.then_some(96 * MIB));
        let idle = before.memory_used_bytes.ok_or("it was measured")?;
        assert!(idle < 40 * MIB, "{idle} bytes idle");
        let hold = "python3 -c 'b = bytearray(40 << 20); b[::4096] = b\"x\" * len(b[::4096]); import time; \
                    open(\"/tmp/held\", \"w\"); time.sleep(1000)'";
        sh_detached(&*backend, &box_.id, hold).await?;
        printed(&*backend, &box_.id, "while [ ! -e /tmp/held ]; do sleep 0.05; done").await?;
        let measured = async || meter.measure(&box_.id).await.map(|found| found.memory_used_bytes);
        let held = measured().await?.ok_or("it was measured")?;
        assert!((40 * MIB..96 * MIB).contains(&held), "{held} bytes");
        backend.hibernate(&box_.id, HibernateTo::Memory).await?;
        assert!(measured().await?.is_some_and(|bytes| bytes >= 40 * MIB));
        backend.hibernate(&box_.id, HibernateTo::Disk).await?;
        assert_eq!(measured().await?, Some(0));
        backend.release(&box_.id).await?;
        assert!(matches!(measured().await, Err(BackendError::NotFound { .. })));
        Ok(())
    })
}

#[test]
fn what_the_node_was_started_with_is_not_the_boxs() -> Outcome {
    const INSIDE: &str = "COCOONBOX_TEST_INHERITED";
    const NAME: &str = "what_the_node_was_started_with_is_not_the_boxs";
    if std::env::var_os(INSIDE).is_none() {
        // an odd node: nice, with few files, dumps allowed, first to go when memory is short
        let odd = "echo 700 >/proc/self/oom_score_adj; ulimit -Sn 200; ulimit -Ss 1024; ulimit -Sc 0; \
                   exec nice -n 3 \"$0\" --exact \"$1\" --nocapture";
        let output = std::process::Command::new("/bin/bash")
            .args(["-c", odd])
            .arg(std::env::current_exe()?)
            .arg(NAME)
            .env(INSIDE, "1")
            .output()?;
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success() && said.concat().contains("1 passed"), "{}", said.concat());
        return Ok(());
    }
    common::run(|| async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let box_ = claim(&*backend).await?;
        let found = printed(
            &*backend,
            &box_.id,
            "ulimit -Sn; ulimit -Ss; nice; cat /proc/self/oom_score_adj; grep 'core file' /proc/self/limits; ulimit -v",
        )
        .await?;
        let found: Vec<_> = found.lines().collect();
        assert_eq!(found[..2], ["4096", "8192"]);
        if common::is_root() && backend.capabilities().limits.cpu == Enforcement::Enforced {
            assert_eq!(found[2], "0");
        }
        // who may not lower it has what there was
        assert!(matches!(found[3], "500" | "700"), "{found:?}");
        let core: Vec<_> = found[4].split_ascii_whitespace().collect();
        assert_eq!(core[4..6], ["1", "1"]);
        assert_eq!(found[5], "unlimited");
        Ok(())
    })
}
