//! What a box made by podman is confined to, and what its images come from.

mod common;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cocoonbox_core::backend::{
    BackendError, ClaimFilter, ClaimRequest, ClaimState, Doors, Enforcement, HibernateTo, HostFile,
    HostFileName, Memory, NetworkMode, SandboxBackend, SandboxId,
};
use cocoonbox_core::{ImageName, SystemClock, SystemEntropy};
use cocoonbox_sandbox::testkit::{EngineForTests as _, PodmanForTests, image};
use cocoonbox_sandbox::{ContainerBackend, ContainerConfig, EngineChoice, OpenError};
use common::{Outcome, eventually, printed, run, sh};

fn engine() -> Result<&'static PodmanForTests, Box<dyn Error>> {
    Ok(PodmanForTests::shared()?)
}

async fn open(config: ContainerConfig) -> Result<Arc<ContainerBackend>, OpenError> {
    ContainerBackend::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await
}

fn request(image: ImageName) -> ClaimRequest {
    ClaimRequest::new("test".parse().expect("a label"), image)
}

/// A data directory on the shared engine, its boxes released when the test ends well.
struct Node {
    directory: tempfile::TempDir,
    backend: Arc<ContainerBackend>,
}

impl Node {
    async fn open() -> Result<Self, Box<dyn Error>> {
        let directory = tempfile::tempdir()?;
        let backend = open(engine()?.config(&directory.path().join("data"), &common::agent())).await?;
        Ok(Self { directory, backend })
    }
    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }
    async fn end(self) -> Outcome {
        for claim in self.backend.find(&ClaimFilter::all()).await? {
            self.backend.release(&claim.id).await?;
        }
        Ok(())
    }
}

/// The first process of a box, as the host sees it.
fn first_process(data: &Path, id: &SandboxId) -> Result<i64, Box<dyn Error>> {
    let record = std::fs::read(data.join("claims").join(id.as_str()).join("claim.json"))?;
    let record: serde_json::Value = serde_json::from_slice(&record)?;
    record["process"]["pid"].as_i64().ok_or_else(|| "no process is recorded".into())
}

#[test]
fn a_box_has_no_privilege_and_no_network_but_the_doors_address() -> Outcome {
    run(async || {
        let node = Node::open().await?;
        let backend = &*node.backend;
        let wanted = request(image())
            .with_doors(Doors::Bound)
            .with_network(NetworkMode::Egress)
            .with_hostname("a-box")
            .with_host_file(HostFile::new(HostFileName::machine_id(), b"0123\n".to_vec()));
        let id = backend.claim(wanted).await?.id;

        let status = printed(backend, &id, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status").await?;
        for line in status.lines() {
            let (name, value) = line.split_once(':').ok_or("a line of status")?;
            let expected = match name {
                "NoNewPrivs" => "1",
                "Seccomp" => "2",
                _ => "0000000000000000",
            };
            assert_eq!(value.trim(), expected, "{status}");
        }
        assert_eq!(status.lines().count(), 7, "{status}");
        assert_eq!(printed(backend, &id, "id -u; id -g; id -G; hostname").await?, "1000\n1000\n1000\na-box");
        let links = printed(backend, &id, "ls /sys/class/net; ip -4 -o addr | awk '{print $4}'").await?;
        assert_eq!(links, "lo\n127.0.0.1/8\n10.203.0.1/32");
        assert_eq!(printed(backend, &id, "cat /etc/machine-id").await?, "0123");

        // each refusal beside the same deed where it is allowed
        for (refused, allowed) in [
            ("touch /bin/x", "touch /workspace/x"),
            ("touch /etc/x", "touch /tmp/x"),
            ("echo x > /run/cocoonbox-identity/machine-id", "echo x > /run/x"),
            ("rm /run/cocoonbox-doors/door.sock", "ls /run/cocoonbox-doors/door.sock"),
            ("mount -t tmpfs none /tmp", "mount"),
            ("ip addr add 10.9.9.9/32 dev lo", "ip addr"),
            ("ping -c 1 -W 1 10.203.0.1", "nc -w 5 127.0.0.1 3128 </dev/null"),
            ("chown 0 /workspace/x", "chown 1000 /workspace/x"),
            ("nc -w 1 192.0.2.1 80 </dev/null", "nc -w 5 10.203.0.1 18090 </dev/null"),
            ("unshare -r true", "true"),
        ] {
            assert_ne!(sh(backend, &id, refused).await?.code, 0, "{refused}");
            assert_eq!(sh(backend, &id, allowed).await?.code, 0, "{allowed}");
        }
        // what the first process was given is given once
        assert_eq!(printed(backend, &id, "ls -A /run/cocoonbox-handoff").await?, "");
        assert_eq!(
            printed(backend, &id, "tr '\\0' ' ' </proc/1/cmdline").await?,
            "/opt/cocoonbox/bin/cocoonbox-agent init"
        );

        let pid = first_process(&node.data(), &id)?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")).ok_or("a uid")?;
        let uid: u32 = uid.split_whitespace().next().ok_or("a uid")?.parse()?;
        if common::is_root() {
            assert!(uid >= 0x7200_0000, "a box of root's is uid {uid} on the host");
            let other = backend.claim(request(image())).await?.id;
            let status =
                std::fs::read_to_string(format!("/proc/{}/status", first_process(&node.data(), &other)?))?;
            assert!(!status.contains(&uid.to_string()), "two boxes are one uid");
        }
        node.end().await
    })
}

#[test]
fn limits_that_capabilities_call_enforced_hold() -> Outcome {
    run(async || {
        let node = Node::open().await?;
        let backend = &*node.backend;
        let limits = backend.capabilities().limits;
        if limits.memory != Enforcement::Enforced {
            // an ordinary user's engine without cgroups says so, and nothing is promised
            assert_eq!((limits.cpu, limits.pids), (Enforcement::Absent, Enforcement::Absent));
            return node.end().await;
        }
        let id = backend.claim(request(image())).await?.id;
        let hold = |mib: u32| format!("head -c {mib}m /dev/zero | tail -c {mib}m | wc -c");
        let ran = sh(backend, &id, &hold(64)).await?;
        assert_eq!(ran.out.trim(), (64 << 20).to_string());
        let ran = sh(backend, &id, &hold(700)).await?;
        assert_ne!(ran.out.trim(), (700_u64 << 20).to_string(), "700 MiB fit into 512: {ran:?}");
        let many = |count: u32| format!("for i in $(seq {count}); do sleep 20 & done; echo all");
        let ran = sh(backend, &id, &many(100)).await?;
        assert!(ran.err.is_empty() && ran.out.contains("all"), "{ran:?}");
        let ran = sh(backend, &id, &many(1100)).await?;
        assert!(ran.err.contains("fork"), "{ran:?}");
        // and the box is there still
        sh(backend, &id, "killall sleep").await?;
        assert_eq!(printed(backend, &id, "echo here").await?, "here");
        node.end().await
    })
}

#[test]
fn an_archive_and_a_folder_become_images_and_the_host_is_none() -> Outcome {
    run(async || {
        let node = Node::open().await?;
        let images = node.data().join("images");
        let (archived, folder) = (images.join("archived/1"), images.join("folder/latest/rootfs"));
        std::fs::create_dir_all(&archived)?;
        let saved = engine()?
            .podman()
            .args(["save", "--format", "oci-archive", "-o"])
            .arg(archived.join("image.tar"))
            .arg("localhost/cocoonbox-test:1")
            .output()?;
        assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
        std::fs::create_dir_all(folder.join("bin"))?;
        std::fs::create_dir_all(folder.join("etc"))?;
        std::fs::copy("/bin/busybox", folder.join("bin/busybox"))?;
        for name in ["sh", "cat"] {
            std::os::unix::fs::symlink("busybox", folder.join("bin").join(name))?;
        }
        std::fs::write(folder.join("etc/issue"), "from a folder")?;
        std::fs::write(folder.join("etc/machine-id"), "the image's")?;

        let backend = &*node.backend;
        backend.prepare_image(&"archived:1".parse()?).await?;
        let id = backend.claim(request("archived:1".parse()?)).await?.id;
        assert_eq!(printed(backend, &id, "busybox echo here").await?, "here");
        let wanted = request("folder".parse()?)
            .with_host_file(HostFile::new(HostFileName::machine_id(), b"the box's".to_vec()));
        let id = backend.claim(wanted).await?.id;
        assert_eq!(printed(backend, &id, "cat /etc/issue").await?, "from a folder");
        assert_eq!(printed(backend, &id, "cat /etc/machine-id").await?, "the box's");

        let error = backend.claim(request(ImageName::host())).await.expect_err("there is no host image");
        assert!(
            matches!(error, BackendError::Unsupported { .. }) && error.to_string().contains("images/"),
            "{error}"
        );
        node.end().await
    })
}

#[test]
fn a_service_of_its_own_ends_with_the_node_and_its_boxes_do_not() -> Outcome {
    run(async || {
        let directory = tempfile::tempdir()?;
        let data = directory.path().join("data");
        let rootfs = data.join("images/small/1/rootfs");
        std::fs::create_dir_all(rootfs.join("bin"))?;
        std::fs::copy("/bin/busybox", rootfs.join("bin/busybox"))?;
        std::os::unix::fs::symlink("busybox", rootfs.join("bin/sh"))?;
        let config = || ContainerConfig::new(&data, common::agent(), EngineChoice::podman());
        let service =
            || -> Option<i32> { std::fs::read_to_string(data.join("engine/service.pid")).ok()?.parse().ok() };
        let backend = open(config()).await?;
        let id = backend.claim(request("small:1".parse()?)).await?.id;
        printed(&*backend, &id, "echo kept >/workspace/file").await?;
        let first = service().ok_or("a service")?;

        // a service that dies is started again when it is needed
        common::kill(first);
        eventually("the service is over", async || !Path::new(&format!("/proc/{first}/root/proc")).exists())
            .await?;
        assert_eq!(backend.hibernate(&id, HibernateTo::Disk).await?, Memory::Lost);
        assert_eq!(backend.wake(&id).await?, Memory::Lost);
        let second = service().ok_or("a service")?;
        assert_ne!(first, second);

        drop(backend);
        assert!(!Path::new(&format!("/proc/{second}")).exists(), "the service outlived the node");
        let pid = first_process(&data, &id)?;
        assert!(Path::new(&format!("/proc/{pid}")).exists(), "the box did not outlive the node");
        let backend = open(config()).await?;
        let found = backend.find(&ClaimFilter::by_id(id.clone())).await?;
        assert!(matches!(found[0].state, ClaimState::Running), "{found:?}");
        assert_eq!(first_process(&data, &id)?, pid);
        assert_eq!(printed(&*backend, &id, "busybox cat /workspace/file").await?, "kept");
        backend.release(&id).await?;
        drop(backend);
        // podman mounts its storage upon itself
        Command::new("umount").args(["-l"]).arg(data.join("engine/storage/overlay")).output()?;
        Ok(())
    })
}

#[test]
fn a_container_of_no_claim_is_removed_when_the_node_opens() -> Outcome {
    run(async || {
        let node = Node::open().await?;
        let id = node.backend.claim(request(image())).await?.id;
        let kept = node.backend.claim(request(image())).await?.id;
        let pid = first_process(&node.data(), &id)?;
        let Node { directory, backend } = node;
        drop(backend);
        let data = directory.path().join("data");
        std::fs::rename(data.join("claims").join(id.as_str()), directory.path().join("lost"))?;
        let backend = open(engine()?.config(&data, &common::agent())).await?;
        eventually("it is ended", async || !Path::new(&format!("/proc/{pid}/ns")).exists()).await?;
        assert_eq!(printed(&*backend, &kept, "echo here").await?, "here");
        Node { directory, backend }.end().await
    })
}

#[test]
fn an_engine_that_is_not_there_is_named() -> Outcome {
    run(async || {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("nobody.sock");
        let config = |engine| ContainerConfig::new(directory.path().join("data"), common::agent(), engine);
        let error = open(config(EngineChoice::Socket(socket.clone()))).await.expect_err("nobody answers");
        assert!(
            matches!(error, OpenError::Engine { .. }) && error.to_string().contains("nobody.sock"),
            "{error}"
        );
        let missing = EngineChoice::Podman { program: "/nowhere/podman".into() };
        let error = open(config(missing)).await.expect_err("there is no such program");
        assert!(error.to_string().contains("apt-get install"), "{error}");
        let config = engine()?
            .config(&directory.path().join("data"), &common::agent())
            .with_runtime("no-such-runtime");
        let error = open(config).await.expect_err("there is no such runtime");
        assert!(error.to_string().contains("no-such-runtime"), "{error}");
        Ok(())
    })
}
