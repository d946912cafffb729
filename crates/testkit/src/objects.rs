//! Objects in few words, as a person would declare them: what a test does not care about has the value that most would choose.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use api::approval::{Decision, TerraformApprovalSpec};
use api::text::Sha256;
use api::{Repo, Terraform, TerraformApproval, TerraformLayer, TerraformNotification, TerraformRepository};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::core::ObjectMeta;
use serde_json::json;

/// A repository at `file:///srv/NAME`.
pub fn repository(name: &str) -> Result<TerraformRepository> {
    serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRepository",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "repository": { "url": format!("file:///srv/{name}") } },
    }))
    .with_context(|| format!("repository {name}"))
}

/// A Repo of the root module at `file:///srv/NAME`.
pub fn repo(name: &str) -> Result<Repo> {
    serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "Repo",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "url": format!("file:///srv/{name}") },
    }))
    .with_context(|| format!("Repo {name}"))
}

/// A Terraform of the root module at `file:///srv/NAME`, which is destroyed when it is deleted, with something that follows each deploy.
pub fn terraform(name: &str) -> Result<Terraform> {
    serde_json::from_value(json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "variables": { "word": "first" },
            "scripts": { "destroy": { "inline": "terraform destroy -auto-approve" } },
            "postDeploy": { "script": "report" },
            "gitRepo": { "url": format!("file:///srv/{name}") },
        },
    }))
    .with_context(|| format!("Terraform {name}"))
}

/// A Terraform whose code is the image `team/NAME` within a constraint, which is destroyed when it is deleted.
pub fn terraform_of_image(name: &str) -> Result<Terraform> {
    serde_json::from_value(json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "scripts": { "deploy": "deploy", "destroy": "destroy -c" },
            "containerRegistry": {
                "provider": "docker", "imageName": format!("team/{name}"), "semanticVersion": "~1.0.0",
            },
        },
    }))
    .with_context(|| format!("Terraform {name}"))
}

/// Tells a webhook of what was applied; the Secret of the same name has its address.
pub fn notification(name: &str) -> Result<TerraformNotification> {
    serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformNotification",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "to": { "webhook": { "secretName": name } }, "events": ["Applied"] },
    }))
    .with_context(|| format!("notification {name}"))
}

/// The layer of directory `path` on branch `main`.
pub fn layer(name: &str, repository: &str, path: &str) -> Result<TerraformLayer> {
    serde_json::from_value(json!({
        "apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "repository": { "name": repository }, "branch": "main", "path": path },
    }))
    .with_context(|| format!("layer {name}"))
}

/// What happens to a layer's plans by themselves.
pub trait Remedied: Sized {
    /// Applies its plans without asking a person.
    fn auto_apply(self) -> Self;
    fn max_retries(self, retries: u32) -> Self;
}

impl Remedied for TerraformLayer {
    fn auto_apply(mut self) -> Self {
        self.spec.remediation_strategy.get_or_insert_default().auto_apply = Some(true);
        self
    }

    fn max_retries(mut self, retries: u32) -> Self {
        let strategy = self.spec.remediation_strategy.get_or_insert_default();
        strategy.on_error.get_or_insert_default().max_retries = Some(retries);
        self
    }
}

/// `user`'s word on the exact bytes of a plan.
pub fn approval(layer: &str, plan: &Sha256, user: &str, decision: Decision) -> Result<TerraformApproval> {
    let spec = TerraformApprovalSpec {
        layer: layer.parse().with_context(|| format!("layer {layer}"))?,
        plan_sha256: plan.clone(),
        user: user.to_owned(),
        decision,
        reason: None,
    };
    let mut approval = TerraformApproval::new(&format!("{layer}-{}-{user}", plan.short()), spec);
    approval.metadata.namespace = Some("default".to_owned());
    Ok(approval)
}

pub fn namespace(name: &str) -> Namespace {
    Namespace { metadata: named(name, None), ..Namespace::default() }
}

/// A pod of one container that is never started twice.
pub fn pod(name: &str, image: &str) -> Result<Pod> {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": image }] },
    }))
    .with_context(|| format!("pod {name}"))
}

pub fn secret<const N: usize>(name: &str, data: [(&str, &str); N]) -> Secret {
    let data: BTreeMap<String, ByteString> =
        data.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect();
    Secret { metadata: named(name, Some("default")), data: Some(data), ..Secret::default() }
}

fn named(name: &str, namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        ..ObjectMeta::default()
    }
}
