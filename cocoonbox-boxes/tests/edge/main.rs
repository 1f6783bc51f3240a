//! The edge over real TCP: who is let in, and what the relay does to a call. The agent is a bare HTTP/2 server that
//! knows nothing of the proto, so that a relay that decoded anything would be caught.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

mod agent;
mod calls;
mod idle;
mod setup;
mod slow;
