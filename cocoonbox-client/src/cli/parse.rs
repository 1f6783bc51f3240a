//! From argv to a [`Cli`].

use std::ffi::OsString;
use std::path::Path;

use clap::Parser as _;
use clap::error::ErrorKind;
use serde_json::json;

use super::args::{Global, RshWords};
use super::render::plain;
use super::rsh_args::{self, RshArgs, RshError};
use super::{Cli, Verb, exit};

/// What argv said.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, clippy::large_enum_variant, reason = "a binary deals with both, once")]
pub enum Parsed {
    /// Something to do.
    Cli(Cli),
    /// Something to print, and the status to exit with: help, a version, or what is wrong with the words.
    Print {
        /// What.
        text: String,
        /// Whether it belongs on standard error.
        to_stderr: bool,
        /// The exit status.
        status: u8,
    },
}

/// Reads argv, the program's name included. Called as `cocoonbox-rsh` it is all ssh's grammar.
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Parsed {
    let mut argv: Vec<OsString> = argv.into_iter().collect();
    let as_json = argv.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "--json");
    let name = argv.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    if name == "cocoonbox-rsh" {
        return rsh(RshArgs::parse_as_ssh(&argv[1..]), Global::default(), false);
    }
    if let Some((globals, words)) = split_rsh(&argv) {
        let words = words.to_vec();
        argv.truncate(1 + globals);
        argv.push("version".into());
        // the words before `rsh` are ordinary flags: a stand-in verb lets clap read them
        return match Cli::try_parse_from(&argv) {
            Ok(cli) => rsh(RshArgs::parse(&words), cli.global, as_json),
            Err(error) => print(&error, as_json),
        };
    }
    match Cli::try_parse_from(&argv) {
        Ok(cli) => Parsed::Cli(cli),
        Err(error) => print(&error, as_json),
    }
}

/// Finds `rsh` as the verb: how many words stand between the program and it, and what follows it.
fn split_rsh(argv: &[OsString]) -> Option<(usize, &[OsString])> {
    let mut at = 1;
    loop {
        let word = argv.get(at)?.as_os_str();
        if word == "rsh" {
            return Some((at - 1, &argv[at + 1..]));
        }
        at += match word.to_str()? {
            "--endpoint" | "--config-dir" => 2,
            "--json" => 1,
            word if word.starts_with("--endpoint=") || word.starts_with("--config-dir=") => 1,
            _ => return None,
        };
    }
}

fn rsh(parsed: Result<RshArgs, RshError>, mut global: Global, as_json: bool) -> Parsed {
    match parsed {
        Ok(args) => {
            global.endpoint = args.endpoint.clone().or(global.endpoint);
            global.config_dir = args.config_dir.clone().or(global.config_dir);
            global.json |= args.json;
            Parsed::Cli(Cli { global, verb: Verb::Rsh(RshWords { words: Vec::new(), parsed: Some(args) }) })
        }
        Err(RshError::Help) => {
            Parsed::Print { text: rsh_args::HELP.to_owned(), to_stderr: false, status: exit::DONE }
        }
        Err(RshError::Version) => Parsed::Print {
            text: format!("cocoonbox {}\n", env!("CARGO_PKG_VERSION")),
            to_stderr: true,
            status: exit::DONE,
        },
        Err(RshError::Configuration(host)) => Parsed::Print {
            text: format!("host {host}\nhostname {host}\nuser user\nport 22\n"),
            to_stderr: false,
            status: exit::DONE,
        },
        Err(error @ RshError::Usage(_)) if as_json => Parsed::Print {
            text: usage_json(&plain(&error.to_string())),
            to_stderr: true,
            status: exit::UNKNOWN,
        },
        Err(error @ RshError::Usage(_)) => Parsed::Print {
            text: format!(
                "error: {}\nhint: `cocoonbox rsh --help` shows what it takes\n",
                plain(&error.to_string())
            ),
            to_stderr: true,
            status: exit::UNKNOWN,
        },
    }
}

fn print(error: &clap::Error, as_json: bool) -> Parsed {
    let (to_stderr, status) = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => (false, exit::DONE),
        _ => (true, exit::USAGE),
    };
    // it repeats words of the command line, which may come from anywhere
    let text = error.render().to_string().split('\n').map(plain).collect::<Vec<_>>().join("\n");
    if to_stderr && as_json {
        let message = text.trim_end().trim_start_matches("error: ");
        return Parsed::Print { text: usage_json(message), to_stderr, status };
    }
    Parsed::Print { text, to_stderr, status }
}

fn usage_json(message: &str) -> String {
    format!("{}\n", json!({ "error": { "kind": "usage", "message": message, "causes": [], "hint": null } }))
}
