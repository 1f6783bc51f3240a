//! Looking for lines in files, and replacing in them: blocking.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use regex::{Regex, RegexBuilder};

use crate::file::Replacement;

/// Larger files are passed over.
pub(crate) const MAX_FILE: u64 = 8 * 1024 * 1024;
/// What a pattern may take when it is compiled.
const MAX_PATTERN: usize = 1024 * 1024;
/// How much of a file is looked at to tell text from what is none.
const HEAD: usize = 8 * 1024;
/// The most bytes that a file may have after a replacement.
const MAX_REPLACED: usize = 64 * 1024 * 1024;

/// Reads a pattern.
pub(crate) fn pattern(text: &str) -> io::Result<Regex> {
    RegexBuilder::new(text)
        .size_limit(MAX_PATTERN)
        .dfa_size_limit(MAX_PATTERN)
        .build()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))
}

/// Tells whether a file's name is what `glob` means: `*` stands for any letters, `?` for one.
pub(crate) fn matches(glob: &str, name: &str) -> bool {
    let (glob, name): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
    let (mut at, mut of) = (0, 0);
    // where the last star stands, and how far it has stretched
    let mut star: Option<(usize, usize)> = None;
    while of < name.len() {
        match glob.get(at) {
            Some('*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(letter) if *letter == '?' || *letter == name[of] => {
                at += 1;
                of += 1;
            }
            _ => match &mut star {
                Some((place, stretched)) => {
                    *stretched += 1;
                    at = *place + 1;
                    of = *stretched;
                }
                None => return false,
            },
        }
    }
    glob[at..].iter().all(|letter| *letter == '*')
}

/// A line that matches.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) file: PathBuf,
    pub(crate) line: u64,
    pub(crate) content: String,
}

/// Hands each line below `path` that matches to `tell`, until it breaks off. No link is followed below `path`.
pub(crate) fn find(
    path: &Path,
    pattern: &Regex,
    glob: Option<&str>,
    mut tell: impl FnMut(Found) -> ControlFlow<()>,
) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let mut left = vec![(path.to_owned(), found.is_dir())];
    while let Some((path, is_directory)) = left.pop() {
        if is_directory {
            // what vanishes or is closed to us is passed over
            let Ok(entries) = fs::read_dir(&path) else { continue };
            let mut below: Vec<_> = entries
                .flatten()
                .filter_map(|entry| Some((entry.path(), entry.file_type().ok()?)))
                .filter(|(_, kind)| kind.is_dir() || kind.is_file())
                .map(|(path, kind)| (path, kind.is_dir()))
                .collect();
            below.sort_by(|one, other| other.cmp(one));
            left.extend(below);
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if glob.is_some_and(|glob| !matches(glob, &name)) {
            continue;
        }
        let Some(text) = read_text(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            if pattern.is_match(line) {
                let found = Found { file: path.clone(), line: number as u64 + 1, content: line.to_owned() };
                if tell(found).is_break() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let mut file = crate::file::open(path).ok()?;
    if file.metadata().ok()?.len() > MAX_FILE {
        return None;
    }
    Read::by_ref(&mut file).take(MAX_FILE + 1).read_to_end(&mut bytes).ok()?;
    let binary = bytes.len() as u64 > MAX_FILE || bytes[..bytes.len().min(HEAD)].contains(&0);
    (!binary).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Replaces what matches in one file, as one step, and returns how often.
pub(crate) fn replace(path: &Path, pattern: &Regex, replacement: &str) -> io::Result<u64> {
    let file: File = crate::file::open(path)?;
    if file.metadata()?.len() > MAX_FILE {
        return Ok(0);
    }
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text)?;
    let mut replaced = String::new();
    let (mut count, mut kept) = (0, 0);
    for captures in pattern.captures_iter(&text) {
        let Some(whole) = captures.get(0) else { continue };
        replaced.push_str(&text[kept..whole.start()]);
        captures.expand(replacement, &mut replaced);
        kept = whole.end();
        count += 1;
        if replaced.len() > MAX_REPLACED {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file would grow too large"));
        }
    }
    replaced.push_str(&text[kept..]);
    if count > 0 {
        let mut new = Replacement::begin(path, None)?;
        new.write(replaced.as_bytes())?;
        new.commit()?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

    #[test]
    fn a_glob_is_anchored_and_knows_two_letters() {
        for (glob, name, expected) in [
            ("*.rs", "a.rs", true),
            ("*.rs", "a.rsx", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", "", true),
            ("", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("ä*", "äö", true),
            ("[a]", "a", false),
            ("**", "x", true),
        ] {
            assert_eq!(matches(glob, name), expected, "{glob} {name}");
        }
        assert!(!matches(&"a*".repeat(2000), &"a".repeat(1000)), "it is quick, too");
    }

    #[test]
    fn lines_are_found_in_text_and_links_are_left_alone() -> Result {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep"))?;
        fs::write(at("deep/a.txt"), "one\ntwo\nthree")?;
        fs::write(at("b.txt"), "two\r\n")?;
        fs::write(at("c.bin"), "two\0")?;
        fs::write(at("d.md"), "two")?;
        std::os::unix::fs::symlink("/etc", at("link"))?;
        let mut all = Vec::new();
        find(folder.path(), &pattern("^two")?, Some("*.txt"), |found| {
            all.push((found.file, found.line, found.content));
            ControlFlow::Continue(())
        })?;
        assert_eq!(all, [(at("b.txt"), 1, "two".to_owned()), (at("deep/a.txt"), 2, "two".to_owned())]);
        let mut count = 0;
        find(folder.path(), &pattern(".")?, None, |_| {
            count += 1;
            ControlFlow::Break(())
        })?;
        assert_eq!(count, 1);
        for bad in ["(", "a{1000}{1000}{1000}"] {
            assert!(pattern(bad).is_err(), "{bad}");
        }
        Ok(())
    }

    #[test]
    fn a_replacement_counts_and_keeps_the_rest() -> Result {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("f");
        fs::write(&path, "one two one")?;
        assert_eq!(replace(&path, &pattern("o(n)e")?, "<$1>")?, 2);
        assert_eq!(fs::read_to_string(&path)?, "<n> two <n>");
        assert_eq!(replace(&path, &pattern("three")?, "")?, 0);
        fs::write(&path, [0xff, b'a'])?;
        assert!(replace(&path, &pattern("a")?, "b").is_err());
        assert_eq!(fs::read(&path)?, [0xff, b'a']);
        Ok(())
    }
}
