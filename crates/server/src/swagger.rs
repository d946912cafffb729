//! The document that describes the service, and the page that shows it. Both are open: they say nothing about anybody's objects.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use utoipa::openapi::OpenApi;
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED;

use crate::Refusal;

const PAGE: &str = r##"<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Terrane</title><link rel="stylesheet" href="/swagger/swagger-ui.css"></head>
<body><div id="ui"></div>
<script src="/swagger/swagger-ui-bundle.js"></script><script src="/swagger/terrane.js"></script></body>
</html>
"##;

/// A page with a session tells the word by which its requests are known as its own.
const SCRIPT: &str = r##"let csrf = null;
fetch("/api/v1/session").then((answer) => (answer.ok ? answer.json() : {})).then((session) => { csrf = session.csrf; });
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#ui",
  deepLinking: true,
  requestInterceptor: (request) => {
    if (csrf && new URL(request.url, location).origin === location.origin) request.headers["x-terrane-csrf"] = csrf;
    return request;
  },
});
"##;

/// What the page may load and where it may send: this service alone. The styles that it sets by itself need the exception.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn router<S: Clone + Send + Sync + 'static>(document: OpenApi) -> Router<S> {
    let document = Arc::new(document);
    Router::new()
        .route(
            "/openapi.json",
            get(move || {
                let document = Arc::clone(&document);
                async move { Json(&*document).into_response() }
            }),
        )
        .route("/swagger", get(async || page("text/html; charset=utf-8", PAGE.as_bytes().to_vec())))
        .route("/swagger/{file}", get(file))
        .route("/", get(async || axum::response::Redirect::temporary("/swagger")))
}

fn page(kind: &'static str, content: Vec<u8>) -> Response {
    let mut response = ([(header::CONTENT_TYPE, kind)], content).into_response();
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

async fn file(Path(name): Path<String>) -> Result<Response, Refusal> {
    const SCRIPTS: &str = "text/javascript; charset=utf-8";
    if name == "terrane.js" {
        return Ok(page(SCRIPTS, SCRIPT.as_bytes().to_vec()));
    }
    let (kind, known) = match name.as_str() {
        "swagger-ui.css" => ("text/css; charset=utf-8", "swagger-ui.css"),
        "swagger-ui-bundle.js" => (SCRIPTS, "swagger-ui-bundle.js"),
        _ => return Err(Refusal::NotFound("there is no such file".to_owned())),
    };
    match files().get(known) {
        Some(content) => Ok(page(kind, content.clone())),
        None => Err(Refusal::NotFound(format!("{known} is not part of this program"))),
    }
}

/// The two files that the page needs, unpacked once.
fn files() -> &'static HashMap<&'static str, Vec<u8>> {
    static FILES: OnceLock<HashMap<&'static str, Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| {
        ["swagger-ui.css", "swagger-ui-bundle.js"]
            .into_iter()
            .filter_map(|name| Some((name, unpack(SWAGGER_UI_VENDORED, &format!("/dist/{name}"))?)))
            .collect()
    })
}

/// One file of a zip archive, found by its directory at the end. None of what is not there or not whole.
fn unpack(archive: &[u8], ending: &str) -> Option<Vec<u8>> {
    const END: &[u8] = b"PK\x05\x06";
    const ENTRY: &[u8] = b"PK\x01\x02";
    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = archive.get(at..at.checked_add(length)?)?;
        Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let end = archive.windows(END.len()).rposition(|window| window == END)?;
    let mut at = number(end + 16, 4)?;
    // O(files of the archive).
    while archive.get(at..at + 4)? == ENTRY {
        let (name, extra, comment) = (number(at + 28, 2)?, number(at + 30, 2)?, number(at + 32, 2)?);
        let is_wanted = archive.get(at + 46..at + 46 + name)?.ends_with(ending.as_bytes());
        // The package's own `dist`, and none of those inside others.
        if is_wanted
            && archive.get(at + 46..at + 46 + name)?.iter().filter(|byte| **byte == b'/').count() == 2
        {
            let (method, packed, size) = (number(at + 10, 2)?, number(at + 20, 4)?, number(at + 24, 4)?);
            let header = number(at + 42, 4)?;
            let begin = header + 30 + number(header + 26, 2)? + number(header + 28, 2)?;
            let content = archive.get(begin..begin + packed)?;
            return match method {
                0 => Some(content.to_vec()),
                8 => miniz_oxide::inflate::decompress_to_vec_with_limit(content, size).ok(),
                _ => None,
            };
        }
        at += 46 + name + extra + comment;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_its_files() {
        for name in ["swagger-ui.css", "swagger-ui-bundle.js"] {
            let content = files().get(name).map_or(&[][..], Vec::as_slice);
            assert!(content.len() > 100_000, "{name}: {} bytes", content.len());
        }
        assert!(PAGE.contains("/swagger/terrane.js") && SCRIPT.contains(crate::person::CSRF_HEADER));
    }

    #[test]
    fn a_damaged_archive_has_no_files() {
        for damaged in [&b""[..], b"PK\x05\x06", SWAGGER_UI_VENDORED.get(..1000).unwrap_or_default()] {
            assert_eq!(unpack(damaged, "/dist/swagger-ui.css"), None);
        }
    }
}
