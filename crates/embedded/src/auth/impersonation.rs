//! `Impersonate-*` headers: who wants to act as whom, and whether they may. `kubectl --as` sends these.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;

use super::constrained::{Mode, node_name};
use super::identity::{
    ANONYMOUS, AUTHENTICATED_GROUP, AUTHENTICATION_GROUP, NODES_GROUP, UNAUTHENTICATED_GROUP,
    service_account_groups, split_service_account,
};
use super::{Attributes, Authorizer, Identity, Refusal, Resource};
use crate::schema::wording::quoted;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// Whom the headers ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) user: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl Wanted {
    pub(super) fn is_only_a_name(&self) -> bool {
        self.uid.is_empty() && self.groups.is_empty() && self.extra.is_empty()
    }
}

/// The identity to go on with: the requester's own where nobody else is asked for. The headers are taken away, so that nothing
/// behind this can act on them a second time. `request` is what is to be done as somebody else.
///
/// The constrained modes are tried first, then the one right that covers everything. Who has none of them is told what the first lacked.
pub fn resolve(
    requester: &Identity,
    headers: &mut HeaderMap,
    request: &Attributes<'_>,
    authorizer: &Authorizer,
) -> Result<Identity, Refusal> {
    let Some(wanted) = wanted(headers)? else { return Ok(requester.clone()) };
    headers.remove(USER);
    headers.remove(GROUP);
    headers.remove(UID);
    for key in wanted_extra_names(headers) {
        headers.remove(key);
    }
    let mut first = None;
    for mode in Mode::ALL.into_iter().filter(|mode| mode.fits(requester, &wanted)) {
        match mode.authorize(requester, &wanted, request, authorizer) {
            Ok(()) => return Ok(identity(wanted, Way::Constrained)),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    match authorize(requester, &wanted, authorizer) {
        Ok(()) => Ok(identity(wanted, Way::Whole)),
        Err(refusal) => Err(first.unwrap_or(refusal)),
    }
}

/// By which right somebody became somebody else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Constrained,
    Whole,
}

/// A fault of a key in `Impersonate-Extra-` headers, as kube-apiserver words it.
pub(super) fn as_field(value: &str, why: &str) -> String {
    format!("extra.key: Invalid value: {}: {why}", quoted(value))
}

fn wanted_extra_names(headers: &HeaderMap) -> Vec<http::HeaderName> {
    headers.keys().filter(|name| name.as_str().starts_with(EXTRA)).cloned().collect()
}

fn wanted(headers: &HeaderMap) -> Result<Option<Wanted>, Refusal> {
    let texts = |name: &str| -> Result<Vec<String>, Refusal> {
        headers
            .get_all(name)
            .iter()
            .map(|value| match std::str::from_utf8(value.as_bytes()) {
                Ok(text) => Ok(text.to_owned()),
                Err(_) => Err(Refusal::bad_request(format!("the header {name} is not UTF-8"))),
            })
            .collect()
    };
    let first = |name| texts(name).map(|values| values.into_iter().next().unwrap_or_default());
    let mut wanted =
        Wanted { user: first(USER)?, uid: first(UID)?, groups: texts(GROUP)?, ..Wanted::default() };
    for name in wanted_extra_names(headers) {
        let key = name.as_str().strip_prefix(EXTRA).map(unescape).unwrap_or_default();
        wanted.extra.entry(key).or_default().extend(texts(name.as_str())?);
    }
    if !wanted.user.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted == Wanted::default() {
        return Ok(None);
    }
    Err(Refusal::bad_request(format!("requested {} without impersonating a user name", as_go(&wanted))))
}

/// The headers as kube-apiserver repeats them: Go's own notation of its user type.
fn as_go(wanted: &Wanted) -> String {
    let strings = |items: &[String]| {
        let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
        format!("{{{}}}", items.join(", "))
    };
    let groups = match wanted.groups.as_slice() {
        [] => "[]string(nil)".to_owned(),
        groups => format!("[]string{}", strings(groups)),
    };
    let extra = if wanted.extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let entries: Vec<String> = wanted
            .extra
            .iter()
            .map(|(key, values)| format!("{}:[]string{}", quoted(key), strings(values)))
            .collect();
        format!("map[string][]string{{{}}}", entries.join(", "))
    };
    let (name, uid) = (quoted(&wanted.user), quoted(&wanted.uid));
    format!("&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

/// Header names cannot hold every letter, so keys are percent-encoded. A malformed one is taken as it is.
fn unescape(key: &str) -> String {
    let mut out = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        let [high, low, after @ ..] = tail else { return key.to_owned() };
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (Some(high), Some(low)) = (digit(*high), digit(*low)) else { return key.to_owned() };
        out.push(high << 4 | low);
        rest = after;
    }
    String::from_utf8(out).unwrap_or_else(|_| key.to_owned())
}

/// One check for each thing that is asked for, in the order of kube-apiserver: user, uid, groups, extra.
fn authorize(requester: &Identity, wanted: &Wanted, authorizer: &Authorizer) -> Result<(), Refusal> {
    let may = |resource: Resource<'_>| {
        authorizer.require(requester, &Attributes::resource("impersonate", resource))
    };
    match split_service_account(&wanted.user) {
        Some((namespace, name)) => may(Resource {
            version: "v1",
            resource: "serviceaccounts",
            namespace,
            name,
            ..Resource::default()
        })?,
        None => {
            may(Resource { version: "v1", resource: "users", name: &wanted.user, ..Resource::default() })?
        }
    }
    let authentication = Resource { group: AUTHENTICATION_GROUP, version: "v1", ..Resource::default() };
    if !wanted.uid.is_empty() {
        may(Resource { resource: "uids", name: &wanted.uid, ..authentication })?;
    }
    for group in &wanted.groups {
        may(Resource { version: "v1", resource: "groups", name: group, ..Resource::default() })?;
    }
    for (key, values) in &wanted.extra {
        for value in values {
            may(Resource { resource: "userextras", subresource: key, name: value, ..authentication })?;
        }
    }
    Ok(())
}

/// Groups that are named are the authority; a service account without any has its own.
fn identity(wanted: Wanted, way: Way) -> Identity {
    let Wanted { user, uid, mut groups, extra } = wanted;
    if way == Way::Constrained && node_name(&user).is_some() {
        groups = vec![NODES_GROUP.to_owned()];
    }
    if let (true, Some((namespace, _))) = (groups.is_empty(), split_service_account(&user)) {
        groups = service_account_groups(namespace);
    }
    let has = |groups: &[String], group: &str| groups.iter().any(|member| member == group);
    if user == ANONYMOUS {
        if !has(&groups, UNAUTHENTICATED_GROUP) {
            groups.push(UNAUTHENTICATED_GROUP.to_owned());
        }
    } else if !has(&groups, AUTHENTICATED_GROUP) && !has(&groups, UNAUTHENTICATED_GROUP) {
        groups.push(AUTHENTICATED_GROUP.to_owned());
    }
    Identity { user: user.into(), uid: uid.into(), groups: groups.into(), extra: Arc::new(extra) }
}
