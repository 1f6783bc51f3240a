#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod call_token;
pub mod env_file;
pub mod identity;
pub mod silkd;

/// The guest port on which the agent serves [`agent::v1`].
pub const AGENT_PORT: u16 = 7443;

/// The metadata key that names the box of a call: an id or a name.
pub const BOX_METADATA: &str = "cocoonbox-box";

/// The most bytes of one frame or message, on every channel.
pub const MAX_FRAME_BYTES: usize = 8 * 1024 * 1024;

/// The compiled descriptors of all services, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Client ↔ edge.
pub mod control {
    /// Package `cocoonbox.control.v1`.
    #[expect(
        missing_docs,
        clippy::pedantic,
        unused_qualifications,
        reason = "generated; the proto files hold the docs"
    )]
    pub mod v1 {
        tonic::include_proto!("cocoonbox.control.v1");
    }
}

/// Edge ↔ agent in the box.
pub mod agent {
    /// Package `cocoonbox.agent.v1`.
    #[expect(
        missing_docs,
        clippy::pedantic,
        unused_qualifications,
        reason = "generated; the proto files hold the docs"
    )]
    pub mod v1 {
        tonic::include_proto!("cocoonbox.agent.v1");
    }
}
