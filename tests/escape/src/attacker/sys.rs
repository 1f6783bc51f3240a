//! How a way ends, and system calls by number.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// What a way comes to.
pub(crate) type Try = Result<String, Stop>;

/// Why a way did not lead out.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The kernel refused a step.
    Refused {
        /// The step.
        what: &'static str,
        /// Its answer.
        errno: Errno,
    },
    /// Every step was let through and led nowhere.
    Nothing(String),
    /// The way could not be tried.
    Cannot(String),
}

impl Stop {
    pub(crate) fn of(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| match error.raw_os_error() {
            Some(number) => Self::Refused { what, errno: Errno::from_raw(number) },
            None => Self::Nothing(format!("{what}: {error}")),
        }
    }
    pub(crate) fn last(what: &'static str) -> Self {
        Self::Refused { what, errno: Errno::last() }
    }
}

/// Makes the system call `number`.
///
/// Whatever it gets goes to the kernel, pointers as numbers too: a wrong one ends a program that is thrown away anyway.
pub(crate) fn call(what: &'static str, number: libc::c_long, words: &[usize]) -> Result<usize, Stop> {
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    // SAFETY: callers hand in numbers, and addresses of values that live through the call and have the size that the
    // call expects.
    let result = unsafe { libc::syscall(number, word(0), word(1), word(2), word(3), word(4), word(5)) };
    if result < 0 { Err(Stop::last(what)) } else { Ok(result.cast_unsigned() as usize) }
}

/// The address of a value, as a word of a system call.
pub(crate) fn at<T: ?Sized>(value: &T) -> usize {
    std::ptr::from_ref(value).cast::<u8>() as usize
}

/// The address of a value that the kernel writes to.
pub(crate) fn at_mut<T: ?Sized>(value: &mut T) -> usize {
    std::ptr::from_mut(value).cast::<u8>() as usize
}

/// A number that a call takes as a word: negative ones keep their bits.
pub(crate) const fn word(number: i64) -> usize {
    number.cast_unsigned() as usize
}

/// Owns the descriptor that a call returned.
pub(crate) fn own(descriptor: usize) -> OwnedFd {
    // SAFETY: a call has just returned it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

pub(crate) fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

pub(crate) fn argument<'a>(arguments: &[&'a str], at: usize) -> Result<&'a str, Stop> {
    arguments.get(at).copied().ok_or_else(|| Stop::Cannot(format!("argument {at} is missing")))
}

pub(crate) fn number<T: std::str::FromStr>(arguments: &[&str], at: usize) -> Result<T, Stop> {
    let text = argument(arguments, at)?;
    text.parse().map_err(|_| Stop::Cannot(format!("{text} is no number")))
}

/// Reads what an open file holds, at most a few KiB, as one printable line.
pub(crate) fn contents(mut file: File) -> Result<String, Stop> {
    use std::io::Read as _;
    let mut bytes = vec![0; 4096];
    let count = file.read(&mut bytes).map_err(Stop::of("read"))?;
    Ok(printable(&bytes[..count]))
}

pub(crate) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect::<String>()
        .trim()
        .to_owned()
}
