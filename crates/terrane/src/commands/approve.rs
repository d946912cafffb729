//! `terrane approve` and `terrane reject`: one person's word on the bytes of one plan.

use anyhow::{Context, bail};
use api::approval::{Decision, TerraformApproval, TerraformApprovalSpec};
use api::run::PlanSummary;
use api::text::{ObjectName, Sha256};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use super::render;
use crate::arguments::Approve;

pub(crate) async fn run(options: Approve, decision: Decision) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let word = Word { decision, plan: options.plan, reason: options.reason };
    let (approval, summary) = decide(&client, &namespace, &options.layer, word).await?;
    render::object(options.shape.output, &approval, || {
        let word = match decision {
            Decision::Approve => "approved",
            Decision::Reject => "rejected",
        };
        format!(
            "{word} plan {} of {}: {}",
            approval.spec.plan_sha256.short(),
            options.layer,
            render::counts(summary)
        )
    })
}

/// What a person says about the newest plan.
pub(super) struct Word {
    pub(super) decision: Decision,
    /// Only if the newest plan begins with these digits.
    pub(super) plan: Option<String>,
    pub(super) reason: Option<String>,
}

/// Records a word on the newest plan of a layer.
pub(super) async fn decide(
    client: &Client,
    namespace: &str,
    name: &str,
    word: Word,
) -> anyhow::Result<(TerraformApproval, PlanSummary)> {
    let layer = super::layer(client, namespace, name).await?;
    let Some(plan) = layer.status.and_then(|status| status.plan) else {
        bail!("layer {namespace}/{name} has no plan yet; `terrane sync {name}` makes one");
    };
    if let Some(wanted) = &word.plan
        && !plan.sha256.as_str().starts_with(wanted.as_str())
    {
        bail!(
            "the newest plan of {namespace}/{name} is {}, not {wanted}; look at it again",
            plan.sha256.short()
        );
    }
    let approval = record(client, namespace, name, &plan.sha256, word).await?;
    Ok((approval, plan.summary))
}

/// Records a word on one plan of a layer.
pub(super) async fn record(
    client: &Client,
    namespace: &str,
    name: &str,
    plan: &Sha256,
    word: Word,
) -> anyhow::Result<TerraformApproval> {
    let user = who_am_i(client).await?;
    let approval = TerraformApproval::new(
        &approval_name(name, plan, &user),
        TerraformApprovalSpec {
            layer: ObjectName::new(name)?,
            plan_sha256: plan.clone(),
            user,
            decision: word.decision,
            reason: word.reason,
        },
    );
    let api = Api::<TerraformApproval>::namespaced(client.clone(), namespace);
    match api.create(&PostParams::default(), &approval).await {
        Ok(approval) => Ok(approval),
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => {
            bail!("you have already decided on plan {} of {namespace}/{name}", plan.short());
        }
        Err(error) => Err(error).with_context(|| format!("record the decision on {namespace}/{name}")),
    }
}

async fn who_am_i(client: &Client) -> anyhow::Result<String> {
    let review = Api::<SelfSubjectReview>::all(client.clone())
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .context("ask the API who you are")?;
    review
        .status
        .and_then(|s| s.user_info)
        .and_then(|u| u.username)
        .context("the API does not say who you are")
}

/// One person has one word on one plan.
fn approval_name(layer: &str, plan: &Sha256, user: &str) -> String {
    let person = Sha256::of(user.as_bytes());
    let layer: String = layer.chars().take(200).collect();
    format!("{layer}-{}-{}", plan.short(), person.short())
}
