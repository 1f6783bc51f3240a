//! Images: what of a root file system a box gets to see.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cocoonbox_core::ImageName;

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

/// Those of them that are links, and where they lead.
pub(super) const OWN_ETC_LINKS: [(&str, &str); 2] =
    [("machine-id", "/run/cocoonbox-identity/machine-id"), ("mtab", "/proc/self/mounts")];

/// Those of them that hold its host name.
pub(super) const NAMED: [&str; 2] = ["hostname", "hosts"];

/// One thing of an image in a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Seen read-only from this path of the host.
    Bind(PathBuf),
    /// A symbolic link with this target.
    Link(Vec<u8>),
}

/// How a box sees an image's `/etc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Etc<'a> {
    /// By a copy, which is no part, and these entries over it.
    Copy(&'a [PathBuf]),
    /// Entry by entry.
    Entries,
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
pub(super) fn parts(source: &Source, seen: &Path, etc: Etc<'_>) -> io::Result<BTreeMap<PathBuf, Part>> {
    let mut parts = BTreeMap::new();
    match source {
        Source::Host => {
            for name in ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
                let _ = add(&mut parts, Path::new("/"), Path::new("/"), Path::new(name));
            }
        }
        Source::Rootfs(rootfs) => {
            for (directory, except) in [("", OWN), ("opt", &["cocoonbox"]), ("var", &["tmp", "run", "lock"])]
            {
                for name in names(&rootfs.join(directory), except)? {
                    add(&mut parts, rootfs, seen, &Path::new(directory).join(name))?;
                }
            }
        }
    }
    let (root, seen) = match source {
        Source::Host => (Path::new("/"), Path::new("/")),
        Source::Rootfs(rootfs) => (rootfs.as_path(), seen),
    };
    match etc {
        Etc::Copy(mounted) => {
            for path in mounted {
                add(&mut parts, root, seen, &Path::new("etc").join(path))?;
            }
        }
        Etc::Entries => {
            for name in etc_names(source)? {
                let added = add(&mut parts, root, seen, &Path::new("etc").join(name));
                // the host has not all that is on the list
                if *source != Source::Host {
                    added?;
                }
            }
        }
    }
    Ok(parts)
}

/// Lists the entries of an image's `/etc` that a box may see.
pub(super) fn etc_names(source: &Source) -> io::Result<Vec<OsString>> {
    match source {
        Source::Host => Ok(HOST_ETC.iter().map(OsString::from).collect()),
        Source::Rootfs(rootfs) => names(&rootfs.join("etc"), OWN_ETC),
    }
}

fn names(directory: &Path, except: &[&str]) -> io::Result<Vec<OsString>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    names
        .filter(|name| !name.as_ref().is_ok_and(|name| except.iter().any(|except| name == *except)))
        .collect()
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
        let parts = parts(&Source::Host, Path::new("/"), Etc::Entries)?;
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
        let without = parts(&source, Path::new("/seen"), Etc::Copy(&[PathBuf::from("apt")]))?;
        let names: Vec<_> = without.keys().filter_map(|path| path.to_str()).collect();
        assert_eq!(names, ["/bin", "/etc/apt", "/opt/tool", "/srv", "/usr"]);
        let parts = parts(&source, Path::new("/seen"), Etc::Entries)?;
        let names: Vec<_> = parts.keys().filter_map(|path| path.to_str()).collect();
        assert_eq!(names, ["/bin", "/etc/apt", "/etc/issue", "/opt/tool", "/srv", "/usr"]);
        assert_eq!(parts[Path::new("/usr")], Part::Bind("/seen/usr".into()));
        assert_eq!(parts[Path::new("/bin")], Part::Link(b"usr/bin".to_vec()));
        Ok(())
    }
}
