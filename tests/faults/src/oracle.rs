//! What was promised to clients, and whether it was kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;

/// One line of the log: what a client began, and what it was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, clippy::exhaustive_enums, reason = "the fields are what they are called")]
pub enum Entry {
    /// A box was asked for.
    CreateBegun { user: usize, name: String },
    /// The server said no to that; nothing was made.
    CreateRefused { user: usize, name: String },
    /// The server said that the box is there.
    Created { user: usize, name: String, id: String },
    /// The server said that the box runs.
    Ensured { id: String },
    /// Another name was asked for.
    RenameBegun { id: String, to: String },
    /// The server said that it has the name.
    Renamed { id: String, to: String },
    /// Its end was asked for.
    DeleteBegun { id: String },
    /// The server said that it goes on after all.
    DeleteFailed { id: String },
    /// The server said that it is gone.
    Deleted { id: String },
    /// A program in the box said that this number is on the disk.
    Counted { id: String, number: u64 },
    /// Something of the machine was killed; kept for whoever reads the log.
    Killed { what: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    There,
    Unclear,
    Gone,
}

#[derive(Clone, Debug)]
struct Known {
    user: usize,
    names: BTreeSet<String>,
    presence: Presence,
    counted: u64,
}

/// A box as it was found when everything had settled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "the fields are what they are called")]
pub struct Found {
    pub user: usize,
    pub id: String,
    pub name: String,
    /// Its state; one of the states between two others is a fault.
    pub state: String,
    /// What the box's program found on its disk: the numbers that were written, or why there are none.
    pub numbers: Result<Vec<u64>, String>,
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are what they are called")]
#[non_exhaustive]
pub enum Fault {
    /// A box that was promised is not there.
    Lost { id: String },
    /// A box that was said to be gone is there.
    Revived { id: String },
    /// A box has a name that it was never given.
    Misnamed { id: String, name: String, expected: Vec<String> },
    /// A box belongs to somebody else.
    Misplaced { id: String, user: usize, expected: usize },
    /// A box that nobody asked for.
    Stranger { id: String, name: String },
    /// A box is between two states.
    Stuck { id: String, state: String },
    /// A box does not come up or does not answer.
    Silent { id: String, reason: String },
    /// A number that was said to be on the disk is not.
    Forgotten { id: String, acknowledged: u64, found: u64 },
    /// The numbers on the disk are not one after the other.
    Torn { id: String, after: u64, found: u64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The log and what follows from it.
#[derive(Debug, Default)]
pub struct Oracle {
    boxes: BTreeMap<String, Known>,
    /// Asked for and not answered: there or not.
    unclear: BTreeSet<(usize, String)>,
    log: Option<File>,
    entries: u64,
    early: Vec<Fault>,
}

impl Oracle {
    /// Keeps the log in `file`, too.
    pub fn logging(file: &Path) -> io::Result<Self> {
        Ok(Self { log: Some(File::create(file)?), ..Self::default() })
    }

    /// Takes a line into the log.
    pub fn note(&mut self, entry: &Entry) {
        self.entries += 1;
        if let Some(log) = &mut self.log {
            let mut line = serde_json::to_vec(entry).unwrap_or_default();
            line.push(b'\n');
            // the log helps whoever looks for a fault; what decides is in memory
            let _ = log.write_all(&line);
        }
        match entry {
            Entry::CreateBegun { user, name } => {
                self.unclear.insert((*user, name.clone()));
            }
            Entry::CreateRefused { user, name } => {
                self.unclear.remove(&(*user, name.clone()));
            }
            Entry::Created { user, name, id } => {
                self.unclear.remove(&(*user, name.clone()));
                let names = BTreeSet::from([name.clone()]);
                let known = Known { user: *user, names, presence: Presence::There, counted: 0 };
                if self.boxes.insert(id.clone(), known).is_some() {
                    self.early.push(Fault::Stranger { id: id.clone(), name: name.clone() });
                }
            }
            Entry::RenameBegun { id, to } => self.change(id, |known| {
                known.names.insert(to.clone());
            }),
            Entry::Renamed { id, to } => {
                self.change(id, |known| known.names = BTreeSet::from([to.clone()]));
            }
            Entry::DeleteBegun { id } => self.change(id, |known| known.presence = Presence::Unclear),
            Entry::DeleteFailed { id } => self.change(id, |known| known.presence = Presence::There),
            Entry::Deleted { id } => self.change(id, |known| known.presence = Presence::Gone),
            Entry::Counted { id, number } => {
                self.change(id, |known| known.counted = known.counted.max(*number));
            }
            Entry::Ensured { .. } | Entry::Killed { .. } => {}
        }
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.boxes.get_mut(id) {
            change(known);
        }
    }

    /// Notes that the server did not know a box; a fault when it was promised.
    pub fn not_found(&mut self, id: &str) {
        if self.boxes.get(id).is_some_and(|known| known.presence == Presence::There) {
            self.early.push(Fault::Lost { id: id.to_owned() });
        }
    }

    /// Returns how many lines the log has, and how many boxes and numbers were promised.
    pub fn size(&self) -> (u64, usize, u64) {
        (self.entries, self.boxes.len(), self.boxes.values().map(|known| known.counted).sum())
    }

    /// Returns whether a box may be there.
    pub fn may_be_there(&self, id: &str) -> bool {
        self.boxes.get(id).is_some_and(|known| known.presence != Presence::Gone)
    }

    /// Compares what was found with what was promised.
    pub fn judge(&self, found: &[Found]) -> Vec<Fault> {
        let mut faults = self.early.clone();
        let mut seen = BTreeSet::new();
        for found in found {
            let id = || found.id.clone();
            seen.insert(found.id.as_str());
            match self.boxes.get(&found.id) {
                // an answer that was lost: the name tells
                None if self.unclear.contains(&(found.user, found.name.clone())) => {}
                None => faults.push(Fault::Stranger { id: id(), name: found.name.clone() }),
                Some(known) => {
                    if known.presence == Presence::Gone {
                        faults.push(Fault::Revived { id: id() });
                    }
                    if known.user != found.user {
                        faults.push(Fault::Misplaced { id: id(), user: found.user, expected: known.user });
                    }
                    if !known.names.contains(&found.name) {
                        let expected = known.names.iter().cloned().collect();
                        faults.push(Fault::Misnamed { id: id(), name: found.name.clone(), expected });
                    }
                }
            }
            if found.state == "starting" || found.state == "hibernating" {
                faults.push(Fault::Stuck { id: id(), state: found.state.clone() });
            }
            match &found.numbers {
                Err(reason) => faults.push(Fault::Silent { id: id(), reason: reason.clone() }),
                Ok(numbers) => {
                    let torn = numbers.iter().zip(1..).find(|(number, expected)| *number != expected);
                    if let Some((number, expected)) = torn {
                        faults.push(Fault::Torn { id: id(), after: expected - 1, found: *number });
                    }
                    let acknowledged = self.boxes.get(&found.id).map_or(0, |known| known.counted);
                    let last = numbers.iter().copied().max().unwrap_or(0);
                    if last < acknowledged {
                        faults.push(Fault::Forgotten { id: id(), acknowledged, found: last });
                    }
                }
            }
        }
        for (id, known) in &self.boxes {
            if known.presence == Presence::There && !seen.contains(id.as_str()) {
                faults.push(Fault::Lost { id: id.clone() });
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(entries: &[Entry]) -> Oracle {
        let mut oracle = Oracle::default();
        for entry in entries {
            oracle.note(entry);
        }
        oracle
    }

    fn created(id: &str, name: &str) -> Entry {
        Entry::Created { user: 0, name: name.to_owned(), id: id.to_owned() }
    }

    fn found(id: &str, name: &str, last: u64) -> Found {
        Found {
            user: 0,
            id: id.to_owned(),
            name: name.to_owned(),
            state: "running".to_owned(),
            numbers: Ok((1..=last).collect()),
        }
    }

    #[test]
    fn what_was_promised_and_kept_is_no_fault() {
        let id = || "a".to_owned();
        let oracle = told(&[
            Entry::CreateBegun { user: 0, name: "one".to_owned() },
            created("a", "one"),
            Entry::Counted { id: id(), number: 3 },
            Entry::RenameBegun { id: id(), to: "two".to_owned() },
            Entry::CreateBegun { user: 0, name: "unclear".to_owned() },
            created("b", "gone"),
            Entry::DeleteBegun { id: "b".to_owned() },
            created("c", "perhaps"),
            Entry::DeleteBegun { id: "c".to_owned() },
        ]);
        // a rename, a create and two deletes without an answer: each may have happened or not
        for all in [
            vec![found("a", "one", 3)],
            vec![found("a", "two", 4), found("x", "unclear", 0)],
            vec![found("a", "one", 3), found("b", "gone", 0), found("c", "perhaps", 0)],
        ] {
            assert_eq!(oracle.judge(&all), [], "{all:?}");
        }
    }

    #[test]
    fn each_broken_promise_is_found() {
        let id = || "a".to_owned();
        let mut oracle = told(&[
            created("a", "one"),
            Entry::Counted { id: id(), number: 3 },
            created("b", "gone"),
            Entry::DeleteBegun { id: "b".to_owned() },
            Entry::Deleted { id: "b".to_owned() },
        ]);
        let good = || found("a", "one", 3);
        let cases = [
            (vec![], Fault::Lost { id: id() }),
            (vec![good(), found("b", "gone", 0)], Fault::Revived { id: "b".to_owned() }),
            (vec![found("a", "one", 2)], Fault::Forgotten { id: id(), acknowledged: 3, found: 2 }),
            (
                vec![found("a", "two", 3)],
                Fault::Misnamed { id: id(), name: "two".to_owned(), expected: vec!["one".to_owned()] },
            ),
            (vec![Found { user: 1, ..good() }], Fault::Misplaced { id: id(), user: 1, expected: 0 }),
            (
                vec![good(), found("x", "nobody", 0)],
                Fault::Stranger { id: "x".to_owned(), name: "nobody".to_owned() },
            ),
            (
                vec![Found { state: "starting".to_owned(), ..good() }],
                Fault::Stuck { id: id(), state: "starting".to_owned() },
            ),
            (
                vec![Found { numbers: Err("no answer".to_owned()), ..good() }],
                Fault::Silent { id: id(), reason: "no answer".to_owned() },
            ),
            (
                vec![Found { numbers: Ok(vec![1, 2, 4]), ..good() }],
                Fault::Torn { id: id(), after: 2, found: 4 },
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(oracle.judge(&found), [expected]);
        }
        assert_eq!(oracle.judge(&[good()]), []);
        oracle.not_found("b");
        assert_eq!(oracle.judge(&[good()]), [], "one that is gone is not found");
        oracle.not_found("a");
        assert_eq!(oracle.judge(&[good()]), [Fault::Lost { id: id() }]);
    }

    #[test]
    fn a_second_answer_with_one_id_is_a_fault() {
        let oracle = told(&[created("a", "one"), created("a", "other")]);
        assert!(!oracle.judge(&[found("a", "other", 0)]).is_empty());
    }
}
