//! The same attempts with the real Terragrunt between the runner and the tool.

use super::*;

const ROOT: &str = r#"
inputs = { greeting = "from the root" }
generate "extra" {
  path      = "extra.tf"
  if_exists = "overwrite"
  contents  = "output \"where\" { value = abspath(path.root) }\n"
}
"#;
const UNIT: &str = r#"
include "root" { path = find_in_parent_folders("root.hcl") }
terraform { source = "../../modules//m" }
inputs = { name = "unit" }
"#;
const CODE: &str = r#"
variable "greeting" {}
variable "name" {}
module "n" {
  source = "../n"
  text   = "${var.greeting} to ${var.name}"
}
"#;
const CALLED: &str = "variable \"text\" {}\nresource \"terraform_data\" \"x\" { input = var.text }\n";

#[tokio::test]
async fn a_unit_is_planned_applied_and_destroyed() {
    let files = [
        ("root.hcl", ROOT),
        ("envs/prod/terragrunt.hcl", UNIT),
        ("modules/m/main.tf", CODE),
        ("modules/n/main.tf", CALLED),
    ];
    let world = World::new(&files).await;
    let plan = world.run(world.description("plan-1", Action::Plan, 0)).await;
    assert_eq!(plan.message, "Plan: 1 to add, 0 to change, 0 to destroy. 1 output changes.");
    let tool = plan.tool.clone().unwrap();
    assert!(tool.ends_with(" run by terragrunt 1.0.0"), "{tool}");
    assert_eq!(plan.plan.as_ref().unwrap().backend, None, "nothing names a backend");
    let attempt = Attempt::new("plan-1", 1).unwrap();
    let text = world.client().artefact_get(&attempt, Artefact::PlanText, 1 << 20).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("module.n.terraform_data.x will be created"), "{text}");
    assert!(!text.contains("Initializing"), "the readable plan is the plan alone: {text}");

    let apply = world.run(world.apply_after("apply-1", 1, &plan)).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    assert_eq!(apply.message, "Apply complete! Resources: 1 added, 0 changed, 0 destroyed.");
    let state = world.state().await.expect("the state is ours to keep");
    let input = &state["resources"][0]["instances"][0]["attributes"]["input"]["value"];
    assert_eq!(input, "from the root to unit");
    let place = state["outputs"]["where"]["value"].as_str().unwrap().to_owned();
    assert!(place.contains(".terragrunt-cache"), "{place}");

    // The tool works in the same place each time: what is there shows no change.
    let destroy = Description { mode: Mode::Destroy, ..world.description("destroy", Action::Plan, 0) };
    let destroy = world.run(destroy).await;
    assert_eq!(destroy.plan.as_ref().unwrap().summary.destroy, 1, "{}", destroy.message);
    let apply = Description { mode: Mode::Destroy, ..world.apply_after("destroyed", 2, &destroy) };
    let apply = world.run(apply).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    assert_eq!(world.state().await.unwrap()["resources"], serde_json::json!([]));
}

#[tokio::test]
async fn a_generated_backend_is_kept_and_the_outputs_of_a_dependency_are_read_from_it() {
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().canonicalize().unwrap().join("network.tfstate");
    let network = format!(
        "remote_state {{\n  backend = \"local\"\n  generate = {{\n    path = \"backend.tf\"\n    if_exists = \"overwrite\"\n  }}\n  config = {{ path = \"{}\" }}\n}}\n",
        file.display()
    );
    let app = "dependency \"network\" { config_path = \"../network\" }\ninputs = { id = dependency.network.outputs.id }\n";
    let files = [
        ("envs/network/terragrunt.hcl", network.as_str()),
        (
            "envs/network/main.tf",
            "resource \"terraform_data\" \"n\" { input = \"net-7\" }\noutput \"id\" { value = terraform_data.n.output }\n",
        ),
        ("envs/prod/terragrunt.hcl", app),
        ("envs/prod/main.tf", "variable \"id\" {}\nresource \"terraform_data\" \"x\" { input = var.id }\n"),
    ];
    let world = World::new(&files).await;
    let at = |description: Description| Description { path: "envs/network".parse().unwrap(), ..description };
    let plan = world.run(at(world.description("network", Action::Plan, 0))).await;
    let backend = plan.plan.as_ref().unwrap().backend.clone().expect("a backend of its own");
    assert_eq!(backend.to_string(), format!("local path={}", file.display()));
    let apply = world.run(at(world.apply_after("network-apply", 1, &plan))).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    assert!(file.exists());

    let plan = world.run(world.description("app", Action::Plan, 0)).await;
    assert_eq!(plan.reason, Reason::Succeeded, "{}", plan.message);
    assert_eq!(plan.plan.as_ref().unwrap().backend, None);
    assert!(world.log_of("app").await.contains("\"net-7\""), "{}", world.log_of("app").await);
}

#[tokio::test]
async fn a_stop_in_mid_apply_lets_the_tool_save_its_state() {
    let signals = tempfile::tempdir().unwrap();
    let code = waiting_code(signals.path());
    let world = World::new(&[("envs/prod/main.tf", code.as_str()), ("envs/prod/terragrunt.hcl", "")]).await;
    let plan = world.run(world.description("plan-1", Action::Plan, 0)).await;
    world.describe(&world.apply_after("apply-1", 1, &plan)).await;
    let began = signals.path().join("began");
    let apply = world.run_with(world.options("apply-1"), until(|| began.exists())).await;
    assert_eq!(apply.reason, Reason::Interrupted, "{}", apply.message);
    let state = world.state().await.expect("the state was saved");
    let names: Vec<&str> =
        state["resources"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
    assert!(names.contains(&"first"), "{names:?}");
    assert_eq!(reqwest_get(&world, &format!("/v1/state/{}/lock", state_id())).await, 204, "no lock stays");
}

#[tokio::test]
async fn what_terragrunt_says_and_what_it_is_told_decides() {
    let broken =
        [("envs/prod/terragrunt.hcl", "inputs = { a = local.nope }\n"), ("envs/prod/main.tf", MODULE)];
    let world = World::new(&broken).await;
    let failed = world.run(world.description("plan-1", Action::Plan, 0)).await;
    assert_eq!(failed.reason, Reason::ToolFailed);
    assert!(
        failed.message.starts_with("Unsupported attribute (envs/prod/terragrunt.hcl:1): "),
        "{}",
        failed.message
    );

    // Not found where programs are looked for, or not in the version that is asked for.
    let mut options = world.options("plan-2");
    options.search_path.retain(|dir| !dir.join("terragrunt").exists());
    world.describe(&world.description("plan-2", Action::Plan, 0)).await;
    let missing = world.run_with(options, std::future::pending()).await;
    assert_eq!(missing.reason, Reason::ToolMissing, "{}", missing.message);
    let choice = api::tool::Choice { enabled: Some(true), version: Some("< 1".to_owned()) };
    let older = Description { terragrunt: Some(choice), ..world.description("plan-3", Action::Plan, 0) };
    let missing = world.run(older).await;
    assert_eq!(missing.reason, Reason::ToolMissing);
    assert!(
        missing.message.contains("< 1") && missing.message.contains("installed: 1.0.0"),
        "{}",
        missing.message
    );

    // A layer can do without it, whatever lies beside its code.
    let choice = api::tool::Choice { enabled: Some(false), version: None };
    let plain = Description { terragrunt: Some(choice), ..world.description("plan-4", Action::Plan, 0) };
    let plain = world.run(plain).await;
    assert_eq!(plain.message, "Plan: 1 to add, 0 to change, 0 to destroy.");
}
