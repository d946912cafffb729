//! Roles and bindings: what is refused. Whether somebody may grant what they write is a question for `auth`.

use serde_json::{Value, json};

use super::super::{Builtin, Cause, format};
use super::{items, text};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn validate(builtin: Builtin, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    match builtin {
        Builtin::Role | Builtin::ClusterRole => validate_rules(builtin, object),
        _ => validate_binding(builtin, object, old),
    }
}

fn validate_rules(builtin: Builtin, role: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, rule) in items(role, "/rules").iter().enumerate() {
        let at = format!("rules[{index}]");
        if items(rule, "/verbs").is_empty() {
            causes.push(Cause::required(format!("{at}.verbs"), "verbs must contain at least one value"));
        }
        let urls = items(rule, "/nonResourceURLs");
        if !urls.is_empty() {
            let listed = Value::Array(urls.to_vec());
            if builtin == Builtin::Role {
                causes.push(Cause::invalid(
                    format!("{at}.nonResourceURLs"),
                    &listed,
                    "namespaced rules cannot apply to non-resource URLs",
                ));
            }
            if !items(rule, "/apiGroups").is_empty()
                || !items(rule, "/resources").is_empty()
                || !items(rule, "/resourceNames").is_empty()
            {
                causes.push(Cause::invalid(
                    format!("{at}.nonResourceURLs"),
                    &listed,
                    "rules cannot apply to both regular resources and non-resource URLs",
                ));
            }
            continue;
        }
        if items(rule, "/apiGroups").is_empty() {
            causes.push(Cause::required(
                format!("{at}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if items(rule, "/resources").is_empty() {
            causes.push(Cause::required(
                format!("{at}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
    causes
}

fn validate_binding(builtin: Builtin, binding: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let none = Value::Null;
    let role = binding.get("roleRef").unwrap_or(&none);
    if old.is_some_and(|old| old.get("roleRef").unwrap_or(&none) != role) {
        // The real server prints its own type here.
        let shown = json!({"APIGroup": text(role, "/apiGroup"), "Kind": text(role, "/kind"), "Name": text(role, "/name")});
        causes.push(Cause::invalid("roleRef", &shown, "cannot change roleRef"));
    }
    let group = text(role, "/apiGroup");
    if group != GROUP {
        causes.push(Cause::not_supported("roleRef.apiGroup", &group.into(), &[GROUP]));
    }
    let kinds: &[&str] =
        if builtin == Builtin::RoleBinding { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    let kind = text(role, "/kind");
    if !kinds.contains(&kind) {
        causes.push(Cause::not_supported("roleRef.kind", &kind.into(), kinds));
    }
    let name = text(role, "/name");
    if name.is_empty() {
        causes.push(Cause::required("roleRef.name", ""));
    } else {
        causes.extend(
            format::path_segment(name).iter().map(|e| Cause::invalid("roleRef.name", &name.into(), e)),
        );
    }
    for (index, subject) in items(binding, "/subjects").iter().enumerate() {
        validate_subject(builtin, subject, &format!("subjects[{index}]"), &mut causes);
    }
    causes
}

fn validate_subject(builtin: Builtin, subject: &Value, at: &str, causes: &mut Vec<Cause>) {
    if text(subject, "/name").is_empty() {
        causes.push(Cause::required(format!("{at}.name"), ""));
    }
    let group = text(subject, "/apiGroup");
    match text(subject, "/kind") {
        "ServiceAccount" => {
            let name = text(subject, "/name");
            if !name.is_empty() {
                causes.extend(
                    format::dns_subdomain(name)
                        .iter()
                        .map(|e| Cause::invalid(format!("{at}.name"), &name.into(), e)),
                );
            }
            if !group.is_empty() {
                causes.push(Cause::not_supported(format!("{at}.apiGroup"), &group.into(), &[""]));
            }
            if builtin == Builtin::ClusterRoleBinding && text(subject, "/namespace").is_empty() {
                causes.push(Cause::required(format!("{at}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                causes.push(Cause::not_supported(format!("{at}.apiGroup"), &group.into(), &[GROUP]));
            }
        }
        kind => causes.push(Cause::not_supported(
            format!("{at}.kind"),
            &kind.into(),
            &["ServiceAccount", "User", "Group"],
        )),
    }
}
