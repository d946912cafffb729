//! Which commit matters to which layer, each time asked twice: step by step as a branch grows, and of somebody who knows nothing yet.

use api::text::{CommitId, PathGlob};
use sources::{Git, Interest, Relevance};

use crate::{Repo, git_in};

fn interest(path: &str, trigger_paths: &[&str]) -> Interest {
    let trigger_paths = trigger_paths.iter().map(|pattern| PathGlob::new(*pattern).unwrap()).collect();
    Interest { path: path.parse().unwrap(), trigger_paths }
}

async fn both_ways(git: &Git, repo: &Repo, head: &CommitId, asked: &Interest, known: &Relevance) -> CommitId {
    let mirror = git.mirror(&repo.source(), head).await.unwrap();
    let step_by_step = git.relevant(&mirror, head, asked, known).await.unwrap();
    let anew = git.relevant(&mirror, head, asked, &Relevance::default()).await.unwrap();
    assert_eq!(step_by_step, anew, "what is known changes no answer");
    step_by_step
}

#[tokio::test]
async fn the_relevant_commit_follows_path_modules_trigger_paths_and_deletions() {
    let repo = Repo::new();
    repo.write("envs/prod/main.tf", "module \"net\" { source = \"../../modules/net\" }")
        .write("envs/prod/old.txt", "x")
        .write("modules/net/main.tf", "module \"ip\" { source = \"../ip\" }")
        .write("modules/ip/main.tf.json", "{}")
        .write("vars/prod.tfvars", "a = 1")
        .write("envs/dev/main.tf", "");
    let first = repo.commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let prod = interest("envs/prod", &["vars/*.tfvars"]);
    let known = Relevance::default();
    let relevant = async |commit: &CommitId| both_ways(&git, &repo, commit, &prod, &known).await;
    assert_eq!(relevant(&first).await, first);
    let elsewhere = repo.write("envs/dev/main.tf", "# dev").commit();
    assert_eq!(relevant(&elsewhere).await, first, "another layer's file does not matter");
    let nested = repo.write("modules/ip/main.tf.json", "{\"output\": {}}").commit();
    assert_eq!(relevant(&nested).await, nested, "a module called by a module matters");
    let variables = repo.write("vars/prod.tfvars", "a = 2").commit();
    assert_eq!(relevant(&variables).await, variables, "a trigger path matters");
    std::fs::remove_file(repo.dir.path().join("envs/prod/old.txt")).unwrap();
    let deletion = repo.commit();
    assert_eq!(relevant(&deletion).await, deletion, "a deleted file matters");

    let mirror = git.mirror(&repo.source(), &deletion).await.unwrap();
    let error = git.relevant(&mirror, &deletion, &interest("envs/none", &[]), &known).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "envs/none does not exist at commit {deletion}; correct the layer's path, or push the missing directory"
        )
    );
}

#[tokio::test]
async fn what_a_unit_of_terragrunt_rests_on_is_relevant_to_it() {
    let unit = "include \"root\" { path = find_in_parent_folders(\"root.hcl\") }\n\
                terraform { source = \"../../modules//app\" }\n\
                dependency \"net\" { config_path = \"../net\" }\n";
    let repo = Repo::new();
    repo.write("root.hcl", "locals { region = read_terragrunt_config(\"region.hcl\") }")
        .write("region.hcl", "")
        .write("live/app/terragrunt.hcl", unit)
        .write("live/net/terragrunt.hcl", "")
        .write(
            "live/other/terragrunt.hcl",
            "include \"root\" { path = find_in_parent_folders(\"root.hcl\") }",
        )
        .write("modules/app/main.tf", "module \"part\" { source = \"../part\" }")
        .write("modules/part/main.tf", "")
        .write("README.md", "");
    let first = repo.commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let known = Relevance::default();
    let relevant = async |commit: &CommitId, path: &str| {
        both_ways(&git, &repo, commit, &interest(path, &[]), &known).await
    };
    assert_eq!(relevant(&first, "live/app").await, first);
    let elsewhere = repo.write("README.md", "x").write("live/other/x.txt", "").commit();
    assert_eq!(relevant(&elsewhere, "live/app").await, first, "neither other units nor other files matter");
    for path in
        ["root.hcl", "region.hcl", "live/net/terragrunt.hcl", "modules/app/main.tf", "modules/part/main.tf"]
    {
        let content = std::fs::read_to_string(repo.dir.path().join(path)).unwrap();
        let change = repo.write(path, &format!("{content}\n# changed\n")).commit();
        assert_eq!(relevant(&change, "live/app").await, change, "{path} matters");
        let is_shared = ["root.hcl", "region.hcl"].contains(&path);
        assert_eq!(relevant(&change, "live/other").await == change, is_shared, "{path} and another unit");
    }
    // Nearer than the one that was found so far, and in no place that was looked at then.
    let nearer = repo.write("live/root.hcl", "").commit();
    assert_eq!(relevant(&nearer, "live/app").await, nearer, "a file that is found now matters");
}

#[tokio::test]
async fn a_merge_counts_as_what_it_brought_and_an_empty_commit_as_nothing() {
    let repo = Repo::new();
    repo.write("app/main.tf", "").write("net/main.tf", "");
    let first = repo.commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let (known, all_known) = (Relevance::default(), Relevance::default());
    let app = async |commit: &CommitId| both_ways(&git, &repo, commit, &interest("app", &[]), &known).await;
    let whole =
        async |commit: &CommitId| both_ways(&git, &repo, commit, &interest(".", &[]), &all_known).await;
    assert_eq!(app(&first).await, first);
    assert_eq!(whole(&first).await, first);

    repo.git(&["checkout", "-q", "-b", "side"]);
    repo.write("app/main.tf", "# side").commit();
    repo.git(&["checkout", "-q", "main"]);
    let net = repo.write("net/main.tf", "# main").commit();
    assert_eq!(app(&net).await, first);
    repo.git(&["merge", "-q", "--no-ff", "-m", "merge", "side"]);
    let merge = CommitId::new(repo.git(&["rev-parse", "HEAD"])).unwrap();
    assert_eq!(app(&merge).await, merge, "what people see on the branch is the merge");
    let empty = repo.commit();
    assert_eq!(app(&empty).await, merge);
    assert_eq!(whole(&empty).await, merge);

    // Moved back by force, and on to another line.
    repo.git(&["reset", "-q", "--hard", net.as_str()]);
    let other = repo.write("net/main.tf", "# other").commit();
    assert_eq!(app(&other).await, first);
    // Somebody who has not heard of it yet still gets the right answer.
    assert_eq!(app(&merge).await, merge);
    assert_eq!(app(&other).await, first);
}

#[tokio::test]
async fn a_layer_that_was_touched_long_ago_is_found() {
    let repo = Repo::new();
    repo.write("old/main.tf", "").write("new/main.tf", "");
    let first = repo.commit();
    let mut import = String::new();
    for number in 0..1_200 {
        let from = if number == 0 { format!("from {first}\n") } else { String::new() };
        let text = number.to_string();
        import.push_str(&format!(
            "commit refs/heads/main\ncommitter a <a@example.org> {} +0000\ndata 1\nx\n{from}M 644 inline new/main.tf\ndata {}\n{text}\n",
            1_700_000_000 + number,
            text.len(),
        ));
    }
    repo.import(&import);
    let head = CommitId::new(repo.git(&["rev-parse", "main"])).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let known = Relevance::default();
    for (path, expected) in [("old", &first), ("new", &head)] {
        assert_eq!(both_ways(&git, &repo, &head, &interest(path, &[]), &known).await, *expected);
    }
}

/// The patterns of trigger paths mean what they mean to git.
#[tokio::test]
async fn patterns_are_read_as_git_reads_them() {
    let files = [
        "main.tf",
        "vars/prod.tfvars",
        "vars/eu/prod.tfvars",
        "vars/eu/west/x.json",
        "a-b/c-d.tf",
        "ab/c.tf",
    ];
    let patterns = [
        "*",
        "**",
        "vars",
        "vars/",
        "vars/*",
        "vars/**",
        "**/*.tfvars",
        "vars/**/*.tfvars",
        "vars/*/*.tfvars",
        "*/c*",
        "a?b/**",
        "a*b/*",
        "vars/e?/prod.tfvars",
        "**/eu",
        "**/eu/**",
        "*.tf",
        "**/west/*",
    ];
    let repo = Repo::new();
    for file in files {
        repo.write(file, "");
    }
    let start = repo.commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    for pattern in patterns {
        let spec = format!(":(top,glob){}", pattern.trim_end_matches('/'));
        let by_git: Vec<String> = repo.git(&["ls-files", &spec]).lines().map(str::to_owned).collect();
        let known = Relevance::default();
        let watching = interest("elsewhere", &[pattern]);
        repo.git(&["checkout", "-q", "-B", "main", start.as_str()]);
        let mut before = repo.write("elsewhere/main.tf", "").commit();
        assert_eq!(both_ways(&git, &repo, &before, &watching, &known).await, before);
        for file in files {
            let change = repo.write(file, "changed").commit();
            let expected = if by_git.iter().any(|known| known == file) { change.clone() } else { before };
            assert_eq!(
                both_ways(&git, &repo, &change, &watching, &known).await,
                expected,
                "{pattern} {file}"
            );
            before = expected;
        }
    }
}
