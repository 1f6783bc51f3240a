//! Which form of a file a browser takes.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT_ENCODING, IF_NONE_MATCH};

/// Returns whether whoever asks takes gzip (RFC 9110, 12.5.3). A weight that is no number is none.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    let (mut named, mut any) = (None, None);
    for part in listed(headers, &ACCEPT_ENCODING) {
        let (coding, rest) = part.split_once(';').unwrap_or((part, ""));
        let weight = rest.trim().strip_prefix(['q', 'Q']).and_then(|rest| rest.trim().strip_prefix('='));
        let weight = if rest.trim().is_empty() { 1.0 } else { weight.map_or(0.0, number) };
        match coding.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => named = Some(weight),
            "*" => any = Some(weight),
            _ => {}
        }
    }
    named.or(any).is_some_and(|weight| weight > 0.0)
}

/// Returns whether whoever asks has what `tag` names already (RFC 9110, 13.1.2).
pub(crate) fn has(headers: &HeaderMap, tag: &str) -> bool {
    listed(headers, &IF_NONE_MATCH)
        .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

fn listed<'a>(
    headers: &'a HeaderMap,
    name: &axum::http::HeaderName,
) -> impl Iterator<Item = &'a str> + use<'a> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok()).flat_map(|value| {
        // our own tags hold no comma
        value.split(',').map(str::trim)
    })
}

fn number(text: &str) -> f32 {
    text.trim().parse().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn gzip_is_taken_where_it_is_named_and_not_refused() {
        let cases = [
            ("", false),
            ("identity", false),
            ("br, zstd", false),
            ("gzip", true),
            ("GZip", true),
            ("x-gzip", true),
            ("gzip, deflate, br", true),
            ("br;q=1.0, gzip ; q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0.000", false),
            ("gzip;q=much", false),
            ("gzip;level=9", false),
            ("*", true),
            ("*;q=0", false),
            ("gzip;q=0, *", false),
            ("*;q=0, gzip", true),
        ];
        for (value, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            assert_eq!(takes_gzip(&headers), expected, "{value:?}");
        }
        assert!(!takes_gzip(&HeaderMap::new()), "whoever says nothing gets the file as it is");
    }

    #[test]
    fn a_tag_is_known_as_it_is_weak_or_among_others() {
        let cases = [
            ("\"a\"", true),
            ("W/\"a\"", true),
            ("\"b\", \"a\"", true),
            ("*", true),
            ("\"b\"", false),
            ("a", false),
        ];
        for (value, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static(value));
            assert_eq!(has(&headers, "\"a\""), expected, "{value:?}");
        }
    }
}
