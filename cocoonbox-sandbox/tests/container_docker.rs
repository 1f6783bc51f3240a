//! The contract of the port, held against real containers of Docker: `make soak` runs it, with a daemon of its own.

mod common;

use cocoonbox_sandbox::testkit::{DockerForTests, EngineForTests};
use common::containers::Containers;

async fn fresh() -> Containers {
    Containers::fresh(DockerForTests::shared().map(|engine| engine as &dyn EngineForTests)).await
}

mod suite {
    cocoonbox_core::sandbox_backend_conformance!(super::fresh().await);
}
