//! The filter of system calls that every process of a box is under.
//!
//! Three programs, each with one answer, as a program has one only. A call of another architecture (32-bit x86) kills
//! its process; the kernel takes the strictest answer of the three.

mod call;

use std::collections::BTreeMap;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

use cocoonbox_core::backend::Nesting;
use linux_raw_sys::general as nr;
use nix::libc;
use seccompiler::{
    BackendError as Error, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use call::{ALLOWED, ALLOWED_OLD, NESTING, REFUSED, REFUSED_OLD};

/// Rules by system call; a call without a rule matches whatever its arguments.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The programs of a box, each as the kernel reads it; nothing where the architecture has none.
fn programs(nesting: Nesting) -> &'static [Vec<u8>] {
    static ORDINARY: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| compiled(Nesting::Denied));
    static THAT_NESTS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| compiled(Nesting::Allowed));
    if nesting == Nesting::Allowed { &THAT_NESTS } else { &ORDINARY }
}

/// Whether there is a filter for this machine's architecture.
pub(crate) fn is_there() -> bool {
    !programs(Nesting::Denied).is_empty()
}

/// Makes a descriptor for each of a box's programs, in the order in which they are to be installed.
pub(crate) fn files(nesting: Nesting) -> io::Result<Vec<OwnedFd>> {
    let file = |program: &Vec<u8>| {
        let descriptor = rustix::fs::memfd_create("system-calls", rustix::fs::MemfdFlags::CLOEXEC)
            .map(std::fs::File::from);
        let mut file = descriptor?;
        file.write_all(program)?;
        file.rewind()?;
        Ok(file.into())
    };
    programs(nesting).iter().map(file).collect()
}

fn compiled(nesting: Nesting) -> Vec<Vec<u8>> {
    let Ok(architecture) = TargetArch::try_from(std::env::consts::ARCH) else { return Vec::new() };
    let programs = build(nesting, architecture).expect("a test builds every filter there is");
    programs.iter().map(bytes).collect()
}

fn build(nesting: Nesting, architecture: TargetArch) -> Result<[BpfProgram; 3], Error> {
    let errno = |number: i32| SeccompAction::Errno(number as u32);
    let answer =
        |rules, otherwise, then| SeccompFilter::new(rules, otherwise, then, architecture)?.try_into();
    Ok([
        answer(known(nesting), errno(libc::ENOSYS), SeccompAction::Allow)?,
        answer(sockets()?, SeccompAction::Allow, errno(libc::EAFNOSUPPORT))?,
        answer(refused(nesting)?, SeccompAction::Allow, errno(libc::EPERM))?,
    ])
}

fn bytes(program: &BpfProgram) -> Vec<u8> {
    let instruction = |of: &seccompiler::sock_filter| {
        let [code_0, code_1] = of.code.to_ne_bytes();
        let [k_0, k_1, k_2, k_3] = of.k.to_ne_bytes();
        [code_0, code_1, of.jt, of.jf, k_0, k_1, k_2, k_3]
    };
    program.iter().flat_map(instruction).collect()
}

/// Every call that is not absent.
fn known(nesting: Nesting) -> Rules {
    let lists = [ALLOWED, ALLOWED_OLD, REFUSED, REFUSED_OLD, NESTING];
    let mut rules: Rules = lists.into_iter().flatten().map(|call| (i64::from(*call), Vec::new())).collect();
    // its flags lie in memory, where no filter can look: without it programs fall back to clone
    if nesting == Nesting::Allowed {
        rules.insert(nr::__NR_clone3.into(), Vec::new());
    }
    rules
}

/// What is answered as if the kernel had been built without it, so that programs look for another way.
fn sockets() -> Result<Rules, Error> {
    const UNIX: u64 = libc::AF_UNIX as u64;
    const INET: u64 = libc::AF_INET as u64;
    const INET6: u64 = libc::AF_INET6 as u64;
    const NETLINK: u64 = libc::AF_NETLINK as u64;
    let mut socket = vec![family_is_none_of(0, &[UNIX, INET, INET6, NETLINK])?];
    // of netlink the part that tells of addresses and routes; the rest is the kernel's widest door
    socket.push(SeccompRule::new(vec![is(0, NETLINK)?, is_not(2, libc::NETLINK_ROUTE as u64)?])?);
    for family in [INET, INET6] {
        let protocols = [0, libc::IPPROTO_ICMP, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMPV6];
        let mut other = vec![is(0, family)?];
        for protocol in protocols {
            other.push(is_not(2, protocol as u64)?);
        }
        socket.push(SeccompRule::new(other)?);
    }
    Ok(Rules::from([
        (nr::__NR_socket.into(), socket),
        (nr::__NR_socketpair.into(), vec![family_is_none_of(0, &[UNIX])?]),
    ]))
}

/// What is answered as to anybody without privileges.
fn refused(nesting: Nesting) -> Result<Rules, Error> {
    let mut lists = vec![REFUSED, REFUSED_OLD];
    if nesting != Nesting::Allowed {
        lists.push(NESTING);
    }
    let mut rules: Rules = lists.into_iter().flatten().map(|call| (i64::from(*call), Vec::new())).collect();

    // sockets below TCP, UDP and ping: packets of one's own making, and transports that few ever looked at
    const PACKET: i32 = 10;
    let mut below = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_SEQPACKET, libc::SOCK_DCCP, PACKET] {
            below.push(SeccompRule::new(vec![is(0, family as u64)?, masked(1, 0xf, kind as u64)?])?);
        }
    }
    rules.insert(nr::__NR_socket.into(), below);

    // typing into a terminal for its reader, pasting on a console, changing what drives a terminal
    const TIOCSTI: u64 = 0x5412;
    const TIOCLINUX: u64 = 0x541c;
    const TIOCSETD: u64 = 0x5423;
    let requests = [TIOCSTI, TIOCLINUX, TIOCSETD];
    let requests = requests.into_iter().map(|request| SeccompRule::new(vec![is(1, request)?]));
    rules.insert(nr::__NR_ioctl.into(), requests.collect::<Result<_, Error>>()?);

    // Linux as it is, with 32-bit names, with an old version's number, without random addresses (debuggers), and the question
    let ordinary = [0, 0x0008, 0x0002_0000, 0x0002_0008, 0x0004_0000, 0xffff_ffff];
    let odd = ordinary.into_iter().map(|personality| is_not(0, personality)).collect::<Result<_, Error>>()?;
    rules.insert(nr::__NR_personality.into(), vec![SeccompRule::new(odd)?]);

    if nesting != Nesting::Allowed {
        let spaces = [
            libc::CLONE_NEWNS,
            libc::CLONE_NEWCGROUP,
            libc::CLONE_NEWUTS,
            libc::CLONE_NEWIPC,
            libc::CLONE_NEWUSER,
            libc::CLONE_NEWPID,
            libc::CLONE_NEWNET,
        ];
        let space = |flag: i32| {
            let flag = u64::from(flag as u32);
            SeccompRule::new(vec![masked(0, flag, flag)?])
        };
        let made: Vec<_> = spaces.into_iter().map(space).collect::<Result<_, _>>()?;
        rules.insert(nr::__NR_clone.into(), made.clone());
        let with_time = made.into_iter().chain([space(libc::CLONE_NEWTIME)?]);
        rules.insert(nr::__NR_unshare.into(), with_time.collect());
    }
    Ok(rules)
}

/// Arguments are compared by their lower half, as the kernel takes these: a bit above would otherwise hide the value.
fn condition(argument: u8, operation: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value)
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, Error> {
    condition(argument, SeccompCmpOp::Eq, value)
}

fn is_not(argument: u8, value: u64) -> Result<SeccompCondition, Error> {
    condition(argument, SeccompCmpOp::Ne, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, Error> {
    condition(argument, SeccompCmpOp::MaskedEq(mask), value)
}

fn family_is_none_of(argument: u8, families: &[u64]) -> Result<SeccompRule, Error> {
    SeccompRule::new(families.iter().map(|family| is_not(argument, *family)).collect::<Result<_, Error>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_is_built_for_every_architecture() -> Result<(), Error> {
        for architecture in [TargetArch::x86_64, TargetArch::aarch64] {
            for nesting in [Nesting::Denied, Nesting::Allowed] {
                for program in build(nesting, architecture)? {
                    assert_eq!(bytes(&program).len(), program.len() * 8);
                }
            }
        }
        assert_eq!(is_there(), cfg!(any(target_arch = "x86_64", target_arch = "aarch64")));
        Ok(())
    }

    #[test]
    fn no_call_stands_in_two_lists() {
        let mut seen = std::collections::BTreeSet::new();
        for call in [ALLOWED, ALLOWED_OLD, REFUSED, REFUSED_OLD, NESTING].into_iter().flatten() {
            assert!(seen.insert(call), "{call}");
        }
        for absent in [nr::__NR_clone3, nr::__NR_io_uring_setup] {
            assert!(!seen.contains(&absent), "{absent}");
        }
    }
}
