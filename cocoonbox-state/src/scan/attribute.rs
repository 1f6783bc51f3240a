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

/// Maps the owners in an access list; returns how many entries it takes out, whose owner is outside the mapping.
///
/// What is left stays a list: without one, the rights that its mask allows would become those of the file's group.
fn map_list(value: &mut Vec<u8>, map: impl Fn(u32) -> Option<u32>) -> u64 {
    let mut mapped = value[..value.len().min(4)].to_vec();
    let mut left_out = 0;
    for entry in value[mapped.len()..].chunks(8) {
        let [tag, tag_high, _, _, owner @ ..] = entry else { continue };
        let tag = u16::from_le_bytes([*tag, *tag_high]);
        let Ok(owner) = <[u8; 4]>::try_from(owner) else { continue };
        if tag != USER && tag != GROUP {
            mapped.extend_from_slice(entry);
        } else if let Some(owner) = map(u32::from_le_bytes(owner)) {
            mapped.extend_from_slice(&entry[..4]);
            mapped.extend_from_slice(&owner.to_le_bytes());
        } else {
            left_out += 1;
        }
    }
    *value = mapped;
    left_out
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
        let mut value = buffer[..length].to_vec();
        if list {
            let mapped =
                |owner| Some(owners.to_guest(owner)).filter(|(_, known)| *known).map(|(owner, _)| owner);
            *left_out += map_list(&mut value, mapped);
        }
        found.push(Attribute { name: bytes.into(), value: value.into() });
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
        let mut value = attribute.value.to_vec();
        if attribute.name.starts_with(b"system.") && map_list(&mut value, |owner| owners.to_host(owner)) > 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        lsetxattr(path.as_c_str(), &*attribute.name, &value, XattrFlags::empty())?;
    }
    Ok(())
}
