//! Deliveries in the shapes that the hosts document, of `fuzz/corpus/webhook`.
#![allow(clippy::unwrap_used, clippy::panic)]

use testkit::deliveries::Delivery;

use super::*;

const CODE: &str = "https://git.example.com/infra/code.git";
const AZURE: &str = "https://dev.azure.com/infra/net/_git/code";

fn said(name: &str) -> Result<Said, Malformed> {
    let delivery = Delivery::named(name).unwrap();
    let host = delivery.host.parse().unwrap();
    let kind = delivery.headers.get("content-type").unwrap().as_bytes();
    read(host, &delivery.headers, Encoding::read(host, kind).unwrap(), &delivery.body)
}

#[test]
fn pushes_say_where_branches_and_tags_are() {
    let commit = || CommitId::new("1".repeat(40)).ok();
    for (kind, name, expected) in [
        ("push", "refs/heads/main", commit()),
        ("tag", "refs/tags/v1.0.0", commit()),
        ("deleted", "refs/heads/old", None),
    ] {
        for host in Host::ALL {
            let Ok(Said::Push(push)) = said(&format!("{host}-{kind}")) else { panic!("{host}-{kind}") };
            assert_eq!(push.heads, [(name.to_owned(), expected.clone())], "{host}-{kind}");
            let url = if host == Host::AzureDevOps { AZURE } else { CODE };
            assert!(push.is_about(&Address::read(url).unwrap()), "{host}-{kind}");
            let another = Address::read("https://git.example.com/infra/other.git").unwrap();
            assert!(!push.is_about(&another), "{host}-{kind}");
        }
    }
    assert_eq!(said("github-form"), said("github-push"), "JSON or a form with JSON in it");
    let Ok(Said::Push(created)) = said("github-created") else { panic!("a tag that was made") };
    assert_eq!(created.heads, [("refs/tags/v1.0.0".to_owned(), None)]);
    // Data Center tells no URL.
    let Ok(Said::Push(server)) = said("bitbucket-server") else { panic!("Data Center") };
    assert_eq!(server.heads, [("refs/heads/main".to_owned(), commit())]);
    for (url, expected) in [
        ("ssh://git@bb.example:7999/infra/code.git", true),
        ("https://bb.example/scm/INFRA/code.git", true),
        ("https://bb.example/scm/infra/code2.git", false),
    ] {
        assert_eq!(server.is_about(&Address::read(url).unwrap()), expected, "{url}");
    }
}

#[test]
fn everything_else_is_passed_over_in_words() {
    for (name, word) in [
        ("github-ping", "ping"),
        ("github-other", "pull_request"),
        ("gitlab-other", "Merge Request Hook"),
        ("gitea-other", "issues"),
        ("bitbucket-ping", "diagnostics:ping"),
        ("azuredevops-other", "git.pullrequest.created"),
        ("other-refs", "no branch and no tag"),
    ] {
        let Ok(Said::Other(why)) = said(name) else { panic!("{name}: {:?}", said(name)) };
        assert!(why.contains(word), "{name}: {why}");
    }
}

#[test]
fn what_has_another_shape_is_refused() {
    for name in ["nested", "no-ref"] {
        assert!(said(name).is_err(), "{name}");
    }
    let push = Delivery::named("github-push").unwrap();
    let read = |host, encoding, body: &[u8]| super::read(host, &push.headers, encoding, body);
    assert!(read(Host::GitHub, Encoding::Json, &push.body).is_ok());
    for cut in 0..push.body.len() {
        let part = push.body.get(..cut).unwrap();
        assert!(read(Host::GitHub, Encoding::Json, part).is_err(), "cut at {cut}");
    }
    assert!(read(Host::GitHub, Encoding::Form, &push.body).is_err());
    assert!(read(Host::GitLab, Encoding::Json, &push.body).is_err(), "no word of what happened");
    assert!(read(Host::AzureDevOps, Encoding::Json, &push.body).is_err());
}

#[test]
fn bodies_are_json_and_where_the_host_can_forms() {
    for host in Host::ALL {
        assert_eq!(Encoding::read(host, b"Application/JSON; charset=utf-8"), Some(Encoding::Json));
        let form = Encoding::read(host, b"application/x-www-form-urlencoded");
        assert_eq!(form.is_some(), matches!(host, Host::GitHub | Host::Gitea), "{host}");
        for other in
            [&b""[..], b"text/plain", b"application/jsonx", b"multipart/form-data; boundary=x", b"\xff"]
        {
            assert_eq!(Encoding::read(host, other), None);
        }
    }
}
