//! Doors: addresses in the box that lead to the host.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cocoonbox_wire::silkd::{Door, DoorHello, line};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::InitError;
use super::relay::pump;

/// The most connections through one door at a time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 256;

const DOORS: [(Door, [u8; 4], u16); 4] = [
    (Door::Http, [127, 0, 0, 1], 3128),
    (Door::Socks5, [127, 0, 0, 1], 1080),
    (Door::Gateway, [10, 203, 0, 1], 18090),
    (Door::Box, [10, 203, 0, 1], 18091),
];

/// Opens all doors; each connection leads through `socket`.
pub(super) async fn open(socket: &Path) -> Result<(), InitError> {
    for (door, address, port) in DOORS {
        let address = SocketAddr::from((address, port));
        let listener =
            TcpListener::bind(address).await.map_err(|source| InitError::Listen { address, source })?;
        tokio::spawn(serve(listener, door, socket.to_owned()));
    }
    Ok(())
}

/// Serves one door for ever.
pub(super) async fn serve(listener: TcpListener, door: Door, socket: PathBuf) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((inner, _)) => {
                let socket = socket.clone();
                tokio::spawn(async move {
                    // a host that does not answer is a connection that is closed
                    let _ = pass(inner, door, &socket).await;
                    drop(place);
                });
            }
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn pass(inner: TcpStream, door: Door, socket: &Path) -> std::io::Result<()> {
    let mut outer = UnixStream::connect(socket).await?;
    outer.write_all(&line(&DoorHello { door })).await?;
    let _ = inner.set_nodelay(true);
    let (inner_read, inner_write) = inner.into_split();
    let (outer_read, outer_write) = outer.into_split();
    tokio::join!(pump(inner_read, outer_write), pump(outer_read, inner_write));
    Ok(())
}
