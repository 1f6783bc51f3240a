//! Limits on what a program may be started with.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

/// The most variables a request may set.
pub const MAX_VARIABLES: usize = 64;

/// The most bytes the variables of a request may have together.
pub const MAX_VARIABLE_BYTES: usize = 64 * 1024;

/// The most arguments of a program.
pub const MAX_ARGUMENTS: usize = 16 * 1024;

/// The most bytes the arguments of a program may have together; the kernel takes 128 KiB of one and 2 MiB in all.
pub const MAX_ARGUMENT_BYTES: usize = 1024 * 1024;

/// The most bytes of a path.
pub const MAX_PATH_BYTES: usize = 4095;

/// A start that is refused before anything runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// No program is named.
    #[error("argv is empty")]
    NoProgram,
    /// The arguments are too many or too long.
    #[error("arguments: at most {MAX_ARGUMENTS} with {MAX_ARGUMENT_BYTES} bytes together")]
    Arguments,
    /// The variables are too many or too long.
    #[error("environment: at most {MAX_VARIABLES} variables with {MAX_VARIABLE_BYTES} bytes together")]
    Variables,
    /// A variable's name is not one.
    #[error("environment: {name:?} is no variable name ([A-Za-z_][A-Za-z0-9_]*)")]
    VariableName {
        /// The name, cut to 64 bytes.
        name: String,
    },
    /// A text holds a zero byte.
    #[error("{what} holds a zero byte")]
    Zero {
        /// Which text.
        what: &'static str,
    },
    /// A path is too long.
    #[error("the path is longer than {MAX_PATH_BYTES} bytes")]
    Path,
}

/// Checks a program and its arguments.
///
/// # Errors
/// Any of [`LimitError`].
pub(crate) fn check_argv(argv: &[OsString]) -> Result<(), LimitError> {
    if argv.first().is_none_or(|program| program.is_empty()) {
        return Err(LimitError::NoProgram);
    }
    if argv.len() > MAX_ARGUMENTS || argv.iter().map(|arg| arg.len() + 1).sum::<usize>() > MAX_ARGUMENT_BYTES
    {
        return Err(LimitError::Arguments);
    }
    argv.iter().try_for_each(|arg| no_zero("an argument", arg))
}

/// Checks the variables of a request.
///
/// # Errors
/// Any of [`LimitError`].
pub(crate) fn check_env<'a>(env: impl IntoIterator<Item = (&'a str, &'a OsStr)>) -> Result<(), LimitError> {
    let (mut count, mut bytes) = (0, 0);
    for (name, value) in env {
        count += 1;
        bytes += name.len() + value.len() + 2;
        if count > MAX_VARIABLES || bytes > MAX_VARIABLE_BYTES {
            return Err(LimitError::Variables);
        }
        let mut letters = name.bytes();
        let named = letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
        if !named {
            let end = name.floor_char_boundary(64);
            return Err(LimitError::VariableName { name: name[..end].to_owned() });
        }
        no_zero("a variable", value)?;
    }
    Ok(())
}

/// Checks a path.
///
/// # Errors
/// Any of [`LimitError`].
pub(crate) fn check_path(path: &OsStr) -> Result<(), LimitError> {
    if path.len() > MAX_PATH_BYTES {
        return Err(LimitError::Path);
    }
    no_zero("a path", path)
}

fn no_zero(what: &'static str, text: &OsStr) -> Result<(), LimitError> {
    if text.as_bytes().contains(&0) { Err(LimitError::Zero { what }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_holds_at_its_edge() {
        let argv = |count: usize, length: usize| vec![OsString::from("a".repeat(length)); count];
        assert_eq!(check_argv(&[]), Err(LimitError::NoProgram));
        assert_eq!(check_argv(&["".into()]), Err(LimitError::NoProgram));
        assert_eq!(check_argv(&argv(MAX_ARGUMENTS, 1)), Ok(()));
        assert_eq!(check_argv(&argv(MAX_ARGUMENTS + 1, 1)), Err(LimitError::Arguments));
        assert_eq!(check_argv(&argv(1, MAX_ARGUMENT_BYTES)), Err(LimitError::Arguments));
        assert_eq!(check_argv(&["a\0".into()]), Err(LimitError::Zero { what: "an argument" }));

        let value = OsString::from("v");
        let names: Vec<_> = (0..=MAX_VARIABLES).map(|n| format!("V{n}")).collect();
        let env = |count| names[..count].iter().map(|name| (name.as_str(), value.as_os_str()));
        assert_eq!(check_env(env(MAX_VARIABLES)), Ok(()));
        assert_eq!(check_env(env(MAX_VARIABLES + 1)), Err(LimitError::Variables));
        let big = OsString::from("v".repeat(MAX_VARIABLE_BYTES));
        assert_eq!(check_env([("A", big.as_os_str())]), Err(LimitError::Variables));
        for name in ["", "1A", "A=B", "A B", "Ä", "A\0"] {
            assert!(
                matches!(check_env([(name, value.as_os_str())]), Err(LimitError::VariableName { .. })),
                "{name}"
            );
        }
        assert_eq!(check_path(OsStr::new(&"p".repeat(MAX_PATH_BYTES + 1))), Err(LimitError::Path));
    }
}
