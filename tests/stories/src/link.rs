use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::Uid;

/// A network namespace that one link joins to this machine. Dropping it removes both.
pub struct Link {
    name: String,
    address: String,
}

impl Link {
    /// Makes one; none when the tests do not run as root, which alone may.
    ///
    /// # Panics
    /// When `ip` is missing or refuses.
    pub fn make() -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        if !Uid::effective().is_root() {
            return None;
        }
        crate::require("ip");
        let (process, nth) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        // of the range for benchmarks, which nobody routes
        let (high, low) = (process % 250, nth % 60 * 4);
        let net = format!("198.{}.{high}", 18 + process / 250 % 2);
        let link = Self { name: format!("cb{process}n{nth}"), address: format!("{net}.{}", low + 2) };
        let (name, outside) = (&link.name, link.outside());
        ip(&["netns", "add", name]);
        ip(&["link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", name]);
        ip(&["addr", "add", &format!("{net}.{}/30", low + 1), "dev", &outside]);
        ip(&["link", "set", &outside, "up"]);
        ip(&["-n", name, "addr", "add", &format!("{}/30", link.address), "dev", "eth0"]);
        ip(&["-n", name, "link", "set", "lo", "up"]);
        link.heal();
        Some(link)
    }

    fn outside(&self) -> String {
        format!("{}o", self.name)
    }

    /// Returns the address in the namespace.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the words that run a program in the namespace; its file systems stay this machine's.
    pub fn within(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/run/netns/{}", self.name)]
    }

    /// Cuts the link at its far end: what is sent goes nowhere, and nobody is told.
    ///
    /// # Panics
    /// When `ip` refuses.
    pub fn cut(&self) {
        ip(&["-n", &self.name, "link", "set", "eth0", "down"]);
    }

    /// Joins it again.
    ///
    /// # Panics
    /// When `ip` refuses.
    pub fn heal(&self) {
        ip(&["-n", &self.name, "link", "set", "eth0", "up"]);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // the namespace lives as long as a process in it; its link goes now
        for words in [&["link", "del", &self.outside()][..], &["netns", "del", &self.name]] {
            let _ = Command::new("ip").args(words).output();
        }
    }
}

fn ip(words: &[&str]) {
    let done = Command::new("ip").args(words).output().expect("ip can be started");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {}: {said}", words.join(" "));
}
