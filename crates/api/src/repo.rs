//! Repo: a URL, and nothing else that has to be said. Its repository and its layer are made for it, and every new commit is applied.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::repository::Credentials;
use crate::text::{CommitId, GitUrl, LayerPath, RefName, Span};

/// Which code is kept applied.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "terrane.dev",
    version = "v1alpha1",
    kind = "Repo",
    plural = "repos",
    namespaced,
    status = "RepoStatus",
    shortname = "tfrepo",
    category = "terrane",
    derive = "PartialEq",
    doc = "A Git repository of which every new commit is applied. Terrane makes a TerraformRepository and a TerraformLayer of the same name for it.",
    printcolumn(
        name = "URL",
        type_ = "string",
        json_path = ".spec.url",
        description = "Where the repository is"
    ),
    printcolumn(
        name = "Commit",
        type_ = "string",
        json_path = ".status.revision.short",
        description = "The newest commit that was seen"
    ),
    printcolumn(
        name = "Run",
        type_ = "string",
        json_path = ".status.run.state",
        description = "How far the newest run is"
    ),
    printcolumn(
        name = "Job",
        type_ = "string",
        json_path = ".status.run.job",
        description = "The Job that shows it"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "Whether the newest commit is applied"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        description = "Why, in words",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Since when it exists"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct RepoSpec {
    /// `https://…`, `ssh://…`, `git@host:path`, or `file:///…` where the administrator allows it. Never with a password in it.
    pub url: GitUrl,
    /// The branch that is followed, or a full ref such as `refs/tags/v1`. Default: the branch that the repository itself calls its
    /// default one, and `main` where it names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<RefName>,
    /// The directory of the root module, relative to the repository's root. Default: the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<LayerPath>,
    /// How to log in. Without it, the Secret of type `terrane.dev/repository` in this namespace is used whose key `url` covers the
    /// most of the URL above; without such a Secret, the repository is read as anyone could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// How often the repository is asked for new commits, with some jitter. Default: 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Span>,
}

/// What was seen of the repository, and what was done about it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepoStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The branch that is followed; absent until the repository was seen, unless the spec names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<RefName>,
    #[serde(default, skip_serializing_if = "RepoRevisions::is_empty")]
    pub revision: RepoRevisions,
    /// The newest run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RepoRun>,
    /// Commits that were seen and never applied, because a newer one came first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// Full commit ids, except `short`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepoRevisions {
    /// The newest commit that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<CommitId>,
    /// The same, short, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short: Option<String>,
    /// The commit that a run works on now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<CommitId>,
    /// The commit that was last applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<CommitId>,
}

impl RepoRevisions {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A plan, and the apply that follows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepoRun {
    /// The commit that it is about.
    pub revision: CommitId,
    /// How far it is.
    pub state: RepoRunState,
    /// The TerraformRun that it begins with.
    pub plan: String,
    /// The Job that shows it; none on a cluster that cannot keep such Jobs, or that refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RepoRunState {
    /// Nothing of it has begun.
    Pending,
    Running,
    /// The commit is applied, or needs no change.
    Succeeded,
    Failed,
}

impl RepoRunState {
    pub const fn is_terminal(self) -> bool {
        match self {
            RepoRunState::Succeeded | RepoRunState::Failed => true,
            RepoRunState::Pending | RepoRunState::Running => false,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Skipped {
    /// How many there were.
    pub total: u32,
    /// The newest of them, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub latest: Vec<CommitId>,
}

impl Skipped {
    /// Commits that are named; the others are counted.
    pub const NAMED: usize = 10;

    /// Counts one more, unless it is among those that are named.
    pub fn add(&mut self, commit: &CommitId) {
        if !self.latest.contains(commit) {
            self.total = self.total.saturating_add(1);
            self.latest.insert(0, commit.clone());
            self.latest.truncate(Self::NAMED);
        }
    }
}
