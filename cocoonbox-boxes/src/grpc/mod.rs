//! The `Boxes` and `State` services over the [`Engine`].

mod message;
mod service;
mod state;
mod status;

use std::sync::Arc;

use cocoonbox_wire::MAX_FRAME_BYTES;
use cocoonbox_wire::control::v1::boxes_server::BoxesServer;
use cocoonbox_wire::control::v1::state_server::StateServer;

pub use service::Boxes;
pub use state::State;

use crate::{Engine, StateCare};

/// Makes the service; it needs a [`Caller`](crate::Caller) in each request's extensions.
pub fn service(engine: Arc<Engine>) -> BoxesServer<Boxes> {
    BoxesServer::new(Boxes::new(engine)).max_decoding_message_size(MAX_FRAME_BYTES)
}

/// Makes the service of saves as a whole; it needs a [`Caller`](crate::Caller), too. Without `care` every call is
/// unimplemented.
pub fn state_service(engine: Arc<Engine>, care: Option<Arc<dyn StateCare>>) -> StateServer<State> {
    StateServer::new(State::new(engine, care)).max_decoding_message_size(MAX_FRAME_BYTES)
}
