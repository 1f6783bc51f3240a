//! The filter of system calls, where nothing that starts a box can install it before the box's first process.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use seccompiler::sock_filter;

/// The kernel's limit of a program's instructions.
const MOST_INSTRUCTIONS: usize = 4096;
/// `struct sock_filter`.
const INSTRUCTION: usize = 8;

/// Puts this process, and everything that it will start, under the programs in `filters`, in this order.
///
/// Called before any other thread is there. Each program is what the kernel reads: at most 4096 `struct sock_filter`.
///
/// # Errors
/// A program cannot be read or is none, or the kernel refuses it.
pub fn confine(filters: Vec<OwnedFd>) -> io::Result<()> {
    for filter in filters {
        let mut bytes = Vec::new();
        let most = (MOST_INSTRUCTIONS * INSTRUCTION) as u64;
        File::from(filter).take(most + 1).read_to_end(&mut bytes)?;
        let program = program(&bytes).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{} bytes are no filter", bytes.len()))
        })?;
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn program(bytes: &[u8]) -> Option<Vec<sock_filter>> {
    let (instructions, rest) = bytes.as_chunks::<INSTRUCTION>();
    let whole = rest.is_empty() && (1..=MOST_INSTRUCTIONS).contains(&instructions.len());
    let instruction = |[code_0, code_1, jt, jf, k @ ..]: &[u8; INSTRUCTION]| sock_filter {
        code: u16::from_ne_bytes([*code_0, *code_1]),
        jt: *jt,
        jf: *jf,
        k: u32::from_ne_bytes(*k),
    };
    whole.then(|| instructions.iter().map(instruction).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_whole_instructions_and_not_too_many() {
        let read = program(&[0x20, 0, 1, 2, 4, 0, 0, 0]).unwrap_or_default();
        assert_eq!(read, [sock_filter { code: 0x20, jt: 1, jf: 2, k: 4 }]);
        for length in [0, 7, 9, (MOST_INSTRUCTIONS + 1) * INSTRUCTION] {
            assert_eq!(program(&vec![0; length]), None, "{length}");
        }
        assert_eq!(program(&vec![0; MOST_INSTRUCTIONS * INSTRUCTION]).map(|all| all.len()), Some(4096));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let empty = File::open("/dev/null").map(OwnedFd::from);
        assert!(confine(empty.into_iter().collect()).is_err());
        assert!(confine(Vec::new()).is_ok());
    }
}
