//! Where a token must not be.

use std::fs;
use std::path::Path;

use cocoonbox_stories::{Server, processes};

/// Returns the files under `folder` whose content holds `secret`.
fn holders(folder: &Path, secret: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        let Ok(entries) = fs::read_dir(&next) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else if path.is_file()
                && fs::read(&path)
                    .is_ok_and(|bytes| bytes.windows(secret.len()).any(|window| window == secret))
            {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_token_is_in_its_two_files_and_nowhere_else() {
    let server = Server::start();
    let token = server.token();
    server.cli(&["box", "ensure"]).ok();
    let working =
        server.command(server.program()).args(["rsh", "--box", "main", "--", "sleep", "60"]).spawn();
    let mut working = working.expect("the command line can be started");
    server.sh("true");

    for process in processes() {
        assert!(
            !process.command_line.contains(&token),
            "the token is in the arguments of process {}",
            process.id
        );
    }
    assert!(!server.log().contains(&token), "the server printed the token");

    // inside: environment, arguments and every file of the box
    let secret = token.trim_start_matches("cb_");
    let search = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; \
                  find / -xdev -type f -readable -newer /proc/1 -size -2M -not -path '/proc/*' -exec cat {} + 2>/dev/null; \
                  cat /run/cocoonbox-identity/* 2>/dev/null";
    let inside = server.rsh(&["sh", "-c", search]);
    let text = String::from_utf8_lossy(&inside.stdout).into_owned();
    assert!(text.contains("public_key"), "the search found nothing at all: {inside:?}");
    assert!(!text.contains(secret), "the token is in the box");

    // on the machine: the data directory, the database and the box's files in it
    let mut expected = vec![server.data().join("admin-token.txt"), server.settings().join("cli.json")]
        .into_iter()
        .map(|path| path.to_string_lossy().into_owned())
        .collect::<Vec<_>>();
    expected.sort();
    let mut found = holders(&server.data(), secret.as_bytes());
    found.extend(holders(&server.settings(), secret.as_bytes()));
    found.sort();
    assert!(found.iter().all(|path| expected.contains(path)), "the token is in {found:?}");
    assert!(found.contains(&expected[0]), "the search found nothing at all");
    working.kill().expect("own child");
    drop(working.wait());
}

#[test]
fn a_box_sees_nothing_of_the_machine_beyond_its_image() {
    let server = Server::start();
    server.cli(&["box", "ensure"]).ok();
    let canary = server.scratch().join("canary");
    fs::write(&canary, "canary").expect("own folder");
    for path in [canary.as_path(), &server.data(), &server.settings(), Path::new("/etc/shadow")] {
        let run = server.rsh(&["ls", "-d", &path.to_string_lossy()]);
        assert_ne!(run.code, Some(0), "{} is visible inside", path.display());
    }
    assert_eq!(server.sh("ls -A /root 2>/dev/null; ls -A /home; ls /etc/passwd"), "user\n/etc/passwd");
    let ours = server.id().to_string();
    let seen = server.sh("ls /proc | grep -c '^[0-9]'; cat /proc/*/cmdline | tr '\\0' ' '");
    assert!(!seen.contains("cocoonbox up"), "the server {ours} is visible inside: {seen}");
}
