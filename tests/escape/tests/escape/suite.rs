//! Runs every way against a box, and every control.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use cocoonbox_core::backend::{Claim, ClaimFilter, ClaimRequest, Doors, SandboxBackend};
use cocoonbox_sandbox::Defence;
use nix::unistd::Uid;

use crate::data::Data;
use crate::guest::{ATTACKER, Ran, detach, exec, put};
use crate::opener::Opener;
use crate::scene::Scene;
use crate::way::{Control, Proof, Way, ways};
use crate::{Error, attacker};

/// What the attacker says to these is that this kernel was built without what it asked for.
const NOT_IN_THIS_KERNEL: [&str; 3] = ["ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT"];

/// A box with the attacker in it, and a scene around it.
struct Stage {
    backend: Arc<dyn SandboxBackend>,
    claim: Claim,
    scene: Scene,
    _data: Data,
}

impl Stage {
    async fn set(opener: &dyn Opener, without: &[Defence]) -> Result<Self, Error> {
        let data = Data::new()?;
        let backend = opener.open(&data.path(), without).await?;
        // boxes without a network of their own would fight over their doors' and agents' ports
        let alone = without.contains(&Defence::NetworkNamespace);
        let request = |label: &str| -> Result<ClaimRequest, Error> {
            let request = ClaimRequest::new(label.parse()?, opener.image());
            Ok(if alone { request } else { request.with_doors(Doors::Bound) })
        };
        let claim = backend.claim(request("attacker")?).await?;
        if !alone {
            backend.claim(request("other")?).await?;
        }
        put(&*backend, &claim.id, ATTACKER, &std::fs::read(attacker())?).await?;
        let uid = host_uid(&*backend, &claim).await?;
        let scene = Scene::set(&data.path(), uid, places(&data.path()))?;
        Ok(Self { backend, claim, scene, _data: data })
    }

    async fn inside(&self, words: &[String]) -> Result<Ran, Error> {
        let mut argv = vec![ATTACKER];
        argv.extend(words.iter().map(String::as_str));
        let limit = std::time::Duration::from_secs(20);
        match tokio::time::timeout(limit, exec(&*self.backend, &self.claim.id, &argv)).await {
            Ok(ran) => ran,
            Err(_) => Err(format!("{words:?} did not end").into()),
        }
    }

    async fn end(self) -> Result<(), Error> {
        for claim in self.backend.find(&ClaimFilter::default()).await? {
            self.backend.release(&claim.id).await?;
        }
        Ok(())
    }
}

/// The sockets, locks and journals of the node, of every box of it.
fn places(data: &std::path::Path) -> Vec<std::path::PathBuf> {
    use std::os::unix::fs::FileTypeExt as _;
    let (mut found, mut folders) = (Vec::new(), vec![data.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (name, kind) = (entry.file_name(), entry.file_type());
            match kind {
                Ok(kind) if kind.is_dir() && name != "files" => folders.push(entry.path()),
                Ok(kind) if kind.is_socket() || name == "lock" || name == "claim.json" => {
                    found.push(entry.path());
                }
                _ => {}
            }
        }
    }
    found
}

/// Finds out which uid the programs of a box have on the host, from one of them.
async fn host_uid(backend: &dyn SandboxBackend, claim: &Claim) -> Result<u32, Error> {
    let marker = format!("cocoonbox-escape-lingers-{}", claim.id);
    detach(backend, &claim.id, &[ATTACKER, "linger", &marker]).await?;
    let limit = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while tokio::time::Instant::now() < limit {
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|byte| *byte == 0).collect();
            if words.first() != Some(&ATTACKER.as_bytes()) || words.get(2) != Some(&marker.as_bytes()) {
                continue;
            }
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next());
            if let Some(Ok(uid)) = uid.map(str::parse) {
                return Ok(uid);
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    Err("no process of the box is seen on the host".into())
}

/// Runs the suite.
pub(crate) async fn run(opener: impl Opener + Clone + 'static) -> Result<(), Error> {
    let mut stage = Stage::set(&opener, &[]).await?;
    let (mut report, mut failures) = (String::new(), Vec::new());
    stage.scene.was_harmed()?;
    let ways_here = ways(&stage.scene);
    for (number, way) in ways_here.iter().enumerate() {
        let ran = stage.inside(&way.words).await?;
        let harmed = way.proof == Proof::Victim && stage.scene.was_harmed()?;
        let told = ran.said.contains(&stage.scene.secret);
        let held = match way.proof {
            Proof::Victim => !harmed && ran.code != 2,
            Proof::Word | Proof::Secret => ran.code == 1 && !told,
        };
        let _ = writeln!(report, "{number:3} {}: {}", shown(&way.words), short(&ran.said));
        if !held {
            failures.push(format!(
                "a box was left by {}: {} (exit {})",
                shown(&way.words),
                ran.said,
                ran.code
            ));
        }
    }
    // controls in the scene of the box that stops all of it
    for way in &ways_here {
        for control in &way.controls {
            let here = match control {
                Control::Here(words) => stage.inside(&owned(words)).await?,
                Control::Host => stage.scene.on_host(&way.words)?,
                Control::HostWith(words) => stage.scene.on_host(&owned(words))?,
                Control::Node => stage.scene.as_node(&way.words)?,
                Control::OwnNamespacesWith(words) => stage.scene.in_own_namespaces(&owned(words))?,
                Control::OwnNamespaces => stage.scene.in_own_namespaces(&way.words)?,
                Control::Root if Uid::effective().is_root() => stage.scene.throw_away(&way.words)?,
                Control::RootWith(words) if Uid::effective().is_root() => stage.scene.throw_away(words)?,
                Control::Root | Control::RootWith(_) => {
                    let _ = writeln!(report, "    {}: {control:?} needs root", shown(&way.words));
                    continue;
                }
                Control::Without(_) | Control::WithoutWith(..) => continue,
            };
            judge(way, control, &here, &mut stage.scene, &mut report, &mut failures)?;
        }
    }
    stage.end().await?;
    if opener.can_weaken() {
        weakened(opener, &ways_here, &mut report, &mut failures).await?;
    }
    println!("{report}");
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

/// Tries each way in a box that lacks its defences, one box for each set of them.
async fn weakened(
    opener: impl Opener + Clone + 'static,
    ways_here: &[Way],
    report: &mut String,
    failures: &mut Vec<String>,
) -> Result<(), Error> {
    let mut sets: BTreeMap<&'static [Defence], Vec<(usize, Control)>> = BTreeMap::new();
    for (number, way) in ways_here.iter().enumerate() {
        for control in &way.controls {
            if let Control::Without(set) | Control::WithoutWith(set, _) = control {
                sets.entry(set).or_default().push((number, control.clone()));
            }
        }
    }
    let mut running = tokio::task::JoinSet::new();
    for (set, tries) in sets {
        let opener = opener.clone();
        running.spawn(async move {
            let (mut report, mut failures) = (String::new(), Vec::new());
            let done = async {
                let mut stage = Stage::set(&opener, set).await?;
                let ways = ways(&stage.scene);
                stage.scene.was_harmed()?;
                for (number, control) in tries {
                    let way = &ways[number];
                    let words = match &control {
                        Control::WithoutWith(_, words) => owned(words),
                        _ => way.words.clone(),
                    };
                    let ran = stage.inside(&words).await?;
                    judge(way, &control, &ran, &mut stage.scene, &mut report, &mut failures)?;
                }
                stage.end().await
            };
            let done: Result<(), Error> = done.await;
            if let Err(error) = done {
                failures.push(format!("a box without {set:?}: {error}"));
            }
            (report, failures)
        });
    }
    while let Some(done) = running.join_next().await {
        let (said, failed) = done?;
        report.push_str(&said);
        failures.extend(failed);
    }
    Ok(())
}

/// Whether a control got through.
fn judge(
    way: &Way,
    control: &Control,
    ran: &Ran,
    scene: &mut Scene,
    report: &mut String,
    failures: &mut Vec<String>,
) -> Result<(), Error> {
    let shown = shown(&way.words);
    // a filter of system calls says the same of what it keeps
    let filtered = match control {
        Control::Here(_) => true,
        Control::Without(set) | Control::WithoutWith(set, _) => !set.contains(&Defence::SystemCallFilter),
        _ => false,
    };
    if ran.code == 1 && !filtered && NOT_IN_THIS_KERNEL.iter().any(|name| ran.said.ends_with(name)) {
        let _ = writeln!(report, "    {shown}: no control, this kernel has no such thing ({})", ran.said);
        return Ok(());
    }
    let through = match way.proof {
        Proof::Word => ran.code == 0,
        Proof::Secret => ran.code == 0 && ran.said.contains(&scene.secret),
        // one call may reach several processes, and the answer is that of the last one
        Proof::Victim => scene.was_harmed()?,
    };
    let _ = writeln!(report, "    {shown}: {control:?}: {}", short(&ran.said));
    if !through {
        failures.push(format!("{shown} proves nothing: {control:?}: {} (exit {})", ran.said, ran.code));
    }
    Ok(())
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The beginning of what was said: the rest may be the environment of somebody.
fn short(said: &str) -> String {
    said.chars().take(72).collect()
}

fn shown(words: &[String]) -> String {
    words.join(" ")
}
