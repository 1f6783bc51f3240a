use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;

use super::OwnerMap;
use crate::tree::Attribute;

const VALUE_MAX: usize = 64 << 10;
const USER: u16 = 0x02;
const GROUP: u16 = 0x08;

/// Names an entry of an open folder as a path whose last part alone is looked up.
pub(crate) fn proc_path(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<CString> {
    let mut path = format!("/proc/self/fd/{}/", folder.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    Ok(CString::new(path)?)
}

/// Maps the owners in an access list; nothing when one is outside the mapping.
fn map_list(value: &mut [u8], map: impl Fn(u32) -> Option<u32>) -> Option<()> {
    let (_, entries) = value.split_at_mut_checked(4)?;
    for entry in entries.chunks_exact_mut(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        if tag == USER || tag == GROUP {
            let owner = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&map(owner)?.to_le_bytes());
        }
    }
    Some(())
}

fn collect(
    owners: &OwnerMap,
    left_out: &mut u64,
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    value: impl Fn(&CStr, &mut [u8]) -> Result<usize, Errno>,
) -> io::Result<Box<[Attribute]>> {
    let mut names = [0; 1024];
    let mut large;
    let names: &[u8] = match list(&mut names) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Box::default()),
        Ok(length) => &names[..length],
        Err(Errno::RANGE) => {
            large = vec![0; VALUE_MAX];
            let length = list(&mut large)?;
            &large[..length]
        }
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    let mut buffer = Vec::new();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let bytes = name.to_bytes();
        let list = bytes.starts_with(b"system.posix_acl_");
        if !list && !bytes.starts_with(b"user.") {
            *left_out += 1;
            continue;
        }
        buffer.resize(VALUE_MAX, 0);
        let length = match value(name, &mut buffer) {
            Ok(length) => length,
            // removed meanwhile
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(error.into()),
        };
        let mut value: Box<[u8]> = buffer[..length].into();
        let mapped = |owner| Some(owners.to_guest(owner)).filter(|(_, known)| *known).map(|(owner, _)| owner);
        if list && map_list(&mut value, mapped).is_none() {
            *left_out += 1;
            continue;
        }
        found.push(Attribute { name: bytes.into(), value });
    }
    found.sort();
    Ok(found.into())
}

/// Reads an open file's attributes that are kept; others are counted.
pub(crate) fn attributes_of(
    file: &OwnedFd,
    owners: &OwnerMap,
    left_out: &mut u64,
) -> io::Result<Box<[Attribute]>> {
    collect(owners, left_out, |names| flistxattr(file, names), |name, value| fgetxattr(file, name, value))
}

/// Reads the attributes of an entry that is not opened: a folder or a pipe.
pub(crate) fn attributes_at(
    folder: BorrowedFd<'_>,
    name: &[u8],
    owners: &OwnerMap,
    left_out: &mut u64,
) -> io::Result<Box<[Attribute]>> {
    let path = proc_path(folder, name)?;
    collect(
        owners,
        left_out,
        |names| llistxattr(path.as_c_str(), names),
        |name, value| lgetxattr(path.as_c_str(), name, value),
    )
}

/// Sets attributes of an entry.
pub(crate) fn set_attributes(
    folder: BorrowedFd<'_>,
    name: &[u8],
    owners: &OwnerMap,
    attributes: &[Attribute],
) -> io::Result<()> {
    if attributes.is_empty() {
        return Ok(());
    }
    let path = proc_path(folder, name)?;
    for attribute in attributes {
        let mut value = attribute.value.clone();
        if attribute.name.starts_with(b"system.")
            && map_list(&mut value, |owner| owners.to_host(owner)).is_none()
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        lsetxattr(path.as_c_str(), &*attribute.name, &value, XattrFlags::empty())?;
    }
    Ok(())
}
