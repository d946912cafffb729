//! What others push and name, and what git is told because of it: no word of theirs is an option, nothing beside the repository is fetched, and
//! nothing of it is executed.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use api::text::PathGlob;
use sources::{Interest, Relevance};

use super::*;

/// All that git is ever told by an option, with what stands behind the `=` left out. What comes from a repository is never among them.
const OWN: [&str; 24] = [
    "--",
    "--bare",
    "--batch",
    "--diff-merges",
    "--end-of-options",
    "--first-parent",
    "--format",
    "--full-tree",
    "--git-dir",
    "--long",
    "--max-count",
    "--name-only",
    "--no-recurse-submodules",
    "--no-renames",
    "--no-tags",
    "--no-write-fetch-head",
    "--prune",
    "--quiet",
    "--symref",
    "--template",
    "--verify",
    "-1",
    "-r",
    "-z",
];

/// A git that writes down each word that it is told.
struct Listening {
    git: Git,
    log: PathBuf,
    _cache: tempfile::TempDir,
}

impl Listening {
    fn new() -> Self {
        let cache = tempfile::tempdir().unwrap();
        let (program, log) = (cache.path().join("listening"), cache.path().join("told"));
        let script =
            format!("#!/bin/sh\nprintf '%s\\0' \"$@\" END-OF-CALL >> {}\nexec git \"$@\"\n", log.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let options = GitOptions {
            file_urls: FileUrls::Allowed,
            addresses: Addresses::OwnToo,
            program,
            ..GitOptions::new(cache.path().join("cache"))
        };
        Self { git: Git::new(options).unwrap(), log, _cache: cache }
    }

    /// The calls so far, each with its words.
    fn calls(&self) -> Vec<Vec<String>> {
        let told = std::fs::read(&self.log).unwrap_or_default();
        let words = told.split(|byte| *byte == 0).map(|word| String::from_utf8(word.to_vec()).unwrap());
        let words: Vec<String> = words.collect();
        words
            .split(|word| word == "END-OF-CALL")
            .map(<[String]>::to_vec)
            .filter(|call| call.len() > 1)
            .collect()
    }
}

/// Every word that begins with a dash is one of ours, or comes where git takes no options any more.
fn check_calls(calls: &[Vec<String>]) {
    for call in calls {
        let options = call.iter().take_while(|word| *word != "--end-of-options" && *word != "--");
        for word in options.filter(|word| word.starts_with('-')) {
            let name = word.split('=').next().unwrap();
            assert!(OWN.contains(&name), "{word:?} in {call:?}");
        }
        let rest: Vec<&String> = call.iter().skip_while(|word| *word != "--end-of-options").skip(1).collect();
        for word in rest.iter().filter(|word| word.starts_with('-')) {
            // Only the end of revisions is told here: not even a path begins with a dash.
            assert_eq!(word.as_str(), "--", "{call:?}");
        }
    }
}

#[tokio::test]
async fn no_word_of_others_is_an_option_of_git() {
    let repo = Repo::new();
    let canary = repo.dir.path().join("canary");
    let evil = format!("--upload-pack=touch {}", canary.display());
    let evil_dir = "--upload-pack=x";
    repo.write("main.tf", "module \"a\" { source = \"./-rf\" }\nmodule \"b\" { source = \"./--output=x\" }")
        .write("-rf/main.tf", "")
        .write("--output=x/main.tf", "")
        .write(&format!("{evil_dir}/main.tf"), "");
    let head = repo.commit();
    let listening = Listening::new();
    let git = &listening.git;
    let refs = git.resolve(&repo.source()).await.unwrap();
    assert!(!refs.is_empty());
    let mirror = git.mirror(&repo.source(), &head).await.unwrap();
    git.bundle(&mirror, &head).await.unwrap();
    // Its code names directories that look like options.
    let interest =
        Interest { path: ".".parse().unwrap(), trigger_paths: vec![PathGlob::new("*/x").unwrap()] };
    assert_eq!(git.relevant(&mirror, &head, &interest, &Relevance::default()).await.unwrap(), head);
    for path in ["-rf", "--output=x", evil_dir] {
        assert!(path.parse::<api::text::LayerPath>().is_err() && PathGlob::new(path).is_err(), "{path}");
    }
    // Names of branches and commits are types of their own, and these are none.
    for name in ["-x", evil.as_str(), "--all"] {
        assert!(name.parse::<api::text::RefName>().is_err(), "{name}");
        assert!(CommitId::new(name).is_err() && GitUrl::new(name).is_err(), "{name}");
    }
    let calls = listening.calls();
    let done: BTreeSet<&str> = calls.iter().flatten().map(String::as_str).collect();
    for command in ["ls-remote", "init", "fetch", "ls-tree", "cat-file", "log"] {
        assert!(done.contains(command), "{command} was tried: {calls:?}");
    }
    check_calls(&calls);
    assert!(!canary.exists());
}

#[test]
fn whatever_url_is_taken_it_is_no_option_and_no_helper() {
    use proptest::prelude::*;
    let scheme = prop::sample::select(vec![
        "https://",
        "ssh://",
        "file:///",
        "file://",
        "git@",
        "",
        "ext::",
        "EXT::",
        "fd::",
        "git://",
        "http://",
        "HTTPS://",
        "-",
        "--",
        "https::",
        "transport::ssh://",
        "ssh:",
        "\t",
        " ",
    ]);
    let piece = prop::sample::select(vec![
        "127.0.0.1",
        "host",
        "git",
        "@",
        ":",
        "/",
        "//",
        "-",
        "--upload-pack=id",
        "-oProxyCommand=id",
        "sh -c id",
        "%2e",
        "..",
        "[::1]",
        ":22",
        ":x",
        "\n",
        "\0",
        "\u{7f}",
        "\\",
        "?",
        "#",
        "a",
        "::",
        "$(id)",
        "`id`",
        ";id",
        "ü",
    ]);
    let url = (scheme, prop::collection::vec(piece, 0..7))
        .prop_map(|(scheme, rest)| scheme.to_owned() + &rest.concat());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(20_000));
    let taken = std::cell::Cell::new(0);
    runner
        .run(&url, |text| {
            let Ok(url) = GitUrl::new(text.as_str()) else { return Ok(()) };
            taken.set(taken.get() + 1);
            let text = url.as_str();
            prop_assert!(
                !text.starts_with('-') && !text.contains(['\n', '\0', ' ', '\t', '\u{7f}']),
                "{text:?}"
            );
            let (before, after) = text.split_once(':').unwrap();
            match before {
                "https" | "ssh" => {
                    // What git and ssh take for a user or a host.
                    let authority = after.strip_prefix("//").unwrap().split('/').next().unwrap();
                    let parts = authority.split('@');
                    prop_assert!(parts.clone().count() <= if before == "ssh" { 2 } else { 1 }, "{text:?}");
                    prop_assert!(
                        parts.into_iter().all(|part| !part.is_empty() && !part.starts_with('-')),
                        "{text:?}"
                    );
                }
                "file" => prop_assert!(after.starts_with("///") && !after.starts_with("///-"), "{text:?}"),
                // `user@host:path`: neither of the three is an option, and no letters alone stand before a `::`.
                login => {
                    let (user, host) = login.split_once('@').unwrap();
                    prop_assert!(
                        ![user, host, after].iter().any(|part| part.is_empty() || part.starts_with('-')),
                        "{text:?}"
                    );
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(taken.get() > 500, "{} URLs were taken", taken.get());
}

/// Each is refused as a URL, or by the check of its host, or leads nowhere: what it tries to run does not run.
#[tokio::test]
async fn urls_that_would_run_something_run_nothing() {
    let place = tempfile::tempdir().unwrap();
    let canary = place.path().join("canary");
    let touch = format!("touch${{IFS}}{}", canary.display());
    let listening = Listening::new();
    for text in [
        format!("ext::sh -c {touch}"),
        format!("EXT::sh -c {touch}"),
        format!("ext::sh%20-c%20{touch}"),
        format!("ssh://-oProxyCommand={touch}/x"),
        format!("ssh://git@-oProxyCommand={touch}/x"),
        format!("-oProxyCommand={touch}@127.0.0.1:x"),
        format!("git@-oProxyCommand={touch}:x"),
        format!("--upload-pack={touch}"),
        format!("git@127.0.0.1:--upload-pack={touch}"),
        format!("git@127.0.0.1:x;{touch}"),
        format!("git@127.0.0.1:$({touch})"),
        format!("ssh://git@127.0.0.1:1/$({touch})"),
        format!("https://127.0.0.1:1/$({touch})"),
        format!("file:///x;{touch}"),
        "fd::0".to_owned(),
    ] {
        let Ok(url) = GitUrl::new(text.as_str()) else { continue };
        assert!(listening.git.resolve(&Source::anonymous(url)).await.is_err(), "{text}");
    }
    assert!(!canary.exists());
    check_calls(&listening.calls());
}

#[tokio::test]
async fn submodules_and_large_files_elsewhere_are_neither_fetched_nor_run() {
    let repo = Repo::new();
    let canary = repo.dir.path().join("canary");
    let touch = format!("touch {}", canary.display());
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:\
                   4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
    repo.write(
        ".gitmodules",
        &format!(
            "[submodule \"sub\"]\n\tpath = sub\n\turl = ext::sh -c '{touch}'\n\tupdate = !{touch}\n\
         [submodule \"other\"]\n\tpath = other\n\turl = https://127.0.0.1:1/other.git\n"
        ),
    )
    .write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    .write(".lfsconfig", "[lfs]\n\turl = https://127.0.0.1:1/lfs\n")
    .write("large.bin", pointer);
    repo.git(&["add", "-A"]);
    for path in ["sub", "other"] {
        let link = format!("160000,{},{path}", "1".repeat(40));
        repo.git(&["update-index", "--add", "--cacheinfo", &link]);
    }
    repo.git(&["commit", "-q", "-m", "change"]);
    let head = CommitId::new(repo.git(&["rev-parse", "HEAD"])).unwrap();
    let listening = Listening::new();
    // git itself refuses what a `.gitmodules` would run; without that line it is taken.
    let refused = listening.git.mirror(&repo.source(), &head).await.unwrap_err();
    assert!(!canary.exists(), "{refused}");
    repo.write(".gitmodules", "[submodule \"sub\"]\n\tpath = sub\n\turl = https://127.0.0.1:1/sub.git\n");
    repo.git(&["add", ".gitmodules"]);
    repo.git(&["commit", "-q", "--amend", "-m", "change"]);
    let head = CommitId::new(repo.git(&["rev-parse", "HEAD"])).unwrap();
    let listening = Listening::new();
    let mirror = listening.git.mirror(&repo.source(), &head).await.unwrap();
    let (entries, _) = entries_of(listening.git.bundle(&mirror, &head).await.unwrap());
    assert_eq!(entries["large.bin"], format!("Regular 644 {pointer}"), "the pointer, as it is");
    for path in ["sub", "other"] {
        let entry = entries.get(path).or_else(|| entries.get(&format!("{path}/"))).unwrap();
        assert!(entry.starts_with("Directory 755"), "{entry}");
    }
    let fetches = listening.calls().iter().filter(|call| call.iter().any(|word| word == "fetch")).count();
    assert_eq!(fetches, 1, "of the repository itself");
    assert!(listening.calls().iter().flatten().all(|word| !word.contains("127.0.0.1")));
    assert!(!canary.exists());
}

/// A tree whose only entry has this name, and a commit of it on `main`.
fn named(repo: &Repo, name: &str) -> CommitId {
    let blob = repo.write("content", "x").git(&["hash-object", "-w", "content"]);
    let mut child = Command::new("git")
        .args(["mktree", "-z"])
        .current_dir(repo.dir.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let line = format!("100644 blob {blob}\t{name}\0");
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let tree = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let commit = repo.git(&["commit-tree", "-m", "change", &tree]);
    repo.git(&["update-ref", "refs/heads/main", &commit]);
    CommitId::new(commit).unwrap()
}

#[tokio::test]
async fn a_name_that_a_file_system_may_take_for_gits_own_is_refused() {
    for name in [".git", ".GIT", ".Git", "git~1", ".g\u{200c}it", ".git ", ".git.", ".", ".."] {
        let repo = Repo::new();
        let head = named(&repo, name);
        let cache = tempfile::tempdir().unwrap();
        let git = git_in(cache.path());
        let made = async {
            let mirror = git.mirror(&repo.source(), &head).await?;
            git.bundle(&mirror, &head).await
        };
        let error = made.await.map(entries_of).expect_err(name);
        assert!(!error.to_string().is_empty());
    }
}

#[tokio::test]
async fn names_that_differ_in_case_alone_stay_two_files() {
    let repo = Repo::new();
    let head = repo
        .write("Main.tf", "one")
        .write("main.tf", "two")
        .write("Envs/a", "3")
        .write("envs/a", "4")
        .commit();
    let cache = tempfile::tempdir().unwrap();
    let git = git_in(cache.path());
    let mirror = git.mirror(&repo.source(), &head).await.unwrap();
    let (entries, _) = entries_of(git.bundle(&mirror, &head).await.unwrap());
    let expected = [("Envs/a", "3"), ("Main.tf", "one"), ("envs/a", "4"), ("main.tf", "two")];
    let expected = expected.map(|(path, content)| (path.to_owned(), format!("Regular 644 {content}")));
    assert_eq!(Vec::from_iter(entries), expected);
}
