//! Why a request is refused, as the `Status` that kube-apiserver would send.

use axum::response::{IntoResponse, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use serde_json::Value;

use super::{Attributes, Identity, Target};
use crate::schema::wording::quoted;

/// A whole `Status`, boxed because it is large and rare.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", .0.message.as_deref().unwrap_or("refused"))]
pub struct Refusal(Box<Status>);

impl Refusal {
    fn new(code: u16, reason: &str, message: String, details: Option<StatusDetails>) -> Self {
        Refusal(Box::new(Status {
            code: Some(i32::from(code)),
            details,
            message: Some(message),
            reason: Some(reason.to_owned()),
            status: Some("Failure".to_owned()),
            ..Status::default()
        }))
    }

    /// The credential is missing or does not hold. Says no more: whoever asks is not known.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".to_owned(), None)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into(), None)
    }

    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} {} not found", qualified(plural, group), quoted(name));
        Self::new(404, "NotFound", message, Some(details(group, plural, name)))
    }

    pub fn conflict(group: &str, kind: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {}: {why}", qualified(kind, group), quoted(name));
        Self::new(409, "Conflict", message, Some(details(group, kind, name)))
    }

    pub fn internal(why: &str) -> Self {
        let causes = vec![StatusCause { message: Some(why.to_owned()), ..StatusCause::default() }];
        Self::new(
            500,
            "InternalError",
            format!("Internal error occurred: {why}"),
            Some(StatusDetails { causes: Some(causes), ..StatusDetails::default() }),
        )
    }

    /// The object itself may not be written, whatever the rights: admission and escalation.
    pub fn forbidden_object(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let what = qualified(plural, group);
        let message = match name {
            "" => format!("{what} is forbidden: {why}"),
            name => format!("{what} {} is forbidden: {why}", quoted(name)),
        };
        Self::new(403, "Forbidden", message, Some(details(group, plural, name)))
    }

    /// As `forbidden_object`, with a cause that programs can read.
    pub fn forbidden_because(group: &str, plural: &str, name: &str, why: &str, cause: StatusCause) -> Self {
        let mut refusal = Self::forbidden_object(group, plural, name, why);
        if let Some(details) = &mut refusal.0.details {
            details.causes = Some(vec![cause]);
        }
        refusal
    }

    /// The rights of `identity` do not cover the request.
    pub fn forbidden(identity: &Identity, attributes: &Attributes<'_>, reason: &str) -> Self {
        let user = quoted(&identity.user);
        let verb = attributes.verb;
        let (message, group, plural, name) = match attributes.target {
            Target::Path(path) => (format!("User {user} cannot {verb} path {}", quoted(path)), "", "", ""),
            Target::Resource(wanted) => {
                let what = match wanted.subresource {
                    "" => quoted(wanted.resource),
                    subresource => quoted(&format!("{}/{subresource}", wanted.resource)),
                };
                let group = quoted(wanted.group);
                let mut message = format!("User {user} cannot {verb} resource {what} in API group {group}");
                match wanted.namespace {
                    "" => message.push_str(" at the cluster scope"),
                    namespace => message.push_str(&format!(" in the namespace {}", quoted(namespace))),
                }
                (message, wanted.group, wanted.resource, wanted.name)
            }
        };
        let message = message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let message = if reason.is_empty() { message } else { format!("{message}: {reason}") };
        if plural.is_empty() && name.is_empty() {
            return Self::new(
                403,
                "Forbidden",
                format!("forbidden: {message}"),
                Some(StatusDetails::default()),
            );
        }
        Self::forbidden_object(group, plural, name, &message)
    }

    /// The object does not pass validation.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let list: Vec<String> =
            errors.iter().map(|error| format!("{}: {}", error.field, error.message())).collect();
        let list = match list.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let message = format!("{} {} is invalid: {list}", qualified(kind, group), quoted(name));
        let causes = errors.iter().map(FieldError::cause).collect();
        Self::new(
            422,
            "Invalid",
            message,
            Some(StatusDetails { causes: Some(causes), ..details(group, kind, name) }),
        )
    }

    pub fn code(&self) -> u16 {
        self.0.code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500)
    }

    pub fn status(&self) -> &Status {
        &self.0
    }

    pub fn into_status(self) -> Status {
        *self.0
    }
}

/// One `Invalid value` of a validation.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub field: &'static str,
    pub value: Value,
    pub why: &'static str,
}

impl FieldError {
    fn message(&self) -> String {
        format!("Invalid value: {}: {}", self.value, self.why)
    }

    fn cause(&self) -> StatusCause {
        StatusCause {
            field: Some(self.field.to_owned()),
            message: Some(self.message()),
            reason: Some("FieldValueInvalid".to_owned()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let code = http::StatusCode::from_u16(self.code()).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let headers = [(http::header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
        (code, headers, axum::Json(*self.0)).into_response()
    }
}

/// `pods`, or `terraformlayers.terrane.dev` outside the core group. A kind without a name keeps its dot, as Go prints it.
fn qualified(what: &str, group: &str) -> String {
    if group.is_empty() { what.to_owned() } else { format!("{what}.{group}") }
}

fn details(group: &str, kind: &str, name: &str) -> StatusDetails {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    StatusDetails { group: some(group), kind: some(kind), name: some(name), ..StatusDetails::default() }
}

/// A list as Go prints `%q` of a `[]string`: `["a" "b"]`.
pub(crate) fn quoted_list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::super::Resource;
    use super::*;

    #[test]
    fn wording_is_kubernetes_own() {
        let jane = Identity::new("jane", ["dev"]);
        let pods = Resource { resource: "pods", version: "v1", namespace: "default", ..Resource::default() };
        let layers = Resource { group: "terrane.dev", resource: "terraformlayers", ..Resource::default() };
        let table = [
            (
                Refusal::forbidden(&jane, &Attributes::resource("list", pods), ""),
                r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default""#,
            ),
            (
                Refusal::forbidden(
                    &jane,
                    &Attributes::resource("get", Resource { name: "a", subresource: "log", ..pods }),
                    "",
                ),
                r#"pods "a" is forbidden: User "jane" cannot get resource "pods/log" in API group "" in the namespace "default""#,
            ),
            (
                Refusal::forbidden(&jane, &Attributes::resource("list", layers), "RBAC: gone"),
                r#"terraformlayers.terrane.dev is forbidden: User "jane" cannot list resource "terraformlayers" in API group "terrane.dev" at the cluster scope: RBAC: gone"#,
            ),
            (
                Refusal::forbidden(&Identity::new("a<b>", [""; 0]), &Attributes::path("get", "/metrics"), ""),
                r#"forbidden: User "a&lt;b&gt;" cannot get path "/metrics""#,
            ),
            (Refusal::not_found("", "serviceaccounts", "x"), r#"serviceaccounts "x" not found"#),
        ];
        for (refusal, message) in table {
            assert_eq!(refusal.to_string(), message);
        }
    }

    #[test]
    fn unauthorized_is_a_whole_status() {
        let status = serde_json::to_value(Refusal::unauthorized().status()).unwrap();
        assert_eq!(
            status,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                   "message": "Unauthorized", "reason": "Unauthorized", "code": 401})
        );
    }

    #[test]
    fn quotes_as_go_does() {
        assert_eq!(quoted("a\"b\\c\n\u{1}é"), r#""a\"b\\c\n\x01é""#);
        assert_eq!(quoted_list(&["a".into(), "b c".into()]), r#"["a" "b c"]"#);
    }
}
