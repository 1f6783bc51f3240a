//! Images: what of a root file system a box gets to see.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cocoonbox_core::ImageName;
use rustix::fs::{FileType, Mode, OFlags};

/// What of `/etc` the pseudo-image `host` shows, where the machine has it. No accounts, keys or passwords.
const HOST_ETC: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "bindresvport.blacklist",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "manpath.config",
    "maven",
    "mime.types",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
    "wgetrc",
    "xattr.conf",
];

/// Directories at the top of an image that a box has of its own.
const OWN: &[&str] = &[
    "dev",
    "etc",
    "home",
    "lost+found",
    "media",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "var",
    "workspace",
];

/// Files of `/etc` that a box has of its own.
pub(super) const OWN_ETC: &[&str] = &[
    "group",
    "hostname",
    "hosts",
    "machine-id",
    "mtab",
    "nsswitch.conf",
    "passwd",
    "profile",
    "resolv.conf",
];

/// Those of them that hold its host name.
pub(super) const NAMED: [&str; 2] = ["hostname", "hosts"];

/// One thing of an image in a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Seen read-only from this path of the host.
    Bind(PathBuf),
    /// A symbolic link with this target.
    Link(Vec<u8>),
    /// A file with what this descriptor holds.
    Copy(RawFd),
}

/// Where an image's parts come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The machine itself, by an allow-list.
    Host,
    /// An unpacked root file system.
    Rootfs(PathBuf),
}

/// Finds an image; nothing when it is not on this node.
pub(super) fn find(data: &Path, image: &ImageName) -> Option<Source> {
    if *image == ImageName::host() {
        return Some(Source::Host);
    }
    // the grammar of names leaves no way out of the folder, but for names that are dots alone, which start with none
    let (name, version) = image.as_str().split_once(':').unwrap_or((image.as_str(), "latest"));
    let rootfs = data.join("images").join(name).join(version).join("rootfs");
    rootfs.is_dir().then_some(Source::Rootfs(rootfs))
}

/// Lists an image's parts by where a box sees them; `seen` is where a root file system is seen by the launch.
pub(super) fn parts(source: &Source, seen: &Path) -> io::Result<BTreeMap<PathBuf, Part>> {
    let mut parts = BTreeMap::new();
    match source {
        Source::Host => {
            for name in ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
                let _ = add(&mut parts, Path::new("/"), Path::new("/"), Path::new(name));
            }
            for name in HOST_ETC {
                let _ = add(&mut parts, Path::new("/"), Path::new("/"), &Path::new("etc").join(name));
            }
        }
        Source::Rootfs(rootfs) => {
            let mut from = |directory: &str, except: &[&str]| -> io::Result<()> {
                let entries = match fs::read_dir(rootfs.join(directory)) {
                    Ok(entries) => entries,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                    Err(error) => return Err(error),
                };
                for entry in entries {
                    let name = entry?.file_name();
                    if !except.iter().any(|except| name.as_bytes() == except.as_bytes()) {
                        add(&mut parts, rootfs, seen, &Path::new(directory).join(name))?;
                    }
                }
                Ok(())
            };
            from("", OWN)?;
            from("etc", OWN_ETC)?;
            from("opt", &["cocoonbox"])?;
            from("var", &["tmp", "run", "lock"])?;
        }
    }
    Ok(parts)
}

/// Opens a small file that all may read, to be copied into a box: bwrap looks through all mounts for each one that it makes,
/// and a box of the host has dozens of such files. Nothing for what is to be seen in its place.
pub(super) fn open_small(path: &Path) -> Option<OwnedFd> {
    const MOST: u64 = 128 * 1024;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let found = rustix::fs::fstat(&file).ok()?;
    let regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    let all_may_read = Mode::from_raw_mode(found.st_mode).contains(Mode::ROTH);
    (regular && all_may_read && found.st_size as u64 <= MOST).then_some(file)
}

/// Has the small files among the parts of `/etc` copied; they are the host's own, at the paths where they are seen.
pub(super) fn copy_small(parts: &mut BTreeMap<PathBuf, Part>) -> Vec<OwnedFd> {
    let mut files = Vec::new();
    for (path, part) in parts.iter_mut().filter(|(path, _)| path.starts_with("/etc")) {
        if let Part::Bind(source) = part
            && source == path
            && let Some(file) = open_small(source)
        {
            *part = Part::Copy(file.as_raw_fd());
            files.push(file);
        }
    }
    files
}

fn add(parts: &mut BTreeMap<PathBuf, Part>, root: &Path, seen: &Path, name: &Path) -> io::Result<()> {
    let path = root.join(name);
    let kind = fs::symlink_metadata(&path)?.file_type();
    let part = if kind.is_symlink() {
        Part::Link(fs::read_link(&path)?.as_os_str().as_bytes().to_owned())
    } else if kind.is_dir() || kind.is_file() {
        Part::Bind(seen.join(name))
    } else {
        return Ok(());
    };
    parts.insert(Path::new("/").join(name), part);
    Ok(())
}

/// Returns the files of `/etc` that every box has of its own: name and content.
pub(crate) fn own_etc(hostname: &str) -> Vec<(&'static str, String)> {
    vec![
        (
            "passwd",
            "root:x:0:0:root:/root:/usr/sbin/nologin\n\
             user:x:1000:1000:user:/home/user:/bin/bash\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
                .to_owned(),
        ),
        ("group", "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n".to_owned()),
        ("hostname", format!("{hostname}\n")),
        (
            "hosts",
            format!(
                "127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost ip6-loopback\n10.203.0.1 cocoonbox.host\n"
            ),
        ),
        (
            "resolv.conf",
            "# nothing in a box answers names: what may be reached is reached through the proxy at 127.0.0.1:3128\n\
             nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
                .to_owned(),
        ),
        ("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n".to_owned()),
        ("profile", PROFILE.to_owned()),
    ]
}

const PROFILE: &str = r#"# the login shell's start in a box
export PATH="$HOME/.local/bin:/opt/cocoonbox/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
umask 022
if [ -n "${BASH_VERSION-}" ] && [ -n "${PS1-}" ] && [ -r /etc/bash.bashrc ]; then
  . /etc/bash.bashrc
fi
if [ -d /etc/profile.d ]; then
  for part in /etc/profile.d/*.sh; do
    [ -r "$part" ] && . "$part"
  done
  unset part
fi
"#;

/// Returns the files that a new home starts with: name and content.
pub(crate) fn new_home() -> [(&'static str, &'static str); 2] {
    [
        (".profile", "# read by login shells\n[ -n \"$BASH_VERSION\" ] && [ -r ~/.bashrc ] && . ~/.bashrc\n"),
        (
            ".bashrc",
            "# read by interactive shells\ncase $- in *i*) ;; *) return ;; esac\n\
             PS1='\\u@\\h:\\w\\$ '\nHISTCONTROL=ignoreboth\nalias ls='ls --color=auto'\n",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_shows_no_accounts_and_no_keys() -> io::Result<()> {
        let parts = parts(&Source::Host, Path::new("/"))?;
        assert!(parts.contains_key(Path::new("/usr")));
        for hidden in [
            "/etc/shadow",
            "/etc/passwd",
            "/etc/ssh",
            "/etc/ssl/private",
            "/etc/sudoers",
            "/root",
            "/home",
            "/etc",
        ] {
            assert!(!parts.contains_key(Path::new(hidden)), "{hidden}");
        }
        Ok(())
    }

    #[test]
    fn what_not_all_may_read_is_not_copied() -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("file");
        fs::write(&path, "x")?;
        for (mode, copied) in [(0o644, true), (0o640, false), (0o600, false), (0o604, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            assert_eq!(open_small(&path).is_some(), copied, "{mode:o}");
        }
        fs::write(&path, vec![0; 200_000])?;
        assert!(open_small(&path).is_none());
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link"))?;
        assert!(open_small(&folder.path().join("link")).is_none() && open_small(folder.path()).is_none());
        Ok(())
    }

    #[test]
    fn a_root_file_system_is_taken_whole_but_for_what_a_box_owns() -> Result<(), Box<dyn std::error::Error>> {
        let data = tempfile::tempdir()?;
        let rootfs = data.path().join("images/small/1/rootfs");
        for directory in ["usr/bin", "etc/apt", "root", "opt/tool", "srv"] {
            fs::create_dir_all(rootfs.join(directory))?;
        }
        fs::write(rootfs.join("etc/passwd"), "x")?;
        fs::write(rootfs.join("etc/issue"), "x")?;
        std::os::unix::fs::symlink("usr/bin", rootfs.join("bin"))?;
        assert_eq!(find(data.path(), &"small:2".parse()?), None);
        let source = find(data.path(), &"small:1".parse()?).ok_or("the image is there")?;
        let parts = parts(&source, Path::new("/seen"))?;
        let names: Vec<_> = parts.keys().filter_map(|path| path.to_str()).collect();
        assert_eq!(names, ["/bin", "/etc/apt", "/etc/issue", "/opt/tool", "/srv", "/usr"]);
        assert_eq!(parts[Path::new("/usr")], Part::Bind("/seen/usr".into()));
        assert_eq!(parts[Path::new("/bin")], Part::Link(b"usr/bin".to_vec()));
        Ok(())
    }
}
