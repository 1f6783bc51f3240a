//! Shows how a program seals a folder into a store and puts it back, with the library alone: [`save_folder`] and
//! [`restore_folder`] are all of it. It skips what a product does besides: keeping the key anywhere but in a file,
//! pruning, more than one folder.
//!
//! ```text
//! cargo run --release -p example-seal-folder -- save ~/project --store /mnt/store --key ~/state.key
//! ```

use std::error::Error;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use cocoonbox_core::SystemEntropy;
use cocoonbox_state::{
    FolderObjects, Label, Objects, PreparedSave, RestoreOptions, Restored, Root, SaveId, SaveOptions,
    StateKey, TreePath, Vault,
};
use serde_json::json;

type Failure = Box<dyn Error>;

async fn save_folder(vault: &Vault, name: &Label, folder: &Path) -> Result<PreparedSave, Failure> {
    Ok(vault.save(&vault.keys(name), SaveOptions::new(vec![Root::whole(folder)]), None).await?)
}

async fn restore_folder(vault: &Vault, name: &Label, to: &Path) -> Result<Restored, Failure> {
    let newest = vault.saves(name).await?.pop().ok_or("nothing was saved under this name")?;
    Ok(vault.restore(&vault.keys(name), &newest.id, to, &RestoreOptions::default()).await?)
}

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    action: Action,
    /// The store: a folder, or s3:BUCKET where that is built in.
    #[arg(long, global = true, default_value = "store")]
    store: String,
    /// The state key's file; made when it is not there.
    #[arg(long, global = true, default_value = "state.key")]
    key: PathBuf,
    /// What the folder is called in the store.
    #[arg(long, global = true, default_value = "folder")]
    name: Label,
    /// Prints one line of JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Saves a folder.
    Save(Save),
    /// Restores the newest save into a folder that is new.
    Restore {
        /// Where to.
        to: PathBuf,
    },
    /// Puts one path of the newest save into a folder.
    RestoreOne {
        /// Which path, from the saved folder on.
        path: String,
        /// Where to.
        to: PathBuf,
    },
    /// Lists the saves.
    Saves,
}

#[derive(Args)]
struct Save {
    /// The folder.
    folder: PathBuf,
    /// Remembers what was saved in this file, so that the next save reads what changed alone.
    #[arg(long)]
    cache: Option<PathBuf>,
    /// The zstd level.
    #[arg(long, default_value_t = 1)]
    level: i32,
    /// Saves tagged caches, too.
    #[arg(long)]
    tagged: bool,
}

fn read_key(path: &Path) -> Result<StateKey, Failure> {
    if !path.exists() {
        let key = StateKey::generate(&SystemEntropy)?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        std::io::Write::write_all(&mut file, key.export().reveal().as_bytes())?;
    }
    Ok(StateKey::import(fs::read_to_string(path)?.trim())?)
}

fn open_store(text: &str) -> Result<Arc<dyn Objects>, Failure> {
    #[cfg(feature = "s3")]
    if let Some(bucket) = text.strip_prefix("s3:") {
        use cocoonbox_state::{S3Config, S3Objects, S3Secret};
        let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
        let secret = S3Secret::new(variable("AWS_SECRET_ACCESS_KEY")?);
        let config = S3Config::new(
            variable("AWS_ENDPOINT_URL")?,
            bucket.to_owned(),
            variable("AWS_ACCESS_KEY_ID")?,
            secret,
        );
        return Ok(Arc::new(S3Objects::open(&config)?));
    }
    Ok(Arc::new(FolderObjects::open(Path::new(text))?))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let cli = Cli::parse();
    let vault = Vault::open(open_store(&cli.store)?, read_key(&cli.key)?, "me".parse()?);
    let keys = vault.keys(&cli.name);
    let began = Instant::now();
    let newest = async || -> Result<SaveId, Failure> {
        Ok(vault.saves(&cli.name).await?.pop().ok_or("nothing was saved under this name")?.id)
    };
    let mut line = match &cli.action {
        Action::Save(Save { folder, cache: None, level: 1, tagged: false }) => {
            saved(&save_folder(&vault, &cli.name, folder).await?)
        }
        Action::Save(save) => {
            let mut options = SaveOptions::new(vec![Root::whole(&save.folder)]);
            options.cache.clone_from(&save.cache);
            options.level = save.level;
            options.skip_tagged = !save.tagged;
            saved(&vault.save(&keys, options, None).await?)
        }
        Action::Restore { to } => {
            let done = restore_folder(&vault, &cli.name, to).await?;
            json!({"save": done.save, "root_hash": done.root_hash, "files": done.files, "bytes": done.bytes})
        }
        Action::RestoreOne { path, to } => {
            let path = TreePath::parse(path.as_bytes())?;
            let done =
                vault.restore_paths(&keys, &newest().await?, &[path], to, &RestoreOptions::default()).await?;
            json!({"files": done[0].files, "bytes": done[0].bytes})
        }
        Action::Saves => json!({"saves": vault.saves(&cli.name).await?}),
    };
    line["seconds"] = json!(began.elapsed().as_secs_f64());
    if cli.json {
        say(&line.to_string());
    } else {
        say(&serde_json::to_string_pretty(&line)?);
    }
    Ok(())
}

fn saved(save: &PreparedSave) -> serde_json::Value {
    json!({"save": save.id, "root_hash": save.root_hash, "delta": save.delta, "stats": save.record.stats,
        "manifest_bytes": save.manifest_length})
}

#[expect(clippy::print_stdout, reason = "a program's output")]
fn say(text: &str) {
    println!("{text}");
}
