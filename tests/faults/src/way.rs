//! A way between edge and node that is as bad as networks are: it answers late, closes one side, breaks off.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::chance::Chance;
use crate::worker::hold;

/// What is wrong with a connection, and how often in a hundred.
const FAULTS: [(Fault, u64); 3] = [(Fault::Late, 8), (Fault::Half, 4), (Fault::Cut, 4)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// What comes from the node comes late.
    Late,
    /// After some bytes from the node the edge sees an end, while its own words still arrive.
    Half,
    /// After some bytes from the node both see an end.
    Cut,
}

/// A port that leads to another one.
#[derive(Debug)]
pub(crate) struct Way {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: String,
    /// Nothing is wrong any more.
    well: AtomicBool,
    over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    faults: AtomicU64,
    chance: Mutex<Chance>,
}

impl Way {
    /// Makes one that leads to `to`; nothing is wrong with it until [`Self::spoil`].
    pub(crate) fn to(to: String, chance: Chance) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            to,
            well: AtomicBool::new(true),
            over: AtomicBool::new(false),
            open: Mutex::default(),
            faults: AtomicU64::default(),
            chance: Mutex::new(chance),
        });
        let of = Arc::clone(&shared);
        spawn(move || {
            for edge in listener.incoming() {
                if of.over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(edge), of) = (edge, Arc::clone(&of)) else { continue };
                // one that finds no node is closed, as a port that nobody listens on would
                spawn(move || drop(of.lead(edge)));
            }
        });
        Ok(Self { address, shared })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on something is wrong with some connections.
    pub(crate) fn spoil(&self) {
        self.shared.well.store(false, Ordering::SeqCst);
    }

    /// From now on nothing is; connections that something is wrong with are closed.
    pub(crate) fn heal(&self) {
        self.shared.well.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Ends every connection.
    pub(crate) fn cut(&self) {
        for open in hold(&self.shared.open).drain(..) {
            let _ = open.shutdown(Shutdown::Both);
        }
    }

    /// Returns with how many connections something was wrong.
    pub(crate) fn faults(&self) -> u64 {
        self.shared.faults.load(Ordering::SeqCst)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.cut();
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn lead(self: Arc<Self>, edge: TcpStream) -> std::io::Result<()> {
        let node = TcpStream::connect(&self.to)?;
        edge.set_nodelay(true)?;
        node.set_nodelay(true)?;
        {
            let mut open = hold(&self.open);
            // those that are over answer with an error
            open.retain(|one| one.peer_addr().is_ok());
            open.extend([edge.try_clone()?, node.try_clone()?]);
        }
        let (fault, bytes) = self.choose();
        if fault.is_some() {
            self.faults.fetch_add(1, Ordering::SeqCst);
        }
        let (from, to) = (edge.try_clone()?, node.try_clone()?);
        spawn(move || {
            let _ = pass(&from, &to, u64::MAX, Duration::ZERO);
            let _ = to.shutdown(Shutdown::Write);
        });
        let late =
            if fault == Some(Fault::Late) { Duration::from_millis(bytes % 400) } else { Duration::ZERO };
        let most = if matches!(fault, Some(Fault::Half | Fault::Cut)) { bytes } else { u64::MAX };
        let _ = pass(&node, &edge, most, late);
        let _ = edge.shutdown(Shutdown::Write);
        if fault == Some(Fault::Half) {
            sleep(Duration::from_secs(2));
        }
        if fault.is_some() {
            let _ = (edge.shutdown(Shutdown::Both), node.shutdown(Shutdown::Both));
        }
        Ok(())
    }

    fn choose(&self) -> (Option<Fault>, u64) {
        let mut chance = hold(&self.chance);
        let (roll, bytes) = (chance.below(100), chance.below(4000));
        if self.well.load(Ordering::SeqCst) {
            return (None, bytes);
        }
        let mut sum = 0;
        let fault = FAULTS.iter().find(|(_, share)| {
            sum += share;
            roll < sum
        });
        (fault.map(|(fault, _)| *fault), bytes)
    }
}

/// Passes on at most `most` bytes, each piece after `late`.
fn pass(mut from: &TcpStream, mut to: &TcpStream, most: u64, late: Duration) -> std::io::Result<()> {
    let (mut left, mut buffer) = (most, [0; 16 * 1024]);
    while left > 0 {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        sleep(late);
        let read = read.min(usize::try_from(left).unwrap_or(usize::MAX));
        to.write_all(&buffer[..read])?;
        left -= read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    /// Says a line to each who comes, and then what they say.
    fn echo() -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        spawn(move || {
            for stream in listener.incoming().flatten() {
                spawn(move || {
                    let _ = (&stream).write_all(b"hello");
                    std::io::copy(&mut &stream, &mut &stream)
                });
            }
        });
        Ok(address)
    }

    #[test]
    fn it_passes_all_on_until_it_is_spoiled_and_after_it_is_healed() -> Outcome {
        let way = Way::to(echo()?.to_string(), Chance::new(1, 1))?;
        let whole = || -> Result<bool, std::io::Error> {
            let mut stream = TcpStream::connect(way.address())?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(&[b'x'; 8000])?;
            stream.shutdown(Shutdown::Write)?;
            let mut said = Vec::new();
            Ok(stream.read_to_end(&mut said).is_ok() && said.len() == 8005)
        };
        for _ in 0..30 {
            assert!(whole()?);
        }
        assert_eq!(way.faults(), 0);
        way.spoil();
        let broken = (0..60).filter(|_| !whole().unwrap_or(false)).count();
        assert!(broken > 0 && broken < 30, "{broken}");
        assert!(way.faults() >= broken as u64);
        way.heal();
        assert!((0..30).all(|_| whole().unwrap_or(false)));

        let mut open = TcpStream::connect(way.address())?;
        let mut hello = [0; 5];
        open.read_exact(&mut hello)?;
        way.cut();
        assert_eq!(open.read(&mut hello)?, 0, "an open one is cut");
        Ok(())
    }
}
