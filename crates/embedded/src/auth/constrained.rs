//! Constrained impersonation: rights to act as somebody, but only by some verbs on some resources. Each mode fits one sort of user and asks
//! twice: `impersonate-on:MODE:VERB` on what the request is about, then `impersonate:MODE` for each thing that is asked for.

use super::identity::{AUTHENTICATION_GROUP, MASTERS_GROUP, split_service_account};
use super::impersonation::{Wanted, as_field};
use super::{Attributes, Authorizer, Identity, Refusal, Resource};
use crate::kinds::format;
use crate::schema::wording::quoted;

const NODE_PREFIX: &str = "system:node:";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// From this many on, one check of `*` is tried before one of each.
const MANY: usize = 4;

/// In the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// A pod acts as the node that it runs on.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Everybody who is neither a node nor a service account.
    UserInfo,
}

impl Mode {
    pub(super) const ALL: [Mode; 4] =
        [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo];

    fn as_str(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "associated-node",
            Mode::ArbitraryNode => "arbitrary-node",
            Mode::ServiceAccount => "serviceaccount",
            Mode::UserInfo => "user-info",
        }
    }

    /// Whether this mode can give the wanted user to this requester at all.
    pub(super) fn fits(self, requester: &Identity, wanted: &Wanted) -> bool {
        let node = node_name(&wanted.user);
        let account = split_service_account(&wanted.user);
        match self {
            Mode::AssociatedNode => {
                let own = match requester.extra.get(NODE_NAME).map(Vec::as_slice) {
                    Some([only]) => Some(only.as_str()),
                    _ => None,
                };
                wanted.is_only_a_name()
                    && node.is_some()
                    && node == own
                    && split_service_account(&requester.user).is_some()
            }
            Mode::ArbitraryNode => wanted.is_only_a_name() && node.is_some(),
            Mode::ServiceAccount => wanted.is_only_a_name() && account.is_some(),
            Mode::UserInfo => node.is_none() && account.is_none(),
        }
    }

    pub(super) fn authorize(
        self,
        requester: &Identity,
        wanted: &Wanted,
        request: &Attributes<'_>,
        authorizer: &Authorizer,
    ) -> Result<(), Refusal> {
        let mode = self.as_str();
        let on = format!("impersonate-on:{mode}:{}", request.verb);
        authorizer.require(requester, &Attributes { verb: &on, target: request.target })?;
        let verb = format!("impersonate:{mode}");
        let check = Check { requester, authorizer, verb: &verb };
        check.user(self, &wanted.user)?;
        if !wanted.uid.is_empty() {
            check.may("uids", "", &wanted.uid)?;
        }
        check.groups(&wanted.groups)?;
        check.extra(wanted)
    }
}

/// The node of `system:node:NAME`, where that is a name that a node can have.
pub(super) fn node_name(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_PREFIX).filter(|name| format::dns_subdomain(name).is_empty())
}

struct Check<'a> {
    requester: &'a Identity,
    authorizer: &'a Authorizer,
    verb: &'a str,
}

impl Check<'_> {
    fn may(&self, resource: &str, subresource: &str, name: &str) -> Result<(), Refusal> {
        self.require(Resource { resource, subresource, name, ..authentication() })
    }

    fn require(&self, resource: Resource<'_>) -> Result<(), Refusal> {
        self.authorizer.require(self.requester, &Attributes::resource(self.verb, resource))
    }

    fn refuse(&self, resource: &str, name: &str, why: &str) -> Refusal {
        let resource = Resource { resource, name, ..authentication() };
        Refusal::forbidden(self.requester, &Attributes::resource(self.verb, resource), why)
    }

    fn user(&self, mode: Mode, user: &str) -> Result<(), Refusal> {
        match (mode, node_name(user), split_service_account(user)) {
            // Whoever may act as the node of their pod may do so on every node.
            (Mode::AssociatedNode, _, _) => self.may("nodes", "", "*"),
            (_, Some(node), _) => self.may("nodes", "", node),
            (_, _, Some((namespace, name))) => {
                self.require(Resource { resource: "serviceaccounts", namespace, name, ..authentication() })
            }
            _ => self.may("users", "", user),
        }
    }

    fn groups(&self, groups: &[String]) -> Result<(), Refusal> {
        if groups.iter().any(String::is_empty) {
            return Err(self.refuse("groups", "", "impersonating the empty string group is not allowed"));
        }
        if groups.iter().any(|group| group == MASTERS_GROUP) {
            let why = "impersonating the system:masters group is not allowed";
            return Err(self.refuse("groups", MASTERS_GROUP, why));
        }
        if groups.len() >= MANY && self.may("groups", "", "*").is_ok() {
            return Ok(());
        }
        groups.iter().try_for_each(|group| self.may("groups", "", group))
    }

    fn extra(&self, wanted: &Wanted) -> Result<(), Refusal> {
        for (key, values) in &wanted.extra {
            if let Some(why) = extra_fault(key, values) {
                return Err(self.refuse("userextras", "", &why));
            }
        }
        let values = || wanted.extra.iter().flat_map(|(key, values)| values.iter().map(move |v| (key, v)));
        if values().count() >= MANY && self.may("userextras", "*", "*").is_ok() {
            return Ok(());
        }
        values().try_for_each(|(key, value)| self.may("userextras", key, value))
    }
}

fn authentication() -> Resource<'static> {
    Resource { group: AUTHENTICATION_GROUP, version: "v1", ..Resource::default() }
}

/// What is wrong with an extra key or its values; the old way of impersonation takes all of them.
fn extra_fault(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    if let Some(fault) = path_fault(key) {
        return Some(format!("impersonating an invalid key in extra is not allowed: {fault}"));
    }
    if key.chars().any(char::is_uppercase) {
        return Some(format!("impersonating a non-lowercase key in extra is not allowed: {}", quoted(key)));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".to_owned());
    }
    if values.iter().any(String::is_empty) {
        return Some("impersonating the empty string value in extra is not allowed".to_owned());
    }
    None
}

/// A key is a domain and a path: `acme.io/foo`.
fn path_fault(key: &str) -> Option<String> {
    let (domain, path) = match key.split_once('/') {
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => (domain, path),
        _ => return Some(as_field(key, "must be a domain-prefixed path (such as \"acme.io/foo\")")),
    };
    let faults: Vec<String> =
        format::dns_subdomain(domain).iter().map(|fault| as_field(domain, fault)).collect();
    match faults.as_slice() {
        [] => {}
        [only] => return Some(only.clone()),
        many => return Some(format!("[{}]", many.join(", "))),
    }
    let fits = |letter: char| letter.is_ascii_alphanumeric() || r"/-._~%!$&'()*+,;=:".contains(letter);
    if path.chars().all(fits) {
        return None;
    }
    let pattern = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
    Some(as_field(path, &format!("Invalid path (regex used for validation is '{pattern}')")))
}
