//! What the status of a Terraform says of the cluster around it: the URLs of Ingresses, and where the logins of Argo CD and Grafana are. What is
//! large is cut short, and the value of a Secret is shown only where the administrator has named that Secret.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use api::terraform::{TerraformStatus, WorkloadCredentials};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{Ingress, IngressSpec, IngressTLS};
use kube::ResourceExt;

use crate::Read;

/// Whose Ingresses and logins are told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Whose {
    /// Those of all namespaces that the controllers look after.
    All,
    /// Those of the Terraform's own namespace.
    Own,
    /// Nobody's, and nothing is looked at.
    #[default]
    Nobodys,
}

/// What the administrator lets be told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    pub whose: Whose,
    /// The Secrets whose values are shown, by namespace and name.
    pub values: BTreeSet<(String, String)>,
}

/// URLs by namespace; kept once for all who look.
pub type Urls = Arc<BTreeMap<String, BTreeSet<String>>>;

/// What is known of the cluster. `Absent` is what nobody looks at.
#[derive(Debug, Clone, PartialEq)]
pub struct Surroundings {
    pub urls: Read<Urls>,
    pub logins: Read<Vec<Found>>,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self { urls: Read::Absent, logins: Read::Absent }
    }
}

/// A program that people log in to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Program {
    ArgoCd,
    Grafana,
}

/// Where the login of a program is, as its own manifests and charts have it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Login {
    pub program: Program,
    pub namespace: String,
    pub secret: String,
}

/// A login, and what its Secret holds where that may be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Found {
    pub login: Login,
    pub values: Option<BTreeMap<String, String>>,
}

/// Without the values.
impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found").field("login", &self.login).finish_non_exhaustive()
    }
}

/// What selects the Services that [`login_of`] knows.
pub const PROGRAMS: &str = "app.kubernetes.io/name in (argocd-server,grafana)";
const NAME: &str = "app.kubernetes.io/name";
/// Between two looks at values that are shown: nobody tells of a change of those Secrets.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(600);
/// URLs of one namespace, so that none takes the room of the others.
const URLS: usize = 20;
/// All URLs together, in a status that every reader gets each time.
const ROOM: usize = 16 * 1024;
const VALUE_LIMIT: usize = 256;

/// The URLs that an Ingress answers at: its hosts or, where it asks for none, where its controller says that it is reached. O(hosts · TLS hosts).
pub fn urls_of(ingress: &Ingress) -> BTreeSet<String> {
    let Some(spec) = &ingress.spec else { return BTreeSet::new() };
    let rules = spec.rules.iter().flatten();
    let named = rules.clone().filter_map(|rule| rule.host.clone()).filter(|host| !host.is_empty());
    let is_open = rules.clone().next().is_none()
        || rules.clone().any(|rule| rule.host.as_deref().unwrap_or_default().is_empty());
    let reached = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let reached = reached.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    let addresses = reached.filter(|_| is_open).filter_map(|at| {
        let ip = at.ip.as_ref().map(|ip| if ip.contains(':') { format!("[{ip}]") } else { ip.clone() });
        at.hostname.clone().or(ip)
    });
    named.chain(addresses).map(|host| url(spec, &host)).collect()
}

fn url(spec: &IngressSpec, host: &str) -> String {
    let is_secure = spec.tls.iter().flatten().any(|tls| covers(tls, host));
    format!("{}://{host}", if is_secure { "https" } else { "http" })
}

/// A certificate without hosts is that of all.
fn covers(tls: &IngressTLS, host: &str) -> bool {
    let hosts = tls.hosts.as_deref().unwrap_or_default();
    let behind_first = host.split_once('.').map(|(_, domain)| domain);
    let covered =
        |named: &String| named == host || behind_first.is_some() && named.strip_prefix("*.") == behind_first;
    hosts.is_empty() || hosts.iter().any(covered)
}

/// The login of the program that a Service leads to, by the label that its manifests give it. Argo CD makes its Secret under one name; that of
/// Grafana bears the name of the Service.
pub fn login_of(service: &Service) -> Option<Login> {
    let (program, secret) = match service.labels().get(NAME)?.as_str() {
        "argocd-server" => (Program::ArgoCd, "argocd-initial-admin-secret".to_owned()),
        "grafana" => (Program::Grafana, service.name_any()),
        _ => return None,
    };
    Some(Login { program, namespace: service.namespace()?, secret })
}

/// Whether values of the Secret may be shown.
pub fn is_shown(told: &Told, login: &Login) -> bool {
    told.values.contains(&(login.namespace.clone(), login.secret.clone()))
}

/// Writes what is known into the status. What is not known yet stays as it was told before.
pub(super) fn tell(told: &Told, seen: &Surroundings, own: &str, status: &mut TerraformStatus) {
    let is_meant = |namespace: &str| match told.whose {
        Whose::All => true,
        Whose::Own => namespace == own,
        Whose::Nobodys => false,
    };
    match &seen.urls {
        Read::Present(urls) => status.ingress_urls = shown_urls(urls, own, is_meant),
        Read::Absent => status.ingress_urls.clear(),
        Read::Unknown => {}
    }
    match &seen.logins {
        Read::Present(logins) => {
            let meant = logins.iter().filter(|found| is_meant(&found.login.namespace));
            status.credentials = credentials(meant);
        }
        Read::Absent => status.credentials = None,
        Read::Unknown => {}
    }
}

/// Whether a value stands in the status that may change without a word.
pub(super) fn shows_values(seen: &Surroundings) -> bool {
    matches!(&seen.logins, Read::Present(logins) if logins.iter().any(|found| found.values.is_some()))
}

/// One's own namespace first, so that others cannot take its room. O(URLs that are shown + namespaces).
fn shown_urls(
    urls: &BTreeMap<String, BTreeSet<String>>,
    own: &str,
    is_meant: impl Fn(&str) -> bool,
) -> BTreeMap<String, Vec<String>> {
    let others = urls.iter().filter(|(namespace, _)| namespace.as_str() != own);
    let all = urls.get_key_value(own).into_iter().chain(others);
    let mut room = ROOM;
    let mut shown = BTreeMap::new();
    for (namespace, urls) in all.filter(|(namespace, urls)| is_meant(namespace) && !urls.is_empty()) {
        let mut fitting = Vec::new();
        for url in urls.iter().take(URLS) {
            let Some(left) = room.checked_sub(url.len() + namespace.len()) else { break };
            room = left;
            fitting.push(url.clone());
        }
        let (more, is_none) = (urls.len() - fitting.len(), fitting.is_empty());
        if is_none {
            // There is no room for anybody else either, or hardly.
            continue;
        }
        fitting.extend((more > 0).then(|| format!("(and {more} more)")));
        shown.insert(namespace.clone(), fitting);
    }
    shown
}

fn credentials<'a>(found: impl Iterator<Item = &'a Found> + Clone) -> Option<WorkloadCredentials> {
    // One whose values may be shown counts before one that is only named.
    let of = |program: Program| {
        let those = found.clone().filter(move |found| found.login.program == program);
        those.min_by_key(|found| (found.values.is_none(), &found.login))
    };
    let (argocd, grafana) = (of(Program::ArgoCd), of(Program::Grafana));
    let credentials = WorkloadCredentials {
        // It has this one person when it is installed, and no Secret says so.
        argocd_username: argocd.map(|_| "admin".to_owned()),
        argocd_password: argocd.map(|found| value(found, "password")),
        grafana_username: grafana.map(|found| value(found, "admin-user")),
        grafana_password: grafana.map(|found| value(found, "admin-password")),
    };
    (credentials != WorkloadCredentials::default()).then_some(credentials)
}

/// The value where it may be shown and is one line, else where it is.
fn value(Found { login, values }: &Found, key: &str) -> String {
    let known = values.as_ref().and_then(|values| values.get(key));
    let fits = |value: &&String| value.len() <= VALUE_LIMIT && !value.contains(char::is_control);
    known.filter(fits).cloned().unwrap_or_else(|| {
        format!("*** (key {key} of Secret {} of namespace {})", login.secret, login.namespace)
    })
}
