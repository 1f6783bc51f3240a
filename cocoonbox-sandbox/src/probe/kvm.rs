//! KVM, by booting: a guest of a few 64-bit instructions says one byte and halts.

use std::time::Duration;

use super::Check;
#[cfg(target_arch = "x86_64")]
use super::child::{End, Word, in_child, words};

pub(super) const NAME: &str = "kvm";

/// Long for a few instructions; a host that cannot run them spins for ever.
#[cfg(target_arch = "x86_64")]
const LIMIT: Duration = Duration::from_secs(3);

const WITHOUT: &str = "nothing to do for bubblewrap boxes; for microVM boxes use a machine with hardware virtualisation \
                       (bare metal, or nested virtualisation switched on by the host)";

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn check() -> Check {
    let _: Duration = Duration::ZERO;
    if std::path::Path::new("/dev/kvm").exists() {
        let reason = "no guest is booted on this architecture to find out";
        return Check::no(NAME, "/dev/kvm is there", reason, "try a microVM to find out").degraded();
    }
    Check::no(NAME, "no /dev/kvm", "the kernel offers no virtual machines", WITHOUT)
}

#[cfg(target_arch = "x86_64")]
pub(super) fn check() -> Check {
    let memory = guest::Memory::new();
    let said = in_child(LIMIT, || guest::boot(&memory));
    judge(said)
}

#[cfg(target_arch = "x86_64")]
fn judge(end: End) -> Check {
    match end {
        End::Said(Word { step: guest::SPOKE, byte: guest::BYTE, .. }) => {
            Check::yes(NAME, "a 64-bit guest booted, said its byte and halted")
        }
        End::Said(Word { step: guest::OPEN, errno, .. }) if errno == nix::libc::EACCES => Check::no(
            NAME,
            "/dev/kvm does not open",
            words(errno),
            "add the user to the group kvm: usermod -aG kvm USER, then sign in again",
        ),
        End::Said(Word { step: guest::OPEN, errno, .. }) => {
            Check::no(NAME, "/dev/kvm does not open", words(errno), WITHOUT)
        }
        End::Said(Word { step: guest::BUILD, errno, .. }) => {
            Check::no(NAME, "/dev/kvm opens and makes no guest", words(errno), WITHOUT)
        }
        End::Said(Word { step: guest::RUN, errno, .. }) => {
            let reason = format!("the processor does not enter the guest: {}", words(errno));
            Check::no(NAME, "/dev/kvm answers, a 64-bit guest does not run", reason, WITHOUT)
        }
        End::Said(Word { byte, .. }) => {
            let reason = format!("the guest stopped before its byte (exit {byte} of the kernel's list)");
            Check::no(NAME, "/dev/kvm answers, a 64-bit guest does not run", reason, WITHOUT)
        }
        End::Late => {
            let reason = format!("a guest of a few instructions did not end in {} s", LIMIT.as_secs());
            Check::no(NAME, "/dev/kvm answers, a 64-bit guest does not run", reason, WITHOUT)
        }
        End::Died => Check::no(NAME, "the process with the guest died", "the kernel ended it", WITHOUT),
        End::NoChild(errno) => {
            Check::no(NAME, "not tried", words(errno), "raise the limit of processes: ulimit -u")
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod guest {
    use kvm_bindings::{kvm_regs, kvm_segment, kvm_userspace_memory_region};
    use kvm_ioctls::{Kvm, VcpuExit};

    use super::Word;

    pub(super) const OPEN: u8 = 1;
    pub(super) const BUILD: u8 = 2;
    pub(super) const RUN: u8 = 3;
    pub(super) const SPOKE: u8 = 4;
    pub(super) const STOPPED: u8 = 5;
    /// What the guest says.
    pub(super) const BYTE: u8 = b'6';

    const SIZE: usize = 2 * 1024 * 1024;
    const PORT: u16 = 0xe9;
    const CODE: usize = 0x8000;
    const STACK: u64 = 0x9000;
    const LEVEL_4: usize = 0x1000;
    const LEVEL_3: usize = 0x2000;
    const LEVEL_2: usize = 0x3000;

    /// What a kernel does in its first moments, in small. Read as 32-bit code the first instructions leave another
    /// value in `al`; the conversions through a floating-point register are unknown to the kernel's emulator, by which
    /// a host without real support lets simple guests run; the loop would take it many seconds.
    #[rustfmt::skip]
    const PROGRAM: [u8; 42] = [
        0x48, 0xb8, 0, 0, 0, 0, 0, BYTE, 0, 0, // movabs rax, BYTE << 40
        0x48, 0xc1, 0xe8, 40,                  // shr rax, 40
        0xf2, 0x48, 0x0f, 0x2a, 0xc0,          // cvtsi2sd xmm0, rax
        0x31, 0xc0,                            // xor eax, eax
        0xf2, 0x48, 0x0f, 0x2c, 0xc0,          // cvttsd2si rax, xmm0
        0xb9, 0x00, 0x2d, 0x31, 0x01,          // mov ecx, 20_000_000
        0xff, 0xc9,                            // dec ecx
        0x75, 0xfc,                            // jnz back
        0xba, PORT as u8, 0, 0, 0,             // mov edx, PORT
        0xee,                                  // out dx, al
        0xf4,                                  // hlt
    ];

    /// The kernel takes guest memory by whole pages.
    #[derive(Clone)]
    #[repr(C, align(4096))]
    struct Page([u8; 4096]);

    /// The guest's memory: its program, and page tables that map the first 2 MiB to themselves.
    pub(super) struct Memory(Vec<Page>);

    impl Memory {
        pub(super) fn new() -> Self {
            let mut pages = vec![Page([0; 4096]); SIZE / 4096];
            // present and writable; the last level is one page of 2 MiB
            for (at, entry) in [(LEVEL_4, LEVEL_3 | 3), (LEVEL_3, LEVEL_2 | 3), (LEVEL_2, 0x83)] {
                pages[at / 4096].0[..8].copy_from_slice(&(entry as u64).to_le_bytes());
            }
            pages[CODE / 4096].0[..PROGRAM.len()].copy_from_slice(&PROGRAM);
            Self(pages)
        }
    }

    /// Boots the guest. Makes system calls only, for it runs in a forked child.
    pub(super) fn boot(memory: &Memory) -> Word {
        let word = |step| move |error: kvm_ioctls::Error| Word { step, errno: error.errno(), byte: 0 };
        let kvm = match Kvm::new().map_err(word(OPEN)) {
            Ok(kvm) => kvm,
            Err(word) => return word,
        };
        boot_on(&kvm, memory).unwrap_or_else(|(step, error)| word(step)(error))
    }

    fn boot_on(kvm: &Kvm, memory: &Memory) -> Result<Word, (u8, kvm_ioctls::Error)> {
        let build = |error| (BUILD, error);
        let machine = kvm.create_vm().map_err(build)?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: SIZE as u64,
            userspace_addr: memory.0.as_ptr() as u64,
        };
        // SAFETY: the region is the whole of the pages, page-aligned, which outlives the machine.
        #[expect(unsafe_code, reason = "the guest writes into these pages")]
        unsafe { machine.set_user_memory_region(region) }.map_err(build)?;
        let mut processor = machine.create_vcpu(0).map_err(build)?;

        let mut special = processor.get_sregs().map_err(build)?;
        special.cr3 = LEVEL_4 as u64;
        special.cr4 = 1 << 5 | 1 << 9; // physical address extension, floating-point registers
        special.cr0 = 1 | 1 << 1 | 1 << 4 | 1 << 31; // protection, coprocessor, extension type, paging
        special.efer = 1 << 8 | 1 << 10; // long mode, enabled and active
        let code = kvm_segment {
            limit: 0xffff_ffff,
            selector: 8,
            type_: 11, // execute, read, accessed
            present: 1,
            s: 1,
            l: 1, // 64-bit
            g: 1,
            ..kvm_segment::default()
        };
        let data = kvm_segment { selector: 16, type_: 3, l: 0, db: 1, ..code };
        special.cs = code;
        for segment in [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss] {
            *segment = data;
        }
        processor.set_sregs(&special).map_err(build)?;
        let general = kvm_regs { rip: CODE as u64, rsp: STACK, rflags: 2, ..kvm_regs::default() };
        processor.set_regs(&general).map_err(build)?;

        let mut said = None;
        loop {
            match processor.run().map_err(|error| (RUN, error))? {
                VcpuExit::IoOut(PORT, bytes) => said = bytes.first().copied(),
                VcpuExit::Hlt => {
                    let step = if said.is_some() { SPOKE } else { STOPPED };
                    return Ok(Word { step, errno: 0, byte: said.unwrap_or(0) });
                }
                other => return Ok(Word { step: STOPPED, errno: 0, byte: kind(&other) }),
            }
        }
    }

    /// The kernel's number for the exits that a host without real support is seen to give; 255 for any other.
    const fn kind(exit: &VcpuExit<'_>) -> u8 {
        match exit {
            VcpuExit::Unknown => 0,
            VcpuExit::Exception => 1,
            VcpuExit::MmioRead(..) | VcpuExit::MmioWrite(..) => 6,
            VcpuExit::Shutdown => 8,
            VcpuExit::FailEntry(..) => 9,
            VcpuExit::InternalError => 17,
            _ => 255,
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::probe::Status;

    #[test]
    fn every_way_to_fail_has_a_reason_and_a_remedy() {
        let word = |step, errno, byte| End::Said(Word { step, errno, byte });
        for end in [
            word(guest::OPEN, nix::libc::EACCES, 0),
            word(guest::OPEN, nix::libc::ENOENT, 0),
            word(guest::BUILD, nix::libc::ENOSPC, 0),
            word(guest::RUN, nix::libc::EINVAL, 0),
            word(guest::STOPPED, 0, 8),
            word(guest::SPOKE, 0, b'x'),
            End::Died,
            End::Late,
            End::NoChild(nix::libc::EAGAIN),
        ] {
            let check = judge(end);
            assert_eq!(check.status, Status::No, "{end:?}");
            assert!(check.reason.is_some_and(|reason| !reason.is_empty()), "{end:?}");
            assert!(check.remedy.is_some_and(|remedy| !remedy.is_empty()), "{end:?}");
        }
        assert_eq!(judge(word(guest::SPOKE, 0, guest::BYTE)).status, Status::Yes);
    }
}
