#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod address;
pub mod backend;
mod clock;
mod entropy;
mod id;
pub mod machine;
mod name;
mod retry;
mod secret;
mod turn;

pub use address::is_public;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use entropy::{Entropy, EntropyError, SeededEntropy, SystemEntropy, random_secret};
pub use id::{
    BoxId, BoxKind, ConsoleSessionId, ConsoleSessionKind, GrantId, GrantKind, Id, IdError, Kind, Letters,
    OperationId, OperationKind, SessionId, SessionKind, SignInId, SignInKind, SignInLinkId, SignInLinkKind,
    TokenId, TokenKind, UserId, UserKind, WakeId, WakeKind,
};
pub use name::{BoxName, ImageName, NameError, TenantName, UserName};
pub use retry::Retry;
#[doc(hidden)]
pub use secret::__private;
pub use turn::Turns;
