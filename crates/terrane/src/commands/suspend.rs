//! `terrane suspend` and `terrane resume`: of layers, and of repositories.

use std::fmt::Debug;

use anyhow::{Context, bail};
use api::{TerraformLayer, TerraformRepository, annotation};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{render, wait};
use crate::arguments::{Kind, Shape, Target};

#[derive(Args, Debug)]
#[command(after_help = "\
A suspended layer is not planned, applied or destroyed. A suspended repository is not looked at: its layers stay at the commits that are
known. `repository/NAME` and `repository NAME` are a repository; `layer/NAME` is a layer that is called like a kind.")]
pub(crate) struct Options {
    /// Layers, or KIND/NAME of layers and repositories, or a KIND that its NAMES follow
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    objects: Vec<String>,
    /// All layers of the namespace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Suspend,
    Resume,
}

/// What can be suspended.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Pausable {
    Layer(Box<TerraformLayer>),
    Repository(Box<TerraformRepository>),
}

impl Pausable {
    fn name(&self) -> String {
        match self {
            Self::Layer(layer) => layer.name_any(),
            Self::Repository(repository) => repository.name_any(),
        }
    }

    /// As `-o name` prints it.
    fn resource(&self) -> String {
        let plural = match self {
            Self::Layer(_) => TerraformLayer::plural(&()),
            Self::Repository(_) => TerraformRepository::plural(&()),
        };
        format!("{plural}/{}", self.name())
    }

    fn sentence(&self, wish: Wish) -> String {
        let name = self.name();
        match (wish, self) {
            (Wish::Suspend, Self::Layer(_)) => {
                format!("{name} is suspended; `terrane resume {name}` lets it go on")
            }
            (Wish::Suspend, Self::Repository(_)) => {
                format!(
                    "repository {name} is not looked at any more; `terrane resume repository/{name}` lets it go on"
                )
            }
            (Wish::Resume, Self::Layer(_)) => format!("{name} goes on"),
            (Wish::Resume, Self::Repository(_)) => {
                format!("repository {name} is looked at now, and from then on as before")
            }
        }
    }
}

pub(crate) async fn run(options: Options, wish: Wish) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), &namespace);
    let mut found = Vec::new();
    if options.all {
        let all = layers.list(&ListParams::default()).await.context("list the layers")?.items;
        if all.is_empty() {
            bail!("namespace {namespace} has no layers");
        }
        found.extend(all.into_iter().map(|layer| Pausable::Layer(Box::new(layer))));
    }
    // All are there before the first is changed.
    for object in named(&options.objects) {
        let (kind, name) = wait::object(&object)?;
        found.push(read(&client, &namespace, kind, name).await?);
    }
    let mut changed = Vec::new();
    for object in found {
        changed.push(change(&client, &namespace, object, wish).await?);
    }
    match changed.as_slice() {
        [one] if !options.all => {
            render::deed(options.shape.output, one, &one.resource(), || one.sentence(wish))
        }
        several => render::deeds(options.shape.output, several, Pausable::resource, |one| one.sentence(wish)),
    }
}

/// Each as `KIND/NAME` or the name of a layer. As kubectl takes them too: `repository a b` are `repository/a` and `repository/b`.
fn named(objects: &[String]) -> Vec<String> {
    match objects {
        [kind, names @ ..] if !names.is_empty() && Kind::from_str(kind, true).is_ok() => {
            names.iter().map(|name| format!("{kind}/{name}")).collect()
        }
        names => names.to_vec(),
    }
}

async fn read(client: &Client, namespace: &str, kind: Kind, name: &str) -> anyhow::Result<Pausable> {
    match kind {
        Kind::Layers => {
            super::layer(client, namespace, name).await.map(|layer| Pausable::Layer(Box::new(layer)))
        }
        Kind::Repositories => {
            let repository = super::repository(client, namespace, name).await?;
            Ok(Pausable::Repository(Box::new(repository)))
        }
        Kind::Runs => bail!("run {name} cannot be suspended; `terrane cancel {name}` stops it"),
        Kind::Approvals | Kind::Repos | Kind::Terraforms | Kind::Notifications => {
            let kind = wait::resource(kind).kind;
            bail!("only layers and repositories can be suspended, and {kind} {name} is neither")
        }
    }
}

async fn change(client: &Client, namespace: &str, object: Pausable, wish: Wish) -> anyhow::Result<Pausable> {
    let suspend = wish == Wish::Suspend;
    let spec = json!({ "suspend": suspend });
    Ok(match object {
        Pausable::Layer(layer) if layer.spec.suspend != suspend => {
            let patch = json!({ "spec": spec });
            Pausable::Layer(Box::new(patched(client, namespace, &*layer, patch).await?))
        }
        Pausable::Repository(repository) if repository.spec.suspend != suspend => {
            let patch = match wish {
                Wish::Suspend => json!({ "spec": spec }),
                // What was pushed in the meantime is not left for the next poll.
                Wish::Resume => {
                    let now = Timestamp::now().to_string();
                    json!({ "metadata": { "annotations": { annotation::SYNC: now } }, "spec": spec })
                }
            };
            Pausable::Repository(Box::new(patched(client, namespace, &*repository, patch).await?))
        }
        Pausable::Layer(_) | Pausable::Repository(_) => object,
    })
}

async fn patched<K>(client: &Client, namespace: &str, object: &K, patch: Value) -> anyhow::Result<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let name = object.name_any();
    Api::<K>::namespaced(client.clone(), namespace)
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("change spec.suspend of {} {namespace}/{name}", K::kind(&())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_may_stand_before_its_names() {
        let read = |words: &[&str]| named(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        for (words, expected) in [
            (&["app"][..], &["app"][..]),
            (&["app", "db"], &["app", "db"]),
            (&["repository/code", "app"], &["repository/code", "app"]),
            (&["repository", "code", "more"], &["repository/code", "repository/more"]),
            (&["tfl", "app"], &["tfl/app"]),
            // A layer may be called so.
            (&["repository"], &["repository"]),
            (&["app", "repository"], &["app", "repository"]),
        ] {
            assert_eq!(read(words), expected, "{words:?}");
        }
    }
}
