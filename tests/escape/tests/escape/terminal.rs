//! A node that was started at a terminal: what its boxes type there.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cocoonbox_core::ImageName;
use cocoonbox_core::backend::{ClaimRequest, SandboxBackend as _};
use cocoonbox_core::{SystemClock, SystemEntropy};
use cocoonbox_sandbox::{BwrapBackend, BwrapConfig, Defence};
use nix::pty::openpty;

use crate::data::Data;
use crate::{Error, attacker};

/// Set in the run of the test that has a terminal of its own.
const AT_TERMINAL: &str = "COCOONBOX_ESCAPE_TERMINAL";
const NAME: &str = "terminal::a_box_types_nothing_at_the_terminal_of_its_node";

/// The first process of a box called `inject-…` types its name into every terminal that it reaches.
#[test]
fn a_box_types_nothing_at_the_terminal_of_its_node() {
    crate::shown(if std::env::var_os(AT_TERMINAL).is_some() { boxes() } else { watch() });
}

/// At the terminal: a box as everybody gets it, and one that was left in the node's session.
fn boxes() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        for (name, without) in
            [("inject-held", &[][..]), ("inject-free", &[Defence::NewSession, Defence::SystemCallFilter][..])]
        {
            let data = Data::new()?;
            let mut config = BwrapConfig::new(data.path(), attacker());
            for defence in without {
                config = config.with_weakened(*defence);
            }
            let backend = BwrapBackend::open(config, Arc::new(SystemClock), Arc::new(SystemEntropy)).await?;
            let request = ClaimRequest::new("terminal".parse()?, ImageName::host()).with_hostname(name);
            let claim = backend.claim(request).await?;
            backend.release(&claim.id).await?;
        }
        Ok(())
    })
}

/// Gives the test a terminal and reads what is typed there: a terminal echoes it.
fn watch() -> Result<(), Error> {
    if std::fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").is_ok_and(|text| text.trim() == "0") {
        println!("no control: this kernel lets nobody type into a terminal (dev.tty.legacy_tiocsti is 0)");
        return Ok(());
    }
    let pty = openpty(None, None)?;
    let terminal = |end: &OwnedFd| end.try_clone().map(Stdio::from);
    let mut child = Command::new("setsid")
        .args(["--ctty", "--wait"])
        .arg(std::env::current_exe()?)
        .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
        .env(AT_TERMINAL, "1")
        .stdin(terminal(&pty.slave)?)
        .stdout(terminal(&pty.slave)?)
        .stderr(terminal(&pty.slave)?)
        .spawn()?;
    drop(pty.slave);
    let mut screen = std::fs::File::from(pty.master);
    let reader = std::thread::spawn(move || {
        let (mut seen, mut part) = (Vec::new(), [0; 4096]);
        // the last one at the terminal closes it
        while let Ok(count @ 1..) = screen.read(&mut part) {
            seen.extend_from_slice(&part[..count]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    });
    let limit = Instant::now() + Duration::from_mins(1);
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() > limit => {
                child.kill()?;
                return Err("the test at the terminal did not end".into());
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let seen = reader.join().map_err(|_| "the reader panicked")?;
    if !status.success() || !seen.contains("1 passed") {
        return Err(format!("at the terminal:\n{seen}").into());
    }
    if seen.contains("inject-held") {
        return Err(format!("a box typed at its node's terminal:\n{seen}").into());
    }
    if !seen.contains("inject-free") {
        return Err(
            format!("a box in its node's session typed nothing, which proves nothing:\n{seen}").into()
        );
    }
    Ok(())
}
