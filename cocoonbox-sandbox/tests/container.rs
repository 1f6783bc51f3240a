//! The contract of the port, held against real containers of podman.

mod common;

use cocoonbox_sandbox::testkit::{EngineForTests, PodmanForTests};
use common::containers::Containers;
use common::{Outcome, as_a_user_with_ids, is_root};

async fn fresh() -> Containers {
    Containers::fresh(PodmanForTests::shared().map(|engine| engine as &dyn EngineForTests)).await
}

mod suite {
    cocoonbox_core::sandbox_backend_conformance!(super::fresh().await);
}

/// The same again without root, in the long form alone: podman's storage is slow there.
#[test]
fn the_contract_holds_for_an_ordinary_users_podman() -> Outcome {
    if !is_root() || std::env::var_os("COCOONBOX_SOAK").is_none() {
        println!("left out: it is in `make soak`, as root");
        return Ok(());
    }
    as_a_user_with_ids(&["suite::", "--test-threads=2"])
}
