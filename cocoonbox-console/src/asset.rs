//! The built pages, as the build found them.

/// One file of the built pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asset {
    /// Its path under `web/dist`, with `/` between the parts.
    pub(crate) name: &'static str,
    /// What is in it.
    pub(crate) bytes: &'static [u8],
    /// The same, compressed, where that is worth it.
    pub(crate) gzip: Option<&'static [u8]>,
}

/// Every file that the build found, sorted by name; none where the pages were not built.
pub(crate) const BUILT: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The page that every route of the console answers with.
const INDEX: &str = "index.html";

/// Returns whether this build holds the pages; without them every page answers 503.
pub fn is_built() -> bool {
    index(BUILT).is_some()
}

/// Returns the one page among `assets`.
pub(crate) fn index(assets: &[Asset]) -> Option<Asset> {
    find(assets, INDEX)
}

/// Returns the file called `name`.
pub(crate) fn find(assets: &[Asset], name: &str) -> Option<Asset> {
    assets.iter().find(|asset| asset.name == name).copied()
}

impl Asset {
    /// Returns the content type that its name stands for. A browser that is told not to guess runs nothing that came
    /// with the wrong one.
    pub(crate) fn content_type(&self) -> &'static str {
        match self.name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("html") => "text/html; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            Some("png") => "image/png",
            Some("json") => "application/json",
            Some("txt") => "text/plain; charset=utf-8",
            Some("woff2") => "font/woff2",
            _ => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_its_content_type() {
        let types = [
            ("index.html", "text/html; charset=utf-8"),
            ("assets/index-1a2b.js", "text/javascript; charset=utf-8"),
            ("assets/index-1a2b.css", "text/css; charset=utf-8"),
            ("assets/icon.svg", "image/svg+xml"),
            ("assets/no-extension", "application/octet-stream"),
        ];
        for (name, expected) in types {
            assert_eq!(Asset { name, bytes: b"", gzip: None }.content_type(), expected, "{name}");
        }
    }

    #[test]
    fn what_the_pages_build_compressed_is_taken_in_beside_its_file() {
        // nothing to look at where the pages were not built
        let Some(script) = BUILT.iter().find(|asset| asset.name.rsplit('.').next() == Some("js")) else {
            return;
        };
        let gzip = script.gzip.expect("a script is worth it");
        assert!(gzip.starts_with(&[0x1f, 0x8b]) && gzip.len() < script.bytes.len() / 2, "{}", gzip.len());
        assert!(
            BUILT.iter().all(|asset| asset.name.rsplit('.').next() != Some("gz")),
            "it is no file by itself"
        );
    }

    #[test]
    fn the_built_page_loads_its_own_files_alone_and_holds_no_script_or_style() {
        // nothing to look at where the pages were not built
        let Some(page) = index(BUILT) else { return };
        let text = std::str::from_utf8(page.bytes).expect("the page is UTF-8");
        let loaded: Vec<&str> =
            text.split(['"', '\'']).filter(|word| word.starts_with('/') || word.contains("://")).collect();
        assert!(loaded.iter().any(|path| path.rsplit('.').next() == Some("js")), "{text}");
        for path in loaded {
            let name = path.strip_prefix("/cb/").unwrap_or_else(|| panic!("{path} is not of the console"));
            assert!(find(BUILT, name).is_some(), "{path} was not built");
        }
        for part in text.split("<script").skip(1) {
            let (head, rest) = part.split_once('>').expect("a tag ends");
            assert!(head.contains("src=") && rest.starts_with("</script>"), "a script in the page: {part}");
        }
        assert!(!text.contains("<style") && !text.contains("style="), "a style in the page: {text}");
    }
}
