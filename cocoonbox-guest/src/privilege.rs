//! The one thing that a first process in a container does with a capability, and giving all of them up for good.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The box user's uid and gid.
const USER: u32 = 1000;

/// The address that leads to the node, beside 127.0.0.1/8.
const ALIAS: Ipv4Addr = Ipv4Addr::new(10, 203, 0, 1);

/// `lo` is the first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// Gives `lo` the address 10.203.0.1/32 and gives up root and every capability, in the bounding set too.
///
/// Called before any other thread is there. What was not given up is an error, so that no box runs with it.
///
/// # Errors
/// The kernel refuses, or something is left.
pub fn settle() -> io::Result<()> {
    let has = rustix::thread::capabilities(None)?.effective;
    if has.contains(CapabilitySet::NET_ADMIN) {
        add_alias().map_err(|error| told("10.203.0.1 cannot be added", error))?;
    }
    // a kernel too old for ambient capabilities has none to clear
    let _ = rustix::thread::clear_ambient_capability_set();
    if has.contains(CapabilitySet::SETPCAP) {
        for capability in (0..64).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
            // the first number that the kernel does not know ends the list
            if rustix::thread::remove_capability_from_bounding_set(capability).is_err() {
                break;
            }
        }
    }
    if nix::unistd::geteuid().is_root() {
        let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
        setgroups(&[])?;
        setresgid(group, group, group)?;
        setresuid(user, user, user)?;
    }
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?;
    check()
}

/// Whether nothing is left.
fn check() -> io::Result<()> {
    let left = rustix::thread::capabilities(None)?;
    let bounded =
        [CapabilitySet::NET_ADMIN, CapabilitySet::SETPCAP, CapabilitySet::SETUID, CapabilitySet::SETGID]
            .into_iter()
            .any(|capability| rustix::thread::capability_is_in_bounding_set(capability).unwrap_or(true));
    if bounded || nix::unistd::geteuid().is_root() || !(left.permitted | left.inheritable).is_empty() {
        return Err(io::Error::other("privileges are left after giving them up"));
    }
    Ok(())
}

fn told(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Brings `lo` up and adds the alias to it.
fn add_alias() -> io::Result<()> {
    let route =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    ask(&route, &link_up())?;
    match ask(&route, &new_address(ALIAS)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const ERROR: u16 = 2;
/// A request that wants an answer.
const REQUEST: u16 = 1 | 4;
/// What is there already is an error.
const CREATE: u16 = 0x400 | 0x200;

/// A message: rtnetlink(7)'s header and its body.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(body);
    bytes
}

/// `struct ifinfomsg`: the interface, up, and only that flag changed.
fn link_up() -> Vec<u8> {
    const UP: u32 = 1;
    let fields = [0, LOOPBACK, UP, UP];
    message(NEW_LINK, REQUEST, &fields.map(u32::to_ne_bytes).concat())
}

/// `struct ifaddrmsg` and its attributes: one IPv4 address of a network of its own, known to this host alone.
fn new_address(address: Ipv4Addr) -> Vec<u8> {
    const IPV4: u8 = 2;
    const HOST: u8 = 254;
    let mut body = vec![IPV4, 32, 0, HOST];
    body.extend(LOOPBACK.to_ne_bytes());
    // IFA_ADDRESS, IFA_LOCAL
    for kind in [1_u16, 2] {
        body.extend(8_u16.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(address.octets());
    }
    message(NEW_ADDRESS, REQUEST | CREATE, &body)
}

/// Sends a message and waits for what the kernel says to it.
fn ask(route: &OwnedFd, message: &[u8]) -> io::Result<()> {
    send(route.as_raw_fd(), message, MsgFlags::empty())?;
    let mut answer = [0; 4096];
    let length = recv(route.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    acknowledged(&answer[..length])
}

/// Reads the kernel's answer.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let number =
        |at: usize| answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    match (kind, number(16)) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel answered something else")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_long_as_they_say() {
        for message in [link_up(), new_address(ALIAS)] {
            assert_eq!(message[..4], (message.len() as u32).to_ne_bytes());
        }
        assert!(new_address(ALIAS).windows(4).any(|bytes| bytes == [10, 203, 0, 1]));
    }

    #[test]
    fn an_answer_is_success_an_error_or_nothing_known() {
        let answer = |code: i32| message(ERROR, 0, &code.to_ne_bytes());
        assert!(acknowledged(&answer(0)).is_ok());
        assert_eq!(acknowledged(&answer(-17)).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        for bytes in [&[][..], &[0; 8], &message(NEW_LINK, 0, &[0; 4])] {
            assert_eq!(acknowledged(bytes).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
