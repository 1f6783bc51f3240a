//! The grammar of everything but `rsh`, which reads its words as ssh does.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use cocoonbox_core::BoxName;

use super::RshArgs;
use crate::{BoxRef, Endpoint};

/// Persistent, isolated boxes for coding agents.
#[derive(Debug, Parser)]
#[command(
    name = "cocoonbox",
    version,
    term_width = 100,
    disable_help_subcommand = true,
    after_long_help = "\
First steps:
  cocoonbox up                         serve boxes on this machine until Ctrl-C
  cocoonbox login --link               sign in with the link that `up` printed
  cocoonbox box ensure                 make the first box, or wake it
  cocoonbox rsh                        a shell in it

Exit status: 0 done, 1 failure, 2 usage, 3 refused by the server or by you, 130 interrupted.
`cocoonbox rsh` exits as the command it ran, or 255 when that is not known."
)]
#[non_exhaustive]
pub struct Cli {
    /// What every verb takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What every verb takes.
#[derive(Clone, Debug, Default, Args)]
#[non_exhaustive]
pub struct Global {
    /// The server: http://host:port or unix:/path [env: COCOONBOX_ENDPOINT] [default: the one last signed in to]
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere")]
    pub endpoint: Option<Endpoint>,
    /// Where cli.json is [env: COCOONBOX_CONFIG_DIR] [default: ~/.config/cocoonbox]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Everywhere")]
    pub config_dir: Option<PathBuf>,
    /// Print JSON: the answer on standard output, errors on standard error
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum Verb {
    /// Sign in to a server
    #[command(after_long_help = "\
A browser opens and asks whether to let this computer in. Where there is none,
--no-browser prints the address to open elsewhere and takes what comes back.

A link or token is read from standard input, or asked for without showing it;
it is never an argument, where other users of the machine could read it.

Examples:
  cocoonbox login                               through a browser
  cocoonbox login --no-browser                  through a browser somewhere else
  cocoonbox login --link                        paste the link that `cocoonbox up` printed
  cocoonbox login --token - < token.txt         use a token that exists")]
    Login(LoginArgs),
    /// Forget the token, and end it when it was made for this machine
    #[command(after_long_help = "\
Examples:
  cocoonbox logout                              this machine
  cocoonbox logout --everywhere                 every device, browser and agent of yours")]
    Logout(LogoutArgs),
    /// Show who you are
    Whoami,
    /// List your devices, or shut one out
    #[command(after_long_help = "\
Examples:
  cocoonbox devices                             * marks this machine
  cocoonbox devices revoke dev_0123456789abcdef")]
    Devices(DevicesArgs),
    /// Serve the control MCP over standard input and output, with your token
    #[command(after_long_help = "\
For agents on this machine whose MCP client does not sign in by itself. Such an
agent acts as you; one that signs in at URL/cocoonbox.mcp/control gets boxes of its
own and sees no others.

Example, in the settings of an MCP client:
  {\"mcpServers\": {\"boxes\": {\"command\": \"cocoonbox\", \"args\": [\"mcp\"]}}}")]
    Mcp,
    /// Show the server, who you are there, and whether it is well
    Status,
    /// Make, list, wake, put to sleep and end boxes
    #[command(subcommand, visible_alias = "boxes")]
    Box(BoxVerb),
    /// Run a command or a shell in a box, as ssh would
    #[command(disable_help_flag = true)]
    Rsh(RshWords),
    /// Copy files and folders to or from a box
    #[command(after_long_help = "\
One side is BOX:PATH; an empty BOX is your first box, a relative PATH begins at
its home. Folders are copied whole; modes and times are kept, owners are not.
When DST is a folder, SRC is put into it, else DST is its new name.

Examples:
  cocoonbox cp notes.txt main:                  into the home folder of box main
  cocoonbox cp ./project main:/workspace/       a folder, into /workspace
  cocoonbox cp main:/workspace/out ./results    back, under another name")]
    Cp(CpArgs),
    /// Save a box: its home and its workspace
    #[command(after_long_help = "\
A save is sealed with your key before it leaves the box; what was saved before
is not stored again. Caches are left out: ~/.cache, folders with a CACHEDIR.TAG.
A box that goes to sleep is saved by itself.

Examples:
  cocoonbox save                                your first box
  cocoonbox save scratch --json")]
    Save(NamedArgs),
    /// List a box's saves, newest first
    Saves(NamedArgs),
    /// Bring a save back: all of it, or chosen files
    #[command(after_long_help = "\
Without a PATH the save takes the place of all that the box has in its home and
workspace, once it is in the box and proven; what it replaces is saved before,
and programs start anew. With PATHs those files and folders alone come back, and
the box goes on.

Examples:
  cocoonbox restore                             the newest save, into your first box
  cocoonbox restore --box scratch --save 3f2a9c0d5e6b7a81920c4d5e6f708192
  cocoonbox restore /home/user/notes.txt /workspace/app")]
    Restore(RestoreArgs),
    /// Look into a save, without a box
    #[command(after_long_help = "\
Examples:
  cocoonbox browse /home/user
  cocoonbox browse --box scratch --save 3f2a9c0d5e6b7a81920c4d5e6f708192 /workspace
  cocoonbox browse --cat /home/user/notes.txt | diff - notes.txt")]
    Browse(BrowseArgs),
    /// Read a save and name what is damaged
    #[command(after_long_help = "\
Every part of the save is fetched, opened and compared with its id; --sample 20
reads one part of twenty, other ones each time. Damage ends with status 1 and
names the files that it hits; other saves may still have them.

Examples:
  cocoonbox check                               the newest save of your first box
  cocoonbox check --box scratch --save 3f2a9c0d5e6b7a81920c4d5e6f708192 --sample 20")]
    Check(CheckArgs),
    /// Take out what no save needs
    #[command(after_long_help = "\
Kept are all saves of the last day, then the newest of each of 14 days and of
each of 8 weeks, each box's newest, and those before an upgrade or a restore.
The rest is forgotten, and what no save needs is marked and deleted half an hour
later. The server does so by itself once a day.

Examples:
  cocoonbox prune --dry-run                     what would go
  cocoonbox prune")]
    Prune(PruneArgs),
    /// Print or take in the key to your saves
    #[command(subcommand)]
    StateKey(StateKeyVerb),
    /// Give the server's master key another value; the server must be stopped
    #[command(after_long_help = "\
The master key (master.key in the data folder) seals each user's state key. All of
them are sealed anew under the new one; saves stay as they are. An interrupted
rotation is gone on with by the next one, and by the next `cocoonbox up`. Servers
that share a database share the master key: stop all, then copy the new file.

Example:
  cocoonbox rotate-master-key --data /srv/cocoonbox")]
    RotateMasterKey(UpArgs),
    /// Check what this machine, and nodes elsewhere, can do for boxes
    #[command(after_long_help = "\
Each \"no\" comes with its reason and what to do about it. Nodes are those that
`cocoonbox up` would use: by flags, the environment or api.yaml.

Examples:
  cocoonbox doctor --json
  cocoonbox doctor --node http://10.0.0.7:7421 --node-token-file token")]
    Doctor(DoctorArgs),
    /// Serve boxes on this machine until Ctrl-C
    #[command(after_long_help = "\
The first start makes user admin, prints a one-use sign-in link (10 minutes) and
signs this command line in. Stopping keeps all boxes; starting again finds them.
Each setting can also stand in the environment, as COCOONBOX_MAX_BOXES, or in
api.yaml in the data folder, as max_boxes; `cocoonbox config show` shows all.

Examples:
  cocoonbox up                                  on 127.0.0.1:7420
  cocoonbox up --data /srv/cocoonbox --listen 127.0.0.1:8000
  cocoonbox up --new-link                       when the first link ran out")]
    Up(UpArgs),
    /// Show the settings that `up` would serve with
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Print a completion script for a shell
    #[command(after_long_help = "\
Examples:
  cocoonbox completion bash > ~/.local/share/bash-completion/completions/cocoonbox
  cocoonbox completion zsh  > ~/.zfunc/_cocoonbox")]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version,
}

/// Verbs on the key to one's saves.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum StateKeyVerb {
    /// Print the key: with it and the store every save of yours can be read
    #[command(after_long_help = "\
Keep it where the server is not: should its data folder be lost, a new server over
the same store finds your saves by it.

Example:
  cocoonbox state-key export > state-key.txt && chmod 600 state-key.txt")]
    Export {
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Take a key of another server over the same store in, from standard input
    #[command(after_long_help = "\
Your saves are found by it, and each box that has some stands among your boxes: the
first `box ensure` of one brings its newest save back. The other server must not
use the store any more.

Example:
  cocoonbox state-key import < state-key.txt")]
    Import,
}

/// Verbs on settings.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum ConfigVerb {
    /// Show each setting of a server and where it comes from
    #[command(after_long_help = "\
A flag comes before the environment, the environment before api.yaml in the data
folder, that before the default. It takes the flags of `cocoonbox up`. A setting
that cannot be read is an error after the table. No setting is a secret: what is
secret stays in the files that settings name.

Examples:
  cocoonbox config show
  cocoonbox config show --data /srv/cocoonbox --json")]
    Show(UpArgs),
}

/// How to sign in.
#[derive(Debug, Args)]
#[group(required = false, multiple = false)]
#[non_exhaustive]
pub struct LoginArgs {
    /// Print the address for a browser elsewhere, and read what comes back from standard input
    #[arg(long)]
    pub no_browser: bool,
    /// Exchange a one-use sign-in link, read from standard input or asked for
    #[arg(long)]
    pub link: bool,
    /// Use a token that exists, read from standard input or asked for
    #[arg(long, value_name = "-", num_args = 0..=1, default_missing_value = "-")]
    pub token: Option<String>,
}

/// How to sign out.
#[derive(Clone, Copy, Debug, Args)]
#[non_exhaustive]
pub struct LogoutArgs {
    /// End every sign-in of yours: devices, browsers, the personal token and agents; boxes stay
    #[arg(long)]
    pub everywhere: bool,
}

/// What to do with devices.
#[derive(Clone, Debug, Args)]
#[non_exhaustive]
pub struct DevicesArgs {
    /// What to do; they are listed unless told
    #[command(subcommand)]
    pub verb: Option<DevicesVerb>,
}

/// Verbs on devices.
#[derive(Clone, Debug, Subcommand)]
#[non_exhaustive]
pub enum DevicesVerb {
    /// End a device's token and every call open on it
    Revoke {
        /// The device's id, as `cocoonbox devices` shows it
        id: String,
    },
}

/// Verbs on boxes.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum BoxVerb {
    /// Make a new box and start it
    #[command(after_long_help = "\
Example:
  cocoonbox box create scratch")]
    Create(CreateArgs),
    /// List your boxes, oldest first
    #[command(visible_alias = "list")]
    Ls,
    /// Show one box
    Show(NamedArgs),
    /// Bring a box to running: wake it, start it, or make your first one
    #[command(after_long_help = "\
Examples:
  cocoonbox box ensure                          your first box; it is made where there is none
  cocoonbox box ensure scratch")]
    Ensure(NamedArgs),
    /// Put a box to sleep
    #[command(after_long_help = "\
A sleeping box keeps its files, and its memory where the server can: processes
then go on where they stood. With --to-disk processes end and files alone are
kept.

Examples:
  cocoonbox box hibernate scratch
  cocoonbox box hibernate --to-disk")]
    Hibernate(HibernateArgs),
    /// Give a box another name
    Rename(RenameArgs),
    /// Move a box to another image and keep its state
    #[command(after_long_help = "\
Its programs end, it is saved, and a sandbox of the new image starts with that save.
Home and workspace come along; what was installed elsewhere does not. Should the
new image not start, the box goes on with the old one. It asks first; --yes answers
beforehand.

Examples:
  cocoonbox box upgrade                         your first box, to the server's image
  cocoonbox box upgrade scratch --image work:2 --yes")]
    Upgrade(UpgradeArgs),
    /// End a box and everything in it
    #[command(after_long_help = "\
It asks first, by name; --yes answers beforehand. Without a terminal and
without --yes nothing is ended.

Examples:
  cocoonbox box rm scratch
  cocoonbox box rm scratch --yes")]
    Rm(RmArgs),
    /// Show or set when a box wakes by itself
    #[command(after_long_help = "\
The five fields of a cron expression: minute, hour, day of month, month, day of
week.

Examples:
  cocoonbox box schedule                                        show it
  cocoonbox box schedule --cron '0 8 * * 1-5' --time-zone Europe/Berlin --stay-up 2h
  cocoonbox box schedule --clear")]
    Schedule(ScheduleArgs),
    /// Show how many boxes you have and may have
    Usage,
}

/// A box that may be left out.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct NamedArgs {
    /// A box's name or id [default: your first box]
    #[arg(value_name = "BOX")]
    pub name: Option<BoxRef>,
}

/// `box create`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct CreateArgs {
    /// The new box's name: 1 to 32 of a-z, 0-9, _ and -
    pub name: BoxName,
    /// Its image [default: the server's]
    #[arg(long)]
    pub image: Option<String>,
}

/// `box hibernate`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct HibernateArgs {
    /// A box's name or id [default: your first box]
    #[arg(value_name = "BOX")]
    pub name: Option<BoxRef>,
    /// End its processes and keep its files alone
    #[arg(long)]
    pub to_disk: bool,
}

/// `box rename`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct RenameArgs {
    /// The box's present name, or its id
    #[arg(value_name = "BOX")]
    pub name: BoxRef,
    /// Its new name
    pub to: BoxName,
}

/// `box rm`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct RmArgs {
    /// The box's name or id
    #[arg(value_name = "BOX")]
    pub name: BoxRef,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// `box schedule`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct ScheduleArgs {
    /// A box's name or id [default: your first box]
    #[arg(value_name = "BOX")]
    pub name: Option<BoxRef>,
    /// When it wakes, as five cron fields
    #[arg(long, requires = "stay_up", conflicts_with = "clear")]
    pub cron: Option<String>,
    /// Where the clock of --cron hangs, an IANA name [default: UTC]
    #[arg(long, requires = "cron", value_name = "ZONE")]
    pub time_zone: Option<String>,
    /// How long it stays up after each wake, 1m to 24h
    #[arg(long, requires = "cron", value_name = "TIME", value_parser = stay_up)]
    pub stay_up: Option<std::time::Duration>,
    /// Wake it no more by itself
    #[arg(long)]
    pub clear: bool,
}

/// `restore`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct RestoreArgs {
    /// A box's name or id [default: your first box]
    #[arg(long = "box", value_name = "BOX")]
    pub name: Option<BoxRef>,
    /// Which save [default: the newest]
    #[arg(long, value_name = "ID")]
    pub save: Option<String>,
    /// Files and folders to bring back, by their absolute names in the box [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// `check`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct CheckArgs {
    /// A box's name or id [default: your first box]
    #[arg(long = "box", value_name = "BOX")]
    pub name: Option<BoxRef>,
    /// Which save [default: the newest]
    #[arg(long, value_name = "ID")]
    pub save: Option<String>,
    /// Read one of so many parts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub sample: u32,
}

/// `prune`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct PruneArgs {
    /// Show what would go, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `box upgrade`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct UpgradeArgs {
    /// A box's name or id [default: your first box]
    #[arg(value_name = "BOX")]
    pub name: Option<BoxRef>,
    /// Its new image [default: the server's for new boxes]
    #[arg(long)]
    pub image: Option<String>,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// `browse`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct BrowseArgs {
    /// A box's name or id [default: your first box]
    #[arg(long = "box", value_name = "BOX")]
    pub name: Option<BoxRef>,
    /// Which save [default: the newest]
    #[arg(long, value_name = "ID")]
    pub save: Option<String>,
    /// Write a file's bytes to standard output instead of listing a folder
    #[arg(long, requires = "path", conflicts_with = "json")]
    pub cat: bool,
    /// A folder, or with --cat a file, by its absolute name in the box
    #[arg(value_name = "PATH", default_value = "/home/user")]
    pub path: OsString,
}

/// `cp`.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct CpArgs {
    /// A path here, or BOX:PATH
    #[arg(value_name = "SRC")]
    pub source: OsString,
    /// A path here, or BOX:PATH
    #[arg(value_name = "DST")]
    pub destination: OsString,
}

/// `up`; the binary does it.
#[derive(Clone, Debug, Default, Args)]
#[non_exhaustive]
pub struct UpArgs {
    /// Where boxes and users are kept [default: /var/lib/cocoonbox as root, else ~/.local/share/cocoonbox]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<std::net::SocketAddr>,
    /// What isolates boxes: auto, bwrap, podman or docker [default: auto]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// The container engine's socket [default: where podman or Docker listen]
    #[arg(long, value_name = "PATH")]
    pub docker_socket: Option<PathBuf>,
    /// The container engine's runtime for boxes, such as runc
    #[arg(long, value_name = "NAME")]
    pub box_runtime: Option<String>,
    /// Where a container engine pulls images from, such as docker.io/library [default: nowhere]
    #[arg(long, value_name = "PLACE")]
    pub image_registry: Option<String>,
    /// The image of new boxes [default: host]
    #[arg(long, value_name = "IMAGE")]
    pub default_image: Option<String>,
    /// The size of new boxes, and of boxes after an upgrade: small (1 processor, 512 MiB), medium (2, 1 GiB), large (4, 4 GiB),
    /// xlarge (4, 8 GiB) or 2xlarge (8, 16 GiB) [default: small]
    #[arg(long, value_name = "SIZE")]
    pub box_size: Option<String>,
    /// Let a user's box sleep after this long without a client call, such as 2h [default: 0s, never]
    #[arg(long, value_name = "TIME")]
    pub user_idle_hibernate: Option<String>,
    /// Give up the memory of a sleeping box after this long, such as 24h [default: 0s, never]
    #[arg(long, value_name = "TIME")]
    pub freeze_to_disk_after: Option<String>,
    /// Boxes that a user may have; administrators have no limit [default: 1]
    #[arg(long, value_name = "N")]
    pub max_boxes: Option<u32>,
    /// Boxes of a user that may run at once; administrators have no limit [default: 1]
    #[arg(long, value_name = "N")]
    pub max_running: Option<u32>,
    /// How browsers and programs elsewhere reach the server, https://HOST: the issuer of its sign-ins [default: its own
    /// address on this machine]
    #[arg(long, value_name = "URL")]
    pub oauth_public_url: Option<String>,
    /// Let a box that an outside agent made sleep after this long without a client call [default: 30m; 0s: never]
    #[arg(long, value_name = "TIME")]
    pub oauth_idle_hibernate: Option<String>,
    /// Take agents that are named by the https address of a document, which the server fetches: Claude Code and Codex do so where
    /// it is offered. Say false where the server reaches no https address; they then register themselves [default: true]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    pub oauth_client_documents: Option<bool>,
    /// Believe what proxies at these addresses say of where a request comes from (X-Forwarded-For), with commas between them; wrong
    /// passwords are counted by it [default: none]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub trusted_proxies: Option<Vec<String>>,
    /// A file with the URL of a PostgreSQL database [default: a SQLite file in the data folder]
    #[arg(long, value_name = "FILE")]
    pub database_url_file: Option<PathBuf>,
    /// The program that runs in each box [default: cocoonbox-agent beside this one]
    #[arg(long, value_name = "FILE")]
    pub agent: Option<PathBuf>,
    /// Sandboxes that are kept running for new boxes, so that one is there at once; about 5 MiB each [default: 1]
    #[arg(long, value_name = "N")]
    pub warm: Option<u32>,
    /// A node that keeps the boxes, instead of this machine: http://HOST:PORT; give it once for each node
    #[arg(long, value_name = "URL")]
    pub node: Vec<String>,
    /// The file with a node's token (mode 0600): one for all nodes, or one for each in their order
    #[arg(long, value_name = "FILE")]
    pub node_token_file: Vec<PathBuf>,
    /// Where saves are kept: a folder, or s3://BUCKET [default: the folder state in the data folder]
    #[arg(long, value_name = "PLACE")]
    pub state_store: Option<String>,
    /// The server of an s3:// store, such as `https://s3.example.org` [default: Amazon's of the region]
    #[arg(long, value_name = "URL")]
    pub state_store_endpoint: Option<String>,
    /// The region of an s3:// store [default: us-east-1]
    #[arg(long, value_name = "NAME")]
    pub state_store_region: Option<String>,
    /// The file (mode 0600) with the account of an s3:// store: key id and secret, in two words
    #[arg(long, value_name = "FILE")]
    pub state_store_key_file: Option<PathBuf>,
    /// Print a new one-use sign-in link for user admin (10 minutes)
    #[arg(long)]
    pub new_link: bool,
}

/// What `doctor` looks at besides this machine.
#[derive(Clone, Debug, Default, Args)]
#[expect(clippy::exhaustive_structs, reason = "the same flags as `up` has")]
pub struct DoctorArgs {
    /// A node to ask: http://HOST:PORT; give it once for each node
    #[arg(long, value_name = "URL")]
    pub node: Vec<String>,
    /// The file with a node's token (mode 0600): one for all nodes, or one for each in their order
    #[arg(long, value_name = "FILE")]
    pub node_token_file: Vec<PathBuf>,
}

/// The words of `rsh` as clap sees them, for help and completions; [`RshArgs`] is what they mean.
#[derive(Debug, Args)]
#[non_exhaustive]
pub struct RshWords {
    /// See `cocoonbox rsh --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub words: Vec<OsString>,
    /// Set by [`super::parse`].
    #[arg(skip)]
    pub parsed: Option<RshArgs>,
}

/// Reads `90s`, `30m`, `2h`, or a mix such as `1h30m`.
fn stay_up(text: &str) -> Result<std::time::Duration, &'static str> {
    const WRONG: &str = "use a time such as 30m, 2h or 1h30m";
    let mut seconds = 0_u64;
    let mut number = None::<u64>;
    for letter in text.chars() {
        if let Some(digit) = letter.to_digit(10) {
            number = Some(
                number
                    .unwrap_or(0)
                    .checked_mul(10)
                    .and_then(|n| n.checked_add(u64::from(digit)))
                    .ok_or(WRONG)?,
            );
        } else {
            let unit = match letter {
                's' => 1,
                'm' => 60,
                'h' => 3600,
                _ => return Err(WRONG),
            };
            seconds = number
                .take()
                .ok_or(WRONG)?
                .checked_mul(unit)
                .and_then(|n| n.checked_add(seconds))
                .ok_or(WRONG)?;
        }
    }
    if number.is_some() || text.is_empty() {
        return Err(WRONG);
    }
    if (60..=24 * 3600).contains(&seconds) {
        Ok(std::time::Duration::from_secs(seconds))
    } else {
        Err("use 1m to 24h")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_holds_together() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_time_has_units_and_bounds() {
        for (text, seconds) in [
            ("90s", Some(90)),
            ("1h30m", Some(5400)),
            ("24h", Some(86400)),
            ("25h", None),
            ("5", None),
            ("", None),
            ("h", None),
            ("59s", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(stay_up(text).ok().map(|time| time.as_secs()), seconds, "{text}");
        }
    }
}
