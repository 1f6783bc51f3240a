#![doc = include_str!("../README.md")]

mod account;
mod caller;
mod config;
mod data;
mod first;
mod node;
mod rotate;
mod serve;
mod state;

pub use cocoonbox_client::cli::ServerConfig;
pub use cocoonbox_oauth::LinkToken;
pub use config::settings;
pub use data::DataDir;
pub use first::{hand_out, sign_in_words};
pub use node::check_nodes;
pub use rotate::rotate_master_key;
pub use serve::{Started, log_to_stderr, run, stop_signal};
