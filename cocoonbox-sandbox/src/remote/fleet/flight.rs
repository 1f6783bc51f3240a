//! Claims on their way to a node: written down before they leave, so that a process that is killed leaves its successor
//! the doubt whether they were made.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cocoonbox_core::backend::ClaimRef;
use serde::{Deserialize, Serialize};

use super::OpenError;
use crate::remote::NodeAddress;

/// The most bytes of one note.
const MAX_BYTES: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    claim_ref: ClaimRef,
    node: String,
}

/// The folder of the notes: one file for each claim that has no answer yet.
///
/// They need not survive power loss of the machine: they are written through when the system does so.
#[derive(Debug)]
pub(super) struct Flights {
    folder: PathBuf,
    next: AtomicU64,
}

/// One claim without an answer. Dropping it leaves its note: who has the answer says so with [`Flight::landed`].
#[derive(Debug)]
#[must_use]
pub(super) struct Flight {
    path: PathBuf,
}

impl Flight {
    /// Forgets it: it is known what came of it.
    pub(super) fn landed(self) {
        if let Err(error) = fs::remove_file(&self.path) {
            // at worst the claim is asked about once more
            tracing::debug!(%error, "the note of a claim was not removed");
        }
    }
}

/// A note that an earlier process left: of which claim, and by its address of which node.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) claim_ref: ClaimRef,
    pub(super) node: String,
    pub(super) flight: Flight,
}

impl Flights {
    /// Opens the folder; the answer is what an earlier process left in it.
    pub(super) fn open(folder: PathBuf) -> Result<(Self, Vec<Left>), OpenError> {
        let found = (|| {
            fs::create_dir_all(&folder)?;
            let mut left = Vec::new();
            let mut next = 0;
            for file in fs::read_dir(&folder)? {
                let path = file?.path();
                let number =
                    path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
                next = next.max(number.map_or(0, |number: u64| number.saturating_add(1)));
                match read(&path) {
                    Some(Note { claim_ref, node }) => {
                        left.push(Left { claim_ref, node, flight: Flight { path } });
                    }
                    // it was being written: the claim had not left yet
                    None => fs::remove_file(&path)?,
                }
            }
            Ok((next, left))
        })();
        match found {
            Ok((next, left)) => Ok((Self { folder, next: AtomicU64::new(next) }, left)),
            Err(source) => Err(OpenError::Memory { path: folder, source }),
        }
    }

    /// Writes down that a claim is about to leave.
    pub(super) fn leave(&self, claim_ref: &ClaimRef, address: &NodeAddress) -> io::Result<Flight> {
        let path = self.folder.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        let note = Note { claim_ref: claim_ref.clone(), node: address.to_string() };
        fs::write(&path, serde_json::to_vec(&note)?)?;
        Ok(Flight { path })
    }
}

fn read(path: &Path) -> Option<Note> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    if bytes.len() as u64 > MAX_BYTES { None } else { serde_json::from_slice(&bytes).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_without_an_answer_is_known_to_the_next_process() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let place = folder.path().join("claims");
        let address: NodeAddress = "http://127.0.0.1:7421".parse()?;
        let (flights, left) = Flights::open(place.clone())?;
        assert!(left.is_empty());
        flights.leave(&"one".parse()?, &address)?.landed();
        drop(flights.leave(&"two".parse()?, &address)?);
        // a note that was cut off
        fs::write(place.join("7"), b"{\"claim_ref\":\"th")?;

        let (flights, left) = Flights::open(place.clone())?;
        let [Left { claim_ref, node, flight }] =
            <[_; 1]>::try_from(left).map_err(|left| format!("{left:?}"))?;
        assert_eq!((node, claim_ref.as_str()), (address.to_string(), "two"));
        flight.landed();
        drop(flights.leave(&"four".parse()?, &address)?);
        assert!(place.join("8").exists(), "no note takes another's place");
        Ok(())
    }
}
