//! Which variables a module declares, read from a mirror.

use sources::Module;

use crate::{Repo, git_in};

#[tokio::test]
async fn the_variables_of_a_module_are_those_of_its_own_files() {
    let repo = Repo::new();
    repo.write(
        "vm/main.tf",
        "variable \"name\" { type = string }\nvariable \"zone\" {}\nvariable \"owner\" {}\n",
    )
    .write("vm/size.tf.json", r#"{"variable": {"size": {"type": "number"}, "key": {"sensitive": true}}}"#)
    .write("vm/size_override.tf", "variable \"size\" { default = 1 }\n")
    .write("vm/terraform.tfvars", "zone = \"a\"\n")
    .write("vars/team.tfvars", "owner = \"net\"\n")
    .write("vm/ignored.tfvars", "name = \"nobody reads this\"\n")
    .write("vm/inner/main.tf", "variable \"of_another_module\" {}\n")
    .write("unit/terragrunt.hcl", "terraform { source = \"../vm\" }\n");
    let commit = repo.commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let mirror = git.mirror(&repo.source(), &commit).await.unwrap();
    let module = |path: &str, files: &[&str]| Module {
        path: path.parse().unwrap(),
        variable_files: files.iter().map(|file| file.parse().unwrap()).collect(),
    };
    let found = git.declared(&mirror, &commit, &module("vm", &["vars/team.tfvars"])).await.unwrap().unwrap();
    let told: Vec<(&str, Option<&str>, bool, bool)> = found
        .iter()
        .map(|one| (one.name.as_str(), one.kind.as_deref(), one.required, one.sensitive))
        .collect();
    assert_eq!(
        told,
        [
            ("key", None, true, true),
            ("name", Some("string"), true, false),
            ("owner", None, false, false),
            ("size", Some("number"), false, false),
            ("zone", None, false, false),
        ]
    );
    let found = git.declared(&mirror, &commit, &module("vm", &[])).await.unwrap().unwrap();
    assert!(found.iter().any(|one| one.name == "owner" && one.required), "{found:?}");
    assert_eq!(git.declared(&mirror, &commit, &module("unit", &[])).await.unwrap(), None);
}
