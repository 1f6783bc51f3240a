//! A server's settings, each with the layer it comes from: flag, environment, `api.yaml`, default.
//!
//! ```text
//!  flags ─┐
//!  COCOONBOX_… ─┼─► Settings: words, and where they stand ─► ServerConfig: what they mean
//!  api.yaml ─┤
//!  defaults ─┘
//! ```

mod file;
mod server;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde_json::{Value, json};

use super::render::{plain, table};
use super::{Environment, UpArgs};
pub use file::FileError;
pub use server::{NodeSetting, ServerConfig, StateStore, nodes};

/// The keys of `api.yaml`, with the defaults of those that have one.
const KEYS: [(&str, Option<&str>); 24] = [
    ("listen", Some("127.0.0.1:7420")),
    ("backend", Some("auto")),
    ("docker_socket", None),
    ("box_runtime", None),
    ("image_registry", None),
    ("default_image", Some("host")),
    ("box_size", Some("small")),
    ("user_idle_hibernate", Some("0s")),
    ("freeze_to_disk_after", Some("0s")),
    ("max_boxes", Some("1")),
    ("max_running", Some("1")),
    ("oauth.public_url", None),
    ("oauth.idle_hibernate", Some("30m")),
    ("oauth.client_documents", Some("true")),
    ("trusted_proxies", None),
    ("database_url_file", None),
    ("agent", None),
    ("warm", Some("1")),
    ("node", None),
    ("node_token_file", None),
    ("state_store", None),
    ("state_store_endpoint", None),
    ("state_store_region", Some("us-east-1")),
    ("state_store_key_file", None),
];

/// The setting that cannot stand in `api.yaml`, because it says where that is.
const DATA: &str = "data";

/// The layer that a setting's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the layers are the contract")]
pub enum Layer {
    /// The command line.
    Flag,
    /// A `COCOONBOX_…` variable.
    Environment,
    /// `api.yaml` in the data directory.
    File,
    /// Nobody said anything.
    Default,
}

/// Why settings cannot be read. No message holds a value of `api.yaml`'s unknown keys, which may be secrets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// `api.yaml` has a key that does not exist.
    #[error("api.yaml: there is no key {key:?}: did you mean {nearest}? (known: {})", known())]
    UnknownKey {
        /// The key.
        key: String,
        /// The known key that looks most like it.
        nearest: &'static str,
    },
    /// `api.yaml` cannot be read.
    #[error("{}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: FileError,
    },
    /// `api.yaml` has a list or a map where one word belongs.
    #[error("api.yaml: {key} takes one word")]
    NotOneWord {
        /// Which key.
        key: String,
    },
    /// A setting that is needed has no value.
    #[error("{key} is not set: use {wanted}")]
    Missing {
        /// Which setting.
        key: &'static str,
        /// What would do.
        wanted: &'static str,
    },
    /// `api.yaml` has the key that says where it is.
    #[error("api.yaml: data cannot be set in the data directory itself: use --data or COCOONBOX_DATA")]
    Data,
    /// A value cannot be read.
    #[error("{key}, from {from}: {value:?} cannot be read: use {wanted}")]
    Unreadable {
        /// Which setting.
        key: &'static str,
        /// Where the value stands.
        from: String,
        /// The value.
        value: String,
        /// What would do.
        wanted: &'static str,
    },
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// Its name: the key in `api.yaml`, the flag with dashes, the variable in capitals.
    pub key: &'static str,
    /// Its words; none when it has no default either.
    pub value: Option<OsString>,
    /// Where they come from.
    pub layer: Layer,
}

impl Setting {
    /// Returns where the value stands: `--max-boxes`, `COCOONBOX_MAX_BOXES`, `api.yaml`, `default`.
    pub fn from(&self) -> String {
        match self.layer {
            Layer::Flag => flag(self.key),
            Layer::Environment => variable(self.key),
            Layer::File => "api.yaml".to_owned(),
            Layer::Default => "default".to_owned(),
        }
    }

    /// Reads the value; none when there is none. `wanted` says what would do.
    ///
    /// # Errors
    /// [`SettingError::Unreadable`].
    pub fn read<T>(
        &self,
        wanted: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, SettingError> {
        let Some(value) = &self.value else { return Ok(None) };
        value.to_str().and_then(read).map(Some).ok_or_else(|| SettingError::Unreadable {
            key: self.key,
            from: self.from(),
            value: value.to_string_lossy().into_owned(),
            wanted,
        })
    }

    /// Reads the value as its type does; none when there is none.
    ///
    /// # Errors
    /// [`SettingError::Unreadable`].
    pub fn parse<T: FromStr>(&self, wanted: &'static str) -> Result<Option<T>, SettingError> {
        self.read(wanted, |text| text.parse().ok())
    }
}

/// All settings of a server. None of them is a secret: those are in files which settings name.
#[derive(Clone, Debug)]
pub struct Settings(Vec<Setting>);

impl Settings {
    /// Returns where the data directory is: `--data`, else `COCOONBOX_DATA`; the value is none when neither says it.
    pub fn data(flags: &UpArgs, environment: &Environment) -> Setting {
        layered(DATA, words(flags, DATA), environment, None, None)
    }

    /// Lays the flags over the environment over the `api.yaml` in the data directory over the defaults.
    ///
    /// # Errors
    /// The file cannot be read or has a key that does not exist.
    pub fn gather(data: Setting, flags: &UpArgs, environment: &Environment) -> Result<Self, SettingError> {
        let path = data.value.as_ref().map(|data| Path::new(data).join("api.yaml"));
        let file = match path {
            Some(path) => file::read(&path).map_err(|source| SettingError::File { path, source })?,
            None => Vec::new(),
        };
        for (key, value) in &file {
            if key == DATA {
                return Err(SettingError::Data);
            }
            if KEYS.iter().all(|(known, _)| known != key) {
                return Err(SettingError::UnknownKey { key: plain(key), nearest: nearest(key) });
            }
            if value.is_none() {
                return Err(SettingError::NotOneWord { key: key.clone() });
            }
        }
        let one = |(key, default): (&'static str, Option<&str>)| {
            let written = file
                .iter()
                .find(|(written, _)| written == key)
                .and_then(|(_, value)| Some(value.as_ref()?.into()));
            layered(key, words(flags, key), environment, written, default.map(Into::into))
        };
        Ok(Self([data].into_iter().chain(KEYS.map(one)).collect()))
    }

    /// Returns the setting called `key`.
    ///
    /// # Panics
    /// There is no such setting.
    pub fn get(&self, key: &str) -> &Setting {
        let found = self.0.iter().find(|setting| setting.key == key);
        found.unwrap_or_else(|| panic!("there is no setting {key}"))
    }

    /// Gives `key` a default that depends on the machine, if nothing was said about it.
    #[must_use]
    pub fn with_default(mut self, key: &str, value: impl Into<OsString>) -> Self {
        if let Some(setting) = self.0.iter_mut().find(|setting| setting.key == key) {
            setting.value.get_or_insert_with(|| value.into());
        }
        self
    }

    /// Returns all settings as JSON, each with where it comes from.
    pub fn to_json(&self) -> Value {
        let one = |setting: &Setting| {
            let layer = match setting.layer {
                Layer::Flag => "flag",
                Layer::Environment => "environment",
                Layer::File => "file",
                Layer::Default => "default",
            };
            let value = setting.value.as_deref().map(OsStr::to_string_lossy);
            json!({ "key": setting.key, "value": value, "layer": layer, "from": setting.from() })
        };
        json!({ "settings": self.0.iter().map(one).collect::<Vec<_>>() })
    }
}

/// A table: key, value, where it comes from.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![["SETTING", "VALUE", "FROM"].map(str::to_owned).to_vec()];
        rows.extend(self.0.iter().map(|setting| {
            let value = setting.value.as_deref().map_or_else(|| "-".into(), OsStr::to_string_lossy);
            vec![setting.key.to_owned(), plain(&value), setting.from()]
        }));
        let mut text = Vec::new();
        table(&mut text, &rows).map_err(|_| fmt::Error)?;
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

fn layered(
    key: &'static str,
    flag: Option<OsString>,
    environment: &Environment,
    file: Option<OsString>,
    default: Option<OsString>,
) -> Setting {
    let set = environment.variable(&variable(key)).map(OsStr::to_owned);
    let layers = [(flag, Layer::Flag), (set, Layer::Environment), (file, Layer::File)];
    let said = layers.into_iter().find_map(|(value, layer)| value.map(|value| (Some(value), layer)));
    let (value, layer) = said.unwrap_or((default, Layer::Default));
    Setting { key, value, layer }
}

/// Returns what the command line said of a setting.
fn words(flags: &UpArgs, key: &str) -> Option<OsString> {
    let number = |number: Option<u32>| number.map(|number| number.to_string().into());
    match key {
        DATA => flags.data.clone().map(Into::into),
        "listen" => flags.listen.map(|address| address.to_string().into()),
        "backend" => flags.backend.clone().map(Into::into),
        "docker_socket" => flags.docker_socket.clone().map(Into::into),
        "box_runtime" => flags.box_runtime.clone().map(Into::into),
        "image_registry" => flags.image_registry.clone().map(Into::into),
        "default_image" => flags.default_image.clone().map(Into::into),
        "box_size" => flags.box_size.clone().map(Into::into),
        "user_idle_hibernate" => flags.user_idle_hibernate.clone().map(Into::into),
        "freeze_to_disk_after" => flags.freeze_to_disk_after.clone().map(Into::into),
        "max_boxes" => number(flags.max_boxes),
        "max_running" => number(flags.max_running),
        "oauth.idle_hibernate" => flags.oauth_idle_hibernate.clone().map(Into::into),
        "oauth.client_documents" => flags.oauth_client_documents.map(|on| on.to_string().into()),
        "oauth.public_url" => flags.oauth_public_url.clone().map(Into::into),
        "trusted_proxies" => flags.trusted_proxies.as_ref().map(|proxies| proxies.join(",").into()),
        "database_url_file" => flags.database_url_file.clone().map(Into::into),
        "agent" => flags.agent.clone().map(Into::into),
        "warm" => number(flags.warm),
        "node" => joined(flags.node.iter().map(AsRef::as_ref)),
        "node_token_file" => joined(flags.node_token_file.iter().map(AsRef::as_ref)),
        "state_store" => flags.state_store.clone().map(Into::into),
        "state_store_endpoint" => flags.state_store_endpoint.clone().map(Into::into),
        "state_store_region" => flags.state_store_region.clone().map(Into::into),
        "state_store_key_file" => flags.state_store_key_file.clone().map(Into::into),
        _ => None,
    }
}

/// Puts the words of a flag that was given several times into the one word that a setting is.
fn joined<'a>(words: impl Iterator<Item = &'a OsStr>) -> Option<OsString> {
    words.map(OsStr::to_owned).reduce(|mut all, word| {
        all.push(",");
        all.push(word);
        all
    })
}

fn flag(key: &str) -> String {
    format!("--{}", key.replace(['_', '.'], "-"))
}

fn variable(key: &str) -> String {
    format!("COCOONBOX_{}", key.to_uppercase().replace('.', "_"))
}

fn known() -> String {
    KEYS.map(|(key, _)| key).join(", ")
}

/// Returns the known key that looks most like `key`: a whole word in common goes before likeness.
fn nearest(key: &str) -> &'static str {
    let key: String = key.to_lowercase().replace('-', "_").chars().take(64).collect();
    let common =
        |known: &str| key.split(['_', '.']).filter(|word| known.split('_').any(|w| w == *word)).count();
    let likeness = |known: &str| strsim::jaro_winkler(&key, known);
    KEYS.iter()
        .map(|(known, _)| *known)
        .max_by(|a, b| common(a).cmp(&common(b)).then(likeness(a).total_cmp(&likeness(b))))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(variables.iter().map(|(name, value)| (name.into(), value.into())), "a-host")
    }

    fn gather(
        flags: &mut UpArgs,
        variables: &[(&str, &str)],
        file: &str,
    ) -> Result<Settings, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("api.yaml"), file)?;
        flags.data = Some(folder.path().to_owned());
        let environment = environment(variables);
        Ok(Settings::gather(Settings::data(flags, &environment), flags, &environment)?)
    }

    /// Returns all that is said when `file` is read.
    fn said(file: &str) -> String {
        let mut flags = UpArgs { agent: Some("/agent".into()), ..UpArgs::default() };
        let read =
            gather(&mut flags, &[], file).and_then(|settings| Ok(ServerConfig::read(&settings, &flags)?));
        match read {
            Ok(_) => "nothing".to_owned(),
            Err(error) => {
                format!("{error} {} {error:?}", error.source().map(ToString::to_string).unwrap_or_default())
            }
        }
    }

    #[test]
    fn flags_come_before_variables_and_variables_before_the_file() -> Result<(), Box<dyn std::error::Error>> {
        let mut flags = UpArgs { max_boxes: Some(9), ..UpArgs::default() };
        let variables =
            [("COCOONBOX_MAX_BOXES", "8"), ("COCOONBOX_MAX_RUNNING", "6"), ("COCOONBOX_DATA", "/d")];
        let file = "max_boxes: 7\nmax_running: 5\nuser_idle_hibernate: 2h\nlisten:\n";
        let settings = gather(&mut flags, &variables, file)?.with_default("agent", "/agent");
        let shown = settings.to_string();
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["SETTING", "VALUE", "FROM"]);
        assert_eq!((rows[1][0], rows[1][2]), ("data", "--data"));
        for row in [
            ["listen", "127.0.0.1:7420", "default"],
            ["user_idle_hibernate", "2h", "api.yaml"],
            ["max_boxes", "9", "--max-boxes"],
            ["max_running", "6", "COCOONBOX_MAX_RUNNING"],
            ["database_url_file", "-", "default"],
            ["agent", "/agent", "default"],
        ] {
            assert!(rows.iter().any(|shown| *shown == row), "{row:?} in {shown}");
        }
        let json = settings.to_json();
        let expected = json!({ "key": "max_running", "value": "6", "layer": "environment", "from": "COCOONBOX_MAX_RUNNING" });
        let of =
            |key: &str| json["settings"].as_array().and_then(|all| all.iter().find(|one| one["key"] == key));
        assert_eq!(of("max_running"), Some(&expected));
        assert_eq!(of("database_url_file").map(|row| &row["value"]), Some(&Value::Null));
        let config = ServerConfig::read(&settings, &flags)?;
        assert_eq!((config.max_boxes, config.max_running), (9, 6));
        assert_eq!(config.user_idle_hibernate.as_secs(), 7200);
        Ok(())
    }

    #[test]
    fn nodes_come_from_flags_or_one_word_and_have_one_token_file_or_one_each()
    -> Result<(), Box<dyn std::error::Error>> {
        let node = |address: &str, file: Option<&str>| NodeSetting {
            address: address.to_owned(),
            token_file: file.map(Into::into),
        };
        let read = |nodes: &[&str], files: &[&str], file: &str| {
            let mut flags = UpArgs {
                node: nodes.iter().map(|node| (*node).to_owned()).collect(),
                node_token_file: files.iter().map(Into::into).collect(),
                ..UpArgs::default()
            };
            let settings = gather(&mut flags, &[], file)?;
            Ok::<_, Box<dyn std::error::Error>>(ServerConfig::read(&settings, &flags)?.nodes)
        };
        let (a, b) = ("http://a:1", "http://b:1");
        assert_eq!(read(&[a], &[], "")?, [node(a, None)]);
        assert_eq!(read(&[a, b], &["t"], "")?, [node(a, Some("t")), node(b, Some("t"))]);
        assert_eq!(read(&[a, b], &["t", "u"], "")?, [node(a, Some("t")), node(b, Some("u"))]);
        let file = "node: http://a:1, http://b:1\nnode_token_file: t,u\n";
        assert_eq!(read(&[], &[], file)?, [node(a, Some("t")), node(b, Some("u"))]);
        for (nodes, files, word) in [
            (&[a, a][..], &[][..], "none twice"),
            (&[a, ""], &[], "HOST:PORT"),
            (&[a], &["t", "u"], "as many as there are nodes"),
            (&[], &["t"], "beside --node-token-file"),
            (&[], &[], "--agent FILE"),
        ] {
            let refusal = read(nodes, files, "").unwrap_err().to_string();
            assert!(refusal.contains(word), "{nodes:?} {files:?}: {refusal}");
        }
        Ok(())
    }

    #[test]
    fn every_setting_is_a_flag_of_up() {
        use clap::CommandFactory as _;
        let command = super::super::Cli::command();
        let up = command.find_subcommand("up").map(clap::Command::get_arguments).into_iter().flatten();
        let flags: Vec<String> = up.filter_map(clap::Arg::get_long).map(str::to_owned).collect();
        for key in KEYS.iter().map(|(key, _)| *key).chain([DATA]) {
            assert!(flags.iter().any(|long| flag(key) == format!("--{long}")), "{key} is no flag: {flags:?}");
        }
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_nearest_and_without_its_value() {
        for (key, nearest) in [
            ("idle_hibernate", "user_idle_hibernate"),
            ("idle", "user_idle_hibernate"),
            ("max-boxes", "max_boxes"),
            ("Listen", "listen"),
            ("listn", "listen"),
            ("freeze_after", "freeze_to_disk_after"),
            ("image", "image_registry"),
            ("default-image", "default_image"),
            ("database_url", "database_url_file"),
            ("maxrunning", "max_running"),
        ] {
            let said = said(&format!("{key}: canary"));
            assert!(said.contains(&format!("did you mean {nearest}?")), "{said}");
            assert!(!said.contains("canary"), "{said}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_and_the_rest_of_the_file_is_not_repeated() {
        for (file, expected) in [
            ("data: /canary", "--data"),
            ("backend: chroot", "auto, bwrap, podman or docker"),
            ("max_boxes: many", "max_boxes, from api.yaml: \"many\" cannot be read: use a number"),
            ("max_boxes: -1", "max_boxes, from api.yaml"),
            ("box_size: huge", "small, medium, large, xlarge or 2xlarge"),
            ("freeze_to_disk_after: soon", "30m or 2h"),
            ("listen: here", "127.0.0.1:7420"),
            ("max_running: [canary]", "max_running takes one word"),
            ("database_url: {a: canary}", "did you mean database_url_file?"),
            ("max_boxes: 1\nmax_boxes: canary", "a key twice"),
            ("1: canary", "`key: value` lines"),
            ("postgres://canary", "`key: value` lines"),
            ("a: b\n: : canary: [", "is not YAML"),
            (&"#".repeat(70_000), "more than"),
            ("", "nothing"),
            ("# a remark\n", "nothing"),
            ("max_boxes:\n", "nothing"),
        ] {
            let said = said(file);
            assert!(said.contains(expected), "{file:.40}: {said}");
            assert!(!said.contains("canary"), "{file:.40}: {said}");
        }
    }
}
