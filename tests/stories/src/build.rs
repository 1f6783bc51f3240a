use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace is where it was built")
}

/// Returns the folder with the workspace's binaries, built from the sources as they are now.
///
/// # Panics
/// When they do not build.
pub fn binaries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = env::var_os("COCOONBOX_BINARIES") {
            return folder.into();
        }
        // target/debug/deps/story-0123 -> target/debug
        let this = env::current_exe().expect("a test knows its own path");
        let folder = this.ancestors().nth(2).expect("a test lies in a target folder").to_owned();
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--workspace", "--bins"]).current_dir(workspace());
        if folder.file_name().is_some_and(|name| name == "release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo can be started").success(), "the binaries do not build");
        folder
    })
}

/// Returns the guest's binary.
///
/// # Panics
/// When it has not been built.
pub fn agent() -> PathBuf {
    let path = env::var_os("COCOONBOX_AGENT")
        .map_or_else(|| workspace().join("target/agent/cocoonbox-agent"), PathBuf::from);
    assert!(path.is_file(), "{} is not there: run `make agent`", path.display());
    path
}

/// Returns a file of this package.
pub(crate) fn own_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns the folder that `make test-tools` fills.
pub(crate) fn tools() -> PathBuf {
    workspace().join("target/venv/bin")
}
