//! A box from claim to release.

mod common;

use std::num::NonZeroU16;

use cocoonbox_core::backend::{
    BackendError, ClaimFilter, ClaimState, Doors, HibernateTo, Memory, SandboxBackend as _, Target,
};
use common::{
    Data, Outcome, as_root_and_as_a_user, claim, eventually, kill, printed, processes_of, request,
    sh_detached,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Answers what it was sent, backwards, once the other side has closed its direction.
const ECHO_BACKWARDS: &str = r#"import socket
server = socket.create_server(("127.0.0.1", 8123))
while True:
    client, _ = server.accept()
    data = b""
    while part := client.recv(9):
        data += part
    client.sendall(data[::-1])
    client.close()"#;

#[test]
fn a_claimed_box_runs_commands_and_goes_without_a_trace() -> Outcome {
    as_root_and_as_a_user("a_claimed_box_runs_commands_and_goes_without_a_trace", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        assert_eq!(claim.state, ClaimState::Running);
        assert_eq!(
            printed(&*backend, &claim.id, "id -u; id -un; pwd; echo $HOME").await?,
            "1000\nuser\n/home/user\n/home/user"
        );
        assert_eq!(backend.find(&ClaimFilter::all()).await?, std::slice::from_ref(&claim));
        assert!(processes_of(&data.path()).len() >= 2);
        backend.release(&claim.id).await?;
        assert!(backend.find(&ClaimFilter::all()).await?.is_empty());
        assert!(matches!(backend.release(&claim.id).await, Err(BackendError::NotFound { .. })));
        assert_eq!(std::fs::read_dir(data.path().join("claims"))?.count(), 0);
        assert_eq!(std::fs::read_dir(data.path().join("trash"))?.count(), 0);
        Ok(())
    })
}

#[test]
fn a_port_of_the_guest_is_reached_and_a_silent_one_is_unreachable() -> Outcome {
    as_root_and_as_a_user("a_port_of_the_guest_is_reached_and_a_silent_one_is_unreachable", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        let port = NonZeroU16::new(8123).ok_or("not zero")?;
        let error = backend.connect(&claim.id, Target::Port(port)).await.err().ok_or("nobody listens")?;
        assert!(matches!(error, BackendError::Unreachable { .. }), "{error:?}");
        printed(&*backend, &claim.id, &format!("cat >/tmp/server.py <<'END'\n{ECHO_BACKWARDS}\nEND")).await?;
        let server = "exec python3 /tmp/server.py";
        sh_detached(&*backend, &claim.id, server).await?;
        eventually("the server listens", async || {
            backend.connect(&claim.id, Target::Port(port)).await.is_ok()
        })
        .await?;
        let mut stream = backend.connect(&claim.id, Target::Port(port)).await?;
        stream.write_all(b"half closed").await?;
        stream.shutdown().await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        assert_eq!(answer, "desolc flah");
        backend.release(&claim.id).await?;
        Ok(())
    })
}

#[test]
fn a_frozen_box_stands_still_and_goes_on() -> Outcome {
    as_root_and_as_a_user("a_frozen_box_stands_still_and_goes_on", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        sh_detached(&*backend, &claim.id, "n=0; while :; do n=$((n+1)); echo $n >/workspace/.n; mv /workspace/.n /workspace/n; sleep 0.02; done").await?;
        let counter = data.path().join("claims").join(claim.id.as_str()).join("files/workspace/n");
        let count = || {
            std::fs::read_to_string(&counter)
                .ok()
                .and_then(|text| text.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        eventually("the counter runs", async || count() > 2).await?;
        assert_eq!(backend.hibernate(&claim.id, HibernateTo::Memory).await?, Memory::Kept);
        let still = count();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert_eq!(count(), still);
        let error = backend.connect(&claim.id, Target::Channel).await.err().ok_or("it is frozen")?;
        assert!(matches!(error, BackendError::Conflict { .. }), "{error:?}");
        assert_eq!(backend.hibernate(&claim.id, HibernateTo::Memory).await?, Memory::Kept);
        let shown = backend.find(&ClaimFilter::by_id(claim.id.clone())).await?;
        assert_eq!(shown[0].state, ClaimState::Hibernated { memory: Memory::Kept });
        assert_eq!(backend.wake(&claim.id).await?, Memory::Kept);
        eventually("the counter goes on", async || count() > still + 2).await?;
        assert_eq!(backend.hibernate(&claim.id, HibernateTo::Memory).await?, Memory::Kept);
        backend.release(&claim.id).await?;
        assert_eq!(processes_of(&data.path()), Vec::<i32>::new());
        Ok(())
    })
}

#[test]
fn a_box_on_disk_has_files_and_no_process() -> Outcome {
    as_root_and_as_a_user("a_box_on_disk_has_files_and_no_process", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        printed(
            &*backend,
            &claim.id,
            "echo kept >/home/user/a; echo kept >/workspace/b; echo gone >/tmp/c; echo gone >/run/d",
        )
        .await?;
        assert_eq!(backend.hibernate(&claim.id, HibernateTo::Memory).await?, Memory::Kept);
        assert_eq!(backend.hibernate(&claim.id, HibernateTo::Disk).await?, Memory::Lost);
        assert_eq!(processes_of(&data.path()), Vec::<i32>::new());
        assert_eq!(backend.hibernate(&claim.id, HibernateTo::Memory).await?, Memory::Lost);
        assert_eq!(backend.wake(&claim.id).await?, Memory::Lost);
        assert_eq!(backend.wake(&claim.id).await?, Memory::Kept);
        let found = printed(
            &*backend,
            &claim.id,
            "cat /home/user/a /workspace/b; ls /tmp /run/d 2>/dev/null | wc -l",
        )
        .await?;
        assert_eq!(found, "kept\nkept\n1");
        backend.release(&claim.id).await?;
        Ok(())
    })
}

#[test]
fn a_box_that_dies_is_failed_and_can_be_woken() -> Outcome {
    as_root_and_as_a_user("a_box_that_dies_is_failed_and_can_be_woken", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = backend.claim(request("dies").with_doors(Doors::Bound)).await?;
        printed(&*backend, &claim.id, "echo kept >/workspace/a").await?;
        processes_of(&data.path()).into_iter().for_each(kill);
        let filter = ClaimFilter::by_id(claim.id.clone());
        eventually("it is failed", async || {
            matches!(backend.find(&filter).await.as_deref(), Ok([claim]) if matches!(claim.state, ClaimState::Failed { .. }))
        })
        .await?;
        assert_eq!(backend.wake(&claim.id).await?, Memory::Lost);
        assert_eq!(printed(&*backend, &claim.id, "cat /workspace/a").await?, "kept");
        backend.release(&claim.id).await?;
        Ok(())
    })
}

#[test]
fn what_a_guest_leaves_behind_is_removed_and_nothing_else() -> Outcome {
    as_root_and_as_a_user("what_a_guest_leaves_behind_is_removed_and_nothing_else", || async {
        let outside = tempfile::tempdir()?;
        std::fs::write(outside.path().join("kept"), "kept")?;
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        let path = outside.path().display();
        let mess = format!(
            "cd /workspace; ln -s {path} link; ln -s {path}/kept kept; ln -s / root; mkfifo pipe; \
             mkdir -p $(printf 'd/%.0s' $(seq 600)); mkdir locked; touch locked/x; \
             chmod 000 locked; chmod 000 /home/user /workspace; mkfifo /tmp/pipe; chmod 000 /tmp"
        );
        printed(&*backend, &claim.id, &mess).await?;
        backend.hibernate(&claim.id, HibernateTo::Disk).await?;
        backend.wake(&claim.id).await?;
        backend.release(&claim.id).await?;
        assert_eq!(std::fs::read(outside.path().join("kept"))?, b"kept");
        for directory in ["claims", "trash"] {
            assert_eq!(std::fs::read_dir(data.path().join(directory))?.count(), 0, "{directory}");
        }
        Ok(())
    })
}

#[test]
fn an_unpacked_root_file_system_is_an_image() -> Outcome {
    as_root_and_as_a_user("an_unpacked_root_file_system_is_an_image", || async {
        let data = Data::new()?;
        let rootfs = data.path().join("images/small/1/rootfs");
        for directory in ["usr/bin", "etc", "opt/tool", "root", "home/somebody"] {
            std::fs::create_dir_all(rootfs.join(directory))?;
        }
        for (path, content) in
            [("etc/issue", "small\n"), ("etc/passwd", "evil:x:0:0::/:\n"), ("opt/tool/here", "")]
        {
            std::fs::write(rootfs.join(path), content)?;
        }
        std::os::unix::fs::symlink("usr/bin", rootfs.join("bin"))?;
        for name in ["sh", "cat", "ls"] {
            let program = std::fs::canonicalize(format!("/bin/{name}"))?;
            std::fs::copy(&program, rootfs.join("usr/bin").join(name))?;
            let needs = std::process::Command::new("ldd").arg(&program).output()?;
            for library in
                String::from_utf8(needs.stdout)?.split_whitespace().filter(|word| word.starts_with('/'))
            {
                let place = rootfs.join(library.trim_start_matches('/'));
                std::fs::create_dir_all(place.parent().ok_or("a directory")?)?;
                std::fs::copy(library, place)?;
            }
        }
        let backend = data.open().await?;
        let mut request = request("image");
        request.image = "small:1".parse()?;
        let claim = backend.claim(request).await?;
        let seen =
            printed(&*backend, &claim.id, "cat /etc/issue; ls /usr/bin /opt /home; ls -d /opt/tool/here")
                .await?;
        let expected =
            "small\n/home:\nuser\n\n/opt:\ncocoonbox\ntool\n\n/usr/bin:\ncat\nls\nsh\n/opt/tool/here";
        assert_eq!(seen, expected);
        assert!(
            printed(&*backend, &claim.id, "cat /etc/passwd")
                .await?
                .starts_with("root:x:0:0:root:/root:/usr/sbin/nologin\nuser:")
        );
        backend.release(&claim.id).await?;
        Ok(())
    })
}
