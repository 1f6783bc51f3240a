use std::io;

use bollard::errors::Error;
use cocoonbox_core::backend::BackendError;

/// The backend's name in errors; capabilities name the engine.
pub(super) const BACKEND: &str = "container";

/// The most of an engine's words that an error repeats.
const MAX_WORDS: usize = 1024;

/// What an engine's answer means here.
pub(super) trait Answer<T> {
    /// Takes "there is no such thing" for `None`.
    fn there(self) -> Result<Option<T>, Error>;
}

impl<T> Answer<T> for Result<T, Error> {
    fn there(self) -> Result<Option<T>, Error> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The HTTP status of an engine's refusal.
pub(super) const fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// What an engine said, fit to be shown.
pub(super) fn words(error: &Error) -> String {
    let text = match error {
        Error::DockerResponseServerError { message, .. } | Error::DockerStreamError { error: message } => {
            message.clone()
        }
        other => other.to_string(),
    };
    shown(&text)
}

/// Text from elsewhere, on one line and without escapes.
pub(super) fn shown(text: &str) -> String {
    let clean = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.trim().chars().take(MAX_WORDS).map(clean).collect()
}

/// For `map_err`: the engine refuses.
pub(super) fn engine(what: &'static str) -> impl FnOnce(Error) -> BackendError {
    move |error| BackendError::Unavailable {
        backend: BACKEND,
        reason: format!("{what}: {}", words(&error)),
        source: Some(Box::new(error)),
    }
}

/// The machine refuses.
pub(super) fn unavailable(what: &str, source: io::Error) -> BackendError {
    BackendError::Unavailable { backend: BACKEND, reason: what.to_owned(), source: Some(Box::new(source)) }
}

/// For `map_err`: the machine refuses.
pub(super) fn refused(what: &'static str) -> impl FnOnce(io::Error) -> BackendError {
    move |source| unavailable(what, source)
}

pub(super) fn failed(reason: impl Into<String>, source: Option<io::Error>) -> BackendError {
    let reason = reason.into();
    let detail = source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
    BackendError::StartFailed { reason: format!("{reason}{detail}"), source: source.map(Into::into) }
}
