//! Each defence of a box beside the same attack with that defence left out: what is refused is refused by it.

#![allow(clippy::print_stdout, reason = "tests say what they leave out")]

mod common;

use std::error::Error;

use cocoonbox_core::backend::SandboxBackend as _;
use cocoonbox_sandbox::{BwrapConfig, Defence};
use common::{Data, Outcome, as_root_and_as_a_user, claim, printed, sh};

/// What a command prints in a box of this configuration, whether it succeeds or not.
async fn says(config: BwrapConfig, command: &str) -> Result<String, Box<dyn Error>> {
    let backend = common::open(config).await?;
    let claim = claim(&*backend).await?;
    let ran = sh(&*backend, &claim.id, command).await?;
    backend.release(&claim.id).await?;
    Ok(ran.out.trim_end().to_owned())
}

#[test]
fn what_a_defence_refuses_works_without_it() -> Outcome {
    as_root_and_as_a_user("what_a_defence_refuses_works_without_it", || async {
        use Defence::{
            CapabilityDrop, HostAllowList, IpcNamespace, Landlock, NetworkNamespace, PidNamespace,
            PrivateShm, PrivateTmp, ProcMasks, ReadOnlyRoot, SystemCallFilter, UserNamespaceDenial,
        };
        let host = |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}"));
        let (pid, net, ipc) = (host("pid")?, host("net")?, host("ipc")?);
        let same = |kind: &str, of: &std::path::Path| {
            format!(
                "[ $(readlink /proc/self/ns/{kind}) = '{}' ] && echo the same || echo another",
                of.display()
            )
        };
        let shared = tempfile::Builder::new().prefix("cocoonbox-shared-").tempfile_in("/tmp")?;
        let in_memory = tempfile::Builder::new().prefix("cocoonbox-shared-").tempfile_in("/dev/shm")?;
        let there = |file: &tempfile::NamedTempFile| {
            format!("[ -e '{}' ] && echo seen || echo not seen", file.path().display())
        };
        let cases: &[(&str, &[Defence], String, &str, &str)] = &[
            ("processes", &[PidNamespace], same("pid", &pid), "another", "the same"),
            ("network", &[NetworkNamespace], same("net", &net), "another", "the same"),
            ("memory and queues", &[IpcNamespace], same("ipc", &ipc), "another", "the same"),
            ("temporary files", &[PrivateTmp], there(&shared), "not seen", "seen"),
            ("shared memory", &[PrivateShm], there(&in_memory), "not seen", "seen"),
            (
                "masks",
                &[ProcMasks],
                "[ -s /proc/keys ] || [ -n \"$(ls /proc/fs)\" ] && echo seen || echo masked".to_owned(),
                "masked",
                "seen",
            ),
            (
                "files of the host",
                &[HostAllowList],
                "ls -d /etc/shadow /boot 2>/dev/null | wc -l".to_owned(),
                "0",
                "2",
            ),
            (
                "user namespaces",
                &[UserNamespaceDenial],
                "unshare -r id -u 2>&1 | sed 's/.*: //'".to_owned(),
                "Operation not permitted",
                "0",
            ),
            (
                "capabilities",
                &[CapabilityDrop],
                "grep -q '^CapEff:.0*$' /proc/self/status && echo none || echo some".to_owned(),
                "none",
                "some",
            ),
            (
                "the read-only root",
                &[ReadOnlyRoot, Landlock],
                "touch /mnt/x 2>/dev/null && echo written || echo refused".to_owned(),
                "refused",
                "written",
            ),
            (
                "Landlock alone",
                &[ReadOnlyRoot],
                "touch /mnt/x 2>/dev/null && echo written || echo refused".to_owned(),
                "refused",
                "refused",
            ),
            (
                "the filter",
                &[SystemCallFilter],
                "grep -c '^Seccomp:.2$' /proc/self/status".to_owned(),
                "1",
                "0",
            ),
        ];
        let data = Data::new()?;
        let backend = data.open().await?;
        let ordinary = claim(&*backend).await?;
        let landlock = backend.defences().contains(&Landlock);
        for (name, left_out, command, strong, weak) in cases {
            if *name == "Landlock alone" && !landlock {
                println!("this kernel has no Landlock: {name} is not tried");
                continue;
            }
            let refused = sh(&*backend, &ordinary.id, command).await?.out;
            assert_eq!(refused.trim_end(), *strong, "{name}");
            let data = Data::new()?;
            let _alone = left_out.contains(&NetworkNamespace).then(common::host_network).transpose()?;
            let config =
                left_out.iter().fold(data.config(), |config, defence| config.with_weakened(*defence));
            assert_eq!(says(config, command).await?, *weak, "{name}, left out");
        }
        Ok(())
    })
}

#[test]
fn signals_and_abstract_sockets_stay_in_the_box_even_where_namespaces_are_shared() -> Outcome {
    const NAME: &str = "signals_and_abstract_sockets_stay_in_the_box_even_where_namespaces_are_shared";
    as_root_and_as_a_user(NAME, || async {
        use std::os::linux::net::SocketAddrExt as _;
        // a process of the box's own host uid, as a box next to it is where the node has one uid only
        let version = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))";
        let version = std::process::Command::new("python3").args(["-c", version]).output()?;
        let version: i64 = String::from_utf8_lossy(&version.stdout).trim().parse()?;
        if version < 6 {
            println!("this kernel's Landlock is version {version}, which has no scopes: not tried");
            return Ok(());
        }
        let name = format!("cocoonbox-scope-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
        let _listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
        let dial = format!(
            "cat >/tmp/dial.py <<'END'\nimport socket\ns = socket.socket(socket.AF_UNIX)\n\
             try: s.connect('\\0{name}'); print('answers')\nexcept OSError as e: print(e.strerror)\nEND\npython3 /tmp/dial.py"
        );
        let data = Data::new()?;
        let shared = data.config().with_weakened(Defence::NetworkNamespace);
        let alone = common::host_network()?;
        assert_eq!(says(shared.clone(), &dial).await?, "Operation not permitted");
        assert_eq!(says(shared.with_weakened(Defence::Landlock), &dial).await?, "answers");
        drop(alone);

        // two boxes that share their processes and their uid
        let data = Data::new()?;
        let shared = data.config().with_weakened(Defence::PidNamespace).with_weakened(Defence::UidMap);
        for (config, expected) in
            [(shared.clone(), "refused"), (shared.with_weakened(Defence::Landlock), "ended")]
        {
            let backend = common::open(config).await?;
            let (one, other) = (claim(&*backend).await?, claim(&*backend).await?);
            common::sh_detached(&*backend, &other.id, "echo $$ >/workspace/pid; exec sleep 1000").await?;
            let mut victim = String::new();
            common::eventually("the victim runs", async || {
                victim = printed(&*backend, &other.id, "cat /workspace/pid").await.unwrap_or_default();
                !victim.is_empty()
            })
            .await?;
            let kill = format!("kill -9 {victim} 2>/dev/null && echo ended || echo refused");
            assert_eq!(printed(&*backend, &one.id, &kill).await?, expected);
            backend.release(&one.id).await?;
            backend.release(&other.id).await?;
        }
        Ok(())
    })
}
