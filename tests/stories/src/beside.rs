use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A program that runs beside a story. Dropping it ends the program.
pub struct Beside(Child);

impl Beside {
    /// Starts it, and returns it with the first line that it prints.
    ///
    /// # Panics
    /// When it cannot be started, or says nothing within half a minute.
    pub fn start(command: &mut Command) -> (Self, String) {
        let shown = format!("{command:?}");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut beside = Self(child.unwrap_or_else(|error| panic!("{shown}: {error}")));
        let mut lines = BufReader::new(beside.0.stdout.take().expect("stdout is piped")).lines();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let _ = tell.send(lines.next());
            // the pipe stays open for what else it prints
            lines.for_each(drop);
        });
        match told.recv_timeout(Duration::from_secs(30)) {
            Ok(Some(Ok(line))) => (beside, line),
            said => panic!("{shown} said nothing: {said:?}"),
        }
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        drop(self.0.wait());
    }
}
