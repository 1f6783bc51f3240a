//! Sizes, faces and words.

use std::{fs, io};

use cocoonbox_house_tests::{code_lines, library_crates, root, rust_files, tracked_files};

#[test]
fn every_binary_stays_under_500_lines() -> io::Result<()> {
    for entry in fs::read_dir(root().join("bins"))? {
        let folder = entry?.path();
        let mut lines = 0;
        for file in rust_files(&folder)? {
            lines += fs::read_to_string(file)?.lines().count();
        }
        assert!(lines > 0, "{} holds no Rust", folder.display());
        assert!(
            lines < 500,
            "{} holds {lines} lines of Rust: binaries only wire libraries",
            folder.display()
        );
    }
    Ok(())
}

#[test]
fn no_rust_file_is_over_800_lines() -> io::Result<()> {
    for file in rust_files(&root())? {
        let lines = fs::read_to_string(&file)?.lines().count();
        assert!(lines <= 800, "{} has {lines} lines: there are two nouns inside", file.display());
    }
    Ok(())
}

#[test]
fn every_library_crate_is_its_readme() -> io::Result<()> {
    for folder in library_crates()? {
        let readme = fs::read_to_string(folder.join("README.md"))?;
        assert!(readme.starts_with("# cocoonbox-"), "{}/README.md has no title", folder.display());
        let face = fs::read_to_string(folder.join("src/lib.rs"))?;
        assert!(
            face.contains("#![doc = include_str!(\"../README.md\")]"),
            "{}/src/lib.rs does not show its README",
            folder.display()
        );
    }
    Ok(())
}

#[test]
fn lib_rs_holds_no_logic() -> io::Result<()> {
    for folder in library_crates()? {
        let file = folder.join("src/lib.rs");
        let source = fs::read_to_string(&file)?;
        for line in code_lines(&source) {
            let starts = |word: &str| line.text.trim_start().starts_with(word);
            let logic =
                ["fn ", "pub fn ", "pub(crate) fn ", "struct ", "pub struct ", "impl", "pub enum ", "enum "];
            assert!(
                !logic.iter().any(|word| starts(word)),
                "{}:{} belongs into a module",
                file.display(),
                line.number
            );
        }
    }
    Ok(())
}

/// Where a library may do what only `serve` modules do, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("cocoonbox-core/src/clock.rs", "the system's clock itself"),
    (
        "cocoonbox-sandbox/src/probe/cgroup.rs",
        "a probe waits for this machine's kernel, whatever a caller's clock says",
    ),
    (
        "cocoonbox-sandbox/src/probe/child.rs",
        "a probe waits for this machine's kernel, whatever a caller's clock says",
    ),
];

#[test]
fn libraries_print_exit_spawn_sleep_and_look_around_in_serve_modules_alone() -> io::Result<()> {
    let never = [
        "println!",
        "eprintln!",
        "print!(",
        "eprint!(",
        "dbg!(",
        "process::exit(",
        "todo!(",
        "unimplemented!(",
    ];
    let serve_only = [
        "tokio::spawn(",
        "task::spawn",
        "thread::spawn(",
        "time::sleep(",
        "thread::sleep(",
        "Instant::now(",
        "SystemTime::now(",
        "OffsetDateTime::now",
        "Utc::now(",
        "env::var",
    ];
    let mut wrong = Vec::new();
    for folder in library_crates()? {
        for file in rust_files(&folder.join("src"))? {
            let name = file.strip_prefix(root()).unwrap_or(&file).to_string_lossy().into_owned();
            let serve = name.split(['/', '.']).any(|part| part == "serve" || part.starts_with("serve_"));
            let tests = name.split(['/', '.']).any(|part| matches!(part, "tests" | "testkit" | "test"));
            let excepted = EXCEPTIONS.iter().any(|(path, _)| *path == name);
            let source = fs::read_to_string(&file)?;
            for line in code_lines(&source) {
                let holds = |words: &[&str]| words.iter().any(|word| line.text.contains(word));
                let lax = serve || tests || excepted;
                if (!tests && holds(&never)) || (!lax && holds(&serve_only)) {
                    wrong.push(format!("{name}:{}: {}", line.number, line.text.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "not here:\n{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn no_file_is_a_package_or_a_program_of_somebody_elses() -> io::Result<()> {
    // what is third party comes from a registry; what is ours is text, and none of it is that long
    const LONGEST: u64 = 1 << 20;
    for file in tracked_files()? {
        let length = fs::metadata(&file)?.len();
        assert!(length <= LONGEST, "{} has {length} bytes", file.display());
    }
    Ok(())
}

#[test]
fn no_file_names_the_machine_it_was_written_on() -> io::Result<()> {
    // split, so that this file does not name them
    let words = [
        ["/work", "/main"],
        ["/work", "/shared"],
        ["/work", "/.library"],
        ["shared", "/design/"],
        ["shared", "/contracts/"],
        ["/tmp/", "bash_jobs"],
        ["/tmp/", "brief"],
        ["/root/", ".cargo"],
    ]
    .map(|halves| halves.concat());
    for file in tracked_files()? {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for word in &words {
            assert!(!text.contains(word.as_str()), "{} names {word}", file.display());
        }
    }
    Ok(())
}

#[test]
fn every_script_is_executable_and_stops_at_the_first_failure() -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    for file in tracked_files()? {
        let name = file.strip_prefix(root()).unwrap_or(&file).to_string_lossy().into_owned();
        let script = name == ".ci/run" || file.extension().is_some_and(|extension| extension == "sh");
        if !script || name == "scripts/lib.sh" {
            continue;
        }
        assert!(fs::metadata(&file)?.permissions().mode() & 0o111 != 0, "{name} is not executable");
        let text = fs::read_to_string(&file)?;
        assert!(text.starts_with("#!/"), "{name} does not say what runs it");
        assert!(text.contains("set -eu"), "{name} goes on after a failure");
    }
    Ok(())
}
