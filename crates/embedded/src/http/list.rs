//! Lists: which revision, which objects, which page, and the answer put together from stored bytes without parsing them.

use std::sync::Arc;

use axum::response::Response;
use base64::Engine;
use bytes::{BufMut, BytesMut};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::negotiate::{Encoding, Shape};
use super::request::{ListOptions, RevisionMatch, Verb};
use super::selector::Selector;
use super::serve::Call;
use super::status::{Result, Status, json_response};
use super::{Api, respond, table, view};
use crate::store::{Key, Snapshot, Stored};

const ENCODING: base64::engine::GeneralPurpose = base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// What a continue token says, in kube-apiserver's own form.
#[derive(Debug, Serialize, Deserialize)]
struct Token {
    #[serde(rename = "v", default)]
    version: String,
    #[serde(rename = "rv", default)]
    revision: i64,
    #[serde(default)]
    start: String,
}

/// One page.
pub struct Page {
    pub snapshot: Snapshot,
    pub objects: Vec<Arc<Stored>>,
    pub token: Option<String>,
    pub remaining: Option<usize>,
}

pub fn serve(api: &Api, call: &Call, options: &ListOptions) -> Result<Response> {
    let selector = Selector::parse(&call.kind, &options.labels, &options.fields)?;
    answer(call, &page(api, call, options, &selector)?)
}

/// A page in the form that the client accepts.
pub fn answer(call: &Call, page: &Page) -> Result<Response> {
    match (call.accept.shape, call.accept.encoding) {
        (Shape::Whole, Encoding::Json) => Ok(concatenated(call, page)),
        (Shape::Whole, _) => {
            let items: Vec<Value> =
                page.objects.iter().map(|object| view::value(&call.kind, object)).collect();
            let list = json!({"kind": &*call.kind.list_kind, "apiVersion": &*call.kind.api_version, "metadata": metadata(call, page), "items": items});
            respond::encoded(call.accept, StatusCode::OK, &list)
        }
        (Shape::Metadata, _) => {
            let items: Vec<Value> =
                page.objects.iter().map(|object| view::partial(&view::value(&call.kind, object))).collect();
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata(call, page), "items": items});
            respond::encoded(call.accept, StatusCode::OK, &list)
        }
        (Shape::Table(include), _) => {
            let now = jiff::Timestamp::now();
            let rows = page
                .objects
                .iter()
                .map(|object| table::row(&call.kind, &view::value(&call.kind, object), include, now))
                .collect();
            respond::encoded(
                call.accept,
                StatusCode::OK,
                &table::whole(&call.kind, rows, metadata(call, page)),
            )
        }
    }
}

/// O(page) where nothing is selected, O(objects that have the value) where a selected field has an index, O(objects from the page's start) else.
pub fn page(api: &Api, call: &Call, options: &ListOptions, selector: &Selector) -> Result<Page> {
    let asked = options.revision_number(Verb::List)?;
    let (snapshot, after) = if options.token.is_empty() {
        (first_snapshot(api, call, options, asked)?, None)
    } else {
        if !options.revision.is_empty() && options.revision != "0" {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let (snapshot, (namespace, name)) = continued(api, &options.token)?;
        // Within one namespace a token names only what lies in it.
        let namespace = call.namespace().map_or(namespace, str::to_owned);
        (snapshot, Some((namespace, name)))
    };
    let namespace =
        call.namespace().map(str::to_owned).or_else(|| selector.single_namespace().map(str::to_owned));
    let namespace = namespace.filter(|_| call.kind.is_namespaced());
    let limit = options.limit.unwrap_or(usize::MAX);
    let mut objects = Vec::with_capacity(limit.min(1024));
    let mut more = false;
    if let (Some(name), Some(namespace)) =
        (selector.single_name(), namespace.as_deref().or_else(|| (!call.kind.is_namespaced()).then_some("")))
    {
        let key = Key::new(call.kind.collection.clone(), namespace, name);
        objects.extend(snapshot.get(&key).filter(|object| selector.matches(object)));
    } else {
        let from =
            after.as_ref().map(|(namespace, name): &(String, String)| (namespace.as_str(), name.as_str()));
        let (collection, namespace) = (&call.kind.collection, namespace.as_deref());
        let indexed =
            selector.wanted_values().find_map(|term| snapshot.list_by(collection, term, namespace, from));
        let all = indexed.is_none().then(|| snapshot.list(collection, namespace, from));
        for object in indexed.into_iter().flatten().chain(all.into_iter().flatten()) {
            if !selector.is_empty() && !selector.matches(&object) {
                continue;
            }
            if objects.len() == limit {
                more = true;
                break;
            }
            objects.push(object);
        }
    }
    let mut page = Page { objects, token: None, remaining: None, snapshot };
    if let (true, Some(last)) = (more, page.objects.last()) {
        let in_namespace = call.namespace().is_some() || !call.kind.is_namespaced();
        let start = if in_namespace {
            format!("{}\0", last.key.name)
        } else {
            format!("{}/{}\0", last.key.namespace, last.key.name)
        };
        page.token = Some(token(page.snapshot.revision(), start));
        if selector.is_empty() {
            let behind = Some((&*last.key.namespace, &*last.key.name));
            let remaining = match after {
                None => page
                    .snapshot
                    .count(&call.kind.collection, namespace.as_deref())
                    .saturating_sub(page.objects.len()),
                Some(_) => page.snapshot.list(&call.kind.collection, namespace.as_deref(), behind).count(),
            };
            page.remaining = Some(remaining);
        }
        api.store.keep_for_paging(&page.snapshot);
    }
    Ok(page)
}

fn first_snapshot(api: &Api, call: &Call, options: &ListOptions, asked: u64) -> Result<Snapshot> {
    let newest = call.snapshot.clone();
    // With a limit and no word on matching, a revision means exactly that one.
    let exact = options.matching == RevisionMatch::Exact
        || (options.matching == RevisionMatch::Unset && options.limit.is_some() && asked > 0);
    if asked > newest.revision() {
        return Err(Status::revision_too_large(asked, newest.revision()));
    }
    if !exact || asked == newest.revision() {
        return Ok(newest);
    }
    api.store
        .snapshot_at(asked)
        .ok_or_else(|| Status::expired("The resourceVersion for the provided list is too old."))
}

fn token(revision: u64, start: String) -> String {
    let token = Token {
        version: "meta.k8s.io/v1".to_owned(),
        revision: i64::try_from(revision).unwrap_or(i64::MAX),
        start,
    };
    ENCODING.encode(serde_json::to_vec(&token).unwrap_or_default())
}

/// The snapshot and the place that a token stands for. It is not trusted: whatever it says, it only ever names a place in this collection.
fn continued(api: &Api, token: &str) -> Result<(Snapshot, (String, String))> {
    let invalid =
        |why: &str| Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
    let bytes = ENCODING.decode(token).map_err(|error| {
        let at = match error {
            base64::DecodeError::InvalidByte(at, _)
            | base64::DecodeError::InvalidLastSymbol(at, _)
            | base64::DecodeError::InvalidLength(at) => at,
            base64::DecodeError::InvalidPadding => token.len(),
        };
        invalid(&format!("illegal base64 data at input byte {at}"))
    })?;
    let read: Token = serde_json::from_slice(&bytes).map_err(|error| {
        let first = String::from_utf8_lossy(&bytes).chars().next();
        match first {
            Some(letter) if letter != '{' => {
                invalid(&format!("invalid character {} looking for beginning of value", go_quoted(letter)))
            }
            _ => invalid(&error.to_string()),
        }
    })?;
    if read.version != "meta.k8s.io/v1" {
        return Err(invalid(&format!("server does not recognize this encoded version {}", read.version)));
    }
    if read.revision == 0 {
        return Err(invalid("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
    }
    if read.start.is_empty() {
        return Err(invalid("encoded start key empty (version meta.k8s.io/v1)"));
    }
    let start = read.start.trim_start_matches('/');
    if start.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err(invalid(&read.start));
    }
    let (namespace, name) = start.split_once('/').unwrap_or(("", start));
    let name = name.strip_suffix('\0').unwrap_or(name);
    let expired = || {
        Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
        )
    };
    // A negative revision asks for the newest state, from where an expired token left off.
    let snapshot = match u64::try_from(read.revision) {
        Ok(revision) => api.store.snapshot_at(revision).ok_or_else(expired)?,
        Err(_) => api.store.snapshot(),
    };
    Ok((snapshot, (namespace.to_owned(), name.to_owned())))
}

fn go_quoted(letter: char) -> String {
    match letter {
        '\'' => r"'\''".to_owned(),
        '\u{fffd}' => "'ï'".to_owned(),
        letter => format!("'{}'", letter.escape_default()),
    }
}

fn metadata(call: &Call, page: &Page) -> Value {
    let mut metadata = json!({"resourceVersion": page.snapshot.revision().to_string()});
    // Lists of custom resources show the token also where there is none.
    let whole = call.accept.shape == Shape::Whole;
    if let (None, true, None, Some(fields)) =
        (call.kind.builtin(), whole, &page.token, metadata.as_object_mut())
    {
        fields.insert("continue".to_owned(), "".into());
    }
    if let (Some(token), Some(fields)) = (&page.token, metadata.as_object_mut()) {
        fields.insert("continue".to_owned(), token.as_str().into());
        if let Some(remaining) = page.remaining {
            fields.insert("remainingItemCount".to_owned(), remaining.into());
        }
    }
    metadata
}

/// The whole list as bytes, copied once.
fn concatenated(call: &Call, page: &Page) -> Response {
    let size: usize = page.objects.iter().map(|object| object.size() + 16).sum();
    let mut out = BytesMut::with_capacity(size + 512);
    let head = json!({"kind": &*call.kind.list_kind, "apiVersion": &*call.kind.api_version, "metadata": metadata(call, page)}).to_string();
    out.put_slice(head.strip_suffix('}').unwrap_or(&head).as_bytes());
    out.put_slice(b",\"items\":[");
    for (index, object) in page.objects.iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        let bytes = view::bytes(&call.kind, object);
        let (open, rest) = respond::list_item(&call.kind, &bytes);
        out.put_slice(open);
        out.put_slice(rest);
    }
    out.put_slice(b"]}\n");
    json_response(StatusCode::OK, out.freeze())
}
