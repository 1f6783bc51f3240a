//! The edge and the command line beside an agent that was replaced.

use std::fs;
use std::thread;

use cocoonbox_stories::output;

use super::{Outcome, attacker, hostile_server, is_plain};

/// Ways to speak HTTP/2 as no agent does.
const WAYS: [&str; 18] = [
    "closed",
    "garbage",
    "http1",
    "silent",
    "settings",
    "pings",
    "continuation",
    "headers",
    "data",
    "message",
    "words",
    "status",
    "elsewhere",
    "reset",
    "away",
    "html",
    "nothing",
    "tar-noise",
];

/// The most memory that a server may have used while all of them lied to it at once: half a GiB, where lies that were kept
/// would be many.
const MOST_MEMORY_KIB: u64 = 512 * 1024;

#[test]
fn an_agent_that_was_replaced_gets_a_typed_error_and_others_are_served() -> Outcome {
    let server = hostile_server()?;
    server.cli(&["box", "create", "good"]).ok();
    let server = &server;
    let lied_to = thread::scope(|scope| {
        let calls: Vec<_> = WAYS
            .iter()
            .map(|how| {
                scope.spawn(move || {
                    let name = format!("h2-{how}");
                    server.cli(&["box", "create", &name]).ok();
                    (how, server.cli(&["rsh", "--box", &name, "--", "true"]))
                })
            })
            .collect();
        let mut served = 0;
        while calls.iter().any(|call| !call.is_finished()) {
            let fine = server.cli(&["rsh", "--box", "good", "--", "echo", "fine"]);
            assert_eq!(fine.ok(), "fine");
            served += 1;
        }
        assert!(served > 0, "nobody else was served meanwhile");
        calls.into_iter().map(|call| call.join().expect("a call")).collect::<Vec<_>>()
    });
    for (how, run) in lied_to {
        // the archive's noise is output as good as any other
        if *how == "tar-noise" {
            assert_eq!(run.code, Some(0), "{how}: {run:?}");
            continue;
        }
        assert_eq!(run.code, Some(255), "{how}: {run:?}");
        assert!(run.stderr.starts_with("error: ") || run.stderr.contains("\nerror: "), "{how}: {run:?}");
        assert!(run.stderr.len() < 4096, "{how}: {} bytes", run.stderr.len());
        is_plain(how, &run.stderr);
        if *how == "words" {
            assert!(run.stderr.contains("owned"), "what the agent said is not told: {run:?}");
        }
    }
    let listed = server.cli(&["box", "ls"]).ok();
    is_plain("box ls", &listed);
    let status = fs::read_to_string(format!("/proc/{}/status", server.id()))?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no such line")?;
    let most: u64 = most.trim().trim_end_matches(" kB").parse()?;
    assert!(most < MOST_MEMORY_KIB, "the server took {most} KiB");
    Ok(())
}

#[test]
fn nothing_that_a_box_says_acts_on_a_terminal_but_its_own_output() -> Outcome {
    const OWNED: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m";
    let server = hostile_server()?;
    // the control: what a program in a box prints is passed on as it is
    server.cli(&["box", "create", "good"]).ok();
    let raw = server.cli(&["rsh", "--box", "good", "--", "printf", "%s", OWNED]);
    assert_eq!(raw.ok(), OWNED);

    // a first process that says it on the way down; an agent that says it as a status; tar in the box, as an error
    let mut runs = vec![("a start", server.cli(&["box", "create", "start-words"]))];
    server.cli(&["box", "create", "h2-words"]).ok();
    runs.push(("rsh", server.cli(&["rsh", "--box", "h2-words", "--", "true"])));
    runs.push(("cp", server.cli(&["cp", "h2-words:/tmp/x", "."])));
    let named = format!("good:/tmp/{OWNED}");
    runs.push(("a path", server.cli(&["cp", &named, "."])));
    runs.push(("a name", server.cli(&["box", "create", OWNED])));
    runs.push(("a name shown", server.cli(&["box", "show", OWNED])));
    for words in [&["box", "ls"][..], &["box", "show", "start-words"], &["--json", "box", "ls"]] {
        runs.push(("a list", server.cli(words)));
    }
    for (what, run) in &runs {
        is_plain(what, &run.stderr);
        is_plain(what, &String::from_utf8_lossy(&run.stdout));
    }
    let told = runs.iter().filter(|(_, run)| run.stderr.contains("owned")).count();
    assert!(told >= 3, "what was said is not told at all: {runs:?}");
    assert!(runs.iter().take(6).all(|(_, run)| run.code != Some(0)), "{runs:?}");
    Ok(())
}

/// Archives, and whether an unpacker that trusts them changes what is outside.
const ARCHIVES: [(&str, bool); 11] = [
    ("link", true),
    ("parent", true),
    ("absolute", true),
    ("hard", true),
    ("hard-parent", true),
    ("swap", false),
    ("root", true),
    ("other", false),
    ("mode", false),
    ("kinds", false),
    ("long", false),
];

#[test]
fn an_archive_from_a_box_stays_in_its_folder() -> Outcome {
    const TRUSTING: &str = "import sys, tarfile\n\
        t = tarfile.open(fileobj=sys.stdin.buffer, mode='r|')\n\
        t.extraction_filter = lambda member, path: member\n\
        t.extractall('.')\n";
    let server = hostile_server()?;
    let folder = tempfile::tempdir()?;
    let outside = |at: &std::path::Path| -> Result<Vec<(String, String)>, std::io::Error> {
        let mut found = Vec::new();
        for entry in fs::read_dir(at.join("outside"))? {
            let entry = entry?;
            let text = fs::read_to_string(entry.path())?;
            found.push((entry.file_name().to_string_lossy().into_owned(), text));
        }
        found.sort();
        Ok(found)
    };
    let untouched = vec![("kept".to_owned(), "kept".to_owned())];
    let server = &server;
    let results = thread::scope(|scope| {
        let runs: Vec<_> = ARCHIVES
            .iter()
            .map(|(name, _)| {
                let folder = folder.path().join(name);
                scope.spawn(move || -> std::io::Result<_> {
                    for place in ["ours/into", "ours/outside", "trusting/into", "trusting/outside"] {
                        fs::create_dir_all(folder.join(place))?;
                    }
                    for place in ["ours", "trusting"] {
                        fs::write(folder.join(place).join("outside/kept"), "kept")?;
                    }
                    let archive = output(std::process::Command::new(attacker()).args(["archive", name]), b"");
                    let mut trusting = std::process::Command::new("python3");
                    trusting.args(["-c", TRUSTING]).current_dir(folder.join("trusting/into"));
                    output(&mut trusting, &archive.stdout);
                    let named = format!("h2-tar-{name}");
                    server.cli(&["box", "create", &named]).ok();
                    let from = format!("{named}:/home/user/loot");
                    let into = folder.join("ours/into");
                    Ok(server.cli(&["cp", &from, &into.display().to_string()]))
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().expect("a copy")).collect::<Vec<_>>()
    });
    for ((name, leaves), run) in ARCHIVES.iter().zip(results) {
        let (run, at) = (run?, folder.path().join(name));
        assert_eq!(outside(&at.join("ours"))?, untouched, "{name}: {run:?}");
        is_plain(name, &run.stderr);
        // the control: whoever trusts the same bytes is left
        assert_eq!(outside(&at.join("trusting"))? != untouched, *leaves, "{name} proves nothing");
        let into = at.join("ours/into/loot");
        match *name {
            "mode" => {
                let mode = |place: &str| -> std::io::Result<u32> {
                    let file = at.join(place).join("into/loot/mode");
                    Ok(std::os::unix::fs::MetadataExt::mode(&fs::symlink_metadata(file)?) & 0o7777)
                };
                assert_eq!((mode("ours")?, mode("trusting")?), (0o777, 0o6777));
            }
            "kinds" => {
                assert_eq!(run.code, Some(0), "{run:?}");
                assert!(
                    into.join("plain").is_file()
                        && !into.join("pipe").exists()
                        && !into.join("device").exists()
                );
            }
            // refused by name, or led nowhere
            _ => assert_ne!(run.code, Some(0), "{name}: {run:?}"),
        }
    }
    Ok(())
}
