//! `terrane approve` and `terrane reject`: one person's word on the bytes of one plan.

use anyhow::{Context, bail};
use api::approval::{Decision, TerraformApproval, TerraformApprovalSpec};
use api::text::{ObjectName, Sha256};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::arguments::Approve;

pub(crate) async fn run(options: Approve, decision: Decision) -> anyhow::Result<()> {
    let (client, namespace) = super::connect(&options.target).await?;
    let name = &options.layer;
    let layer = super::layer(&client, &namespace, name).await?;
    let Some(plan) = layer.status.and_then(|status| status.plan) else {
        bail!("layer {namespace}/{name} has no plan yet; `terrane sync {name}` makes one");
    };
    if let Some(wanted) = &options.plan
        && !plan.sha256.as_str().starts_with(wanted.as_str())
    {
        bail!(
            "the newest plan of {namespace}/{name} is {}, not {wanted}; look at it again",
            plan.sha256.short()
        );
    }
    let user = who_am_i(&client).await?;
    let approval = TerraformApproval::new(
        &approval_name(name, &plan.sha256, &user),
        TerraformApprovalSpec {
            layer: ObjectName::new(name.as_str())?,
            plan_sha256: plan.sha256.clone(),
            user,
            decision,
            reason: options.reason,
        },
    );
    let api = Api::<TerraformApproval>::namespaced(client, &namespace);
    match api.create(&PostParams::default(), &approval).await {
        Ok(_) => {}
        Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => {
            bail!("you have already decided on plan {} of {namespace}/{name}", plan.sha256.short());
        }
        Err(error) => {
            return Err(error).with_context(|| format!("record the decision on {namespace}/{name}"));
        }
    }
    let word = match decision {
        Decision::Approve => "approved",
        Decision::Reject => "rejected",
    };
    let summary = plan.summary;
    println!(
        "{word} plan {} of {name}: {} to add, {} to change, {} to destroy",
        plan.sha256.short(),
        summary.add,
        summary.change,
        summary.destroy
    );
    Ok(())
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
