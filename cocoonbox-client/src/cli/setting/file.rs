//! `api.yaml`: keys and values, one word each.

use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::{fs, io};

use serde_yaml_ng::Value;

/// The most bytes that `api.yaml` may have.
const MAX_BYTES: u64 = 64 * 1024;

/// Keys under which others stand, as in `oauth:` with `public_url:` below it, which is `oauth.public_url`.
const SECTIONS: [&str; 1] = ["oauth"];

/// Why `api.yaml` is not taken. No message repeats what the file holds: somebody may have put a secret there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot be read")]
    Read(#[from] io::Error),
    /// It is too large.
    #[error("has more than {MAX_BYTES} bytes")]
    TooLarge,
    /// It is not YAML, or a key stands twice.
    #[error("is not YAML, or has a key twice{}", place(*.line))]
    Syntax {
        /// The line, where the parser knows it.
        line: Option<usize>,
    },
    /// It is YAML of another shape.
    #[error("holds something else than `key: value` lines")]
    Shape,
}

fn place(line: Option<usize>) -> String {
    line.map(|line| format!(": see line {line}")).unwrap_or_default()
}

/// Returns the keys and values of the file; none when there is no such file. A value that is more than one word is none.
pub(super) fn read(path: &Path) -> Result<Vec<(String, Option<String>)>, FileError> {
    let mut text = String::new();
    match fs::File::open(path) {
        Ok(file) => file.take(MAX_BYTES + 1).read_to_string(&mut text)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    if text.len() as u64 > MAX_BYTES {
        return Err(FileError::TooLarge);
    }
    let parsed: Value = serde_yaml_ng::from_str(&text)
        .map_err(|error| FileError::Syntax { line: error.location().map(|at| at.line()) })?;
    let keys = match parsed {
        Value::Mapping(keys) => keys,
        Value::Null => return Ok(Vec::new()),
        _ => return Err(FileError::Shape),
    };
    let mut pairs = Vec::new();
    for (key, value) in keys {
        let Value::String(key) = key else { return Err(FileError::Shape) };
        match value {
            Value::Mapping(members) if SECTIONS.contains(&key.as_str()) => {
                for (member, value) in members {
                    let Value::String(member) = member else { return Err(FileError::Shape) };
                    pairs.extend(pair(format!("{key}.{member}"), value));
                }
            }
            value => pairs.extend(pair(key, value)),
        }
    }
    Ok(pairs)
}

/// Returns a key with its value; none when it has no value, as if it were not there.
fn pair(key: String, value: Value) -> Option<(String, Option<String>)> {
    match value {
        Value::Null => None,
        Value::String(value) => Some((key, Some(value))),
        Value::Number(value) => Some((key, Some(value.to_string()))),
        _ => Some((key, None)),
    }
}
