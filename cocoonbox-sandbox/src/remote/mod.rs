//! The client of the node's API: one node, or several as one.

mod address;
mod backend;
mod call;
mod fleet;
mod node;
mod serve;

pub use address::{AddressError, NodeAddress};
pub use backend::{RemoteBackend, diagnose};
pub use fleet::{Fleet, FleetConfig, NodeConfig, NodeReport, NodeState, OpenError};

/// Reads a refusal, whose first byte stands for the status.
#[cfg(fuzzing)]
pub(crate) fn fuzz_refusal(bytes: &[u8]) {
    let Some((status, body)) = bytes.split_first() else { return };
    let status =
        http::StatusCode::from_u16(400 + u16::from(*status)).unwrap_or(http::StatusCode::BAD_REQUEST);
    let address = "http://node:1".parse().expect("an address");
    let id = "sb_fuzz".parse().expect("an id");
    let about = call::About { id: Some(&id), ..call::About::default() };
    let error = call::refused(status, body).fold(&address, about);
    assert!(error.to_string().len() < 10_000, "a peer's words are cut");
}
