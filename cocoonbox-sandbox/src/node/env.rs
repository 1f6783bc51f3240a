//! A claim's environment: what its guest's programs see, and what stays with the host.

use std::collections::BTreeMap;
use std::fmt;

use cocoonbox_core::backend::HostFile;
use cocoonbox_wire::env_file;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::refusal::Refusal;

/// The most entries of a claim.
const MAX_ENTRIES: usize = 64;
/// The most bytes of an entry's name.
const MAX_NAME: usize = 128;
/// The most bytes of an entry's value.
const MAX_VALUE: usize = 8 * 1024;
/// The most bytes of all names and values of a claim together.
const MAX_BYTES: usize = 64 * 1024;

cocoonbox_core::secret! {
    /// The value of an entry.
    pub(crate) struct Value;
}

impl Clone for Value {
    fn clone(&self) -> Self {
        Self::new(self.reveal().to_owned())
    }
}

/// One entry as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    #[serde(serialize_with = "store", deserialize_with = "load")]
    value: Value,
    guest: bool,
}

fn store<S: Serializer>(value: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.reveal())
}

fn load<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    String::deserialize(deserializer).map(Value::new)
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.guest == other.guest && self.value.matches(&other.value)
    }
}
impl Eq for Entry {}

/// One entry as a caller writes it. What is not named here is refused, as is a `null`: a slip of the pen must not let
/// a secret into the guest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    value: String,
    #[serde(default = "yes")]
    guest: bool,
    /// Whether it is there at all, whatever it holds.
    #[serde(default, deserialize_with = "present")]
    inject: bool,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    serde::de::IgnoredAny::deserialize(deserializer).map(|_| true)
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Written({} bytes, guest: {})", self.value.len(), self.guest)
    }
}

const fn yes() -> bool {
    true
}

/// Entries as a caller writes them, `null` where one is taken away.
pub(crate) type Change = BTreeMap<String, Option<Written>>;

/// All entries of a claim, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Env(BTreeMap<String, Entry>);

impl Env {
    /// Takes in what replaces all there was.
    pub(crate) fn parse(written: BTreeMap<String, Written>) -> Result<Self, Refusal> {
        let mut env = Self::default();
        for (name, written) in written {
            env.insert(name, written)?;
        }
        env.checked()
    }

    /// Returns what `change` makes of this.
    pub(crate) fn merged(&self, change: Change) -> Result<Self, Refusal> {
        let mut env = self.clone();
        for (name, written) in change {
            check_name(&name)?;
            match written {
                Some(written) => env.insert(name, written)?,
                None => drop(env.0.remove(&name)),
            }
        }
        env.checked()
    }

    fn insert(&mut self, name: String, written: Written) -> Result<(), Refusal> {
        check_name(&name)?;
        if written.value.len() > MAX_VALUE {
            return Err(Refusal::invalid(format!("env {name}: a value has at most {MAX_VALUE} bytes")));
        }
        if written.value.chars().any(|letter| letter.is_control() && letter != '\t') {
            return Err(Refusal::invalid(format!("env {name}: a value has no control characters but tab")));
        }
        if written.inject {
            return Err(Refusal::invalid(format!(
                "env {name}: inject needs a node that intercepts egress, and this one does not yet"
            )));
        }
        self.0.insert(name, Entry { value: Value::new(written.value), guest: written.guest });
        Ok(())
    }

    fn checked(self) -> Result<Self, Refusal> {
        if self.0.len() > MAX_ENTRIES {
            return Err(Refusal::invalid(format!("env has {} entries, {MAX_ENTRIES} at most", self.0.len())));
        }
        let bytes: usize = self.0.iter().map(|(name, entry)| name.len() + entry.value.reveal().len()).sum();
        if bytes > MAX_BYTES || self.guest_file().len() > HostFile::MAX_BYTES {
            return Err(Refusal::invalid(format!("env has more than {MAX_BYTES} bytes")));
        }
        Ok(self)
    }

    /// Returns the entries as they are shown: a host-only value is blank.
    pub(crate) fn shown(&self) -> serde_json::Value {
        let entries = self.0.iter().map(|(name, entry)| {
            let value = if entry.guest { entry.value.reveal() } else { "" };
            (name.clone(), serde_json::json!({ "value": value, "guest": entry.guest }))
        });
        serde_json::Value::Object(entries.collect())
    }

    /// Tells whether anything of it is for the guest.
    pub(crate) fn has_guest_part(&self) -> bool {
        self.0.values().any(|entry| entry.guest)
    }

    /// Tells whether the guest sees the same as with `other`.
    pub(crate) fn same_in_guest(&self, other: &Self) -> bool {
        self.guest_part().eq(other.guest_part())
    }

    fn guest_part(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.0.iter().filter(|(_, entry)| entry.guest)
    }

    /// Returns the file that carries the guest's part.
    pub(crate) fn guest_file(&self) -> Vec<u8> {
        env_file::render(self.guest_part().map(|(name, entry)| (name.as_str(), entry.value.reveal())))
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let mut letters = name.bytes();
    let good = name.len() <= MAX_NAME
        && letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
    if good {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "an env name is 1 to {MAX_NAME} of A-Z, a-z, 0-9 and _, not starting with a digit"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Env, String> {
        let written = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Env::parse(written).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let long = "x".repeat(MAX_VALUE + 1);
        let many: Vec<_> = (0..=MAX_ENTRIES).map(|n| format!(r#""V{n}":{{"value":""}}"#)).collect();
        let heavy: Vec<_> =
            (0..9).map(|n| format!(r#""V{n}":{{"value":"{}"}}"#, "x".repeat(MAX_VALUE))).collect();
        for (text, word) in [
            (r#"{"A":{}}"#.to_owned(), "missing field"),
            (r#"{"A":{"value":"b","guest":null}}"#.to_owned(), "invalid type"),
            (r#"{"A":{"value":"b","guest":"false"}}"#.to_owned(), "invalid type"),
            (r#"{"A":{"value":"b","gest":false}}"#.to_owned(), "unknown field"),
            (r#"{"A":{"value":"b","guest":false,"inject":{"hosts":["a"]}}}"#.to_owned(), "inject"),
            (r#"{"A":null}"#.to_owned(), "invalid type"),
            (r#"{"1A":{"value":"b"}}"#.to_owned(), "env name"),
            (r#"{"":{"value":"b"}}"#.to_owned(), "env name"),
            (r#"{"A B":{"value":"b"}}"#.to_owned(), "env name"),
            (r#"{"A":{"value":"b\nc"}}"#.to_owned(), "control"),
            (format!(r#"{{"A":{{"value":"{long}"}}}}"#), "at most"),
            (format!("{{{}}}", many.join(",")), "65 entries"),
            (format!("{{{}}}", heavy.join(",")), "more than"),
        ] {
            let refusal = parse(&text).expect_err(word);
            assert!(refusal.contains(word), "{refusal} for {text:.80}");
        }
        assert!(parse(r#"{"A":{"value":"b\tc"},"_B1":{"value":"","guest":false}}"#).is_ok());
    }

    #[test]
    fn a_host_only_value_is_in_nothing_that_leaves() {
        let env =
            parse(r#"{"KEY":{"value":"canary","guest":false},"OPEN":{"value":"say \"$hi\" `\\"}}"#).unwrap();
        assert_eq!(env.shown()["KEY"], serde_json::json!({ "value": "", "guest": false }));
        let file = String::from_utf8(env.guest_file()).unwrap();
        assert_eq!(file, "OPEN=\"say \\\"\\$hi\\\" \\`\\\\\"\n");
        for text in [env.shown().to_string(), file, format!("{env:?}")] {
            assert!(!text.contains("canary"), "{text}");
        }
        let kept: Env = serde_json::from_str(&serde_json::to_string(&env).unwrap()).unwrap();
        assert_eq!(kept, env);
    }

    #[test]
    fn a_change_merges_and_takes_away() {
        let env = parse(r#"{"A":{"value":"1"},"B":{"value":"2","guest":false}}"#).unwrap();
        let change = |text: &str| env.merged(serde_json::from_str(text).unwrap());
        let changed = change(r#"{"A":null,"C":{"value":"3"}}"#).unwrap();
        assert_eq!(changed.guest_file(), b"C=\"3\"\n");
        assert!(!changed.same_in_guest(&env));
        assert!(change(r#"{"B":{"value":"9","guest":false}}"#).unwrap().same_in_guest(&env));
        assert!(change(r#"{"a-b":null}"#).is_err());
    }
}
