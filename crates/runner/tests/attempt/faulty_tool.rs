//! Tools that misbehave as the real ones do only on a bad day: each ends its attempt with words that say what happened.

use std::os::unix::fs::PermissionsExt;

use testkit::canary::Canary;

use super::*;

/// A directory with a `terraform` that works until it is asked for a plan.
fn tool(world: &World, name: &str, plan: &str) -> PathBuf {
    let directory = world.dir.path().join("tools").join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let program = directory.join("terraform");
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in\n  version) echo '{{\"terraform_version\": \"1.9.9\"}}' ;;\n  plan) {plan} ;;\nesac\n"
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// A plan by such a tool; each in a directory of its own, so that they need not wait for one another.
async fn plan_by(world: &World, name: &str, script: &str, limit: Span) -> Outcome {
    world.describe(&world.description(name, Action::Plan, 0)).await;
    let options = world.options(name);
    let options = RunnerOptions {
        search_path: [tool(world, name, script), "/usr/bin".into(), "/bin".into()].into(),
        work_dir: world.dir.path().join("work-of").join(name),
        grace: Duration::from_millis(200),
        plan_limit: limit,
        ..options
    };
    world.run_with(options, std::future::pending()).await
}

const LONG: Span = Span::from_secs(600);

#[tokio::test]
async fn a_tool_that_misbehaves_ends_its_attempt_with_clear_words() {
    let world = World::new(&[("envs/prod/main.tf", "")]).await;
    // In long lines, so that the test is about the amount and not about the number of lines.
    let noise = "head -c 20000000 /dev/zero | tr '\\0' x | fold -w 20000; exit 1";
    let cases = [
        ("hangs", "trap '' INT; sleep 100000", Span::from_secs(1)),
        ("floods", noise, LONG),
        ("mumbles", "printf '\\377\\376 Error: caf\\351 closed\\n\\nError: na\\303\\n'; exit 1", LONG),
        ("dies", "kill -SEGV $$", LONG),
        ("asks", "echo 'Enter a value:'; read -r answer || { echo 'Error: no answer'; exit 1; }", LONG),
    ];
    // Apart from each other: five attempts side by side are more than the stack of a test holds.
    let outcomes = cases.map(|(name, script, limit)| Box::pin(plan_by(&world, name, script, limit)));
    let [hangs, floods, mumbles, dies, asks] = futures::future::join_all(outcomes).await.try_into().unwrap();

    assert_eq!(hangs.reason, Reason::TimedOut);
    let words = "took longer than the 1s of spec.timeouts.plan and was stopped";
    assert_eq!(hangs.message, format!("{words}: terraform plan was stopped; it ended with signal 9"));
    assert!(world.log_of("hangs").await.contains(&format!("It {words}")));

    assert_eq!((floods.reason, floods.exit_code), (Reason::ToolFailed, 1));
    assert_eq!(floods.message, "terraform plan ended with exit code 1; the log says more");
    assert!(world.log_of("floods").await.len() > 20_000_000, "all of it is kept");

    assert_eq!(mumbles.reason, Reason::ToolFailed);
    let log = world.log_of("mumbles").await;
    assert!(log.contains("\u{fffd}\u{fffd} Error: caf\u{fffd} closed"), "{log}");
    assert!(mumbles.message.starts_with("na\u{fffd}"), "{}", mumbles.message);

    assert_eq!((dies.reason, dies.exit_code), (Reason::Interrupted, 128 + 11));
    assert_eq!(dies.message, "terraform plan was killed by signal 11 from outside");

    assert_eq!(asks.reason, Reason::ToolFailed);
    assert!(asks.message.starts_with("no answer"), "{}", asks.message);
}

#[tokio::test]
async fn a_secret_that_a_long_line_brings_is_hidden_wherever_the_line_is_cut() {
    let world = World::new(&[("envs/prod/main.tf", "")]).await;
    let secret = Canary::random("what a tool prints after a quarter of a megabyte");
    world.describe(&world.description("long", Action::Plan, 0)).await;
    let script = format!("head -c 262140 /dev/zero | tr '\\0' x; echo '{}'; exit 1", secret.value);
    let options = RunnerOptions {
        search_path: [tool(&world, "long", &script), "/usr/bin".into(), "/bin".into()].into(),
        secrets: vec![secret.value.clone().into()],
        ..world.options("long")
    };
    let outcome = world.run_with(options, std::future::pending()).await;
    assert_eq!(outcome.reason, Reason::ToolFailed);
    let log = world.log_of("long").await;
    assert_eq!(secret.found_in(log.as_bytes()), None);
    assert!(log.contains("***") && log.matches('x').count() >= 262_140, "the rest of the line is kept");
}

#[tokio::test]
async fn a_plan_with_changes_is_never_taken_for_one_without() {
    let world = World::new(&[("envs/prod/main.tf", SIMPLE), ("modules/m/main.tf", MODULE)]).await;
    planned(&world.plan("real").await);
    let real = Attempt::new("real", 1).unwrap();
    let content = world.client().artefact_get(&real, Artefact::Plan, 1 << 20).await.unwrap().unwrap();
    let file = world.dir.path().join("real.plan");
    std::fs::write(&file, content).unwrap();
    // The file goes where the tool was told to leave it.
    let made = format!(
        "for word; do case \"$word\" in -out=*) cp '{}' \"${{word#-out=}}\" ;; esac; done",
        file.display()
    );
    let unable = " ;;\n  show) echo 'Error: cannot show' >&2; exit 1";

    let silent = plan_by(&world, "silent", &format!("{made}; exit 2{unable}"), LONG).await;
    assert_eq!((silent.reason, &silent.plan), (Reason::ToolFailed, &None));
    assert_eq!(
        silent.message,
        "terraform plan found changes, but terraform show could not say which, so nothing can be applied; the log says why"
    );
    assert!(world.log_of("silent").await.contains("cannot show"));

    let words = "echo 'Plan: 1 to add, 0 to change, 2 to destroy.'";
    let old = plan_by(&world, "old", &format!("{made}; {words}; exit 2{unable}"), LONG).await;
    assert_eq!(old.reason, Reason::Succeeded, "{}", old.message);
    assert_eq!(old.message, "Plan: 1 to add, 0 to change, 2 to destroy.");

    let same = plan_by(&world, "same", &format!("{made}; exit 0{unable}"), LONG).await;
    assert_eq!((same.reason, same.message.as_str()), (Reason::Succeeded, "No changes."));
}

#[tokio::test]
async fn what_is_only_moved_or_forgotten_is_a_change_and_is_applied() {
    let two = "resource \"terraform_data\" \"a\" {}\nresource \"terraform_data\" \"b\" {}\n";
    let mut world = World::new(&[("envs/prod/main.tf", two)]).await;
    let plan = world.plan("plan-1").await;
    let applied = world.run(world.apply_after("apply-1", 1, &plan)).await;
    assert_eq!(applied.reason, Reason::Succeeded, "{}", applied.message);
    let after = "resource \"terraform_data\" \"c\" {}\nmoved {\n  from = terraform_data.a\n  to = terraform_data.c\n}\n\
        removed {\n  from = terraform_data.b\n  lifecycle {\n    destroy = false\n  }\n}\n";
    world.commit(&[("envs/prod/main.tf", after)]).await;
    let plan = world.plan("plan-2").await;
    assert_eq!(plan.message, "Plan: 0 to add, 2 to change, 0 to destroy.");
    let applied = world.run(world.apply_after("apply-2", 2, &plan)).await;
    assert_eq!(applied.reason, Reason::Succeeded, "{}", applied.message);
    let state = world.state().await.unwrap();
    let [resource] = state["resources"].as_array().unwrap().as_slice() else { panic!("{state}") };
    assert_eq!(resource["name"], "c");
    assert_eq!(world.plan("plan-3").await.message, "No changes.");
}

#[tokio::test]
async fn what_the_layer_says_is_the_limit_of_a_plan_and_of_an_apply() {
    let hanging = "resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" {\n    command = \"exec sleep 100000\"\n  }\n}\n";
    let world = World::new(&[("envs/prod/main.tf", hanging)]).await;
    let second = Some(Span::from_secs(1));
    let plan = world.plan("plan-1").await;
    let apply = Description { timeout: second, ..world.apply_after("apply-1", 1, &plan) };
    let applied = world.run(apply).await;
    assert_eq!(applied.reason, Reason::TimedOut, "{}", applied.message);
    let words = "took longer than the 1s of spec.timeouts.apply and was stopped: ";
    assert!(applied.message.starts_with(words), "{}", applied.message);
    assert!(world.log_of("apply-1").await.contains("It took longer than the 1s of spec.timeouts.apply"));

    let short = Description { timeout: second, ..world.description("short", Action::Plan, 0) };
    world.describe(&short).await;
    let options = RunnerOptions {
        search_path: [tool(&world, "short", "exec sleep 100000"), "/usr/bin".into(), "/bin".into()].into(),
        ..world.options("short")
    };
    let stopped = world.run_with(options, std::future::pending()).await;
    assert_eq!(
        stopped.reason,
        Reason::TimedOut,
        "sooner than the runner would by itself: {}",
        stopped.message
    );
}
