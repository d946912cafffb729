//! Which state an attempt is about: what the code's own backend resolves to, and that an apply goes nowhere else.

use super::*;

fn stored_in(file: &Path) -> String {
    format!(
        "terraform {{\n  backend \"local\" {{ path = \"{}\" }}\n}}\nresource \"terraform_data\" \"x\" {{ input = 1 }}\n",
        file.display()
    )
}

#[tokio::test]
async fn code_with_a_backend_of_its_own_keeps_it_and_an_apply_goes_nowhere_else() {
    let elsewhere = tempfile::tempdir().unwrap();
    let real = elsewhere.path().canonicalize().unwrap();
    let file = real.join("own.tfstate");
    // By a link, as one of two layers could name the same file.
    std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
    let world = World::new(&[("envs/prod/main.tf", &stored_in(&real.join("link/own.tfstate")))]).await;
    let plan = world.plan("plan-1").await;
    let backend = plan.plan.as_ref().unwrap().backend.clone().unwrap();
    assert_eq!(backend.to_string(), format!("local path={}", file.display()));

    // The plan was made on another state than the code leads to: once on another file, once on the datastore's own.
    for (run, planned_on) in [("other-1", Some(Sha256::of(b"another file"))), ("other-2", None)] {
        let apply = Description { backend: planned_on, ..world.apply_after(run, 1, &plan) };
        let refused = world.run(apply).await;
        assert_eq!(refused.reason, Reason::StateMoved, "{}", refused.message);
        assert_eq!(
            refused.message,
            format!(
                "the state is not where it was when the plan was made: its backend is now local path={}; nothing was applied, a new plan is needed",
                file.display()
            )
        );
        assert!(!file.exists(), "nothing was applied");
        assert!(!world.log_of(run).await.contains("terraform_data.x: Creating"));
    }

    let apply = world.run(world.apply_after("apply-1", 1, &plan)).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    assert!(file.exists());
    assert!(world.state().await.is_none());
    let stale = world.run(world.apply_after("apply-2", 2, &plan)).await;
    assert_eq!(stale.reason, Reason::Stale, "{}", stale.message);
}

#[tokio::test]
async fn a_state_that_would_be_lost_with_the_working_directory_is_refused() {
    let code = "terraform {\n  backend \"local\" {}\n}\nresource \"terraform_data\" \"x\" {}\n";
    let world = World::new(&[("envs/prod/main.tf", code)]).await;
    let refused = world.plan("plan-1").await;
    assert_eq!(refused.reason, Reason::BadInput);
    assert_eq!(
        refused.message,
        "the state would be kept in source/envs/prod/terraform.tfstate, which is gone when the run ends; leave the backend out and Terrane keeps the state, or name a path outside of the repository"
    );
}

#[tokio::test]
async fn code_learns_its_workspace_from_a_variable() {
    let code = "variable \"terrane_workspace\" {}\noutput \"it\" { value = var.terrane_workspace }\n";
    let world = World::new(&[("envs/prod/main.tf", code)]).await;
    let dev =
        Description { workspace: "dev".parse().unwrap(), ..world.description("plan-1", Action::Plan, 0) };
    let plan = world.run(dev).await;
    assert_eq!(plan.reason, Reason::Succeeded, "{}", plan.message);
    assert!(world.log_of("plan-1").await.contains("+ it = \"dev\""));
}

/// A plan and its apply in a workspace, of the mode that is asked for.
async fn lived(world: &World, workspace: &str, mode: Mode, number: u64) -> (Outcome, Option<Outcome>) {
    let of_workspace = |description: Description| Description {
        workspace: workspace.parse().unwrap(),
        delete_workspace: mode == Mode::Destroy,
        mode,
        ..description
    };
    let run = format!("plan-{number}");
    let plan = world.run(of_workspace(world.description(&run, Action::Plan, 0))).await;
    assert_eq!(plan.reason, Reason::Succeeded, "{}", plan.message);
    if !plan.plan.as_ref().unwrap().summary.has_changes() {
        return (plan, None);
    }
    let apply = of_workspace(world.apply_after(&format!("apply-{number}"), number, &plan));
    let apply = world.run(apply).await;
    assert_eq!(apply.reason, Reason::Succeeded, "{}", apply.message);
    (plan, Some(apply))
}

#[tokio::test]
async fn a_workspace_goes_with_what_was_in_it() {
    let elsewhere = tempfile::tempdir().unwrap();
    let place = elsewhere.path().canonicalize().unwrap();
    let code = format!(
        "terraform {{\n  backend \"local\" {{\n    path          = \"{0}/main\"\n    workspace_dir = \"{0}/spaces\"\n  }}\n}}\nresource \"terraform_data\" \"x\" {{}}\n",
        place.display()
    );
    let world = World::new(&[("envs/prod/main.tf", &code)]).await;
    let space = |name: &str| place.join("spaces").join(name);
    lived(&world, "one", Mode::Normal, 1).await;
    lived(&world, "two", Mode::Normal, 2).await;
    assert!(space("one").exists() && space("two").exists());
    // What is destroyed takes its workspace along, and no other.
    lived(&world, "one", Mode::Destroy, 3).await;
    assert!(!space("one").exists() && space("two").exists());
    let log = world.log_of("apply-3").await;
    assert!(log.contains("Deleted workspace \"one\"!"), "{log}");
    // Again, as after a runner that died before it could say so: there is nothing to destroy, and nothing is left behind.
    let (plan, apply) = lived(&world, "one", Mode::Destroy, 4).await;
    assert!(apply.is_none(), "{plan:?}");
    assert!(!space("one").exists());
}
