//! What is printed: tables, times, errors; text from a server loses its terminal escapes first.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::json;
use time::OffsetDateTime;
use time::macros::format_description;

use super::CliError;

/// Returns text from outside with everything taken out that a terminal could act on.
///
/// Control characters become `\xNN` or `\u{NNNN}`, bidirectional overrides too; a line break becomes a space.
pub fn plain(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\t' => clean.push(' '),
            letter if letter.is_control() => {
                let _ = write!(clean, "\\x{:02x}", u32::from(letter));
            }
            letter if acts(letter) => {
                let _ = write!(clean, "{}", letter.escape_unicode());
            }
            letter => clean.push(letter),
        }
    }
    clean
}

/// Returns a JSON value as a line of text that no terminal acts on: what it could act on stands as `\uNNNN`.
pub(super) fn json_line(value: &serde_json::Value) -> String {
    let mut line = String::new();
    for letter in value.to_string().chars() {
        if acts(letter) {
            // all of these lie in the first plane, and none outside of a JSON string
            let _ = write!(line, "\\u{:04x}", u32::from(letter));
        } else {
            line.push(letter);
        }
    }
    line
}

/// Whether a terminal acts on a letter: a control, or a turn of the direction of writing.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes an error with its causes and, when there is one, the next step; as one JSON line when asked.
///
/// # Errors
/// As the stream's.
pub fn report(
    stderr: &mut dyn Write,
    error: &(dyn Error + 'static),
    kind: &str,
    hint: Option<&str>,
    as_json: bool,
) -> io::Result<()> {
    let mut causes = Vec::new();
    let mut next = error.source();
    // a chain is short; the bound is for one that bites its tail
    while let (Some(cause), true) = (next, causes.len() < 16) {
        let text = plain(&cause.to_string());
        if causes.last() != Some(&text) {
            causes.push(text);
        }
        next = cause.source();
    }
    let message = plain(&error.to_string());
    if as_json {
        let value = json!({ "error": { "kind": kind, "message": message, "causes": causes, "hint": hint } });
        return writeln!(stderr, "{}", json_line(&value));
    }
    writeln!(stderr, "error: {message}")?;
    for cause in causes {
        writeln!(stderr, "  caused by: {cause}")?;
    }
    if let Some(hint) = hint {
        writeln!(stderr, "hint: {hint}")?;
    }
    Ok(())
}

/// Writes a verb's error.
pub(super) fn report_verb(stderr: &mut dyn Write, error: &CliError, as_json: bool) -> io::Result<()> {
    report(stderr, error, error.kind(), error.hint().as_deref(), as_json)
}

/// Writes rows as columns that line up; nothing follows the last column.
pub(super) fn table(out: &mut dyn Write, rows: &[Vec<String>]) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ", width = *width);
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Returns a time as RFC 3339 in whole seconds, UTC; `-` for never.
pub(super) fn time(millis: i64) -> String {
    if millis == 0 {
        return "-".to_owned();
    }
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    OffsetDateTime::from_unix_timestamp(millis.div_euclid(1000))
        .ok()
        .and_then(|time| time.format(format).ok())
        .unwrap_or_else(|| "?".to_owned())
}

/// Returns a count of bytes for people.
/// As [`bytes`], of a count from a server, which is never less than nothing.
pub(super) fn size(count: i64) -> String {
    bytes(count.max(0).unsigned_abs())
}

pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut whole, mut rest, mut unit) = (count / 1024, count % 1024, 0);
    while whole >= 1024 && unit + 1 < UNITS.len() {
        rest = whole % 1024;
        whole /= 1024;
        unit += 1;
    }
    format!("{whole}.{} {}", rest * 10 / 1024, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_sees_no_escape_from_outside() {
        for (text, clean) in [
            ("main", "main"),
            ("\u{1b}[2Jgone", "\\x1b[2Jgone"),
            ("\u{9b}31m", "\\x9b31m"),
            ("a\r\nb\tc", "a\\x0d b c"),
            ("\u{1b}]0;title\u{7}", "\\x1b]0;title\\x07"),
            ("exe\u{202e}txt", "exe\\u{202e}txt"),
            ("grüße", "grüße"),
        ] {
            assert_eq!(plain(text), clean);
            assert!(!plain(text).chars().any(char::is_control));
        }
    }

    #[test]
    fn a_line_of_json_says_the_same_and_has_no_escape() -> Result<(), serde_json::Error> {
        let value = json!({ "a\u{9b}": "b\u{7f}\u{1b}\u{202e}\n\"ü😀" });
        let line = json_line(&value);
        assert_eq!(line, "{\"a\\u009b\":\"b\\u007f\\u001b\\u202e\\n\\\"ü😀\"}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line)?, value);
        Ok(())
    }

    #[test]
    fn a_column_is_as_wide_as_its_widest_cell() -> io::Result<()> {
        let mut out = Vec::new();
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        table(&mut out, &[row(["NAME", "STATE", "X"]), row(["a-long-name", "ok", ""])])?;
        assert_eq!(String::from_utf8_lossy(&out), "NAME         STATE  X\na-long-name  ok\n");
        Ok(())
    }

    #[test]
    fn counts_and_times_read_well() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_600_000, "1.5 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(time(0), "-");
        assert_eq!(time(1_700_000_000_999), "2023-11-14T22:13:20Z");
        assert_eq!(time(i64::MAX), "?");
    }

    #[test]
    fn an_error_is_told_with_its_causes() -> io::Result<()> {
        let error = CliError::io("x\u{1b}", io::Error::other("deep\u{7}"));
        let mut out = Vec::new();
        report(&mut out, &error, "failed", Some("do this"), false)?;
        report(&mut out, &error, "failed", None, true)?;
        assert_eq!(
            String::from_utf8_lossy(&out),
            "error: x\\x1b\n  caused by: deep\\x07\nhint: do this\n\
             {\"error\":{\"causes\":[\"deep\\\\x07\"],\"hint\":null,\"kind\":\"failed\",\"message\":\"x\\\\x1b\"}}\n"
        );
        Ok(())
    }
}
