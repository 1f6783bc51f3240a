/// One line of code, without its comments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLine<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// Its text up to a `//` that starts the line.
    pub text: &'a str,
}

/// Returns a library file's lines that are code: no comment lines, and nothing from the `#[cfg(test)]` that opens the
/// tests at the bottom of a file.
pub fn code_lines(source: &str) -> impl Iterator<Item = CodeLine<'_>> {
    source
        .lines()
        .enumerate()
        .take_while(|(_, line)| line.trim_end() != "#[cfg(test)]")
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(index, text)| CodeLine { number: index + 1, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_tests_are_not_code() {
        let source = "//! doc\nfn a() {}\n    // why\nfn b() {}\n#[cfg(test)]\nmod tests {}\n";
        let found: Vec<_> = code_lines(source).map(|line| (line.number, line.text)).collect();
        assert_eq!(found, [(2, "fn a() {}"), (4, "fn b() {}")]);
    }
}
