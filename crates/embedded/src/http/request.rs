//! What a request asks for, read from its path, method and query alone: the verb, the resource, the options. Rights are checked on this,
//! before any kind is looked up.

use axum::extract::Query;
use http::{HeaderMap, Method, Uri, header};
use serde_json::Value;

use super::status::{Result, Status};
use crate::auth::{Attributes, Resource};
use crate::kinds::Cause;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    Resource(ResourcePath),
    /// Discovery, health, OpenAPI and whatever is not served.
    Other,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourcePath {
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub name: String,
    pub subresource: String,
    /// The old way to ask for a watch: `/api/v1/watch/pods`.
    pub watching: bool,
}

impl ResourcePath {
    /// The one object that a request is about, if it is about one: a list, a watch or a deletion that selects one name is.
    pub fn asked_name<'a>(&'a self, verb: Verb, params: &'a Params) -> &'a str {
        let selected = match verb {
            Verb::List | Verb::Watch | Verb::DeleteCollection if self.name.is_empty() => params
                .text("fieldSelector")
                .split(',')
                .find_map(|term| term.strip_prefix("metadata.name="))
                .map(|name| name.trim_start_matches('=')),
            Verb::List
            | Verb::Watch
            | Verb::DeleteCollection
            | Verb::Get
            | Verb::Create
            | Verb::Update
            | Verb::Patch
            | Verb::Delete => None,
        };
        selected.unwrap_or(&self.name)
    }

    pub fn attributes<'a>(&'a self, verb: Verb, name: &'a str) -> Attributes<'a> {
        Attributes::resource(
            verb.as_str(),
            Resource {
                group: &self.group,
                version: &self.version,
                resource: &self.resource,
                subresource: &self.subresource,
                name,
                namespace: &self.namespace,
            },
        )
    }
}

impl Route {
    pub fn parse(path: &str) -> Route {
        let mut parts: Vec<&str> = path.split('/').collect();
        if parts.first() == Some(&"") {
            parts.remove(0);
        }
        if parts.last() == Some(&"") {
            parts.pop();
        }
        if parts.iter().any(|part| part.is_empty()) {
            return Route::Other;
        }
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Route::Other,
        };
        let (watching, rest) = match rest {
            ["watch", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let mut found = ResourcePath {
            group: group.to_owned(),
            version: version.to_owned(),
            watching,
            ..ResourcePath::default()
        };
        let rest = match rest {
            [] => return Route::Other,
            // The namespace itself, or one of its own subresources.
            ["namespaces", name] => {
                found.namespace = decoded(name);
                &["namespaces", name][..]
            }
            ["namespaces", name, sub @ ("status" | "finalize")] => {
                found.namespace = decoded(name);
                &["namespaces", name, sub][..]
            }
            ["namespaces", namespace, rest @ ..] => {
                found.namespace = decoded(namespace);
                rest
            }
            rest => rest,
        };
        let mut rest = rest.iter();
        found.resource = rest.next().map(|part| decoded(part)).unwrap_or_default();
        found.name = rest.next().map(|part| decoded(part)).unwrap_or_default();
        found.subresource = rest.next().map(|part| decoded(part)).unwrap_or_default();
        if rest.next().is_some() { Route::Other } else { Route::Resource(found) }
    }
}

/// Undoes percent encoding; what is not valid stays as it is.
fn decoded(part: &str) -> String {
    if !part.contains('%') {
        return part.to_owned();
    }
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after
            .get(..2)
            .and_then(|two| std::str::from_utf8(two).ok())
            .and_then(|two| u8::from_str_radix(two, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| part.to_owned())
}

/// The query, in order.
#[derive(Debug, Clone, Default)]
pub struct Params(Vec<(String, String)>);

impl Params {
    pub fn parse(uri: &Uri) -> Params {
        if uri.query().is_none_or(str::is_empty) {
            return Params::default();
        }
        Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map(|Query(pairs)| Params(pairs))
            .unwrap_or_default()
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    pub fn all(&self, key: &str) -> Vec<&str> {
        self.0.iter().filter(|(k, _)| k == key).map(|(_, v)| v.as_str()).collect()
    }

    /// A flag as Kubernetes reads it: present means yes, unless it says no.
    pub fn flag(&self, key: &str) -> bool {
        self.flag_if_given(key).unwrap_or(false)
    }

    pub fn flag_if_given(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| !matches!(value.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    pub fn integer(&self, key: &str) -> Result<Option<i64>> {
        match self.get(key) {
            None | Some("") => Ok(None),
            Some(value) => match value.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) if is_integer(value) => Err(Status::bad_request(format!(
                    "strconv.ParseInt: parsing {value:?}: value out of range"
                ))),
                Err(_) => {
                    Err(Status::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax")))
                }
            },
        }
    }
}

fn is_integer(value: &str) -> bool {
    let digits = value.strip_prefix(['-', '+']).unwrap_or(value);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Which verb a method is on this path.
pub fn verb(method: &Method, path: &ResourcePath, params: &Params) -> Option<Verb> {
    let named = !path.name.is_empty();
    match *method {
        Method::GET | Method::HEAD if path.watching => Some(Verb::Watch),
        _ if path.watching => None,
        Method::GET | Method::HEAD if named => Some(Verb::Get),
        Method::GET | Method::HEAD if params.flag("watch") => Some(Verb::Watch),
        Method::GET | Method::HEAD => Some(Verb::List),
        Method::POST => Some(Verb::Create),
        Method::PUT => Some(Verb::Update),
        Method::PATCH => Some(Verb::Patch),
        Method::DELETE if named => Some(Verb::Delete),
        Method::DELETE => Some(Verb::DeleteCollection),
        _ => None,
    }
}

/// Whether a write is only tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Write,
    DryRun,
}

/// What happens with fields that the schema does not know, and with fields given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// What the query of a write says.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    pub mode: Mode,
    pub validation: FieldValidation,
    pub manager: String,
    pub tracking: Tracking,
}

/// Who records the owners of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracking {
    /// The server, by comparing what was with what is.
    Compare,
    /// Server-side apply has done so.
    Applied,
}

/// The manager of fields that a client without a name of its own writes.
fn default_manager(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let prefix = agent.split('/').next().unwrap_or_default();
    // A manager of more than 128 bytes is refused when given; of a user agent only so much is taken.
    let printable = prefix.chars().filter(|c| !c.is_control());
    let mut name = String::new();
    for letter in printable {
        if name.len() + letter.len_utf8() > 128 {
            break;
        }
        name.push(letter);
    }
    if name.is_empty() { "unknown".to_owned() } else { name }
}

impl WriteOptions {
    /// `kind` is the options' own: CreateOptions, UpdateOptions, PatchOptions.
    pub fn parse(
        kind: &str,
        params: &Params,
        headers: &HeaderMap,
        extra: Vec<Cause>,
    ) -> Result<WriteOptions> {
        let mut causes = extra;
        let manager = params.text("fieldManager");
        check_manager(manager, &mut causes);
        let mode = dry_run(&params.all("dryRun"), &mut causes);
        let validation = match params.text("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                causes.push(Cause::not_supported(
                    "fieldValidation",
                    &other.into(),
                    &["", "Ignore", "Strict", "Warn"],
                ));
                FieldValidation::Warn
            }
        };
        if !causes.is_empty() {
            return Err(Status::invalid_named("meta.k8s.io", kind, "", causes));
        }
        let manager = if manager.is_empty() { default_manager(headers) } else { manager.to_owned() };
        Ok(WriteOptions { mode, validation, manager, tracking: Tracking::Compare })
    }

    pub fn is_apply(&self) -> bool {
        self.tracking == Tracking::Applied
    }
}

fn check_manager(manager: &str, causes: &mut Vec<Cause>) {
    if manager.len() > 128 {
        causes.push(Cause::too_long("fieldManager", 128));
    }
    for (at, letter) in manager.char_indices().filter(|(_, c)| c.is_control()) {
        let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(letter));
        causes.push(Cause::invalid("fieldManager", &manager.into(), &detail));
    }
}

pub fn dry_run(values: &[&str], causes: &mut Vec<Cause>) -> Mode {
    if values.iter().any(|value| *value != "All") {
        let listed = Value::from(values.iter().map(|v| Value::from(*v)).collect::<Vec<_>>());
        causes.push(Cause::not_supported("dryRun", &listed, &["All"]));
    }
    if values.is_empty() { Mode::Write } else { Mode::DryRun }
}

/// What the query of a list or a watch says.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    pub labels: String,
    pub fields: String,
    pub revision: String,
    pub matching: RevisionMatch,
    pub limit: Option<usize>,
    pub token: String,
    pub timeout: Option<u64>,
    pub bookmarks: bool,
    pub initial_events: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RevisionMatch {
    #[default]
    Unset,
    NotOlderThan,
    Exact,
}

impl ListOptions {
    pub fn parse(params: &Params, verb: Verb) -> Result<ListOptions> {
        let revision = params.text("resourceVersion").to_owned();
        let raw_match = params.text("resourceVersionMatch");
        let initial_events = params.flag_if_given("sendInitialEvents");
        let token = params.text("continue").to_owned();
        let causes = match verb {
            Verb::Watch => watch_causes(raw_match, initial_events, &token),
            _ => list_causes(raw_match, initial_events, &token, &revision),
        };
        if !causes.is_empty() {
            return Err(Status::invalid_named("meta.k8s.io", "ListOptions", "", causes));
        }
        let positive = |number: Option<i64>| number.filter(|n| *n > 0);
        Ok(ListOptions {
            labels: params.text("labelSelector").to_owned(),
            fields: params.text("fieldSelector").to_owned(),
            revision,
            matching: match raw_match {
                "Exact" => RevisionMatch::Exact,
                "NotOlderThan" => RevisionMatch::NotOlderThan,
                _ => RevisionMatch::Unset,
            },
            limit: positive(params.integer("limit")?).and_then(|n| usize::try_from(n).ok()),
            token,
            timeout: positive(params.integer("timeoutSeconds")?).and_then(|n| u64::try_from(n).ok()),
            bookmarks: params.flag("allowWatchBookmarks"),
            initial_events,
        })
    }

    /// The revision as a number; "" and "0" are both 0.
    pub fn revision_number(&self, verb: Verb) -> Result<u64> {
        if self.revision.is_empty() {
            return Ok(0);
        }
        self.revision.parse().map_err(|_| {
            let out_of_range = !self.revision.is_empty() && self.revision.bytes().all(|b| b.is_ascii_digit());
            let why = if out_of_range { "value out of range" } else { "invalid syntax" };
            let detail = format!("strconv.ParseUint: parsing {:?}: {why}", self.revision);
            let cause = Cause::invalid("resourceVersion", &self.revision.as_str().into(), &detail);
            match verb {
                Verb::Watch => Status::bare(cause.to_string()),
                _ => Status::bad_request(format!("invalid resource version: {cause}")),
            }
        })
    }
}

fn list_causes(matching: &str, initial_events: Option<bool>, token: &str, revision: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let field = "resourceVersionMatch";
    if !matching.is_empty() {
        if revision.is_empty() {
            causes.push(Cause::forbidden(
                field,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if !token.is_empty() {
            causes
                .push(Cause::forbidden(field, "resourceVersionMatch is forbidden when continue is provided"));
        }
        if !["Exact", "NotOlderThan"].contains(&matching) {
            causes.push(Cause::not_supported(field, &matching.into(), &["Exact", "NotOlderThan", ""]));
        }
        if matching == "Exact" && revision == "0" {
            causes.push(Cause::forbidden(
                field,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
    }
    if initial_events.is_some() {
        causes.push(Cause::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    causes
}

fn watch_causes(matching: &str, initial_events: Option<bool>, token: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let field = "resourceVersionMatch";
    if initial_events.is_some() && matching != "NotOlderThan" {
        causes.push(Cause::forbidden(
            field,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    if !matching.is_empty() {
        if initial_events.is_none() {
            causes.push(Cause::forbidden(
                field,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
        if matching != "NotOlderThan" {
            causes.push(Cause::not_supported(field, &matching.into(), &["NotOlderThan"]));
        }
        if !token.is_empty() {
            causes
                .push(Cause::forbidden(field, "resourceVersionMatch is forbidden when continue is provided"));
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn route(path: &str) -> (String, String, String, String, String) {
        match Route::parse(path) {
            Route::Resource(r) => (r.group, r.namespace, r.resource, r.name, r.subresource),
            Route::Other => panic!("{path} is no resource"),
        }
    }

    #[test]
    fn paths_are_read_as_kubernetes_reads_them() {
        for (path, expected) in [
            ("/api/v1/pods", ("", "", "pods", "", "")),
            ("/api/v1/namespaces", ("", "", "namespaces", "", "")),
            ("/api/v1/namespaces/a", ("", "a", "namespaces", "a", "")),
            ("/api/v1/namespaces/a/status", ("", "a", "namespaces", "a", "status")),
            ("/api/v1/namespaces/a/pods", ("", "a", "pods", "", "")),
            ("/api/v1/namespaces/a/pods/b/log", ("", "a", "pods", "b", "log")),
            (
                "/apis/terrane.dev/v1alpha1/namespaces/a/terraformlayers/b/status",
                ("terrane.dev", "a", "terraformlayers", "b", "status"),
            ),
            ("/api/v1/watch/namespaces/a/pods/b", ("", "a", "pods", "b", "")),
            (
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
                ("rbac.authorization.k8s.io", "", "clusterroles", "system:node", ""),
            ),
        ] {
            let found = route(path);
            let found =
                (found.0.as_str(), found.1.as_str(), found.2.as_str(), found.3.as_str(), found.4.as_str());
            assert_eq!(found, expected, "{path}");
        }
        for path in [
            "/",
            "/api",
            "/api/v1",
            "/apis/batch/v1",
            "/healthz",
            "/api/v1/namespaces/a/pods/b/log/c",
            "/api/v1//pods",
            "/api/v1/watch",
        ] {
            assert_eq!(Route::parse(path), Route::Other, "{path}");
        }
    }

    #[test]
    fn the_manager_is_the_user_agent_up_to_its_slash() {
        let mut headers = HeaderMap::new();
        assert_eq!(default_manager(&headers), "unknown");
        headers.insert(header::USER_AGENT, "kubectl/v1.36 (linux)".parse().unwrap());
        assert_eq!(default_manager(&headers), "kubectl");
    }
}
