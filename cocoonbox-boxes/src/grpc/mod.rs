//! The `Boxes` service over the [`Engine`].

mod message;
mod service;
mod status;

use std::sync::Arc;

use cocoonbox_wire::MAX_FRAME_BYTES;
use cocoonbox_wire::control::v1::boxes_server::BoxesServer;

pub use service::Boxes;

use crate::Engine;

/// Makes the service; it needs a [`Caller`](crate::Caller) in each request's extensions.
pub fn service(engine: Arc<Engine>) -> BoxesServer<Boxes> {
    BoxesServer::new(Boxes::new(engine)).max_decoding_message_size(MAX_FRAME_BYTES)
}
