//! `terrane wait`: until a condition of an object holds, or the object is gone.

use std::time::Duration;

use anyhow::bail;
use api::{
    Repo, Terraform, TerraformApproval, TerraformLayer, TerraformNotification, TerraformRepository,
    TerraformRun,
};
use clap::{Args, ValueEnum};
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use serde_json::Value;

use super::progress::Progress;
use super::watching::{self, Seen};
use super::{queue, render};
use crate::arguments::{Format, Kind, Target};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A layer, or KIND/NAME
    object: String,
    /// What to wait for: condition=TYPE, condition=TYPE=VALUE, or delete
    #[arg(long = "for", value_name = "WHAT", value_parser = goal)]
    goal: Goal,
    /// How long at most
    #[arg(long, value_parser = watching::duration, default_value = "30s")]
    timeout: Duration,
    /// Print the object when it is so; of one that is gone, as it was last seen
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Goal {
    Condition { kind: String, value: String },
    Deleted,
}

fn goal(text: &str) -> Result<Goal, String> {
    if text == "delete" {
        return Ok(Goal::Deleted);
    }
    let condition = text.strip_prefix("condition=").filter(|rest| !rest.is_empty());
    let Some(condition) = condition else {
        return Err("write condition=Ready, condition=Drifted=False, or delete".to_owned());
    };
    let (kind, value) = condition.split_once('=').unwrap_or((condition, "True"));
    Ok(Goal::Condition { kind: kind.to_owned(), value: value.to_owned() })
}

/// What KIND/NAME means; a bare name is a layer.
pub(super) fn object(text: &str) -> anyhow::Result<(Kind, &str)> {
    let Some((kind, name)) = text.split_once('/') else { return Ok((Kind::Layers, text)) };
    let short = kind.trim_end_matches(".terrane.dev").trim_end_matches(".alustan.io");
    let known = Kind::from_str(short, true);
    match known.or_else(|_| Kind::from_str(short.trim_start_matches("terraform"), true)) {
        Ok(kind) => Ok((kind, name)),
        Err(_) => bail!(
            "{kind} is no kind of Terrane; there are layer, run, repository, approval, repo, terraform and notification"
        ),
    }
}

pub(super) fn resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::Layers => ApiResource::erase::<TerraformLayer>(&()),
        Kind::Runs => ApiResource::erase::<TerraformRun>(&()),
        Kind::Repositories => ApiResource::erase::<TerraformRepository>(&()),
        Kind::Approvals => ApiResource::erase::<TerraformApproval>(&()),
        Kind::Repos => ApiResource::erase::<Repo>(&()),
        Kind::Terraforms => ApiResource::erase::<Terraform>(&()),
        Kind::Notifications => ApiResource::erase::<TerraformNotification>(&()),
    }
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let (kind, name) = object(&options.object)?;
    let resource = resource(kind);
    let word = resource.kind.trim_start_matches("Terraform").to_lowercase();
    if kind == Kind::Layers && options.goal != Goal::Deleted {
        super::layer(&client, &namespace, name).await?;
    }
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource);
    let mut last = "it was not seen".to_owned();
    let mut gone = DynamicObject::new(name, &resource).within(&namespace);
    let mut progress = Progress::new(format!("{name}: waiting"));
    let wait = watching::until(api, name, &mut progress, |object| match (&options.goal, object) {
        (Goal::Deleted, None) => Ok(Seen::Enough(None)),
        (Goal::Deleted, Some(object)) => {
            last = "it is still there".to_owned();
            gone = object;
            Ok(Seen::Waiting(format!("{name}: waiting for its end")))
        }
        (Goal::Condition { .. }, None) => bail!("{word} {namespace}/{name} not found"),
        (Goal::Condition { kind, value }, Some(object)) => {
            let found = condition(&object, kind);
            let status = found.and_then(|c| c.get("status")).and_then(Value::as_str);
            if status.is_some_and(|status| status.eq_ignore_ascii_case(value)) {
                return Ok(Seen::Enough(Some(object)));
            }
            let message = found.and_then(|c| c.get("message")).and_then(Value::as_str);
            last = match status {
                Some(status) => format!("{kind} is {status}: {}", message.unwrap_or_default()),
                None => format!("it has no condition {kind}"),
            };
            Ok(Seen::Waiting(format!("{name}: {last}")))
        }
    });
    let ended = tokio::time::timeout(options.timeout, wait).await;
    drop(progress);
    let Ok(seen) = ended else {
        if let Some(place) = queue::place_of(&client, &namespace, kind, name).await {
            last = format!("{last}; {place}");
        }
        bail!("{word} {namespace}/{name} is not so after {} s: {last}", options.timeout.as_secs());
    };
    let seen = seen?;
    let named = format!("{}/{name}", resource.plural);
    render::deed(options.output, &seen.unwrap_or(gone), &named, || match options.goal {
        Goal::Deleted => format!("{word} {name} is gone"),
        Goal::Condition { .. } => format!("{word} {name}: condition met"),
    })
}

fn condition<'a>(object: &'a DynamicObject, kind: &str) -> Option<&'a Value> {
    let all = object.data.pointer("/status/conditions")?.as_array()?;
    all.iter().find(|condition| {
        condition.get("type").and_then(Value::as_str).is_some_and(|found| found.eq_ignore_ascii_case(kind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_and_objects_are_read_as_kubectl_reads_them() {
        let condition =
            |kind: &str, value: &str| Ok(Goal::Condition { kind: kind.to_owned(), value: value.to_owned() });
        assert_eq!(goal("condition=Ready"), condition("Ready", "True"));
        assert_eq!(goal("condition=Drifted=False"), condition("Drifted", "False"));
        assert_eq!(goal("delete"), Ok(Goal::Deleted));
        assert!(goal("Ready").is_err());
        assert_eq!(object("app").unwrap(), (Kind::Layers, "app"));
        assert_eq!(object("run/app-plan-1").unwrap(), (Kind::Runs, "app-plan-1"));
        assert_eq!(object("tfr/demo").unwrap(), (Kind::Repositories, "demo"));
        assert_eq!(object("repo/infra").unwrap(), (Kind::Repos, "infra"));
        assert_eq!(object("repos.terrane.dev/infra").unwrap(), (Kind::Repos, "infra"));
        assert_eq!(object("terraform/infra").unwrap(), (Kind::Terraforms, "infra"));
        assert_eq!(object("terraforms.alustan.io/infra").unwrap(), (Kind::Terraforms, "infra"));
        assert_eq!(object("terraformnotifications.terrane.dev/chat").unwrap(), (Kind::Notifications, "chat"));
        assert_eq!(object("terraformlayers/app").unwrap(), (Kind::Layers, "app"));
        assert!(object("pod/x").unwrap_err().to_string().contains("no kind of Terrane"));
    }
}
