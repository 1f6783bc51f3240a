//! The claim's variables as a host file: systemd's `EnvironmentFile` syntax, one `NAME="value"` a line.
//!
//! In double quotes `\`, `"`, `` ` `` and `$` stand behind a backslash; a value has no line ends.

/// The file's name among the host's files in the guest.
pub const FILE: &str = "silkd.env";

/// The most bytes of the file that are read.
pub const MAX_BYTES: usize = 64 * 1024;

/// Returns the file that holds `variables`, in their order.
pub fn render<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut text = String::new();
    for (name, value) in variables {
        text.push_str(name);
        text.push_str("=\"");
        for letter in value.chars() {
            if matches!(letter, '\\' | '"' | '`' | '$') {
                text.push('\\');
            }
            text.push(letter);
        }
        text.push_str("\"\n");
    }
    text.into_bytes()
}

/// Reads the variables of a file. Lines that set none, or not in the way that [`render`] writes, are passed over.
pub fn parse(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_BYTES)]);
    text.lines().filter_map(variable).collect()
}

fn variable(line: &str) -> Option<(String, String)> {
    let (name, quoted) = line.split_once('=')?;
    let mut letters = name.bytes();
    let named = letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
    let mut rest = quoted.strip_prefix('"')?.chars();
    let mut value = String::new();
    loop {
        match rest.next()? {
            '"' => break,
            '\\' => value.push(rest.next().filter(|letter| *letter != '\0')?),
            '\0' => return None,
            letter => value.push(letter),
        }
    }
    (named && rest.as_str().trim().is_empty()).then(|| (name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_variable_is_passed_over() {
        let text = b"A=\"1\"\n\n# B=\"2\"\nC=3\nD=\"4\" \n1E=\"5\"\nF=\"6\nG=\"7\" x\n=\"8\"\nH=\"\\$\\\\\"\n\xff\nI=\"\"";
        let expected = [("A", "1"), ("D", "4"), ("H", "$\\"), ("I", "")];
        assert_eq!(parse(text), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(parse(&vec![b'A'; MAX_BYTES * 2]), []);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            variables in proptest::collection::vec(("[A-Za-z_][A-Za-z0-9_]{0,9}", "[^\\p{Cc}]{0,40}"), 0..8),
        ) {
            let file = render(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            prop_assert_eq!(parse(&file), variables);
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
