//! One client of one user: does what people do with boxes, all the time, and writes down what it was told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cocoonbox_client::exec::{Command, ExecError, RunOptions, Stdio};
use cocoonbox_client::{
    BoxRef, Client, ClientError, CreateOptions, EnsureOptions, HibernateOptions, Refusal, control,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::{sleep, timeout};

use crate::chance::Chance;
use crate::oracle::{Entry, Oracle};

/// Counts on, from the last number in the file: each number is on the disk before it is said.
pub(crate) const COUNTER: &str = r#"
use strict; use Fcntl qw(:flock); use IO::Handle;
$| = 1;
open(my $file, "+>>", "/workspace/count") or die "open: $!";
flock($file, LOCK_EX) or die "lock: $!";
seek($file, 0, 0);
my $last = 0;
while (<$file>) { $last = $1 if /^(\d+)$/ }
for (1 .. $ARGV[0]) {
    $last++;
    print $file "$last\n" or die "write: $!";
    $file->flush or die "flush: $!";
    $file->sync or die "sync: $!";
    print "$last\n";
    select(undef, undef, undef, 0.01);
}
"#;

/// An action that takes longer hangs, whatever was killed meanwhile.
const HANGS: Duration = Duration::from_secs(100);

/// What all of a storm share.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Counts what was begun, for whoever wants to strike in the middle of it.
    pub(crate) begun: AtomicU64,
    pub(crate) over: AtomicBool,
    faults: Mutex<Vec<String>>,
    counts: Mutex<BTreeMap<String, u64>>,
    pub(crate) oracle: Mutex<Oracle>,
}

impl Notes {
    pub(crate) fn fault(&self, text: String) {
        crate::say(&format!("storm: FAULT: {text}"));
        hold(&self.faults).push(text);
    }

    pub(crate) fn take_faults(&self) -> Vec<String> {
        std::mem::take(&mut *hold(&self.faults))
    }

    pub(crate) fn count(&self, what: impl Into<String>) {
        self.count_many(what, 1);
    }

    pub(crate) fn count_many(&self, what: impl Into<String>, times: u64) {
        *hold(&self.counts).entry(what.into()).or_default() += times;
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        hold(&self.counts).clone()
    }

    pub(crate) fn note(&self, entry: &Entry) {
        hold(&self.oracle).note(entry);
    }

    fn begin(&self, entry: Option<&Entry>) {
        if let Some(entry) = entry {
            self.note(entry);
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

pub(crate) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) user: usize,
    pub(crate) number: usize,
    pub(crate) client: Client,
    pub(crate) chance: Chance,
    pub(crate) notes: Arc<Notes>,
    /// The boxes that it made and nobody else touches.
    pub(crate) mine: Vec<String>,
    pub(crate) made: u64,
    /// The last call found no server: the next one waits a little.
    pub(crate) lost: bool,
}

/// How a call ended, for somebody who goes on whatever happens.
enum Answer<T> {
    Yes(T),
    /// The server said no; nothing happened.
    No,
    /// It may have happened.
    Unclear,
}

impl Worker {
    pub(crate) async fn work(mut self) {
        while !self.notes.is_over() {
            let what = self.choose();
            if timeout(HANGS, self.act(what)).await.is_err() {
                self.notes.fault(format!("{what} of user {} hangs", self.user));
            }
            let pause = if std::mem::take(&mut self.lost) { 250 } else { 40 };
            sleep(Duration::from_millis(self.chance.below(pause))).await;
        }
    }

    fn choose(&mut self) -> &'static str {
        let most = 2;
        if self.mine.is_empty() || self.mine.len() < most && self.chance.percent(25) {
            return "create";
        }
        let acts = [
            "ensure", "count", "count", "count", "count", "freeze", "freeze", "stop", "rename", "delete",
            "list",
        ];
        self.chance.one_of(&acts).copied().unwrap_or("count")
    }

    async fn act(&mut self, what: &str) {
        if what == "create" {
            return self.create().await;
        }
        let Some(id) = self.chance.one_of(&self.mine).cloned() else { return };
        let Ok(place) = id.parse::<BoxRef>() else { return };
        match what {
            "ensure" => self.ensure(&id, &place).await,
            "count" => self.count(&id, &place).await,
            "freeze" => self.hibernate(&id, &place, false).await,
            "stop" => self.hibernate(&id, &place, true).await,
            "rename" => self.rename(&id, &place).await,
            "delete" => self.delete(&id, &place).await,
            _ => self.list().await,
        }
    }

    fn new_name(&mut self) -> String {
        self.made += 1;
        format!("u{}w{}-{}", self.user, self.number, self.made)
    }

    async fn create(&mut self) {
        let name = self.new_name();
        let key = format!("create-{name}");
        let user = self.user;
        self.notes.begin(Some(&Entry::CreateBegun { user, name: name.clone() }));
        for _ in 0..20 {
            let Ok(parsed) = name.parse() else { return };
            let options = CreateOptions::new(parsed).with_idempotency_key(key.clone());
            let begun = self.client.create_box(options).await;
            match self.judge("create", None, begun) {
                Answer::Yes(reply) => {
                    let id = id_of(&reply);
                    self.notes.note(&Entry::Created { user, name, id: id.clone() });
                    self.mine.push(id.clone());
                    if self.follow("create", &id, &reply).await {
                        self.notes.note(&Entry::Ensured { id });
                    }
                    return;
                }
                Answer::No => return self.notes.note(&Entry::CreateRefused { user, name }),
                // the key makes asking again safe
                Answer::Unclear => sleep(Duration::from_millis(150)).await,
            }
            if self.notes.is_over() {
                return;
            }
        }
    }

    async fn ensure(&mut self, id: &str, place: &BoxRef) {
        self.notes.begin(None);
        let begun = self.client.ensure_box(Some(place), EnsureOptions::default()).await;
        if let Answer::Yes(reply) = self.judge("ensure", Some(id), begun)
            && self.follow("ensure", id, &reply).await
        {
            self.notes.note(&Entry::Ensured { id: id.to_owned() });
        }
    }

    async fn hibernate(&mut self, id: &str, place: &BoxRef, to_disk: bool) {
        self.notes.begin(None);
        let options = HibernateOptions::default().with_to_disk(to_disk);
        let begun = self.client.hibernate_box(Some(place), options).await;
        let what = if to_disk { "stop" } else { "freeze" };
        if let Answer::Yes(reply) = self.judge(what, Some(id), begun) {
            self.follow(what, id, &reply).await;
        }
    }

    async fn rename(&mut self, id: &str, place: &BoxRef) {
        let to = self.new_name();
        let Ok(name) = to.parse() else { return };
        self.notes.begin(Some(&Entry::RenameBegun { id: id.to_owned(), to: to.clone() }));
        let renamed = self.client.rename_box(place, &name).await;
        if let Answer::Yes(record) = self.judge("rename", Some(id), renamed) {
            if record.name == to && record.id == id {
                self.notes.note(&Entry::Renamed { id: id.to_owned(), to });
            } else {
                self.notes.fault(format!("{id} was renamed to {to} and is called {}", record.name));
            }
        }
    }

    async fn delete(&mut self, id: &str, place: &BoxRef) {
        let key = format!("delete-{id}-{}", self.made);
        self.made += 1;
        self.notes.begin(Some(&Entry::DeleteBegun { id: id.to_owned() }));
        for _ in 0..20 {
            let gone = match self.client.delete_box(place, &key).await {
                Ok(reply) => match self.client.follow(&reply, |_| {}).await {
                    Ok(_) => true,
                    Err(error) => {
                        self.classify("delete", &error);
                        false
                    }
                },
                Err(ClientError::Refused { refusal: Refusal::NotFound, .. }) => true,
                Err(error) => {
                    self.classify("delete", &error);
                    false
                }
            };
            if gone {
                self.notes.note(&Entry::Deleted { id: id.to_owned() });
                self.mine.retain(|mine| mine != id);
                return;
            }
            sleep(Duration::from_millis(150)).await;
            match self.client.show_box(Some(place)).await {
                Ok(found) if found.operation_id.is_empty() => {
                    self.notes.note(&Entry::DeleteFailed { id: id.to_owned() });
                    return;
                }
                // under way: it is asked for under the same key
                Ok(_) => {}
                Err(error) => self.classify("show", &error),
            }
        }
    }

    async fn list(&mut self) {
        let listed = self.client.list_boxes().await;
        if let Answer::Yes(boxes) = self.judge("list", None, listed) {
            for id in self.mine.clone() {
                if !boxes.iter().any(|found| found.id == id) {
                    hold(&self.notes.oracle).not_found(&id);
                }
            }
        }
    }

    /// Runs the counter for a while; each number that arrives was promised to be on the disk.
    async fn count(&mut self, id: &str, place: &BoxRef) {
        self.notes.begin(None);
        let (ours, theirs) = tokio::io::duplex(4096);
        let numbers = 5 + self.chance.below(25);
        let command =
            Command::argv(["perl".to_owned(), "-e".to_owned(), COUNTER.to_owned(), numbers.to_string()]);
        let exec = self.client.exec(Some(place));
        let stdio = Stdio { stdin: tokio::io::empty(), stdout: theirs, stderr: tokio::io::sink() };
        let run = exec.run(command, stdio, RunOptions::default());
        let read = async {
            let mut lines = BufReader::new(ours).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match line.parse() {
                    Ok(number) => self.notes.note(&Entry::Counted { id: id.to_owned(), number }),
                    Err(_) => self.notes.fault(format!("a counter said {line:?}")),
                }
            }
        };
        let (ended, ()) = tokio::join!(run, read);
        match ended {
            Ok(exit) if exit.success() => self.notes.count("count: done"),
            Ok(exit) => self.notes.count(format!("count: {exit:?}")),
            Err(ExecError::Call(error)) => {
                let _ = self.judge::<()>("count", Some(id), Err(error));
            }
            Err(error) => {
                self.lost = true;
                self.notes.count(format!("count: {}", word(&error)));
                if let ExecError::PeerMisbehaved { .. } | ExecError::TakenOver | ExecError::Output(_) = error
                {
                    self.notes.fault(format!("count: {error:?}"));
                }
            }
        }
    }

    /// Follows an operation to its end; true when it did what was asked.
    async fn follow(&mut self, what: &str, id: &str, reply: &control::OperationReply) -> bool {
        let ended = self.client.follow(reply, |_| {}).await;
        matches!(self.judge(what, Some(id), ended), Answer::Yes(_))
    }

    fn judge<T>(&mut self, what: &str, id: Option<&str>, answer: Result<T, ClientError>) -> Answer<T> {
        let error = match answer {
            Ok(answer) => {
                self.notes.count(format!("{what}: done"));
                return Answer::Yes(answer);
            }
            Err(error) => error,
        };
        self.classify(what, &error);
        if let ClientError::Refused { refusal, .. } = error {
            if let (Refusal::NotFound, Some(id)) = (refusal, id) {
                hold(&self.notes.oracle).not_found(id);
            }
            Answer::No
        } else {
            self.lost = true;
            Answer::Unclear
        }
    }

    /// Counts an error; one that says that somebody is broken is a fault.
    fn classify(&self, what: &str, error: &ClientError) {
        self.notes.count(format!("{what}: {}", word(error)));
        let broken = match error {
            ClientError::PeerMisbehaved { .. }
            | ClientError::Invalid { .. }
            | ClientError::Unsupported { .. }
            | ClientError::NotSignedIn { .. }
            | ClientError::Misuse { .. } => true,
            // whose first process is killed before it answers, that box did not start, and it says so
            ClientError::Failed { message } => !message.contains("ensure the box to try again"),
            ClientError::Refused { refusal, .. } => *refusal == Refusal::Exists,
            _ => false,
        };
        if broken {
            self.notes.fault(format!("{what}: {error:?}"));
        }
    }
}

fn id_of(reply: &control::OperationReply) -> String {
    reply.r#box.as_ref().map(|found| found.id.clone()).unwrap_or_default()
}

/// Returns an error's kind, and its words where the kind says little.
fn word(error: &(impl std::fmt::Debug + std::fmt::Display)) -> String {
    let debug = format!("{error:?}");
    let kind = debug.split(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap_or_default();
    match kind {
        "OperationFailed" | "Refused" | "Unavailable" => {
            let text = error.to_string();
            // ids and numbers differ from one to the next
            let words = text.split(' ').filter(|word| !word.contains(|letter: char| letter.is_ascii_digit()));
            format!("{kind}: {}", words.take(14).collect::<Vec<_>>().join(" "))
        }
        _ => kind.to_owned(),
    }
}
