//! The routes.

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{any, get};

use crate::asset::{self, Asset};
use crate::encoding::{has, takes_gzip};
use crate::policy::harden;

/// The paths of the pages. The browser shows the right one; the server answers each with the same file.
pub const PAGES: [&str; 7] =
    ["/cb/", "/cb/oauth/authorize", "/cb/agents", "/cb/devices", "/cb/tokens", "/cb/users", "/cb/account"];

/// The browser asks again each time: the page names the files of this build.
const NEVER: &str = "no-store";
/// The names of these files hold a hash of what is in them.
const FOREVER: &str = "public, max-age=31536000, immutable";

const NOT_BUILT: &str = "This build of cocoonbox has no console. Run `make console`, then build again.\n";

/// Returns the routes of the pages: `/`, the [`PAGES`], their files, and 404 for the rest of `/cb/`.
///
/// # Behavior
/// - Every answer carries the headers that the README lists, the 404 too.
/// - Where the pages were not built, each page answers 503 and says how to build them.
/// - A router that has routes under `/cb/api/` can be merged with this one: its routes are the nearer ones.
pub fn pages() -> Router {
    routes(asset::BUILT)
}

fn routes(assets: &'static [Asset]) -> Router {
    let mut router = Router::new()
        .route("/", get(|| async { Redirect::to("/cb/") }))
        .route("/cb", get(|| async { Redirect::to("/cb/") }))
        .route("/cb/assets/{*name}", get(move |name, headers| file(assets, name, headers)))
        .route("/cb/{*rest}", any(nothing_here));
    for path in PAGES {
        router = router.route(path, get(async move || page(assets)));
    }
    router.layer(map_response(harden))
}

fn page(assets: &[Asset]) -> Response {
    match asset::index(assets) {
        Some(index) => {
            let headers = [(CONTENT_TYPE, index.content_type()), (CACHE_CONTROL, NEVER)];
            (headers, index.bytes).into_response()
        }
        None => plain(StatusCode::SERVICE_UNAVAILABLE, NOT_BUILT),
    }
}

async fn file(assets: &[Asset], Path(name): Path<String>, asked: HeaderMap) -> Response {
    match asset::find(assets, &format!("assets/{name}")) {
        Some(asset) => send(asset, &asked),
        None => nothing_here().await,
    }
}

async fn nothing_here() -> Response {
    plain(StatusCode::NOT_FOUND, "There is nothing here.\n")
}

/// Sends a file in the form that is asked for. Each form has a tag of its own: what is kept of one is not the other.
fn send(asset: Asset, asked: &HeaderMap) -> Response {
    let gzip = asset.gzip.filter(|_| takes_gzip(asked));
    let form = if gzip.is_some() { ";gzip" } else { "" };
    let tag = format!("\"{}{form}\"", asset.name);
    let known = has(asked, &tag);
    let mut answer = ([(CACHE_CONTROL, FOREVER), (ETAG, tag.as_str())], ()).into_response();
    let headers = answer.headers_mut();
    if asset.gzip.is_some() {
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    if known {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        return answer;
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type()));
    if gzip.is_some() {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    *answer.body_mut() = Body::from(gzip.unwrap_or(asset.bytes));
    answer
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, NEVER)];
    (status, headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::{Method, Request};
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    const BUILT: &[Asset] = &[
        Asset { name: "assets/index-1a2b.css", bytes: b"main {}", gzip: None },
        Asset { name: "assets/index-1a2b.js", bytes: b"start()", gzip: Some(b"squeezed") },
        Asset { name: "index.html", bytes: b"<!doctype html>", gzip: None },
    ];

    struct Answer {
        status: u16,
        headers: HeaderMap,
        body: String,
    }

    impl Answer {
        fn header(&self, name: &str) -> &str {
            self.headers.get(name).map_or("", |value| value.to_str().expect("headers are text"))
        }
    }

    async fn ask(router: Router, method: Method, path: &str) -> Answer {
        ask_with(router, method, path, &[]).await
    }

    async fn ask_with(router: Router, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        let answer = router.oneshot(request).await.expect("routers do not fail");
        let (head, body) = answer.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    async fn get(router: Router, path: &str) -> Answer {
        ask(router, Method::GET, path).await
    }

    #[tokio::test]
    async fn every_page_is_the_same_file_and_is_never_stored() {
        for path in PAGES {
            for with_query in [path.to_owned(), format!("{path}?client_id=a&state=b")] {
                let answer = get(routes(BUILT), &with_query).await;
                assert_eq!((answer.status, answer.body.as_str()), (200, "<!doctype html>"), "{with_query}");
                assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
                assert_eq!(answer.header("cache-control"), "no-store");
            }
        }
    }

    #[tokio::test]
    async fn files_are_kept_for_good_and_have_their_type() {
        let script = get(routes(BUILT), "/cb/assets/index-1a2b.js").await;
        assert_eq!((script.status, script.body.as_str()), (200, "start()"));
        assert_eq!(script.header("content-type"), "text/javascript; charset=utf-8");
        assert_eq!(script.header("cache-control"), "public, max-age=31536000, immutable");
        let style = get(routes(BUILT), "/cb/assets/index-1a2b.css").await;
        assert_eq!((style.status, style.header("content-type")), (200, "text/css; charset=utf-8"));
    }

    #[tokio::test]
    async fn a_file_is_sent_compressed_to_whoever_takes_that() {
        let script = "/cb/assets/index-1a2b.js";
        let get = async |path, encoding| {
            ask_with(routes(BUILT), Method::GET, path, &[("accept-encoding", encoding)]).await
        };
        for (encoding, sent, named) in
            [("gzip, br", "squeezed", "gzip"), ("br", "start()", ""), ("gzip;q=0", "start()", "")]
        {
            let answer = get(script, encoding).await;
            assert_eq!((answer.status, answer.body.as_str()), (200, sent), "{encoding}");
            assert_eq!(answer.header("content-encoding"), named, "{encoding}");
            assert_eq!(answer.header("content-length"), sent.len().to_string(), "{encoding}");
            assert_eq!(answer.header("content-type"), "text/javascript; charset=utf-8", "{encoding}");
            assert_eq!(answer.header("vary"), "accept-encoding", "{encoding}");
            assert!(answer.header("content-security-policy").contains("script-src 'self'"), "{encoding}");
        }
        // there is one form of these
        for path in ["/cb/assets/index-1a2b.css", "/cb/"] {
            let answer = get(path, "gzip").await;
            assert_eq!(
                (answer.status, answer.header("content-encoding"), answer.header("vary")),
                (200, "", ""),
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn what_a_browser_has_already_is_not_sent_again() {
        let script = "/cb/assets/index-1a2b.js";
        let plain = get(routes(BUILT), script).await;
        let gzip = [("accept-encoding", "gzip")];
        let gzip = ask_with(routes(BUILT), Method::GET, script, &gzip).await;
        assert!(!plain.header("etag").is_empty() && plain.header("etag") != gzip.header("etag"));
        for (tag, encoding, status) in [
            (plain.header("etag"), "identity", 304),
            (gzip.header("etag"), "gzip", 304),
            // the other form is kept: that is not what would be sent
            (plain.header("etag"), "gzip", 200),
            (gzip.header("etag"), "identity", 200),
            ("\"assets/index-0.js\"", "identity", 200),
        ] {
            let headers = [("if-none-match", tag), ("accept-encoding", encoding)];
            let answer = ask_with(routes(BUILT), Method::GET, script, &headers).await;
            assert_eq!((answer.status, answer.body.is_empty()), (status, status == 304), "{tag} {encoding}");
            assert_eq!(answer.header("vary"), "accept-encoding", "{tag} {encoding}");
            assert_eq!(answer.header("cache-control"), FOREVER, "{tag} {encoding}");
            assert!(
                !answer.header("etag").is_empty() && !answer.header("content-security-policy").is_empty()
            );
        }
    }

    #[tokio::test]
    async fn head_tells_what_get_would_send_and_sends_nothing() {
        for path in ["/cb/assets/index-1a2b.js", "/cb/assets/index-1a2b.css", "/cb/"] {
            for headers in [&[("accept-encoding", "gzip")][..], &[]] {
                let head = ask_with(routes(BUILT), Method::HEAD, path, headers).await;
                let get = ask_with(routes(BUILT), Method::GET, path, headers).await;
                assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
                assert_eq!(head.headers, get.headers, "{path}");
                assert_eq!(head.header("content-length"), get.body.len().to_string(), "{path}");
            }
        }
    }

    #[tokio::test]
    async fn the_root_leads_to_the_console() {
        for path in ["/", "/cb"] {
            let answer = get(routes(BUILT), path).await;
            assert_eq!((answer.status, answer.header("location")), (303, "/cb/"), "{path}");
        }
    }

    #[tokio::test]
    async fn the_rest_is_not_there() {
        let absent = [
            "/cb/agents/",
            "/cb/assets/",
            "/cb/assets/index.html",
            "/cb/assets/../index.html",
            "/cb/assets/%2e%2e/index.html",
            "/cb/index.html",
            "/cb/oauth",
            "/cb/api/me",
        ];
        for path in absent {
            let answer = get(routes(BUILT), path).await;
            assert_eq!(answer.status, 404, "{path}");
            assert_eq!(answer.header("cache-control"), "no-store", "{path}");
        }
        assert_eq!(ask(routes(BUILT), Method::POST, "/cb/agents").await.status, 405);
    }

    #[tokio::test]
    async fn every_answer_carries_the_policy() {
        let policy = [
            (
                "content-security-policy",
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                 font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            ),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("x-frame-options", "DENY"),
        ];
        for assets in [BUILT, &[]] {
            for path in ["/", "/cb/", "/cb/oauth/authorize?a=b", "/cb/assets/index-1a2b.js", "/cb/absent"] {
                let answer = get(routes(assets), path).await;
                for (name, value) in policy {
                    assert_eq!(answer.header(name), value, "{path}");
                }
                let permissions = answer.header("permissions-policy");
                assert!(permissions.contains("camera=()"), "{permissions}");
                assert!(permissions.split(", ").all(|feature| feature.ends_with("=()")), "{permissions}");
            }
        }
    }

    #[tokio::test]
    async fn a_build_without_the_pages_says_how_to_build_them() {
        for path in PAGES {
            let answer = get(routes(&[]), path).await;
            assert_eq!(answer.status, 503, "{path}");
            assert!(answer.body.contains("make console"), "{}", answer.body);
        }
        assert_eq!(get(routes(&[]), "/").await.status, 303);
        assert_eq!(get(routes(&[]), "/cb/assets/index-1a2b.js").await.status, 404);
    }

    #[tokio::test]
    async fn the_api_is_not_shadowed() {
        let api = || {
            Router::new()
                .route("/cb/api/me", axum::routing::get(async || "me"))
                .route("/cb/api/{*rest}", any(async || (StatusCode::NOT_FOUND, "no such call")))
        };
        for merged in [routes(BUILT).merge(api()), api().merge(routes(BUILT))] {
            let me = get(merged.clone(), "/cb/api/me").await;
            assert_eq!((me.status, me.body.as_str()), (200, "me"));
            assert!(me.header("content-security-policy").is_empty(), "the policy is of the pages alone");
            let absent = get(merged.clone(), "/cb/api/absent").await;
            assert_eq!((absent.status, absent.body.as_str()), (404, "no such call"));
            assert_eq!(get(merged, "/cb/").await.body, "<!doctype html>");
        }
    }
}
