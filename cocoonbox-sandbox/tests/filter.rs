//! The filter of system calls: what it refuses, beside the same calls in a box without it, and that programs work.

#![allow(clippy::print_stdout, reason = "tests say what they leave out")]

mod common;

use std::collections::BTreeMap;
use std::error::Error;

use cocoonbox_core::backend::{Nesting, SandboxBackend, SandboxId};
use cocoonbox_sandbox::Defence;
use common::{Data, Outcome, as_root_and_as_a_user, claim, printed, request, sh};

/// Makes each call and says how it ended: a name and the words of its error, or `done`.
const CALLS: &str = r"
import ctypes, errno, fcntl, mmap, os, pty, signal, socket, struct, sys, termios
c = ctypes.CDLL(None, use_errno=True)
def say(name, result): print(name, 'done' if result >= 0 else errno.errorcode[ctypes.get_errno()], flush=True)
def call(name, *words): say(name, c.syscall(*[ctypes.c_long(w) if isinstance(w, int) else w for w in words]))
room = ctypes.create_string_buffer(4096)
call('add_key', 248, b'user', b'x', b'y', 1, -3)
call('request_key', 249, b'user', b'none', None, 0)
call('keyctl', 250, 0, -3, 1)
call('io_uring_setup', 425, 1, 1)
call('clone3', 435, None, 0)
call('userfaultfd', 323, 1)
call('perf_event_open', 298, None, 0, -1, -1, 0)
call('bpf', 321, 0, room, 1 << 20)
call('unshare', 272, 0x10000000)
call('clone', 56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
call('setns', 308, -1, 0)
call('mount', 165, 1, 1, 1, 0, 0)
call('umount2', 166, b'/', 0xffff)
call('open_tree', 428, -100, b'/', 1 << 30)
call('mount_setattr', 442, -100, b'/', 1 << 30, room, 32)
call('chroot', 161, b'/nonexistent')
call('kcmp', 312, os.getpid(), os.getpid(), 0, 0, 1)
call('fanotify_init', 300, 0x200, 0)
call('modify_ldt', 154, 0, room, 8)
call('ioperm', 173, 0, 0, 0)
call('personality', 135, 0x0400000)
call('memory policy', 239, None, None, 0, 0, 1 << 30)
def sock(name, *words):
    try: socket.socket(*words).close(); print(name, 'done')
    except OSError as error: print(name, errno.errorcode[error.errno])
sock('packets', 17, 3, 0)
sock('netlink diag', 16, 3, 4)
sock('netlink netfilter', 16, 3, 12)
sock('netlink generic', 16, 3, 16)
sock('sctp', 2, 1, 132)
sock('kernel ciphers', 38, 5, 0)
sock('vsock', 40, 1, 0)
sock('bluetooth', 31, 3, 1)
sock('routes', 16, 3, 0)
sock('tcp', 2, 1, 6)
sock('udp6', 10, 2, 0)
sock('unix', 1, 5, 0)
pid, master = pty.fork()
if pid == 0:
    say('TIOCSTI', c.ioctl(0, termios.TIOCSTI, b'x'))
    # the kernel looks at the lower half of the request alone
    say('TIOCSTI with a bit above', c.syscall(16, 0, ctypes.c_ulong(1 << 32 | termios.TIOCSTI), b'x'))
    say('TIOCLINUX', c.ioctl(0, termios.TIOCLINUX, b'\x06'))
    say('TIOCSETD', c.ioctl(0, termios.TIOCSETD, struct.pack('i', 0)))
    os._exit(0)
said = b''
try:
    while part := os.read(master, 4096): said += part
except OSError: pass
os.waitpid(pid, 0)
for line in said.decode().splitlines():
    if line.startswith('TIO'): print(line)
# getpid of the x32 interface, and of the 32-bit one
call('x32', 0x40000000 + 39)
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(b'\xb8\x14\x00\x00\x00\xcd\x80\xc3')
    place = ctypes.addressof(ctypes.c_char.from_buffer(code))
    os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_int)(place)() == os.getpid() else 1)
status = os.waitpid(pid, 0)[1]
print('32 bit', 'killed' if status & 127 == signal.SIGSYS else 'done' if status == 0 else 'unknown')
";

async fn calls(
    backend: &dyn SandboxBackend,
    id: &SandboxId,
) -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let said =
        printed(backend, id, &format!("cat >/tmp/calls.py <<'END'\n{CALLS}\nEND\npython3 /tmp/calls.py"))
            .await?;
    let pair =
        |line: &str| line.rsplit_once(' ').map(|(name, word)| (name.to_owned(), word.trim().to_owned()));
    Ok(said.lines().filter_map(pair).collect())
}

#[test]
fn what_the_filter_refuses_is_refused_by_it() -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        println!("the numbers of the calls are those of x86_64: not tried");
        return Ok(());
    }
    as_root_and_as_a_user("what_the_filter_refuses_is_refused_by_it", || async {
        let expected = [
            ("add_key", "EPERM"),
            ("request_key", "EPERM"),
            ("keyctl", "EPERM"),
            ("io_uring_setup", "ENOSYS"),
            ("clone3", "ENOSYS"),
            ("userfaultfd", "EPERM"),
            ("perf_event_open", "EPERM"),
            ("bpf", "EPERM"),
            ("unshare", "EPERM"),
            ("clone", "EPERM"),
            ("setns", "EPERM"),
            ("mount", "EPERM"),
            ("umount2", "EPERM"),
            ("open_tree", "EPERM"),
            ("mount_setattr", "EPERM"),
            ("chroot", "EPERM"),
            ("kcmp", "EPERM"),
            ("fanotify_init", "EPERM"),
            ("modify_ldt", "EPERM"),
            ("ioperm", "EPERM"),
            ("personality", "EPERM"),
            ("memory policy", "EPERM"),
            ("packets", "EAFNOSUPPORT"),
            ("netlink diag", "EAFNOSUPPORT"),
            ("netlink netfilter", "EAFNOSUPPORT"),
            ("netlink generic", "EAFNOSUPPORT"),
            ("sctp", "EAFNOSUPPORT"),
            ("kernel ciphers", "EAFNOSUPPORT"),
            ("vsock", "EAFNOSUPPORT"),
            ("bluetooth", "EAFNOSUPPORT"),
            ("TIOCSTI", "EPERM"),
            ("TIOCSTI with a bit above", "EPERM"),
            ("TIOCLINUX", "EPERM"),
            ("TIOCSETD", "EPERM"),
            ("x32", "ENOSYS"),
            ("32 bit", "killed"),
        ];
        let open = ["routes", "tcp", "udp6", "unix"];
        let data = Data::new()?;
        let backend = data.open().await?;
        assert!(backend.defences().contains(&Defence::SystemCallFilter));
        let strong = calls(&*backend, &claim(&*backend).await?.id).await?;
        let mut wanted: BTreeMap<_, _> =
            expected.iter().map(|(name, word)| ((*name).to_owned(), (*word).to_owned())).collect();
        wanted.extend(open.map(|name| (name.to_owned(), "done".to_owned())));
        assert_eq!(strong, wanted);

        // without it each call reaches the kernel, which has something else to say, if it knows the thing at all
        let data = Data::new()?;
        let backend = common::open(data.config().with_weakened(Defence::SystemCallFilter)).await?;
        let weak = calls(&*backend, &claim(&*backend).await?.id).await?;
        let same: Vec<_> = expected
            .iter()
            .filter(|(name, word)| weak.get(*name).is_some_and(|weak| weak == word))
            .map(|(name, _)| *name)
            .collect();
        // what kernels are built without: nothing to refuse there
        let absent = [
            "kernel ciphers",
            "vsock",
            "bluetooth",
            "x32",
            "netlink netfilter",
            "netlink diag",
            "fanotify_init",
        ];
        assert!(
            same.iter().all(|name| absent.contains(name)),
            "the same without the filter: {same:?}; {weak:?}"
        );
        println!("not in this kernel, and so without a control: {same:?}");
        Ok(())
    })
}

#[test]
fn a_box_that_nests_makes_namespaces_and_no_packets() -> Outcome {
    as_root_and_as_a_user("a_box_that_nests_makes_namespaces_and_no_packets", || async {
        let raw = "unshare -rn python3 -c \"\
            import socket\n\
            for words in ((2, 3, 1), (17, 3, 0), (16, 3, 12)):\n\
            \x20   try: socket.socket(*words); print('made')\n\
            \x20   except OSError as error: print(error.strerror)\n\"";
        let nests = || request("nests").with_nesting(Nesting::Allowed);
        let data = Data::new()?;
        let backend = data.open().await?;
        let box_ = backend.claim(nests()).await?;
        let said = printed(&*backend, &box_.id, raw).await?;
        let refused = "Address family not supported by protocol";
        assert_eq!(said, format!("Operation not permitted\n{refused}\n{refused}"));
        let data = Data::new()?;
        let backend = common::open(data.config().with_weakened(Defence::SystemCallFilter)).await?;
        let box_ = backend.claim(nests()).await?;
        let said = printed(&*backend, &box_.id, raw).await?;
        assert!(said.starts_with("made\nmade\n"), "{said}");
        Ok(())
    })
}

/// Programs by what they need, and what proves that they did it.
const PROGRAMS: &[(&str, &str, &str)] = &[
    (
        "git",
        "git",
        "cd $(mktemp -d) && git init -q && git config user.email a@b && git config user.name a && echo x >f && \
         git add f && git commit -qm one && git gc -q && git clone -q . copy && git -C copy log --format=%s",
    ),
    (
        "python3",
        "python3",
        "python3 - <<'END'\nimport asyncio, multiprocessing, ssl, subprocess, tempfile, threading\n\
         def double(x): return 2 * x\n\
         with multiprocessing.get_context('fork').Pool(2) as pool: assert pool.map(double, [1, 2]) == [2, 4]\n\
         async def main():\n    p = await asyncio.create_subprocess_exec('true'); return await p.wait()\n\
         assert asyncio.run(main()) == 0\nprint('one')\nEND",
    ),
    (
        "node",
        "node",
        "node -e \"const {Worker} = require('worker_threads'); require('fs').watch('/tmp').close(); \
         require('child_process').execSync('true'); \
         new Worker('require(\\\"worker_threads\\\").parentPort.postMessage(\\\"one\\\")', {eval: true}).on('message', m => console.log(m))\"",
    ),
    (
        "tmux",
        "tmux",
        "tmux -L t new-session -d -x 80 -y 24 'echo one; sleep 100' && for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; \
         tmux -L t capture-pane -p | grep one && break; done; tmux -L t kill-server",
    ),
    (
        "rsync",
        "rsync",
        "cd $(mktemp -d) && mkdir -p a/b && echo one >a/b/c && ln a/b/c a/d && rsync -aH a/ e/ && cat e/d",
    ),
    (
        "cc",
        "a compiler and make",
        "cd $(mktemp -d) && printf '#include <stdio.h>\\nint main(void) { puts(\"one\"); }\\n' >x.c && make -s x && ./x",
    ),
    ("strace", "strace", "strace -f -o /tmp/trace sh -c 'echo one' && grep -q write /tmp/trace"),
    (
        "strace",
        "strace on a process that runs",
        "yes >/dev/null & timeout 1 strace -p $! -o /tmp/attached; grep -q write /tmp/attached && echo one; kill $!",
    ),
    (
        "gdb",
        "gdb on a process that runs",
        "sleep 100 & gdb -q -batch -p $! -ex 'print 40 + 2' 2>/dev/null | grep -q '= 42' && echo one; kill $!",
    ),
    ("ip", "ip", "ip -o addr show lo | grep -q 10.203.0.1 && echo one"),
];

#[test]
fn programs_work_in_a_box() -> Outcome {
    as_root_and_as_a_user("programs_work_in_a_box", || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        for (program, what, command) in PROGRAMS {
            if sh(&*backend, &claim.id, &format!("command -v {program}")).await?.code != 0 {
                println!("{program} is not installed: {what} is not tried");
                continue;
            }
            let ran = sh(&*backend, &claim.id, command).await?;
            assert_eq!(ran.out.trim_end(), "one", "{what}: {ran:?}");
        }
        Ok(())
    })
}

/// The toolchain lies in somebody's home, outside of what a box sees.
#[test]
fn a_box_builds_with_cargo() -> Outcome {
    // the second run is somebody who may not ask, and need not
    let sysroot = std::process::Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(sysroot.map(|asked| asked.stdout).unwrap_or_default())?;
    common::with_shown("a_box_builds_with_cargo", sysroot.trim().as_ref(), || async {
        let data = Data::new()?;
        let backend = data.open().await?;
        let claim = claim(&*backend).await?;
        let build = format!(
            "export PATH={}/bin:$PATH && cd /workspace && cargo init -q --vcs none --name one one && cd one && \
             cargo build -q --offline && target/debug/one",
            common::SHOWN
        );
        assert_eq!(printed(&*backend, &claim.id, &build).await?, "Hello, world!");
        Ok(())
    })
}
