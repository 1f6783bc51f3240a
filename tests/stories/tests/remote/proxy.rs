//! A way to the server that is cut again and again, after a random number of bytes of either direction.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// The fewest bytes that pass before a cut: an attach needs some to be answered.
const LEAST: u64 = 8 * 1024;

pub(crate) struct Proxy {
    /// What the cuts follow from; given back as COCOONBOX_SEED they are the same again.
    pub(crate) seed: u64,
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    armed: AtomicBool,
    cuts: AtomicU64,
    random: Mutex<u64>,
    most: u64,
}

impl Proxy {
    /// Makes a way to `port` that is whole until [`Self::arm`], and then lets at most `most` bytes pass at a time.
    pub(crate) fn to(port: u16, most: u64) -> Self {
        let seed = std::env::var("COCOONBOX_SEED").ok().and_then(|text| text.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            u64::from(now.subsec_nanos()) << 20 | u64::from(std::process::id())
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared {
            armed: AtomicBool::new(false),
            cuts: AtomicU64::new(0),
            random: Mutex::new(seed.max(1)),
            most,
        });
        let accepted = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
                carry(&accepted, &client, &server);
            }
        });
        Self { seed, port: own, shared }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Cuts from now on.
    pub(crate) fn arm(&self) {
        self.shared.armed.store(true, Ordering::SeqCst);
    }

    /// Lets everything pass again.
    pub(crate) fn disarm(&self) {
        self.shared.armed.store(false, Ordering::SeqCst);
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn budget(&self) -> u64 {
        let mut state = self.random.lock().expect("nothing panics with it");
        // xorshift64
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        LEAST + *state % (self.most - LEAST)
    }
}

fn carry(shared: &Arc<Shared>, client: &TcpStream, server: &TcpStream) {
    let whole = Arc::new(AtomicBool::new(true));
    for (from, to) in [(client, server), (server, client)] {
        let _ = from.set_nodelay(true);
        let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
        let (shared, whole) = (Arc::clone(shared), Arc::clone(&whole));
        let mut left = shared.budget();
        thread::spawn(move || {
            let (mut from, mut to) = (from, to);
            let mut buffer = vec![0; 32 * 1024];
            loop {
                let count = from.read(&mut buffer).unwrap_or(0);
                let armed = shared.armed.load(Ordering::SeqCst);
                let pass = if armed { count.min(usize::try_from(left).unwrap_or(count)) } else { count };
                if count == 0 || to.write_all(&buffer[..pass]).is_err() {
                    break;
                }
                if armed {
                    left -= pass as u64;
                    if left == 0 {
                        if whole.swap(false, Ordering::SeqCst) {
                            shared.cuts.fetch_add(1, Ordering::SeqCst);
                        }
                        break;
                    }
                }
            }
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
