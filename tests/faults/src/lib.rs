#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod chance;
mod killer;
mod machine;
mod oracle;
mod people;
mod sampler;
mod storm;
mod way;
mod worker;

pub use chance::{Chance, say, seed, soaks};
pub use machine::{Cgroups, Claim, Resident, claims, clear, leftovers, open_files, residents};
pub use oracle::{Entry, Fault, Found, Oracle};
pub use people::add_users;
pub use storm::{Layout, Outcome, Plan, run};
