//! Where in the code the tool runs, in which workspace, and which tool that is: what a layer asks for, with what its repository says where
//! the layer is silent. A run keeps it, so that what is applied was planned with the same.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::layer::TerraformLayer;
use crate::repository::TerraformRepository;
use crate::text::{LayerPath, Sha256, Workspace};
use crate::tool::{Choice, Tool};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Setup {
    /// The directory of the root module.
    pub path: LayerPath,
    /// The workspace of the tool.
    pub workspace: Workspace,
    /// Which tool; none leaves that to the code's version files and what is installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<Tool>,
    /// The constraint on its version, beside what the code asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub tool_version: Option<String>,
    /// Whether Terragrunt runs the tool, and in which version; where nothing is said, a `terragrunt.hcl` in the directory decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terragrunt: Option<Choice>,
}

impl TerraformLayer {
    /// What the layer is planned with now.
    pub fn setup(&self, repository: Option<&TerraformRepository>) -> Setup {
        let (tool, tool_version) = tool_choice(self, repository);
        Setup {
            path: self.spec.path.clone(),
            workspace: self.spec.workspace.clone().unwrap_or_default(),
            tool,
            tool_version,
            terragrunt: terragrunt_choice(self, repository),
        }
    }
}

impl Setup {
    /// What tells it from others.
    pub fn digest(&self) -> Sha256 {
        // Written with and without a slash at its end, a path is the same.
        let path = self.path.trimmed();
        let Self { path: _, workspace, tool, tool_version, terragrunt } = self;
        let parts = (path, workspace, tool, tool_version, terragrunt);
        Sha256::of(&serde_json::to_vec(&parts).unwrap_or_default())
    }

    /// What is other than it was, for people; nothing where all is the same.
    pub fn changes_since(&self, before: &Self) -> Option<String> {
        let pairs = [
            ("path", place(before), place(self)),
            ("workspace", before.workspace.to_string(), self.workspace.to_string()),
            ("tool", tool_words(before), tool_words(self)),
            ("terragrunt", choice_words(before.terragrunt.as_ref()), choice_words(self.terragrunt.as_ref())),
        ];
        let changed = pairs.iter().filter(|(_, before, now)| before != now);
        let words: Vec<String> =
            changed.map(|(what, before, now)| format!("{what} from {before} to {now}")).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

fn place(setup: &Setup) -> String {
    match setup.path.trimmed() {
        "" => ".".to_owned(),
        path => path.to_owned(),
    }
}

fn tool_words(setup: &Setup) -> String {
    match (setup.tool, &setup.tool_version) {
        (None, None) => "what the code asks for".to_owned(),
        (None, Some(version)) => format!("version {version}"),
        (Some(tool), None) => tool.program().to_owned(),
        (Some(tool), Some(version)) => format!("{} {version}", tool.program()),
    }
}

fn choice_words(choice: Option<&Choice>) -> String {
    let enabled = match choice.and_then(|choice| choice.enabled) {
        None => "where the code has it",
        Some(true) => "on",
        Some(false) => "off",
    };
    match choice.and_then(|choice| choice.version.as_ref()) {
        None => enabled.to_owned(),
        Some(version) => format!("{enabled} ({version})"),
    }
}

/// What the layer leaves out is taken from the repository, each field by itself.
fn terragrunt_choice(layer: &TerraformLayer, repository: Option<&TerraformRepository>) -> Option<Choice> {
    let own = layer.spec.terragrunt.clone().unwrap_or_default();
    let inherited = repository.and_then(|repository| repository.spec.terragrunt.clone()).unwrap_or_default();
    let choice =
        Choice { enabled: own.enabled.or(inherited.enabled), version: own.version.or(inherited.version) };
    (choice != Choice::default()).then_some(choice)
}

/// The layer's choice, then the repository's; a version without a choice of tool is a constraint on whichever is used.
fn tool_choice(
    layer: &TerraformLayer,
    repository: Option<&TerraformRepository>,
) -> (Option<Tool>, Option<String>) {
    let enabled = |choice: &Option<Choice>| choice.as_ref().is_some_and(|c| c.enabled == Some(true));
    let unsaid = (&None, &None);
    let sides = [
        (&layer.spec.terraform, &layer.spec.opentofu),
        repository.map_or(unsaid, |repository| (&repository.spec.terraform, &repository.spec.opentofu)),
    ];
    let tool = sides.iter().find_map(|(terraform, opentofu)| match (enabled(terraform), enabled(opentofu)) {
        (true, _) => Some(Tool::Terraform),
        (false, true) => Some(Tool::Opentofu),
        (false, false) => None,
    });
    let version_of = |choice: &Option<Choice>| choice.as_ref().and_then(|c| c.version.clone());
    let version = sides.iter().find_map(|(terraform, opentofu)| match tool {
        Some(Tool::Terraform) => version_of(terraform),
        Some(Tool::Opentofu) => version_of(opentofu),
        None => version_of(terraform).or_else(|| version_of(opentofu)),
    });
    (tool, version)
}
