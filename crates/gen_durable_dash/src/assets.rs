//! Serves the HTML, JavaScript and CSS files of the dashboard, which are embedded in the program.

use axum::{
    extract::{OriginalUri, Path, State},
    http::{HeaderValue, StatusCode, Uri, header},
    response::{Html, IntoResponse, Redirect, Response},
};
use ring::digest::{SHA256, digest};

use crate::{problem::no_such_page, shared::Shared};

macro_rules! assets {
    ($($name:literal $kind:ident),* $(,)?) => {
        &[$(($name, AssetKind::$kind, include_str!(concat!("../assets/", $name)))),*]
    };
}

#[derive(Debug, Clone, Copy)]
enum AssetKind {
    Script,
    Style,
    Image,
}

/// The embedded files of the dashboard by name. The server compares a requested name with this list
/// and never uses the name as a file path.
static ASSETS: &[(&str, AssetKind, &str)] = assets![
    "app.js" Script,
    "api.js" Script,
    "bars.js" Script,
    "chart.js" Script,
    "graph.js" Script,
    "live.js" Script,
    "parts.js" Script,
    "rollups.js" Script,
    "route.js" Script,
    "text.js" Script,
    "view.js" Script,
    "zone.js" Script,
    "pages/bulk.js" Script,
    "pages/acts.js" Script,
    "pages/audit.js" Script,
    "pages/failures.js" Script,
    "pages/instance.js" Script,
    "pages/instances.js" Script,
    "pages/lanes.js" Script,
    "pages/limits.js" Script,
    "pages/machines.js" Script,
    "pages/overview.js" Script,
    "pages/projections.js" Script,
    "pages/queues.js" Script,
    "pages/schedules.js" Script,
    "pages/timers.js" Script,
    "pages/workers.js" Script,
    "vendor/preact-htm.js" Script,
    "style.css" Style,
    "pages.css" Style,
    "lanes.css" Style,
    "icon.svg" Image,
];

static INDEX: &str = include_str!("../assets/index.html");
static LOGIN: &str = include_str!("../assets/login.html");

/// Returns the total size of the embedded HTML page and of all other embedded files, in bytes.
#[cfg(test)]
pub(crate) fn total_bytes() -> usize {
    INDEX.len() + ASSETS.iter().map(|(_, _, text)| text.len()).sum::<usize>()
}

/// Serves the HTML page of the dashboard.
pub(crate) async fn index(OriginalUri(uri): OriginalUri) -> Response {
    redirect_to_slash(&uri).unwrap_or_else(|| Html(INDEX).into_response())
}

/// Redirects a path without a slash at its end, because the relative links of a page would
/// otherwise resolve outside the prefix under which the host program mounts the dashboard.
pub(crate) fn redirect_to_slash(uri: &Uri) -> Option<Response> {
    let path = uri.path();
    (!path.ends_with('/')).then(|| Redirect::permanent(&format!("{path}/")).into_response())
}

pub(crate) async fn asset(State(_): State<Shared>, Path(name): Path<String>) -> Response {
    let Some((_, kind, text)) = ASSETS.iter().find(|(known, _, _)| *known == name) else {
        return no_such_page().await.into_response();
    };
    let kind = match kind {
        AssetKind::Script => "text/javascript; charset=utf-8",
        AssetKind::Style => "text/css; charset=utf-8",
        AssetKind::Image => "image/svg+xml",
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        // The browser must revalidate an embedded file on every load, because a page of a new build
        // of the dashboard must not run cached scripts of an old build.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, *text).into_response()
}

/// Returns the sign-in page. The page refers to no other file, because the server returns no files
/// to unauthenticated browsers. The style and the script of the page are inline, and the content
/// security policy allows them by their hashes.
pub(crate) fn login_page(status: StatusCode, said: Option<&str>) -> Response {
    let page = LOGIN.replace("<!--said-->", said.unwrap_or_default());
    let inside = |begin: &str, end: &str| {
        let rest = page.split_once(begin).map(|(_, rest)| rest);
        let text = rest.and_then(|rest| rest.split_once(end));
        let text = text.map_or("", |(text, _)| text);
        base64(digest(&SHA256, text.as_bytes()).as_ref())
    };
    let (style, script) = (
        inside("<style>", "</style>"),
        inside("<script>", "</script>"),
    );
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    );
    let mut answer = (status, Html(page)).into_response();
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        answer
            .headers_mut()
            .insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: u32| {
        ALPHABET
            .get((bits & 63) as usize)
            .copied()
            .map_or('=', char::from)
    };
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or_default());
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        text.push(digit(bits >> 18));
        text.push(digit(bits >> 12));
        text.push(if three.len() > 1 {
            digit(bits >> 6)
        } else {
            '='
        });
        text.push(if three.len() > 2 { digit(bits) } else { '=' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_encodes_one_to_four_bytes_with_the_standard_padding() {
        assert_eq!(
            [&b"f"[..], b"fo", b"foo", b"foob"].map(base64),
            ["Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }

    #[test]
    fn all_assets_of_the_dashboard_together_are_below_220_kb_uncompressed() {
        assert!(total_bytes() < 220_000, "{} bytes", total_bytes());
    }
}
