//! The terminal at standard input: its size, raw mode, and asking without echo.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::termios::{self, LocalModes, OptionalActions, Termios};

/// The terminal that standard input is.
#[derive(Clone, Debug)]
pub struct Tty {
    file: Arc<OwnedFd>,
}

impl Tty {
    /// Returns the terminal behind `file`, when there is one.
    ///
    /// # Errors
    /// The descriptor could not be duplicated.
    pub fn of(file: impl AsFd) -> io::Result<Option<Self>> {
        let file = file.as_fd();
        if !termios::isatty(file) {
            return Ok(None);
        }
        Ok(Some(Self { file: Arc::new(file.try_clone_to_owned()?) }))
    }

    /// Returns columns and rows; 80 by 24 where the terminal does not know.
    pub fn size(&self) -> (u32, u32) {
        match termios::tcgetwinsize(&*self.file) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Gives every key to the reader as it is, until the returned value is dropped.
    ///
    /// # Errors
    /// The terminal refused.
    pub fn raw(&self) -> io::Result<RawMode> {
        self.change(Termios::make_raw)
    }

    /// Shows no keys, until the returned value is dropped; lines and Ctrl-C work as before.
    ///
    /// # Errors
    /// The terminal refused.
    pub fn without_echo(&self) -> io::Result<RawMode> {
        self.change(|modes| modes.local_modes.remove(LocalModes::ECHO))
    }

    fn change(&self, change: impl FnOnce(&mut Termios)) -> io::Result<RawMode> {
        let before = termios::tcgetattr(&*self.file)?;
        let mut modes = before.clone();
        change(&mut modes);
        termios::tcsetattr(&*self.file, OptionalActions::Drain, &modes)?;
        Ok(RawMode { tty: self.clone(), before, changed: modes })
    }
}

/// A terminal whose modes are changed; dropping this puts them back, in a panic too.
#[derive(Debug)]
pub struct RawMode {
    tty: Tty,
    before: Termios,
    changed: Termios,
}

impl RawMode {
    /// Changes the modes again, after a shell in between has put its own.
    pub fn renew(&self) {
        let _ = termios::tcsetattr(&*self.tty.file, OptionalActions::Now, &self.changed);
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // drained, so that the command's last output is shown under the modes it was made for
        let _ = termios::tcsetattr(&*self.tty.file, OptionalActions::Drain, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminal() -> io::Result<(OwnedFd, Tty)> {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        let name = ptsname(&controller, Vec::new())?;
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let file = rustix::fs::open(&name, flags, rustix::fs::Mode::empty())?;
        Ok((controller, Tty::of(file)?.ok_or(io::ErrorKind::Other)?))
    }

    #[test]
    fn modes_come_back_even_after_a_panic() -> io::Result<()> {
        let (_controller, tty) = terminal()?;
        let before = format!("{:?}", termios::tcgetattr(&*tty.file)?);
        let inside = std::panic::catch_unwind(|| {
            let _raw = tty.raw().unwrap();
            assert_ne!(format!("{:?}", termios::tcgetattr(&*tty.file).unwrap()), before);
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(inside.is_err());
        assert_eq!(format!("{:?}", termios::tcgetattr(&*tty.file)?), before);
        drop(tty.without_echo()?);
        assert_eq!(format!("{:?}", termios::tcgetattr(&*tty.file)?), before);
        assert_eq!(tty.size(), (80, 24));
        Ok(())
    }

    #[test]
    fn a_file_is_no_terminal() -> io::Result<()> {
        assert!(Tty::of(std::fs::File::open("/dev/null")?)?.is_none());
        Ok(())
    }
}
