//! What a delivery says. Only what is needed of it is read: which repository, and where its branches and tags point now. Everything else,
//! such as the list of commits, is passed over, and what has another shape is refused in words.

use api::text::CommitId;
use http::HeaderMap;
use serde::Deserialize;

use crate::address::Address;
use crate::{Host, form};

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    /// A form with JSON as its `payload`.
    Form,
}

impl Encoding {
    /// What the header `content-type` says, if this host can send it.
    pub fn read(host: Host, content_type: &[u8]) -> Option<Self> {
        let kind = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        if kind.eq_ignore_ascii_case(b"application/json") {
            return Some(Self::Json);
        }
        let is_form = kind.eq_ignore_ascii_case(b"application/x-www-form-urlencoded");
        (is_form && matches!(host, Host::GitHub | Host::Gitea)).then_some(Self::Form)
    }
}

/// What was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Push(Push),
    /// Nothing that matters here, and why.
    Other(String),
}

/// Branches or tags have moved, come or gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    named: Named,
    /// By full ref; nothing where one is gone.
    pub heads: Vec<(String, Option<CommitId>)>,
}

/// How the host names the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    ByUrls(Vec<Address>),
    /// By the last parts of its path alone.
    ByTail(String),
}

impl Push {
    pub fn is_about(&self, address: &Address) -> bool {
        match &self.named {
            Named::ByUrls(all) => all.contains(address),
            Named::ByTail(tail) => address.ends_in(tail),
        }
    }
}

/// The body is not what this host sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// Reads a delivery whose proof held. O(bytes of the body).
pub fn read(host: Host, headers: &HeaderMap, encoding: Encoding, body: &[u8]) -> Result<Said, Malformed> {
    let unpacked;
    let json = match encoding {
        Encoding::Json => body,
        Encoding::Form => {
            let no_payload = || Malformed("the form has no payload, or more than one".to_owned());
            unpacked = form::value(body, "payload").ok_or_else(no_payload)?;
            &unpacked
        }
    };
    match host {
        Host::GitHub => of_github(event(headers, &["x-github-event"])?, json),
        Host::Gitea => {
            of_github(event(headers, &["x-gitea-event", "x-forgejo-event", "x-github-event"])?, json)
        }
        Host::GitLab => of_gitlab(event(headers, &["x-gitlab-event"])?, json),
        Host::Bitbucket => of_bitbucket(event(headers, &["x-event-key"])?, json),
        Host::AzureDevOps => of_azure(json),
    }
}

/// The name of the event, by the first of these headers that is there.
fn event<'a>(headers: &'a HeaderMap, names: &[&str]) -> Result<&'a str, Malformed> {
    let found = names.iter().find_map(|name| headers.get(*name)).and_then(|value| value.to_str().ok());
    found.ok_or_else(|| Malformed(format!("the header {} is missing", names.first().unwrap_or(&""))))
}

fn parsed<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Malformed> {
    serde_json::from_slice(json).map_err(|error| Malformed(format!("the body cannot be read: {error}")))
}

fn other(event: &str) -> Said {
    // Anybody who knows the secret chooses the word; it goes into an answer.
    let word: String = event.chars().filter(|letter| !letter.is_control()).take(64).collect();
    Said::Other(format!("events {word:?} are not acted on; only pushes of branches and tags are"))
}

/// A push of what was named, as far as it is about branches and tags.
fn push(named: Named, heads: impl IntoIterator<Item = (String, Option<String>)>) -> Said {
    let heads: Vec<_> = heads
        .into_iter()
        .filter(|(name, _)| name.starts_with("refs/heads/") || name.starts_with("refs/tags/"))
        .map(|(name, commit)| {
            let is_there = |commit: &String| commit.bytes().any(|digit| digit != b'0');
            (name, commit.filter(is_there).and_then(|commit| CommitId::new(commit).ok()))
        })
        .collect();
    if heads.is_empty() {
        return Said::Other("no branch and no tag has moved".to_owned());
    }
    Said::Push(Push { named, heads })
}

fn by_urls<'a>(urls: impl IntoIterator<Item = &'a Option<String>>) -> Named {
    Named::ByUrls(urls.into_iter().flatten().filter_map(|url| Address::read(url)).collect())
}

/// A repository as GitHub, Gitea and Forgejo describe it.
#[derive(Deserialize)]
struct GitHubRepository {
    clone_url: Option<String>,
    ssh_url: Option<String>,
    html_url: Option<String>,
}

impl GitHubRepository {
    fn named(&self) -> Named {
        by_urls([&self.clone_url, &self.ssh_url, &self.html_url])
    }
}

#[derive(Deserialize)]
struct GitHubPush {
    #[serde(rename = "ref")]
    name: String,
    after: Option<String>,
    repository: GitHubRepository,
}

/// That a branch or tag was made or deleted. Gitea says so of a deleted branch and nothing else.
#[derive(Deserialize)]
struct GitHubRef {
    #[serde(rename = "ref")]
    name: String,
    ref_type: String,
    repository: GitHubRepository,
}

fn of_github(event: &str, json: &[u8]) -> Result<Said, Malformed> {
    match event {
        "push" => {
            let GitHubPush { name, after, repository } = parsed(json)?;
            Ok(push(repository.named(), [(name, after)]))
        }
        "create" | "delete" => {
            let GitHubRef { name, ref_type, repository } = parsed(json)?;
            let kind = if ref_type == "tag" { "tags" } else { "heads" };
            let name = if name.starts_with("refs/") { name } else { format!("refs/{kind}/{name}") };
            // The commit is in the push that GitHub sends beside it; without one the remote is asked.
            Ok(push(repository.named(), [(name, None)]))
        }
        event => Ok(other(event)),
    }
}

#[derive(Deserialize)]
struct GitLabPush {
    #[serde(rename = "ref")]
    name: String,
    after: Option<String>,
    project: GitLabProject,
}

#[derive(Deserialize)]
struct GitLabProject {
    git_http_url: Option<String>,
    git_ssh_url: Option<String>,
    web_url: Option<String>,
}

fn of_gitlab(event: &str, json: &[u8]) -> Result<Said, Malformed> {
    if !matches!(event, "Push Hook" | "Tag Push Hook") {
        return Ok(other(event));
    }
    let GitLabPush { name, after, project } = parsed(json)?;
    Ok(push(by_urls([&project.git_http_url, &project.git_ssh_url, &project.web_url]), [(name, after)]))
}

/// Bitbucket Cloud.
#[derive(Deserialize)]
struct CloudPush {
    repository: CloudRepository,
    push: CloudChanges,
}

#[derive(Deserialize)]
struct CloudRepository {
    links: CloudLinks,
}

#[derive(Deserialize)]
struct CloudLinks {
    html: CloudLink,
}

#[derive(Deserialize)]
struct CloudLink {
    href: Option<String>,
}

#[derive(Deserialize)]
struct CloudChanges {
    changes: Vec<CloudChange>,
}

#[derive(Deserialize)]
struct CloudChange {
    new: Option<CloudRef>,
    old: Option<CloudRef>,
}

#[derive(Deserialize)]
struct CloudRef {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    target: Option<CloudTarget>,
}

#[derive(Deserialize)]
struct CloudTarget {
    hash: Option<String>,
}

impl CloudChange {
    /// What is new, else what is gone.
    fn head(self) -> Option<(String, Option<String>)> {
        let full = |kind: &str, name: &str| match kind {
            "tag" | "annotated_tag" => format!("refs/tags/{name}"),
            _ => format!("refs/heads/{name}"),
        };
        match (self.new, self.old) {
            (Some(new), _) => Some((full(&new.kind, &new.name), new.target.and_then(|target| target.hash))),
            (None, Some(old)) => Some((full(&old.kind, &old.name), None)),
            (None, None) => None,
        }
    }
}

/// Bitbucket Data Center.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerPush {
    repository: ServerRepository,
    changes: Vec<ServerChange>,
}

#[derive(Deserialize)]
struct ServerRepository {
    slug: String,
    project: ServerProject,
}

#[derive(Deserialize)]
struct ServerProject {
    key: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerChange {
    ref_id: String,
    to_hash: Option<String>,
}

fn of_bitbucket(event: &str, json: &[u8]) -> Result<Said, Malformed> {
    match event {
        "repo:push" => {
            let CloudPush { repository, push: CloudChanges { changes } } = parsed(json)?;
            let named = by_urls([&repository.links.html.href]);
            Ok(push(named, changes.into_iter().filter_map(CloudChange::head)))
        }
        "repo:refs_changed" => {
            let ServerPush { repository, changes } = parsed(json)?;
            let tail = format!("{}/{}", repository.project.key, repository.slug);
            Ok(push(Named::ByTail(tail), changes.into_iter().map(|change| (change.ref_id, change.to_hash))))
        }
        event => Ok(other(event)),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AzureEvent<'a> {
    event_type: String,
    #[serde(borrow)]
    resource: Option<&'a serde_json::value::RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AzurePush {
    repository: AzureRepository,
    ref_updates: Vec<AzureUpdate>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AzureRepository {
    remote_url: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AzureUpdate {
    name: String,
    new_object_id: Option<String>,
}

fn of_azure(json: &[u8]) -> Result<Said, Malformed> {
    let AzureEvent { event_type, resource } = parsed(json)?;
    if event_type != "git.push" {
        return Ok(other(&event_type));
    }
    let resource = resource.ok_or_else(|| Malformed("the body has no resource".to_owned()))?;
    let AzurePush { repository, ref_updates } = parsed(resource.get().as_bytes())?;
    let heads = ref_updates.into_iter().map(|update| (update.name, update.new_object_id));
    Ok(push(by_urls([&repository.remote_url]), heads))
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
