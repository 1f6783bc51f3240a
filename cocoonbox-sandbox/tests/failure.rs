//! Bad machines, bad guests and bad callers; each gets an error that says what to do, and nothing is left behind.

mod common;

use std::io::Write as _;
use std::num::NonZeroU16;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use cocoonbox_core::backend::{
    BackendError, ClaimFilter, ClaimState, HibernateTo, HostFile, HostFileName, NetworkMode,
    SandboxBackend as _, SandboxId, Target,
};
use cocoonbox_sandbox::OpenError;
use common::{
    Data, Outcome, as_root_and_as_a_user, claim, is_root, kill, open, printed, processes_of, request, run,
};

/// Writes a program that everybody may run.
fn script(directory: &Path, name: &str, text: &str) -> io::Result<PathBuf> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    let path = directory.join(name);
    // by a process of its own: what is open for writing here is inherited by whatever another thread starts at that
    // moment, and cannot be run meanwhile
    let mut install =
        Command::new("install").args(["-m755", "/dev/stdin"]).arg(&path).stdin(Stdio::piped()).spawn()?;
    install.stdin.take().ok_or_else(|| io::Error::other("a pipe"))?.write_all(text.as_bytes())?;
    if !install.wait()?.success() {
        return Err(io::Error::other("install failed"));
    }
    Ok(path)
}

fn nothing_is_left(data: &Data) -> Outcome {
    assert_eq!(processes_of(&data.path()), Vec::<i32>::new());
    assert_eq!(fs::read_dir(data.path().join("claims"))?.count(), 0);
    Ok(())
}

#[test]
fn a_machine_without_bwrap_says_how_to_get_it() -> Outcome {
    as_root_and_as_a_user("a_machine_without_bwrap_says_how_to_get_it", || async {
        let data = Data::new()?;
        for missing in ["/nowhere/bwrap", "bwrap-of-another-name"] {
            let backend = open(data.config().with_bwrap(missing)).await?;
            let error = backend.claim(request("x")).await.err().ok_or("must fail")?;
            assert!(matches!(error, BackendError::StartFailed { .. }), "{error:?}");
            assert!(error.to_string().contains("apt-get install bubblewrap"), "{error}");
            nothing_is_left(&data)?;
        }
        Ok(())
    })
}

#[test]
fn why_a_claim_failed_is_said_even_when_cleaning_up_fails_too() -> Outcome {
    as_root_and_as_a_user("why_a_claim_failed_is_said_even_when_cleaning_up_fails_too", || async {
        let data = Data::new()?;
        let backend = open(data.config().with_bwrap("/nowhere/bwrap")).await?;
        // nothing can be moved away: the place for it is no directory, and then not there at all
        let trash = data.path().join("trash");
        fs::remove_dir(&trash)?;
        fs::write(&trash, "in the way")?;
        for step in ["no directory", "not there"] {
            let error = backend.claim(request("x")).await.err().ok_or("must fail")?;
            assert!(error.to_string().contains("apt-get install bubblewrap"), "{step}: {error}");
            assert_eq!(backend.find(&ClaimFilter::all()).await?, []);
            let _ = fs::remove_file(&trash);
        }
        assert_eq!(fs::read_dir(data.path().join("claims"))?.count(), 2);
        // the next server finds what was left
        drop(backend);
        data.open().await?;
        nothing_is_left(&data)
    })
}

#[test]
fn what_bwrap_says_is_passed_on() -> Outcome {
    as_root_and_as_a_user("what_bwrap_says_is_passed_on", || async {
        let (data, programs) = (Data::new()?, tempfile::tempdir()?);
        let long = "x".repeat(100_000);
        let cases = [
            (
                "#!/bin/sh\necho 'bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces.' >&2\nexit 1\n",
                "sysctl -w user.max_user_namespaces",
            ),
            (
                "#!/bin/sh\necho 'bwrap: Unknown option --disable-userns' >&2\nexit 1\n",
                "bubblewrap 0.8 or newer",
            ),
            (&format!("#!/bin/sh\necho {long} >&2\nexit 1\n"), "xxxx"),
            ("#!/bin/sh\nexit 0\n", "ended before the sandbox ran"),
        ];
        for (text, expected) in cases {
            let program = script(programs.path(), "bwrap", text)?;
            let backend = open(data.config().with_bwrap(program)).await?;
            let error = backend.claim(request("x")).await.err().ok_or("must fail")?;
            let said = error.to_string();
            assert!(matches!(error, BackendError::StartFailed { .. }) && said.contains(expected), "{said}");
            assert!(said.len() < 4096, "{} bytes", said.len());
            nothing_is_left(&data)?;
        }
        let program = script(programs.path(), "bwrap", "")?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644))?;
        let backend = open(data.config().with_bwrap(program)).await?;
        let error = backend.claim(request("x")).await.err().ok_or("must fail")?;
        assert!(error.to_string().contains("could not be started (Permission denied"), "{error}");
        nothing_is_left(&data)
    })
}

#[test]
fn a_machine_without_user_namespaces_says_how_to_allow_them() -> Outcome {
    const INSIDE: &str = "COCOONBOX_TEST_NO_NAMESPACES";
    if std::env::var_os(INSIDE).is_some() {
        return run(|| async {
            let data = Data::new()?;
            let backend = data.open().await?;
            let error = backend.claim(request("x")).await.err().ok_or("must fail")?;
            assert!(error.to_string().contains("sysctl -w user.max_user_namespaces"), "{error}");
            nothing_is_left(&data)
        });
    }
    // a namespace of one's own in which no further one may be made
    let name = "a_machine_without_user_namespaces_says_how_to_allow_them";
    let script = "echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set -all --inh-caps -all -- \"$0\" --exact \"$1\" --nocapture";
    let mut command = Command::new("setpriv");
    // root of the machine would be refused earlier, as it may not be mapped into a box
    let ordinary = ["--reuid", "61234", "--regid", "61234", "--clear-groups"];
    command.args(if is_root() { &ordinary[..] } else { &[] });
    command
        .args(["--", "unshare", "--user", "--map-root-user", "sh", "-c", script])
        .arg(std::env::current_exe()?)
        .arg(name);
    let output = command.env(INSIDE, "1").output()?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    Ok(())
}

#[test]
fn two_servers_on_one_directory_are_told_apart() -> Outcome {
    as_root_and_as_a_user("two_servers_on_one_directory_are_told_apart", || async {
        let data = Data::new()?;
        let first = data.open().await?;
        let error = data.open().await.err().ok_or("must fail")?;
        assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        data.open().await?;
        Ok(())
    })
}

#[test]
fn somebody_elses_directory_is_refused() -> Outcome {
    run(|| async {
        if !is_root() {
            return Ok(());
        }
        let data = Data::new()?;
        fs::create_dir(data.path())?;
        std::os::unix::fs::chown(data.path(), Some(61_235), None)?;
        let error = data.open().await.err().ok_or("must fail")?;
        assert!(matches!(error, OpenError::ForeignOwner { owner: 61_235, own: 0, .. }), "{error:?}");
        Ok(())
    })
}

#[test]
fn a_directory_that_cannot_be_used_says_why() -> Outcome {
    as_root_and_as_a_user("a_directory_that_cannot_be_used_says_why", || async {
        let data = Data::new()?;
        let config = |path: PathBuf| cocoonbox_sandbox::BwrapConfig::new(path, common::agent());
        let error = open(config("/proc/nowhere/data".into())).await.err().ok_or("must fail")?;
        assert!(matches!(error, OpenError::Unusable { .. }), "{error:?}");
        let error = open(cocoonbox_sandbox::BwrapConfig::new(data.path(), "/nowhere/agent"))
            .await
            .err()
            .ok_or("must fail")?;
        assert!(
            matches!(error, OpenError::AgentMissing { .. }) && error.to_string().contains("make agent"),
            "{error}"
        );
        Ok(())
    })
}

#[test]
fn a_full_disk_is_said_and_leaves_nothing() -> Outcome {
    if !is_root() {
        return Ok(());
    }
    run(|| async {
        let data = Data::new()?;
        fs::create_dir_all(data.path())?;
        let mount = |flags: &[&str]| Command::new("mount").args(flags).arg(data.path()).status();
        assert!(mount(&["-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs"])?.success());
        let outcome = async {
            let backend = data.open().await?;
            let claim = claim(&*backend).await?;
            let _ = common::sh(
                &*backend,
                &claim.id,
                "head -c 100m /dev/zero >/workspace/full; head -c 100m /dev/zero >/workspace/full2",
            )
            .await?;
            let error = backend.claim(request("full")).await.err().ok_or("the disk is full")?;
            assert!(error.to_string().contains("disk is full"), "{error}");
            assert_eq!(backend.find(&ClaimFilter::all()).await?.len(), 1);
            // a box that filled the disk keeps no server from starting, whatever it has to write down
            backend.hibernate(&claim.id, HibernateTo::Memory).await.err().ok_or("nothing can be written")?;
            drop(backend);
            // the mount of a disk of its own shows a box's home from its root
            let inside = format!("/{}/files/home ", claim.id);
            let of_box = || -> Vec<i32> {
                let all = fs::read_dir("/proc").into_iter().flatten().flatten();
                let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
                let seen = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/mountinfo"));
                pids.filter(|pid| seen(pid).is_ok_and(|mounts| mounts.contains(&inside))).collect()
            };
            assert!(!of_box().is_empty());
            common::eventually("its processes are gone", async || {
                of_box().into_iter().for_each(kill);
                of_box().is_empty()
            })
            .await?;
            let backend = data.open().await?;
            let found = backend.find(&ClaimFilter::all()).await?;
            assert!(matches!(found[0].state, ClaimState::Failed { .. }), "{found:?}");
            // what is there can still be given up, and that makes room
            backend.release(&claim.id).await?;
            let claim = common::claim(&*backend).await?;
            backend.release(&claim.id).await?;
            Ok(())
        };
        let outcome = outcome.await;
        Command::new("umount").arg("-l").arg(data.path()).status()?;
        outcome
    })
}

#[test]
fn a_deep_data_directory_works() -> Outcome {
    as_root_and_as_a_user("a_deep_data_directory_works", || async {
        let top = tempfile::tempdir()?;
        let path = top.path().join("d".repeat(100)).join("e".repeat(100)).join("data");
        fs::create_dir_all(path.parent().ok_or("has one")?)?;
        let backend = open(cocoonbox_sandbox::BwrapConfig::new(&path, common::agent())).await?;
        let claim = backend.claim(request("deep").with_doors(cocoonbox_core::backend::Doors::Bound)).await?;
        assert_eq!(printed(&*backend, &claim.id, "echo here").await?, "here");
        backend.release(&claim.id).await?;
        Ok(())
    })
}

#[test]
fn bad_requests_are_refused_before_anything_happens() -> Outcome {
    run(|| async {
        let data = Data::new()?;
        let backend = data.open().await?;
        for hostname in ["", "-a", "a-", "A", "a.b", &"a".repeat(64)] {
            let error = backend.claim(request("x").with_hostname(hostname)).await.err().ok_or("must fail")?;
            assert!(matches!(error, BackendError::Invalid { .. }), "{hostname}: {error:?}");
        }
        let large = HostFile::new(HostFileName::identity(), vec![0; HostFile::MAX_BYTES + 1]);
        assert!(matches!(
            backend.claim(request("x").with_host_file(large)).await,
            Err(BackendError::Invalid { .. })
        ));
        let open = backend.claim(request("x").with_network(NetworkMode::Open)).await;
        assert!(matches!(open, Err(BackendError::Unsupported { .. })));
        for image in ["debian:12", "nothing", "a..:..b"] {
            let mut request = request("x");
            let Ok(name) = image.parse() else { continue };
            request.image = name;
            assert!(
                matches!(backend.claim(request).await, Err(BackendError::UnknownImage { .. })),
                "{image}"
            );
        }
        let nobody: SandboxId = "sb_nobody".parse()?;
        assert!(matches!(backend.wake(&nobody).await, Err(BackendError::NotFound { .. })));
        assert!(matches!(
            backend.connect(&nobody, Target::Channel).await,
            Err(BackendError::NotFound { .. })
        ));
        nothing_is_left(&data)
    })
}

/// A guest whose first process is a Python program with `sock`, the guest channel, at hand.
fn guest(programs: &Path, body: &str) -> io::Result<PathBuf> {
    let head = "#!/usr/bin/python3\nimport os, socket, time\nsock = socket.socket(fileno=int(os.environ['COCOONBOX_GUEST_FD']))\n";
    script(programs, "guest", &format!("{head}{body}"))
}

#[test]
fn a_guest_that_never_was_one_is_ended() -> Outcome {
    as_root_and_as_a_user("a_guest_that_never_was_one_is_ended", || async {
        let (data, programs) = (Data::new()?, tempfile::tempdir()?);
        let cases = [
            "import sys\nsys.exit('the guest gave up')\n",
            "c, _ = sock.accept()\nc.sendall(b'garbage\\n')\ntime.sleep(100)\n",
            "c, _ = sock.accept()\nc.sendall(b'x' * 100000)\ntime.sleep(100)\n",
            "c, _ = sock.accept()\nc.close()\ntime.sleep(100)\n",
        ];
        for body in cases {
            let agent = guest(programs.path(), body)?;
            let backend = open(cocoonbox_sandbox::BwrapConfig::new(data.path(), agent)).await?;
            let error = backend.claim(request("x")).await.err().ok_or("must fail")?;
            assert!(matches!(error, BackendError::StartFailed { .. }), "{error:?}");
            assert!(!body.contains("gave up") || error.to_string().contains("the guest gave up"), "{error}");
            nothing_is_left(&data)?;
        }
        Ok(())
    })
}

#[test]
fn a_guest_that_never_answers_is_given_up_after_fifteen_seconds() -> Outcome {
    run(|| async {
        let programs = tempfile::tempdir()?;
        fs::set_permissions(programs.path(), fs::Permissions::from_mode(0o755))?;
        // one that takes the connection, one that does not, and one whose answer never ends
        let cases = [
            "c, _ = sock.accept()\ntime.sleep(1000)\n",
            "time.sleep(1000)\n",
            "c, _ = sock.accept()\nfor _ in range(1000):\n  c.sendall(b' ')\n  time.sleep(1)\n",
        ];
        let mut waiting = tokio::task::JoinSet::new();
        let mut held = Vec::new();
        for (nth, body) in cases.iter().enumerate() {
            let programs = programs.path().join(nth.to_string());
            fs::create_dir(&programs)?;
            let data = Data::new()?;
            let body = format!("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{body}");
            let agent = guest(&programs, &body)?;
            let backend = open(cocoonbox_sandbox::BwrapConfig::new(data.path(), agent)).await?;
            held.push(data);
            waiting.spawn(async move {
                let start = std::time::Instant::now();
                let error = backend.claim(request("x")).await.err();
                let left = backend.find(&ClaimFilter::all()).await;
                (start.elapsed(), error, left)
            });
        }
        while let Some(ended) = waiting.join_next().await {
            let (took, error, left) = ended?;
            let error = error.ok_or("must fail")?;
            assert!(matches!(error, BackendError::StartFailed { .. }), "{error:?}");
            assert!(error.to_string().contains("did not answer within 15 s"), "{error}");
            assert!((15..25).contains(&took.as_secs()), "{took:?}");
            assert_eq!(left?, []);
        }
        held.iter().try_for_each(nothing_is_left)
    })
}

#[test]
fn a_guest_that_never_stops_complaining_fills_no_disk() -> Outcome {
    as_root_and_as_a_user("a_guest_that_never_stops_complaining_fills_no_disk", || async {
        let (data, programs) = (Data::new()?, tempfile::tempdir()?);
        let body = "for _ in range(10000):\n\
            \x20 try: os.write(2, b'\\x1b[2J' + b'x' * 4092)\n\
            \x20 except OSError: pass\n\
            c, _ = sock.accept()\nc.sendall(b'garbage\\n')\ntime.sleep(1)\n\
            while True: time.sleep(1)\n";
        let size = |data: &Data| -> io::Result<u64> {
            let (mut next, mut sum) = (vec![data.path().join("claims")], 0);
            while let Some(path) = next.pop() {
                for entry in fs::read_dir(path)? {
                    let entry = entry?;
                    sum += entry.metadata()?.len();
                    if entry.file_type()?.is_dir() {
                        next.push(entry.path());
                    }
                }
            }
            Ok(sum)
        };
        let agent = guest(programs.path(), body)?;
        let backend = open(cocoonbox_sandbox::BwrapConfig::new(data.path(), agent)).await?;
        let claiming = tokio::spawn({
            let backend = backend.clone();
            async move { backend.claim(request("x")).await }
        });
        let mut most = 0;
        while !claiming.is_finished() {
            most = most.max(size(&data).unwrap_or(0));
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let error = claiming.await?.err().ok_or("must fail")?.to_string();
        assert!(most < 1024 * 1024, "{most} bytes");
        assert!(error.contains("xxxx") && error.len() < 4096 && !error.contains('\x1b'), "{error:?}");
        nothing_is_left(&data)
    })
}

#[test]
fn a_guest_that_turns_silent_holds_up_only_its_callers() -> Outcome {
    run(|| async {
        let (data, programs) = (Data::new()?, tempfile::tempdir()?);
        let body = "c, _ = sock.accept()\nc.recv(99)\n\
            c.sendall(b'{\"type\":\"info\",\"version\":\"0\",\"proto\":2,\"uptime_secs\":0,\"procs\":1,\"sessions\":0}\\n')\n\
            time.sleep(1000)\n";
        let agent = guest(programs.path(), body)?;
        let backend = open(cocoonbox_sandbox::BwrapConfig::new(data.path(), agent)).await?;
        let claim = claim(&*backend).await?;
        let port = Target::Port(NonZeroU16::new(80).ok_or("not zero")?);
        let stuck = tokio::spawn({
            let (backend, id) = (backend.clone(), claim.id.clone());
            async move { backend.connect(&id, port).await.err() }
        });
        tokio::task::yield_now().await;
        backend.put_host_file(&claim.id, HostFile::new(HostFileName::machine_id(), b"1\n".to_vec())).await?;
        let error = stuck.await?.ok_or("it never answers")?;
        assert!(matches!(error, BackendError::PeerMisbehaved { .. }), "{error:?}");
        backend.release(&claim.id).await?;
        nothing_is_left(&data)
    })
}
