use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Returns the workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace is where it was built")
}

/// Returns the folders of the library crates, `cocoonbox-*`, sorted.
pub fn library_crates() -> io::Result<Vec<PathBuf>> {
    let mut crates = Vec::new();
    for entry in fs::read_dir(root())? {
        let path = entry?.path();
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cocoonbox-"));
        if ours && path.join("Cargo.toml").is_file() {
            crates.push(path);
        }
    }
    crates.sort();
    Ok(crates)
}

/// Returns every file that belongs to the project, sorted: what git tracks or would track, or, where there is no git
/// repository, everything outside `target`.
pub fn tracked_files() -> io::Result<Vec<PathBuf>> {
    let root = root();
    let listed = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output();
    let mut files = Vec::new();
    match listed {
        Ok(output) if output.status.success() => {
            for name in output.stdout.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
                files.push(root.join(String::from_utf8_lossy(name).as_ref()));
            }
        }
        _ => walk(&root, &mut files)?,
    }
    // a file deleted and not yet committed is still listed
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

/// Returns the project's Rust files under `folder`, sorted.
pub fn rust_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = tracked_files()?;
    files.retain(|path| {
        path.starts_with(folder) && path.extension().is_some_and(|extension| extension == "rs")
    });
    Ok(files)
}

/// Compares `found` with the list at `path`, or writes the list anew when `COCOONBOX_REGENERATE` is set.
///
/// # Panics
/// When they differ, with what is new, what is gone and the command that writes the list.
pub fn compare_with_list(path: &Path, found: &[String], command: &str) {
    if env::var_os("COCOONBOX_REGENERATE").is_some() {
        fs::write(path, found.join("\n") + "\n").expect("the list can be written");
        return;
    }
    let listed = fs::read_to_string(path).unwrap_or_default();
    let listed: Vec<&str> = listed.lines().collect();
    let new: Vec<_> = found.iter().filter(|line| !listed.contains(&line.as_str())).collect();
    let gone: Vec<_> = listed.iter().filter(|line| !found.iter().any(|other| other == *line)).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "{} differs; new: {new:#?}, gone: {gone:#?}; if that is meant, run `{command}`",
        path.display()
    );
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
