//! What the node itself does with files that a guest made: at a start, at a wake, at the end.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use cocoonbox_stories::{Server, eventually};

use super::{Outcome, attacker};

/// A file by name, mode, owner and content.
type Found = (String, u32, u32, Vec<u8>);

/// What lies outside of boxes and must stay as it is.
fn state(path: &Path) -> std::io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let about = entry.metadata()?;
        let bytes = if about.is_file() { fs::read(entry.path())? } else { Vec::new() };
        let name = entry.file_name().to_string_lossy().into_owned();
        found.push((name, about.mode(), about.uid(), bytes));
    }
    found.sort();
    Ok(found)
}

/// Removes as nobody should: by path, through whatever is there.
fn careless(path: &Path) {
    if path.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            careless(&entry.path());
        }
    }
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
}

#[test]
fn what_a_guest_leaves_lying_is_cleared_away_and_nothing_else() -> Outcome {
    let server = Server::start();
    // where programs of boxes would find it too, were it not for their walls
    let outside = tempfile::tempdir()?;
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o777))?;
    fs::write(outside.path().join("kept"), "kept")?;
    fs::create_dir(outside.path().join("folder"))?;
    let before = state(outside.path())?;
    let at = outside.path().display();
    // links to it in every place that the node clears, chmods or walks; a tree that changes under whoever walks it
    let traps = format!(
        "set -e; for d in /tmp /home/user /workspace; do mkdir -p $d/deep/er; ln -sfn {at} $d/link; ln -sfn {at} $d/deep/er/link; \
         ln -sfn {at}/kept $d/deep/file; ln -sfn ../../../../../../../../../../../../..{at} $d/deep/up; mkdir $d/deep/locked; chmod 0 $d/deep/locked; done; \
         rm -f /home/user/.profile; ln -s {at}/kept /home/user/.profile; chmod 0 /home/user /workspace; echo set"
    );
    let racer = format!(
        "cd /workspace 2>/dev/null || cd /tmp; while :; do mkdir -p race/a/b race/b; ln -sfn {at} race/c; mv race/a race/d 2>/dev/null; \
         ln -sfn {at} race/a; rm -f race/a; mv race/d race/a 2>/dev/null; rm -rf race/a; done"
    );
    for turn in 0..3 {
        server.cli(&["box", "ensure"]).ok();
        let race = format!("for i in 1 2 3 4; do ( {racer} ) >/dev/null 2>&1 & done; {traps}");
        assert_eq!(server.sh(&race), "set");
        // stopped and started: its /tmp is cleared and its home opened
        server.cli(&["box", "hibernate", "main", "--to-disk"]).ok();
        assert_eq!(server.sh("ls -A /tmp | wc -l; stat -c %a /home/user"), "0\n700", "turn {turn}");
        assert_eq!(state(outside.path())?, before, "turn {turn}: by a start");
        assert_eq!(
            server.sh(&race
                .replace("/home/user/.profile", "/home/user/.other")
                .replace("mkdir $d/deep/locked;", "mkdir -p $d/deep/locked;")),
            "set"
        );
        // with all of it running
        server.cli(&["box", "rm", "main", "--yes"]).ok();
        assert_eq!(state(outside.path())?, before, "turn {turn}: by the end");
    }
    let trash = server.data();
    eventually("nothing of the boxes is left", || empty(&trash).then_some(()));
    assert_eq!(state(outside.path())?, before);

    // the control: whoever clears the same tree carelessly clears more
    let tree = tempfile::tempdir()?;
    fs::create_dir_all(tree.path().join("deep/er"))?;
    std::os::unix::fs::symlink(outside.path(), tree.path().join("deep/er/link"))?;
    careless(&tree.path().join("deep"));
    assert_ne!(state(outside.path())?, before, "the trap catches nobody");
    Ok(())
}

/// Whether no claim and no part of one is left anywhere below `data`.
fn empty(data: &Path) -> bool {
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("sb_") {
                return false;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    true
}

#[test]
fn a_program_that_a_box_marks_setuid_serves_nobody_on_the_host() -> Outcome {
    use std::process::Command;
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let program = fs::read(attacker())?;
    let planted = server.rsh_with(
        &["sh", "-c", "cat >/home/user/tool && chmod 6755 /home/user/tool && /home/user/tool who && stat -c %a /home/user/tool"],
        &program,
    );
    // inside it is worth nothing: the only user there is its owner
    assert_eq!(planted.ok(), "out: 1000 1000\n6755");
    let mut found = Vec::new();
    let mut folders = vec![server.data()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(_) if entry.file_name() == "tool" => found.push(entry.path()),
                _ => {}
            }
        }
    }
    let [tool] = found.as_slice() else { return Err(format!("{found:?}").into()) };
    // nobody but whoever runs the node gets to it
    let closed = tool.ancestors().skip(1).any(|folder| {
        fs::metadata(folder).is_ok_and(|about| {
            about.mode().trailing_zeros() >= 6
                && about.uid() != fs::metadata(tool).map_or(0, |tool| tool.uid())
        })
    });
    if !nix::unistd::Uid::effective().is_root() {
        // it belongs to whoever runs the node, and so does the closed folder above it
        let mode = fs::metadata(server.data())?.mode();
        assert_eq!(mode & 0o077, 0, "the data directory is open to others: {mode:o}");
        return Ok(());
    }
    assert!(closed, "no folder above {} is closed to its owner", tool.display());
    let owner = fs::metadata(tool)?.uid();
    assert!(owner > 65_536, "it belongs to user {owner} of the host");
    let as_other = |path: &Path| {
        Command::new("setpriv")
            .args(["--reuid", "61236", "--regid", "61236", "--clear-groups", "--"])
            // by a shell: setpriv still has root's rights when it looks for the program
            .args(["sh", "-c", "exec \"$0\" who"])
            .arg(path)
            .output()
    };
    let refused = as_other(tool)?;
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    // the control: the same file in an open place gives its owner's rights away
    let open = tempfile::tempdir()?;
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755))?;
    let copy = open.path().join("tool");
    cocoonbox_stories::copy_program(tool, &copy)?;
    std::os::unix::fs::chown(&copy, Some(owner), Some(owner))?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o6755))?;
    let taken = as_other(&copy)?;
    assert_eq!(String::from_utf8_lossy(&taken.stdout).trim(), format!("out: {owner} {owner}"));
    Ok(())
}
