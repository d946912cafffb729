//! Content negotiation: which form of which object a client accepts, and in which form it sends one.

use http::{HeaderMap, StatusCode, header};

use super::request::Params;
use super::status::{Result, Status};
use crate::kinds::Kind;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    pub encoding: Encoding,
    pub shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    /// Indented, for people with curl.
    Pretty,
    Yaml,
}

/// What an object is turned into before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Whole,
    /// meta.k8s.io/v1 Table.
    Table(Include),
    /// meta.k8s.io/v1 PartialObjectMetadata, or a list of it.
    Metadata,
}

/// How much of the object a row of a Table carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

/// What kube-apiserver says it reads and writes. Protobuf we read and never write: every client takes JSON for an answer.
const MEDIA_TYPES: [&str; 3] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

struct Clause<'a> {
    media_type: &'a str,
    params: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn param(&self, name: &str) -> &'a str {
        self.params
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
            .unwrap_or_default()
    }
}

/// The clauses of an Accept header, the most wanted first.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut found: Vec<(u32, Clause<'_>)> = accept
        .split(',')
        .filter_map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media_type = parts.next().filter(|m| !m.is_empty())?;
            let params: Vec<(&str, &str)> =
                parts.filter_map(|p| p.split_once('=')).map(|(k, v)| (k.trim(), v.trim())).collect();
            let clause = Clause { media_type, params };
            let quality =
                clause.param("q").parse::<f64>().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(1.0);
            // Thousandths, which is all that a quality can say.
            Some(((quality * 1000.0) as u32, clause))
        })
        .collect();
    found.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality));
    found.into_iter().map(|(_, clause)| clause).collect()
}

fn accept_header(headers: &HeaderMap) -> String {
    let values: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    values.join(",")
}

/// The first clause of the client that can be served. One that asks for protobuf first gets JSON where it accepts that too.
pub fn accept(kind: &Kind, headers: &HeaderMap, params: &Params) -> Result<Accept> {
    let header = accept_header(headers);
    if header.is_empty() {
        return Ok(Accept { encoding: json(headers, params), shape: Shape::Whole });
    }
    for clause in clauses(&header) {
        let encoding = match clause.media_type {
            "application/json" | "*/*" | "application/*" => json(headers, params),
            "application/yaml" | "application/x-yaml" | "text/yaml" => Encoding::Yaml,
            _ => continue,
        };
        let shape = match (clause.param("as"), clause.param("g"), clause.param("v")) {
            ("", ..) => Shape::Whole,
            ("Table", "meta.k8s.io", "v1") => Shape::Table(include(params)?),
            ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1") => Shape::Metadata,
            _ => continue,
        };
        return Ok(Accept { encoding, shape });
    }
    if kind.builtin().is_some() {
        let shown = MEDIA_TYPES.join(", ");
        let message = format!("406: Not Acceptable\n\nAvailable representations: {shown}");
        return Err(Status::routed(StatusCode::NOT_ACCEPTABLE, &message));
    }
    Err(Status::not_acceptable(&MEDIA_TYPES))
}

/// The form of the OpenAPI v2 document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenApiV2 {
    Json,
    Protobuf,
}

/// As it is written in an answer; clients ask with an `@` before the version, which is no media type.
pub const OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const OPENAPI_V2_PROTOBUF_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

pub fn openapi_v2(headers: &HeaderMap) -> Result<OpenApiV2> {
    let header = accept_header(headers);
    if header.is_empty() {
        return Ok(OpenApiV2::Json);
    }
    let form = clauses(&header).into_iter().find_map(|clause| match clause.media_type {
        "application/json" | "*/*" | "application/*" => Some(OpenApiV2::Json),
        OPENAPI_V2_PROTOBUF | OPENAPI_V2_PROTOBUF_ASKED => Some(OpenApiV2::Protobuf),
        _ => None,
    });
    form.ok_or_else(|| Status::not_acceptable(&["application/json", OPENAPI_V2_PROTOBUF]))
}

fn include(params: &Params) -> Result<Include> {
    match params.text("includeObject") {
        "" | "Metadata" => Ok(Include::Metadata),
        "None" => Ok(Include::None),
        "Object" => Ok(Include::Object),
        other => Err(Status::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
        ))),
    }
}

fn json(headers: &HeaderMap, params: &Params) -> Encoding {
    let pretty = params.flag_if_given("pretty").unwrap_or_else(|| {
        let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        ["curl", "Wget", "Mozilla/5.0"].iter().any(|prefix| agent.starts_with(prefix))
    });
    if pretty { Encoding::Pretty } else { Encoding::Json }
}

/// The forms of discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    Legacy,
    /// apidiscovery.k8s.io in this version.
    Aggregated(&'static str),
}

pub fn discovery(headers: &HeaderMap) -> Result<Discovery> {
    let header = accept_header(headers);
    if header.is_empty() {
        return Ok(Discovery::Legacy);
    }
    for clause in clauses(&header) {
        if !matches!(clause.media_type, "application/json" | "*/*" | "application/*") {
            continue;
        }
        match (clause.param("as"), clause.param("g"), clause.param("v")) {
            ("", ..) => return Ok(Discovery::Legacy),
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => return Ok(Discovery::Aggregated("v2")),
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") => {
                return Ok(Discovery::Aggregated("v2beta1"));
            }
            _ => {}
        }
    }
    Err(Status::not_acceptable(&MEDIA_TYPES))
}

/// The form of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFormat {
    Json,
    Yaml,
    /// Of built-in kinds only.
    Protobuf,
}

fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

pub fn body_format(headers: &HeaderMap) -> Result<BodyFormat> {
    match content_type(headers) {
        "" | "application/json" => Ok(BodyFormat::Json),
        "application/yaml" | "application/x-yaml" => Ok(BodyFormat::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(BodyFormat::Protobuf),
        _ => Err(Status::unsupported_media_type(&MEDIA_TYPES)),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

pub fn patch_kind(kind: &Kind, headers: &HeaderMap) -> Result<PatchKind> {
    let accepted: &[&str] = if kind.builtin().is_some() {
        &[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ]
    } else {
        &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"]
    };
    let content_type = content_type(headers);
    if !accepted.contains(&content_type) && kind.builtin().is_some() {
        return Err(Status::routed(StatusCode::UNSUPPORTED_MEDIA_TYPE, "415: Unsupported Media Type"));
    }
    if !accepted.contains(&content_type) {
        return Err(Status::unsupported_media_type(accepted));
    }
    Ok(match content_type {
        "application/json-patch+json" => PatchKind::Json,
        "application/merge-patch+json" => PatchKind::Merge,
        "application/strategic-merge-patch+json" => PatchKind::Strategic,
        _ => PatchKind::Apply,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(header: &str, expected: Option<Shape>) {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, header.parse().unwrap());
        let registry = crate::kinds::Registry::new();
        let kinds = registry.builtin_kinds();
        let pods = kinds.find("", "v1", "pods").unwrap();
        assert_eq!(accept(pods, &headers, &Params::default()).ok().map(|a| a.shape), expected, "{header}");
    }

    #[test]
    fn clients_get_what_they_accept() {
        check("application/json", Some(Shape::Whole));
        check("application/vnd.kubernetes.protobuf,application/json", Some(Shape::Whole));
        check("application/vnd.kubernetes.protobuf", None);
        check("text/html", None);
        check("*/*", Some(Shape::Whole));
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        check(kubectl, Some(Shape::Table(Include::Metadata)));
        check("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Some(Shape::Metadata));
        check("application/json;as=Table;v=v1;g=other", None);
    }

    #[test]
    fn the_wanted_form_of_discovery() {
        let mut headers = HeaderMap::new();
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        headers.insert(header::ACCEPT, kubectl.parse().unwrap());
        assert_eq!(discovery(&headers).unwrap(), Discovery::Aggregated("v2"));
    }
}
