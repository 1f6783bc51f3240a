//! What waits for signals.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::super::terminal::{RawMode, Tty};
use crate::exec::Control;

/// Waits for `work`; `None` when Ctrl-C comes first.
pub(super) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        pressed = tokio::signal::ctrl_c() => match pressed {
            Ok(()) => None,
            // without a handler Ctrl-C ends the process by itself
            Err(_) => std::future::pending().await,
        },
    }
}

/// The raw mode of a running command, put in place when it runs.
pub(super) type SharedRaw = Arc<Mutex<Option<RawMode>>>;

/// Turns this process's signals into controls of a remote command, until the receiver is dropped.
///
/// With a terminal, a change of its size is told, a hang-up closes the command, and a return from a stop puts raw mode
/// back. The first interrupt is passed on like the others.
pub(super) fn controls(terminal: Option<(Tty, SharedRaw)>) -> mpsc::Receiver<Control> {
    let (controls, receiver) = mpsc::channel(16);
    let passed = [
        (SignalKind::interrupt(), Control::Signal(2)),
        (SignalKind::quit(), Control::Signal(3)),
        (SignalKind::terminate(), Control::Signal(15)),
        (SignalKind::hangup(), if terminal.is_some() { Control::Close } else { Control::Signal(1) }),
    ];
    for (kind, control) in passed {
        let controls = controls.clone();
        each(kind, move || controls.try_send(control));
    }
    if let Some((tty, raw)) = terminal {
        let size = {
            let tty = tty.clone();
            move || {
                let (columns, rows) = tty.size();
                Control::Resize { columns, rows }
            }
        };
        let (resized, resumed) = (controls.clone(), controls);
        let size_again = size.clone();
        each(SignalKind::window_change(), move || resized.try_send(size()));
        each(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()), move || {
            if let Some(raw) = &*raw.lock().unwrap_or_else(PoisonError::into_inner) {
                raw.renew();
            }
            resumed.try_send(size_again())
        });
    }
    receiver
}

/// Calls `send` at each signal of a kind until nobody listens.
fn each(
    kind: SignalKind,
    send: impl Fn() -> Result<(), mpsc::error::TrySendError<Control>> + Send + 'static,
) {
    let Ok(mut signals): Result<Signal, _> = signal(kind) else { return };
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            // a full queue has signals enough
            if matches!(send(), Err(mpsc::error::TrySendError::Closed(_))) {
                return;
            }
        }
    });
}
