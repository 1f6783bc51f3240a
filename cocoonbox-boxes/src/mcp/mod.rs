//! The control MCP: a user's boxes as tools, for agents that the user runs elsewhere.
//!
//! ```text
//!  POST, GET, DELETE /cocoonbox.mcp/control
//!    door      a token, a host and an origin that may be, room for one more   401 403 404 429
//!    rmcp      streamable HTTP: sessions, JSON-RPC                            400 404 406 413 415
//!    control   nine tools over the engine, as the caller's agent sees it      -32602, or a result that says why not
//! ```

mod argument;
mod control;
mod door;
mod error;
mod session;
mod tool;

use axum::Router;

pub use door::McpDoor;
pub use session::SessionLimits;

use crate::Engine;

/// Where the control MCP is served.
pub const CONTROL_PATH: &str = "/cocoonbox.mcp/control";

/// Returns the routes of the control MCP, over which callers manage their boxes; an agent sees those that its grant made.
pub fn router(engine: &Engine, door: McpDoor) -> Router {
    let control = control::Control::new(engine.clone());
    door::mount(CONTROL_PATH, door, move || control.clone())
}

/// For tests of the door with other tools than ours.
#[cfg(feature = "testkit")]
pub mod testkit {
    use axum::Router;
    use rmcp::ServerHandler;

    use super::McpDoor;

    /// Serves what `handler` makes, once for each session, through `door`.
    pub fn mount<H: ServerHandler + Send + 'static>(
        path: &str,
        door: McpDoor,
        handler: impl Fn() -> H + Send + Sync + 'static,
    ) -> Router {
        super::door::mount(path, door, handler)
    }
}
