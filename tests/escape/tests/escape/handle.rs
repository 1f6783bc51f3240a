//! A file by its number in its file system.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::libc;

/// Returns the kind and the bytes (hexadecimal) of a file's handle; none where the file system has no such thing.
#[expect(unsafe_code, reason = "there is no safe form of this call")]
pub(crate) fn of(path: &Path) -> Option<(i32, String)> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut handle = [0_u32; 34];
    handle[0] = 128;
    let mut mount = 0_i32;
    // SAFETY: the handle has room for 128 bytes behind its two fields, as it says, and the path ends in a zero byte.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            handle.as_mut_ptr(),
            &raw mut mount,
            0,
        )
    };
    let length = handle[0] as usize;
    (result == 0 && length <= 128).then(|| {
        let bytes = handle[2..].iter().flat_map(|word| word.to_ne_bytes()).take(length);
        let mut hex = String::new();
        for byte in bytes {
            let _ = write!(hex, "{byte:02x}");
        }
        (handle[1].cast_signed(), hex)
    })
}
