//! The storm: clients at work, a killer, and the reckoning.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cocoonbox_client::exec::Command;
use cocoonbox_client::{AccessToken, BoxRef, Client, EnsureOptions, HibernateOptions, control};
use cocoonbox_stories::{Account, Node, Server};
use nix::sys::signal::Signal;

use crate::chance::Chance;
use crate::killer::Killer;
use crate::machine::{Cgroups, clear, leftovers, open_files};
use crate::oracle::{Found, Oracle};
use crate::people::{Person, add_users};
use crate::sampler::{Caps, sample};
use crate::say;
use crate::way::Way;
use crate::worker::{Notes, Worker, hold};

type Failure = Box<dyn Error + Send + Sync>;

/// How a storm is made.
#[derive(Clone, Debug)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "the fields are what they are called")]
pub struct Plan {
    pub seed: u64,
    pub layout: Layout,
    pub kills: u64,
    pub users: usize,
    /// Clients of each user.
    pub workers: usize,
    /// No kill begins after this.
    pub limit: Duration,
    /// Where the log is kept.
    pub log: PathBuf,
}

/// What a storm came to.
#[derive(Debug)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "the fields are what they are called")]
pub struct Outcome {
    pub kills: u64,
    /// Promises that were not kept, and all else that should not be; none, or the storm was too much.
    pub faults: Vec<String>,
    /// How often what was done and what came of it.
    pub counts: BTreeMap<String, u64>,
    /// Lines of the log, boxes promised, numbers promised.
    pub promises: (u64, usize, u64),
    pub looks: u64,
    pub cgroups: usize,
}

/// Where boxes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "by the edge itself, or by somebody else")]
pub enum Layout {
    /// By the process that clients talk to.
    Together,
    /// By a node behind a bad way, which is killed by itself.
    Apart,
}

/// A part of ours that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The edge, with the node in it or without.
    Server,
    /// The node of its own.
    Node,
    /// All connections between the two.
    Way,
}

/// What the storm goes over.
pub(crate) struct Rig {
    server: Server,
    apart: Option<(Node, Way)>,
}

impl Rig {
    /// Starts it, with `people` users made.
    fn start(plan: &Plan) -> Result<(Self, Vec<Person>), Failure> {
        let mut server = Server::prepare(Account::Own);
        let apart = match plan.layout {
            Layout::Together => None,
            Layout::Apart => {
                let node = Node::start(&[]);
                let way = Way::to(node.address(), Chance::new(plan.seed, 2))?;
                server = server
                    .with_variable("COCOONBOX_NODE", &format!("http://{}", way.address()))
                    .with_variable("COCOONBOX_NODE_TOKEN_FILE", &node.token_file().display().to_string());
                Some((node, way))
            }
        };
        server.forget();
        let settings = format!("max_boxes: {}\nmax_running: {}\nwarm: 0\n", CAPS.max_boxes, CAPS.max_running);
        fs::write(server.data().join("api.yaml"), settings)?;
        server.start_again();
        server.end(Signal::SIGINT);
        let people = add_users(&server.data(), plan.users)?;
        server.start_again();
        Ok((Self { server, apart }, people))
    }

    /// What can be killed.
    pub(crate) const fn parts(&self) -> &'static [Part] {
        match self.apart {
            None => &[Part::Server],
            Some(_) => &[Part::Server, Part::Node, Part::Way],
        }
    }

    /// Returns the data directory of whoever keeps the boxes.
    pub(crate) fn node(&self) -> PathBuf {
        match &self.apart {
            None => self.server.data().join("node"),
            Some((node, _)) => node.data(),
        }
    }

    /// Returns the process of whoever keeps the boxes.
    fn keeper(&self) -> i32 {
        self.apart.as_ref().map_or_else(|| self.server.id(), |(node, _)| node.id())
    }

    /// Returns how many files each process of it has open.
    fn open_files(&self) -> Vec<usize> {
        let node = self.apart.as_ref().map(|(node, _)| node.id());
        [Some(self.server.id()), node].into_iter().flatten().map(open_files).collect()
    }

    pub(crate) fn kill(&mut self, part: Part) {
        match (part, &mut self.apart) {
            (Part::Server, _) => drop(self.server.end(Signal::SIGKILL)),
            (Part::Node, Some((node, _))) => node.kill(),
            (Part::Way, Some((_, way))) => way.cut(),
            _ => {}
        }
    }

    pub(crate) fn begin(&mut self, part: Part) {
        match (part, &mut self.apart) {
            (Part::Server, _) => self.server.begin(),
            (Part::Node, Some((node, _))) => node.begin(),
            _ => {}
        }
    }

    pub(crate) fn wait(&mut self, part: Part) {
        match (part, &mut self.apart) {
            (Part::Server, _) => self.server.wait(),
            (Part::Node, Some((node, _))) => node.wait(),
            _ => {}
        }
    }

    /// Keeps what server and node said beside the log of the clients.
    fn keep_logs(&self, log: &Path) -> std::io::Result<()> {
        fs::write(log.with_extension("server.log"), self.server.log())?;
        match &self.apart {
            Some((node, _)) => fs::write(log.with_extension("node.log"), node.log()),
            None => Ok(()),
        }
    }

    /// Ends it; names who did not stop cleanly.
    fn end(&mut self) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.server.end(Signal::SIGINT).success() {
            faults.push("the server did not stop cleanly".to_owned());
        }
        if let Some((node, _)) = &mut self.apart
            && !node.end(Signal::SIGTERM).success()
        {
            faults.push("the node did not stop cleanly".to_owned());
        }
        faults
    }
}

const CAPS: Caps = Caps { max_boxes: 3, max_running: 2 };

/// Ends a storm that broke off, too: those that look and work would go on for ever.
struct Over<'a>(&'a Notes);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

/// Removes what a storm that broke off left on the machine: boxes outlive their server.
struct Cleared(PathBuf);

impl Drop for Cleared {
    fn drop(&mut self) {
        clear(&self.0, &mut Cgroups::default());
    }
}

/// Lets a storm go over a server of its own, and a node where it is to have one.
///
/// # Errors
/// The storm could not be made; what it found is in the [`Outcome`].
pub fn run(plan: &Plan) -> Result<Outcome, Failure> {
    let (rig, people) = Rig::start(plan)?;
    let node = rig.node();
    let _cleared = Cleared(node.clone());

    let notes = Arc::new(Notes::default());
    *hold(&notes.oracle) = Oracle::logging(&plan.log)?;
    let files = rig.open_files();
    let endpoint = rig.server.endpoint();
    if let Some((_, way)) = &rig.apart {
        way.spoil();
    }
    let mut killer = Killer {
        rig,
        chance: Chance::new(plan.seed, 1),
        notes: Arc::clone(&notes),
        deadline: Instant::now() + plan.limit,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (kills, (looks, cgroups)) = std::thread::scope(|scope| -> Result<_, Failure> {
        let over = Over(&notes);
        let sampler = scope.spawn(|| sample(&node, CAPS, &notes));
        let mut work = Vec::new();
        for (user, person) in people.iter().enumerate() {
            for number in 0..plan.workers {
                let stream = 100 + (user * plan.workers + number) as u64;
                let (chance, notes, endpoint) = (Chance::new(plan.seed, stream), &notes, &endpoint);
                work.push(scope.spawn(move || work_alone(user, number, chance, notes, endpoint, person)));
            }
        }
        let kills = killer.run(plan.kills);
        drop(over);
        let watched = sampler.join().map_err(|_| "the sampler panicked")?;
        for worker in work {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok((kills, watched))
    })?;
    let mut rig = killer.rig;
    if let Some((_, way)) = &rig.apart {
        way.heal();
        notes.count_many("connections that something was wrong with", way.faults());
    }
    let mut faults = notes.take_faults();
    let reckoning = runtime.block_on(reckon(&endpoint, &people, &notes));
    faults.extend(reckoning.unwrap_or_else(|error| vec![format!("the reckoning broke off: {error}")]));
    faults.extend(settled("after the storm", || leftovers(&node, &cgroups, Some(rig.keeper()))));

    if let Err(error) = runtime.block_on(release(&endpoint, &people)) {
        faults.push(format!("what was left could not be deleted: {error}"));
    }
    faults.extend(settled("after all was deleted", || {
        let mut left = leftovers(&node, &cgroups, Some(rig.keeper()));
        if fs::read_dir(node.join("claims")).is_ok_and(|entries| entries.count() > 0) {
            left.push("claims of deleted boxes".to_owned());
        }
        let now = rig.open_files();
        // connections of clients and of the database come and go
        if now.iter().zip(&files).any(|(now, before)| *now > before + 24) {
            left.push(format!("{now:?} files are open, and were {files:?}"));
        }
        left
    }));
    faults.extend(rig.end());
    faults.extend(settled("after the server stopped", || {
        let mut left = leftovers(&node, &cgroups, None);
        left.extend(cgroups.parents().iter().map(|path| format!("cgroup {}", path.display())));
        left
    }));
    if !faults.is_empty() {
        rig.keep_logs(&plan.log)?;
    }
    let promises = hold(&notes.oracle).size();
    Ok(Outcome { kills, faults, counts: notes.counts(), promises, looks, cgroups: cgroups.seen() })
}

/// Lets one client work, on a runtime of its own as a process of its own would have.
fn work_alone(
    user: usize,
    number: usize,
    chance: Chance,
    notes: &Arc<Notes>,
    endpoint: &str,
    person: &Person,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(endpoint, person).await?;
        let notes = Arc::clone(notes);
        Worker { user, number, client, chance, notes, mine: Vec::new(), made: 0, lost: false }.work().await;
        Ok(())
    })
}

async fn connect(endpoint: &str, person: &Person) -> Result<Client, Failure> {
    Ok(Client::connect(endpoint.parse()?, Some(AccessToken::new(person.token.clone()))).await?)
}

/// Asks until nothing is left to tell, for a while: what ends last ends a moment after it was answered.
fn settled(when: &str, mut ask: impl FnMut() -> Vec<String>) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let left = ask();
        if left.is_empty() || Instant::now() > deadline {
            return left.into_iter().map(|left| format!("{when}: {left}")).collect();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn state(found: &control::Box) -> String {
    found.state().as_str_name().trim_start_matches("BOX_STATE_").to_ascii_lowercase()
}

/// Looks at every box of every user, brings each up and reads what it has on its disk.
async fn reckon(endpoint: &str, people: &[Person], notes: &Notes) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    let mut faults = Vec::new();
    for (user, person) in people.iter().enumerate() {
        let client = connect(endpoint, person).await?;
        let mut boxes = client.list_boxes().await?;
        let deadline = Instant::now() + Duration::from_mins(1);
        while boxes.iter().any(|found| !found.operation_id.is_empty()) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
            boxes = client.list_boxes().await?;
        }
        if boxes.len() > CAPS.max_boxes as usize {
            faults.push(format!("user {user} has {} boxes", boxes.len()));
        }
        let mut states: Vec<_> = boxes.iter().map(state).collect();
        for (found, state) in boxes.iter().zip(&mut states) {
            if !found.operation_id.is_empty() {
                "hibernating".clone_into(state);
                faults.push(format!("operation {} on {} does not end", found.operation_id, found.id));
            }
        }
        // places for those that do not run
        for running in boxes.iter().filter(|found| state(found) == "running") {
            let place: BoxRef = running.id.parse()?;
            if let Err(error) = sleep(&client, &place, running.name.len() % 2 == 0).await {
                faults.push(format!("{} does not sleep after the storm: {error}", running.id));
            }
        }
        for (record, state) in boxes.into_iter().zip(states) {
            let place: BoxRef = record.id.parse()?;
            let numbers = numbers(&client, &place).await.map_err(|error| error.to_string());
            if let Err(error) = sleep(&client, &place, true).await
                && numbers.is_ok()
            {
                faults.push(format!("{} does not sleep after it answered: {error}", record.id));
            }
            found.push(Found { user, id: record.id, name: record.name, state, numbers });
        }
    }
    faults.extend(hold(&notes.oracle).judge(&found).iter().map(ToString::to_string));
    Ok(faults)
}

async fn sleep(client: &Client, place: &BoxRef, to_disk: bool) -> Result<(), Failure> {
    let options = HibernateOptions::default().with_to_disk(to_disk);
    let reply = client.hibernate_box(Some(place), options).await?;
    client.follow(&reply, |_| {}).await?;
    Ok(())
}

/// Ensures a box and reads the numbers on its disk.
async fn numbers(client: &Client, place: &BoxRef) -> Result<Vec<u64>, Failure> {
    let reply = client.ensure_box(Some(place), EnsureOptions::default()).await?;
    client.follow(&reply, |_| {}).await?;
    let script = "cat /workspace/count 2>/dev/null; echo end";
    let said = client.exec(Some(place)).output(Command::shell(script), b"", 4 << 20).await?;
    let text = String::from_utf8(said.stdout)?;
    let text = text.strip_suffix("end\n").ok_or("it did not say all")?;
    Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
}

async fn release(endpoint: &str, people: &[Person]) -> Result<(), Failure> {
    for person in people {
        let client = connect(endpoint, person).await?;
        for found in client.list_boxes().await? {
            let reply = client.delete_box(&found.id.parse()?, "").await?;
            client.follow(&reply, |_| {}).await?;
        }
        if !client.list_boxes().await?.is_empty() {
            return Err("boxes are there after they were deleted".into());
        }
    }
    Ok(())
}

impl Outcome {
    /// Prints what happened, a line each.
    pub fn tell(&self) {
        let (entries, boxes, numbers) = self.promises;
        say(&format!(
            "storm: {} kills, {entries} lines, {boxes} boxes and {numbers} numbers promised, {} looks at caps, {} cgroups",
            self.kills, self.looks, self.cgroups
        ));
        for (what, count) in &self.counts {
            say(&format!("  {count:>6} {what}"));
        }
        for fault in &self.faults {
            say(&format!("  FAULT {fault}"));
        }
    }
}
