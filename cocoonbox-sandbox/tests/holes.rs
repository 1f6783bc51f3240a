//! What a box must not see or do; each refusal beside a proof that the question was put rightly.

mod common;

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use cocoonbox_core::backend::{Doors, HostFile, HostFileName, Nesting, SandboxBackend as _};
use cocoonbox_sandbox::{BwrapBackend, Defence};
use common::{
    Data, IDS, Outcome, as_root_and_as_a_user, claim, has_ids, is_root, printed, processes_of, request, sh,
};

#[test]
fn a_box_has_no_network_but_its_own_loopback() -> Outcome {
    as_root_and_as_a_user("a_box_has_no_network_but_its_own_loopback", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        let seen = "import fcntl, socket, struct\n\
            print(sorted(name for _, name in socket.if_nameindex()))\n\
            for address in ('127.0.0.1', '10.203.0.1'):\n\
            \x20   s = socket.create_server((address, 0)); c = socket.create_connection(s.getsockname()); print('own', address)\n\
            socket.create_server(('10.203.0.1', 53)); print('low port')";
        let seen = printed(&*backend, &claim.id, &format!("python3 -c \"{seen}\"")).await?;
        assert_eq!(seen, "['lo']\nown 127.0.0.1\nown 10.203.0.1\nlow port");
        let routes = printed(
            &*backend,
            &claim.id,
            "cat /proc/net/route | wc -l; grep -v ' lo$' /proc/net/ipv6_route | wc -l",
        )
        .await?;
        assert_eq!(routes, "1\n0");

        let tcp = std::net::TcpListener::bind("127.0.0.1:0")?;
        let name = format!("cocoonbox-hole-{}", std::process::id());
        let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let dial = format!(
            "import socket\n\
             for kind, place in ((socket.AF_INET, ('127.0.0.1', {})), (socket.AF_UNIX, '\\0{name}')):\n\
             \x20   s = socket.socket(kind); s.settimeout(5)\n\
             \x20   try: s.connect(place); print('answers')\n\
             \x20   except OSError as e: print(e.strerror)\n",
            tcp.local_addr()?.port()
        );
        let outside = std::process::Command::new("python3").args(["-c", &dial]).output()?;
        assert_eq!(String::from_utf8_lossy(&outside.stdout), "answers\nanswers\n");
        let inside = printed(
            &*backend,
            &claim.id,
            &format!("cat >/tmp/dial.py <<'END'\n{dial}\nEND\npython3 /tmp/dial.py"),
        )
        .await?;
        assert_eq!(inside, "Connection refused\nConnection refused");
        backend.release(&claim.id).await?;
        Ok(())
    })
}

#[test]
fn a_box_sees_nothing_of_the_host_but_its_programs() -> Outcome {
    as_root_and_as_a_user("a_box_sees_nothing_of_the_host_but_its_programs", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let (one, other) = (claim(&*backend).await?, claim(&*backend).await?);
        printed(
            &*backend,
            &other.id,
            "echo secret >/workspace/secret-of-another; echo secret >/home/user/secret-of-another",
        )
        .await?;
        let top =
            printed(&*backend, &one.id, "ls -A / /home /root /etc/ssl 2>&1; ls -A /opt /opt/cocoonbox/bin")
                .await?;
        for hidden in ["sys", "boot", "work", "lost+found", "private"] {
            assert!(!top.lines().any(|line| line == hidden), "{hidden} in {top}");
        }
        assert_eq!(printed(&*backend, &one.id, "ls -A /home; ls -A /opt").await?, "user\ncocoonbox");
        let hidden = [
            data.path().display().to_string(),
            "/etc/shadow".to_owned(),
            "/etc/gshadow".to_owned(),
            "/etc/sudoers".to_owned(),
            "/etc/ssh".to_owned(),
            "/etc/subuid".to_owned(),
            "/var/lib/dpkg".to_owned(),
            "/sys/kernel".to_owned(),
        ];
        for path in hidden {
            assert_ne!(sh(&*backend, &one.id, &format!("ls -d {path}")).await?.code, 0, "{path}");
        }
        // the positive control: what another box wrote is there, in that box
        let find = "find / -xdev -name secret-of-another 2>/dev/null | sort; find /home /workspace /tmp -name secret-of-another | sort";
        assert_eq!(printed(&*backend, &one.id, find).await?, "");
        assert_eq!(
            printed(&*backend, &other.id, find).await?,
            "/home/user/secret-of-another\n/workspace/secret-of-another"
        );
        let accounts = printed(&*backend, &one.id, "cut -d: -f1 /etc/passwd").await?;
        assert_eq!(accounts, "root\nuser\nnobody");
        let written = "for p in / /usr /usr/bin /etc /opt /opt/cocoonbox/bin /run/cocoonbox-identity /dev /proc/sys/net/ipv4; do touch $p/x 2>/dev/null && echo $p; done; \
            for p in /home/user /workspace /tmp /run /dev/shm /var/tmp; do touch $p/x && echo $p; done";
        assert_eq!(
            printed(&*backend, &one.id, written).await?,
            "/home/user\n/workspace\n/tmp\n/run\n/dev/shm\n/var/tmp"
        );
        let others = printed(&*backend, &one.id, "ls -d /proc/[0-9]* | wc -l").await?.parse::<u32>()?;
        assert!(others < 10, "{others} processes are seen");
        Ok(())
    })
}

#[test]
fn a_box_has_no_rights_and_is_never_the_hosts_root() -> Outcome {
    as_root_and_as_a_user("a_box_has_no_rights_and_is_never_the_hosts_root", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        let status = printed(
            &*backend,
            &claim.id,
            "grep -E '^(Cap|NoNewPrivs|Groups)' /proc/self/status | tr -s '\\t ' ' '",
        )
        .await?;
        let none = "0000000000000000";
        let expected = format!(
            "Groups: 1000 \nCapInh: {none}\nCapPrm: {none}\nCapEff: {none}\nCapBnd: {none}\nCapAmb: {none}\nNoNewPrivs: 1"
        );
        assert_eq!(
            status.replace("Groups: \n", "Groups: 1000 \n").replace("Groups:\n", "Groups: 1000 \n"),
            expected
        );
        let uids: std::collections::BTreeSet<u32> = processes_of(&data.path())
            .into_iter()
            .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok())
            .filter_map(|status| {
                status.lines().find(|line| line.starts_with("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
            })
            .collect();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(uids.len(), 1, "{uids:?}");
        assert!(!uids.contains(&0) && (uids.contains(&own) != has_ids()), "{uids:?}");
        // what root alone reads outside, and what the box's uid would have to own to write
        for refused in [
            "cat /proc/kcore",
            "echo 1 >/proc/sys/net/ipv4/ip_forward",
            "echo 1 >/proc/sys/kernel/pid_max",
            "mount -t tmpfs x /mnt",
            "mknod /tmp/n b 1 1",
            "chroot / true",
            "unshare -U true",
            "unshare -r true",
            "hostname other",
            "ip addr add 10.9.9.9/32 dev lo",
        ] {
            assert_ne!(sh(&*backend, &claim.id, refused).await?.code, 0, "{refused}");
        }
        for masked in ["keys", "timer_list", "sysrq-trigger", "kcore", "sched_debug"] {
            let size =
                sh(&*backend, &claim.id, &format!("cat /proc/{masked} 2>/dev/null | head -c 10 | wc -c"))
                    .await?
                    .out;
            assert_eq!(size.trim(), "0", "{masked}");
        }
        Ok(())
    })
}

#[test]
fn a_box_that_may_nest_makes_sandboxes_of_its_own() -> Outcome {
    as_root_and_as_a_user("a_box_that_may_nest_makes_sandboxes_of_its_own", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let nested = "bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev -- /bin/sh -c 'echo $$; ls -d /proc/[0-9]* | wc -l'";
        let plain = claim(&*backend).await?;
        assert_ne!(sh(&*backend, &plain.id, nested).await?.code, 0);
        let nesting = backend.claim(request("nests").with_nesting(Nesting::Allowed)).await?;
        assert_eq!(printed(&*backend, &nesting.id, &format!("{nested} | head -1")).await?, "2");
        // root inside a namespace of its own is not the host's
        let root = printed(&*backend, &nesting.id, "unshare -rn sh -c 'id -u; cat /etc/shadow 2>&1 | wc -l; echo 1 >/proc/sys/kernel/pid_max || echo no' 2>/dev/null").await?;
        assert_eq!(root, "0\n1\nno");
        let claim_directory = data.path().display().to_string();
        assert_ne!(sh(&*backend, &nesting.id, &format!("unshare -r ls {claim_directory}")).await?.code, 0);
        Ok(())
    })
}

#[test]
fn host_owned_files_are_read_and_never_written() -> Outcome {
    as_root_and_as_a_user("host_owned_files_are_read_and_never_written", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let file = |bytes: &[u8]| HostFile::new(HostFileName::machine_id(), bytes.to_vec());
        let claim = backend
            .claim(
                request("files")
                    .with_host_file(file(b"0123\n"))
                    .with_doors(Doors::Bound)
                    .with_hostname("the-box"),
            )
            .await?;
        assert_eq!(
            printed(
                &*backend,
                &claim.id,
                "cat /etc/machine-id; cat /proc/sys/kernel/hostname; cat /etc/hostname"
            )
            .await?,
            "0123\nthe-box\nthe-box"
        );
        backend.put_host_file(&claim.id, file(b"4567\n")).await?;
        assert_eq!(printed(&*backend, &claim.id, "cat /etc/machine-id").await?, "4567");
        for refused in [
            "rm /run/cocoonbox-identity/machine-id",
            "echo x >/run/cocoonbox-identity/machine-id",
            "echo x >/run/cocoonbox-identity/identity",
            "mv /run/cocoonbox-identity /run/other",
            "chmod 777 /run/cocoonbox-identity",
            "rm /run/cocoonbox-doors/door.sock",
            "touch /run/cocoonbox-doors/x",
            "chmod 000 /run/cocoonbox-doors/door.sock",
            "rm -rf /opt/cocoonbox",
        ] {
            assert_ne!(sh(&*backend, &claim.id, refused).await?.code, 0, "{refused}");
        }
        let door = "import socket\n\
            s = socket.socket(socket.AF_UNIX); s.connect('/run/cocoonbox-doors/door.sock')\n\
            s.sendall(b'{\"door\":\"gateway\"}\\nGET / HTTP/1.1\\r\\n\\r\\n')\n\
            print(s.makefile().read().splitlines()[-1])";
        let said = printed(
            &*backend,
            &claim.id,
            &format!("cat >/tmp/door.py <<'END'\n{door}\nEND\npython3 /tmp/door.py"),
        )
        .await?;
        assert_eq!(said, "no egress policy");
        let too_large = HostFile::new(HostFileName::identity(), vec![b'x'; HostFile::MAX_BYTES + 1]);
        assert!(backend.put_host_file(&claim.id, too_large).await.is_err());
        let bare = common::claim(&*backend).await?;
        assert_ne!(sh(&*backend, &bare.id, "ls /run/cocoonbox-doors").await?.code, 0);
        Ok(())
    })
}

#[test]
fn a_list_of_processes_shows_no_options_and_no_descriptor_leaks_in() -> Outcome {
    as_root_and_as_a_user("a_list_of_processes_shows_no_options_and_no_descriptor_leaks_in", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        let lines: Vec<_> = processes_of(&data.path())
            .into_iter()
            .map(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
            })
            .collect();
        assert!(lines.iter().any(|line| line.starts_with("cocoonbox-box sb_")), "{lines:?}");
        for line in lines {
            // whole words: the letters of an id are random
            let shown: Vec<_> = line.split_ascii_whitespace().filter(|word| word.starts_with("--")).collect();
            assert!(shown.iter().all(|word| matches!(*word, "--args" | "--")), "{line}");
            assert!(!line.contains("/claims/") && !line.contains("/workspace"), "{line}");
        }
        let open = printed(
            &*backend,
            &claim.id,
            "ls /proc/self/fd | tr '\\n' ' '; env | grep -c COCOONBOX_ || true",
        )
        .await?;
        assert_eq!(open, "0 1 2 3 0");
        Ok(())
    })
}

#[test]
fn a_box_has_none_of_the_nodes_keys() -> Outcome {
    const INSIDE: &str = "COCOONBOX_TEST_KEYRING";
    const NAME: &str = "a_box_has_none_of_the_nodes_keys";
    // what the session keyring of whoever asks holds under a name, by the system calls themselves
    const KEYS: &str = "import ctypes, os, sys\n\
        c = ctypes.CDLL(None, use_errno=True)\n\
        def call(*words):\n\
        \x20   result = c.syscall(*[ctypes.c_long(word) if isinstance(word, int) else word for word in words])\n\
        \x20   return os.strerror(ctypes.get_errno()) if result < 0 else 'found'\n\
        def join(): return call(250, 1, None)\n\
        def add(): return call(248, b'user', b'cocoonbox-hole', b'secret', 6, -3)\n\
        def search(): return call(250, 10, -3, b'user', b'cocoonbox-hole', 0)\n";
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    if std::env::var_os(INSIDE).is_some() {
        return common::run(|| async {
            let outside = std::process::Command::new("/usr/bin/python3")
                .args(["-c", &format!("{KEYS}print(search())")])
                .output()?;
            assert_eq!(String::from_utf8_lossy(&outside.stdout), "found\n");
            let ask = async |backend: &BwrapBackend, id, what: &str| {
                let command = format!("cat >/tmp/keys.py <<'END'\n{KEYS}{what}\nEND\npython3 /tmp/keys.py");
                printed(backend, id, &command).await
            };
            // the filter refuses the question itself
            let data = Data::new()?;
            let backend = data.open().await?;
            let one = claim(&*backend).await?;
            assert_eq!(ask(&backend, &one.id, "print(search())").await?, "Operation not permitted");
            // beside it, whose keys a box has
            let data = Data::new()?;
            let asks = data.config().with_weakened(Defence::SystemCallFilter);
            let backend = common::open(asks.clone()).await?;
            let (one, other) = (claim(&*backend).await?, claim(&*backend).await?);
            let asked = async |id, what: &str| ask(&backend, id, what).await;
            assert_eq!(asked(&one.id, "print(search())").await?, "Required key not available");
            // nor do two boxes share a place for keys
            assert_eq!(asked(&one.id, "print(add(), search())").await?, "found found");
            assert_eq!(asked(&one.id, "print(search())").await?, "found");
            assert_eq!(asked(&other.id, "print(search())").await?, "Required key not available");
            // without a keyring of its own a box finds the node's, and may be seen to, but for whose key it is
            drop(backend);
            let backend = common::open(asks.with_weakened(Defence::Keyring)).await?;
            let without = claim(&*backend).await?;
            let found = ask(&backend, &without.id, "print(search())").await?;
            assert!(["found", "Permission denied"].contains(&found.as_str()), "{found}");
            Ok(())
        });
    }
    // a session keyring with a key in it, as a login makes one
    let session = format!(
        "{KEYS}if join() != 'found' or add() != 'found': print('no keys here, 1 passed'); sys.exit(0)\n\
         os.execv(sys.argv[1], sys.argv[1:])"
    );
    let identities: &[&[&str]] =
        if is_root() { &[&[], &["--reuid", "61234", "--regid", "61234", "--clear-groups"]] } else { &[&[]] };
    for identity in identities {
        let output = std::process::Command::new("setpriv")
            .args(*identity)
            .args(["--", "/usr/bin/python3", "-c", &session])
            .arg(std::env::current_exe()?)
            .args(["--exact", NAME, "--nocapture"])
            .env(INSIDE, "1")
            .output()?;
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success() && said.concat().contains("1 passed"), "{}", said.concat());
    }
    Ok(())
}

#[test]
fn every_box_has_a_host_uid_of_its_own_where_the_node_can_give_one() -> Outcome {
    as_root_and_as_a_user("every_box_has_a_host_uid_of_its_own_where_the_node_can_give_one", || async {
        let data = Data::new()?;
        let first = IDS.start + 7;
        let backend = common::open(data.config().with_uids(first..first + 2)).await?;
        let holds = backend.defences().contains(&Defence::UidMap);
        assert_eq!(holds, has_ids());
        if !holds {
            let home =
                data.path().join("claims").join(claim(&*backend).await?.id.as_str()).join("files/home");
            let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(home)?);
            assert_eq!(owner, rustix::process::geteuid().as_raw());
            return Ok(());
        }
        let (one, other) = (claim(&*backend).await?, claim(&*backend).await?);
        let owner = |id: &cocoonbox_core::backend::SandboxId| {
            let home = data.path().join("claims").join(id.as_str()).join("files/home");
            std::fs::metadata(home).map(|found| std::os::unix::fs::MetadataExt::uid(&found))
        };
        assert_eq!((owner(&one.id)?, owner(&other.id)?), (first, first + 1));
        let full = backend.claim(request("third")).await;
        assert!(matches!(full, Err(cocoonbox_core::backend::BackendError::Quota { .. })), "{full:?}");
        backend.release(&one.id).await?;
        let third = claim(&*backend).await?;
        assert_eq!(owner(&third.id)?, first);
        Ok(())
    })
}
