//! The command line's verbs: grammar, output and behaviour. A binary hands in argv, the environment and the streams.
//!
//! ```text
//!  argv ─► parse ─► Cli ─► run(cli, environment, io) ─► Outcome::Exit(status)
//!                                                    └─► Outcome::Up, Doctor, Config: the binary's own to do
//! ```

mod args;
mod environment;
mod error;
mod parse;
mod progress;
mod render;
mod rsh_args;
mod setting;
mod terminal;
mod terminfo;
mod verb;

pub use args::{
    BoxVerb, CheckArgs, Cli, ConfigVerb, CpArgs, CreateArgs, DevicesArgs, DevicesVerb, DoctorArgs, Global,
    HibernateArgs, LoginArgs, LogoutArgs, NamedArgs, PruneArgs, RenameArgs, RmArgs, ScheduleArgs,
    StateKeyVerb, UpArgs, UpgradeArgs, Verb,
};
pub use environment::{Environment, Io};
pub use error::{CliError, exit};
pub use parse::{Parsed, parse};
pub use render::{plain, report};
pub use rsh_args::{RshArgs, RshCommand, RshError, TtyWish};
pub use setting::{
    FileError, Layer, NodeSetting, ServerConfig, Setting, SettingError, Settings, StateStore, nodes,
};
pub use terminal::{RawMode, Tty};
pub use verb::{Outcome, run};
