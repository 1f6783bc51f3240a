//! Sockets that lead somewhere.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use nix::libc;

use crate::sys::{Stop, Try, argument, at, at_mut, call, number, own};

/// `PATH`: a listening socket in the file system.
pub(crate) fn unix(arguments: &[&str]) -> Try {
    UnixStream::connect(argument(arguments, 0)?).map_err(Stop::of("connect"))?;
    Ok("connected".to_owned())
}

/// `NAME`: a listening abstract socket.
pub(crate) fn abstract_name(arguments: &[&str]) -> Try {
    let address = SocketAddr::from_abstract_name(argument(arguments, 0)?).map_err(Stop::of("name"))?;
    UnixStream::connect_addr(&address).map_err(Stop::of("connect"))?;
    Ok("connected".to_owned())
}

/// `ADDRESS`: a listening TCP port; what it says first is the proof.
pub(crate) fn tcp(arguments: &[&str]) -> Try {
    let address = argument(arguments, 0)?;
    let address = address.parse().map_err(|_| Stop::Cannot(format!("{address} is no address")))?;
    let limit = Duration::from_secs(3);
    let mut stream = std::net::TcpStream::connect_timeout(&address, limit).map_err(Stop::of("connect"))?;
    stream.set_read_timeout(Some(limit)).map_err(Stop::of("limit"))?;
    let mut bytes = [0; 64];
    let count = stream.read(&mut bytes).map_err(Stop::of("read"))?;
    let _ = stream.flush();
    Ok(crate::sys::printable(&bytes[..count]))
}

/// Network interfaces other than the loopback.
pub(crate) fn interfaces(_: &[&str]) -> Try {
    let names = nix::net::if_::if_nameindex().map_err(|errno| Stop::Refused { what: "list", errno })?;
    let names: Vec<_> = names
        .iter()
        .map(|one| one.name().to_string_lossy().into_owned())
        .filter(|name| name != "lo")
        .collect();
    if names.is_empty() { Err(Stop::Nothing("only lo".to_owned())) } else { Ok(names.join(" ")) }
}

/// `FAMILY TYPE PROTOCOL`: a socket of a kind that reaches past the box.
pub(crate) fn socket(arguments: &[&str]) -> Try {
    let words = [number(arguments, 0)?, number(arguments, 1)?, number(arguments, 2)?];
    drop(own(call("socket", libc::SYS_socket, &words)?));
    Ok("a socket".to_owned())
}

fn netlink(protocol: i32) -> Result<OwnedFd, Stop> {
    let words = [libc::AF_NETLINK as usize, libc::SOCK_RAW as usize, protocol as usize];
    let socket = own(call("netlink socket", libc::SYS_socket, &words)?);
    // an answer that does not come ends the try
    let limit = [3_i64, 0];
    let words = [
        socket.as_raw_fd() as usize,
        libc::SOL_SOCKET as usize,
        libc::SO_RCVTIMEO as usize,
        at(&limit),
        size_of_val(&limit),
    ];
    call("netlink limit", libc::SYS_setsockopt, &words)?;
    Ok(socket)
}

fn ask(socket: &OwnedFd, kind: u16, flags: u16, body: &[u8]) -> Result<(), Stop> {
    let mut message = Vec::new();
    message.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(body);
    let words = [socket.as_raw_fd() as usize, at(message.as_slice()), message.len(), 0, 0, 0];
    call("netlink send", libc::SYS_sendto, &words).map(drop)
}

fn answer(socket: &OwnedFd) -> Result<Vec<u8>, Stop> {
    let mut bytes = vec![0; 64 * 1024];
    let words = [socket.as_raw_fd() as usize, at_mut(bytes.as_mut_slice()), bytes.len(), 0, 0, 0];
    let count = call("netlink receive", libc::SYS_recvfrom, &words)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// `NAME`: a socket of somebody else, in the kernel's own list of them.
pub(crate) fn socket_diag(arguments: &[&str]) -> Try {
    const BY_FAMILY: u16 = 20;
    const SHOW_NAME: u32 = 1;
    let name = argument(arguments, 0)?;
    let socket = netlink(libc::NETLINK_SOCK_DIAG)?;
    let mut body = vec![libc::AF_UNIX as u8, 0, 0, 0];
    for word in [u32::MAX, 0, SHOW_NAME, u32::MAX, u32::MAX] {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    ask(&socket, BY_FAMILY, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16, &body)?;
    let mut length = 0;
    loop {
        let bytes = answer(&socket)?;
        length += bytes.len();
        if bytes.windows(name.len()).any(|window| window == name.as_bytes()) {
            return Ok(name.to_owned());
        }
        let kind = bytes.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
        let last = [libc::NLMSG_DONE as u16, libc::NLMSG_ERROR as u16];
        if kind.is_none_or(|kind| last.contains(&kind)) || bytes.len() < 16 {
            return Err(Stop::Nothing(format!("not in {length} bytes of sockets")));
        }
    }
}

/// One more address on the loopback interface, by netlink.
pub(crate) fn add_address(_: &[&str]) -> Try {
    let socket = netlink(libc::NETLINK_ROUTE)?;
    let mut body = vec![libc::AF_INET as u8, 32, 0, 0];
    body.extend_from_slice(&1_u32.to_ne_bytes());
    for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
        body.extend_from_slice(&8_u16.to_ne_bytes());
        body.extend_from_slice(&kind.to_ne_bytes());
        body.extend_from_slice(&[10, 66, 66, 66]);
    }
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    ask(&socket, libc::RTM_NEWADDR, flags as u16, &body)?;
    let bytes = answer(&socket)?;
    let code = bytes.get(16..20).map_or(-1, |code| i32::from_ne_bytes([code[0], code[1], code[2], code[3]]));
    if code == 0 {
        return Ok("10.66.66.66".to_owned());
    }
    Err(Stop::Refused { what: "new address", errno: nix::errno::Errno::from_raw(-code) })
}
