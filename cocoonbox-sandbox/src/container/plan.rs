//! A container before it is made: what it is run from, what it sees, what it may use; in the words of either engine.

use std::collections::HashMap;
use std::path::PathBuf;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount as EngineMount,
    MountBindOptions, MountTmpfsOptions, MountType, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use cocoonbox_core::backend::Size;
use serde_json::{Value, json};

/// The guest's binary as the guest sees it.
const AGENT: &str = "/opt/cocoonbox/bin/cocoonbox-agent";

/// The box user's uid and gid.
pub(super) const USER: u32 = 1000;

/// How many host ids a box has where the engine maps them: its uids 0 to 1023.
pub(super) const SHARE: u32 = 1024;

/// The labels that say whose a container is.
pub(super) const NODE_LABEL: &str = "cocoonbox.node";
pub(super) const SANDBOX_LABEL: &str = "cocoonbox.sandbox";

/// What the first process needs to add the alias address and to give itself up; it keeps neither.
const FOR_THE_START: [&str; 2] = ["NET_ADMIN", "SETPCAP"];
/// What it needs beside, where an engine gives capabilities to root alone.
const FOR_LEAVING_ROOT: [&str; 2] = ["SETUID", "SETGID"];

/// Bytes of a guest's first process's complaints that an engine keeps.
const LOG_BYTES: &str = "65536";
const CPU_PERIOD: i64 = 100_000;
/// Every port of the box's own network is free to bind.
const PORTS: (&str, &str) = ("net.ipv4.ip_unprivileged_port_start", "0");

/// Something that a box sees at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mount {
    /// A file or directory of the host.
    Bind { source: PathBuf, target: String, writable: bool },
    /// Memory.
    Memory { target: &'static str, bytes: u64 },
}

/// How the box's uids are the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ids {
    /// The box's 0 to 1023 are this host id and those after it.
    From(u32),
    /// The box's 1000 is whoever the engine runs as; its others are that user's subordinate ids.
    Own,
    /// As the engine does it.
    Engine,
}

/// What one box of a size may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) memory: u64,
    pub(super) cpus: u32,
    pub(super) pids: u64,
}

impl Limits {
    pub(super) const fn of(size: Size) -> Self {
        Self { memory: size.memory_bytes(), cpus: size.cpus(), pids: 1024 * size.cpus() as u64 }
    }
    /// The processor time in each period, in microseconds.
    pub(super) const fn quota(&self) -> i64 {
        self.cpus as i64 * CPU_PERIOD
    }
}

/// A container to make.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) node: String,
    pub(super) sandbox: String,
    pub(super) image: String,
    pub(super) hostname: String,
    pub(super) mounts: Vec<Mount>,
    pub(super) doors: bool,
    pub(super) ids: Ids,
    /// The limits, where the engine can hold them.
    pub(super) limits: Option<Limits>,
    /// Open files and processes of one user, as far as this process may have them itself.
    pub(super) ulimits: [(&'static str, i64); 2],
    pub(super) runtime: Option<String>,
}

impl Plan {
    fn environment(&self) -> Vec<(&'static str, &'static str)> {
        let mut list =
            vec![("COCOONBOX_HANDOFF", "/run/cocoonbox-handoff/node.sock"), ("COCOONBOX_FENCE", "files")];
        if self.doors {
            list.push(("COCOONBOX_DOOR_SOCKET", "/run/cocoonbox-doors/door.sock"));
        }
        list
    }

    fn labels<M: FromIterator<(String, String)>>(&self) -> M {
        let labels = [(NODE_LABEL, &self.node), (SANDBOX_LABEL, &self.sandbox)];
        labels.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }

    /// Returns the container in the words of Docker's API, for an engine that gives capabilities to root alone.
    pub(super) fn docker(&self) -> ContainerCreateBody {
        let words = |list: &[&str]| Some(list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let mounts = self.mounts.iter().map(|mount| match mount {
            Mount::Bind { source, target, writable } => EngineMount {
                typ: Some(MountType::BIND),
                source: Some(source.to_string_lossy().into_owned()),
                target: Some(target.clone()),
                read_only: Some(!writable),
                bind_options: Some(MountBindOptions { non_recursive: Some(true), ..Default::default() }),
                ..Default::default()
            },
            Mount::Memory { target, bytes } => EngineMount {
                typ: Some(MountType::TMPFS),
                target: Some((*target).to_owned()),
                tmpfs_options: Some(MountTmpfsOptions {
                    size_bytes: Some(*bytes as i64),
                    mode: Some(0o1777),
                    ..Default::default()
                }),
                ..Default::default()
            },
        });
        let ulimits = self.ulimits.iter().map(|(name, most)| ResourcesUlimits {
            name: Some((*name).to_owned()),
            soft: Some(*most),
            hard: Some(*most),
        });
        let log = [("max-size", LOG_BYTES), ("max-file", "1")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let host = HostConfig {
            network_mode: Some("none".to_owned()),
            cap_drop: words(&["ALL"]),
            cap_add: words(&[FOR_THE_START, FOR_LEAVING_ROOT].concat()),
            security_opt: words(&["no-new-privileges"]),
            readonly_rootfs: Some(true),
            privileged: Some(false),
            // of its own, and /dev/shm is among the mounts: what an engine makes of it is not always gone when it says so
            ipc_mode: Some("none".to_owned()),
            mounts: Some(mounts.collect()),
            ulimits: Some(ulimits.collect()),
            memory: self.limits.map(|limits| limits.memory as i64),
            memory_swap: self.limits.map(|limits| limits.memory as i64),
            cpu_period: self.limits.map(|_| CPU_PERIOD),
            cpu_quota: self.limits.map(|limits| limits.quota()),
            pids_limit: self.limits.map(|limits| limits.pids as i64),
            sysctls: Some(HashMap::from([(PORTS.0.to_owned(), PORTS.1.to_owned())])),
            // a box is started by a wake, which writes down what it does, and by nothing else
            restart_policy: Some(RestartPolicy {
                name: Some(RestartPolicyNameEnum::NO),
                maximum_retry_count: None,
            }),
            log_config: Some(HostConfigLogConfig {
                typ: Some("json-file".to_owned()),
                config: Some(log.into_iter().collect()),
            }),
            init: Some(false),
            runtime: self.runtime.clone(),
            ..Default::default()
        };
        ContainerCreateBody {
            hostname: Some(self.hostname.clone()),
            user: Some("0:0".to_owned()),
            env: Some(self.environment().iter().map(|(name, value)| format!("{name}={value}")).collect()),
            entrypoint: words(&[AGENT, "init"]),
            cmd: Some(Vec::new()),
            image: Some(self.image.clone()),
            working_dir: Some("/".to_owned()),
            labels: Some(self.labels()),
            healthcheck: Some(HealthConfig { test: words(&["NONE"]), ..Default::default() }),
            host_config: Some(host),
            ..Default::default()
        }
    }

    /// Returns the container in the words of podman's own API: Docker's has none for a map of ids.
    pub(super) fn podman(&self) -> Value {
        let mounts: Vec<_> = self
            .mounts
            .iter()
            .map(|mount| match mount {
                Mount::Bind { source, target, writable } => json!({
                    "type": "bind",
                    "source": source,
                    "destination": target,
                    "options": ["bind", "rprivate", "nosuid", "nodev", if *writable { "rw" } else { "ro" }],
                }),
                Mount::Memory { target, bytes } => json!({
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "destination": target,
                    "options": ["rw", "nosuid", "nodev", "mode=1777", format!("size={bytes}")],
                }),
            })
            .collect();
        let ulimits: Vec<_> = self
            .ulimits
            .iter()
            .map(|(name, most)| json!({ "type": name, "soft": most, "hard": most }))
            .collect();
        let mut spec = json!({
            "name": self.name,
            "image": self.image,
            "entrypoint": [AGENT, "init"],
            "command": [],
            "env": self.environment().into_iter().collect::<HashMap<_, _>>(),
            "user": format!("{USER}:{USER}"),
            "groups": [],
            "work_dir": "/",
            "hostname": self.hostname,
            "labels": self.labels::<HashMap<_, _>>(),
            "cap_drop": ["ALL"],
            "cap_add": FOR_THE_START,
            "no_new_privileges": true,
            "privileged": false,
            "read_only_filesystem": true,
            "image_volume_mode": "ignore",
            "mounts": mounts,
            "ipcns": { "nsmode": "none" },
            "netns": { "nsmode": "none" },
            "use_image_hosts": true,
            "use_image_resolve_conf": true,
            "sysctl": { (PORTS.0): PORTS.1 },
            "r_limits": ulimits,
            "restart_policy": "no",
            "systemd": "false",
            "healthconfig": { "Test": ["NONE"] },
            "log_configuration": { "driver": "k8s-file", "options": { "max-size": LOG_BYTES } },
        });
        if let Some(limits) = self.limits {
            spec["resource_limits"] = json!({
                "memory": { "limit": limits.memory, "swap": limits.memory },
                "cpu": { "period": CPU_PERIOD, "quota": limits.quota() },
                "pids": { "limit": limits.pids },
            });
        }
        match self.ids {
            Ids::From(first) => {
                let map = json!([{ "container_id": 0, "host_id": first, "size": SHARE }]);
                spec["userns"] = json!({ "nsmode": "private" });
                spec["idmappings"] = json!({ "UIDMap": map, "GIDMap": map });
            }
            Ids::Own => {
                spec["userns"] = json!({ "nsmode": "keep-id", "value": format!("uid={USER},gid={USER}") });
            }
            Ids::Engine => {}
        }
        if let Some(runtime) = &self.runtime {
            spec["oci_runtime"] = json!(runtime);
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            name: "cocoonbox-n-sb_a".into(),
            node: "n".into(),
            sandbox: "sb_a".into(),
            image: "sha256:1".into(),
            hostname: "a".into(),
            mounts: vec![
                Mount::Bind { source: "/h".into(), target: "/home/user".into(), writable: true },
                Mount::Bind {
                    source: "/i".into(),
                    target: "/run/cocoonbox-identity".into(),
                    writable: false,
                },
                Mount::Memory { target: "/tmp", bytes: 1024 },
            ],
            doors: true,
            ids: Ids::From(7000),
            limits: Some(Limits::of(Size::Medium)),
            ulimits: [("nofile", 4096), ("nproc", 4096)],
            runtime: None,
        }
    }

    #[test]
    fn each_engine_is_told_of_every_hardening() {
        let docker = serde_json::to_value(plan().docker()).unwrap();
        let host = &docker["HostConfig"];
        for (name, found, expected) in [
            ("capabilities", &host["CapDrop"], json!(["ALL"])),
            ("privileges", &host["SecurityOpt"], json!(["no-new-privileges"])),
            ("privileged", &host["Privileged"], json!(false)),
            ("root", &host["ReadonlyRootfs"], json!(true)),
            ("network", &host["NetworkMode"], json!("none")),
            ("shared memory", &host["IpcMode"], json!("none")),
            ("memory", &host["Memory"], json!(1024 * 1024 * 1024)),
            ("swap", &host["MemorySwap"], json!(1024 * 1024 * 1024)),
            ("cpu", &host["CpuQuota"], json!(200_000)),
            ("pids", &host["PidsLimit"], json!(2048)),
            ("restart", &host["RestartPolicy"]["Name"], json!("no")),
            ("health", &docker["Healthcheck"]["Test"], json!(["NONE"])),
            ("identity", &host["Mounts"][1]["ReadOnly"], json!(true)),
            ("tmp", &host["Mounts"][2]["Type"], json!("tmpfs")),
        ] {
            assert_eq!(*found, expected, "{name}: {found}");
        }
        let podman = plan().podman();
        for (name, found, expected) in [
            ("capabilities", &podman["cap_drop"], json!(["ALL"])),
            ("user", &podman["user"], json!("1000:1000")),
            ("privileges", &podman["no_new_privileges"], json!(true)),
            ("privileged", &podman["privileged"], json!(false)),
            ("root", &podman["read_only_filesystem"], json!(true)),
            ("network", &podman["netns"]["nsmode"], json!("none")),
            ("shared memory", &podman["ipcns"]["nsmode"], json!("none")),
            ("memory", &podman["resource_limits"]["memory"]["swap"], json!(1024 * 1024 * 1024)),
            ("cpu", &podman["resource_limits"]["cpu"]["quota"], json!(200_000)),
            ("pids", &podman["resource_limits"]["pids"]["limit"], json!(2048)),
            ("restart", &podman["restart_policy"], json!("no")),
            ("ids", &podman["idmappings"]["UIDMap"][0]["host_id"], json!(7000)),
            ("health", &podman["healthconfig"]["Test"], json!(["NONE"])),
            ("identity", &podman["mounts"][1]["options"][4], json!("ro")),
        ] {
            assert_eq!(*found, expected, "{name}: {found}");
        }
        // neither loosens what engines do by default
        for text in [docker.to_string(), podman.to_string()] {
            for word in ["unconfined", "unmask", "seccomp", "devices", "host_device"] {
                assert!(!text.contains(word), "{word}: {text}");
            }
        }
    }

    #[test]
    fn what_is_not_asked_for_is_not_said() {
        let mut plan = plan();
        plan.limits = None;
        plan.ids = Ids::Own;
        plan.runtime = Some("runsc".into());
        let podman = plan.podman();
        assert_eq!(podman["resource_limits"], Value::Null);
        assert_eq!(podman["idmappings"], Value::Null);
        assert_eq!(podman["userns"]["nsmode"], "keep-id");
        assert_eq!(podman["oci_runtime"], "runsc");
        assert_eq!(plan.docker().host_config.unwrap().memory, None);
    }
}
