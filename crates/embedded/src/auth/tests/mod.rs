//! Rights as tables: who may do what under which roles, who may give what away, what the reviews answer.

#![allow(clippy::unwrap_used)]

mod tokens;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use serde_json::{Value, json};

use super::admission::{self, Change, Write};
use super::index::{Index, Objects};
use super::*;
use crate::store::{Collection, Key, Op, Options, Store};

const RBAC: &str = "rbac.authorization.k8s.io";

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn objects() -> Objects {
    let binding = |namespace: &str, name: &str, role: Value, subjects: Value| {
        let mut role = role;
        role["apiGroup"] = RBAC.into();
        json!({"metadata": {"namespace": namespace, "name": name}, "roleRef": role, "subjects": subjects})
    };
    let cluster_role = |name: &str| json!({"kind": "ClusterRole", "name": name});
    Objects {
        cluster_roles: vec![
            parse(json!({"metadata": {"name": "reader"}, "rules": [
                {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
                {"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]}]})),
            parse(json!({"metadata": {"name": "scaler"}, "rules": [
                {"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["*"]}]})),
            parse(json!({"metadata": {"name": "everything"}, "rules": [
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]}]})),
            parse(json!({"metadata": {"name": "impersonator"}, "rules": [
                {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["jane"]},
                {"apiGroups": [""], "resources": ["groups"], "verbs": ["impersonate"], "resourceNames": ["dev"]},
                {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]},
                {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"]}]})),
            parse(json!({"metadata": {"name": "agent"}, "rules": [
                {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "verbs": ["impersonate:user-info"], "resourceNames": ["jane"]},
                {"apiGroups": ["authentication.k8s.io"], "resources": ["groups"], "verbs": ["impersonate:user-info"]},
                {"apiGroups": ["authentication.k8s.io"], "resources": ["nodes"], "verbs": ["impersonate:arbitrary-node"], "resourceNames": ["n"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["impersonate-on:user-info:list", "impersonate-on:arbitrary-node:list"]}]})),
            parse(json!({"metadata": {"name": "role-writer"}, "rules": [
                {"apiGroups": [RBAC], "resources": ["roles", "rolebindings", "clusterroles"], "verbs": ["*"], "resourceNames": ["never"]},
                {"apiGroups": [RBAC], "resources": ["roles", "rolebindings"], "verbs": ["create", "update"]},
                {"apiGroups": [RBAC], "resources": ["clusterroles"], "verbs": ["bind"], "resourceNames": ["scaler"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]})),
        ],
        roles: vec![parse(json!({"metadata": {"namespace": "build", "name": "one-secret"}, "rules": [
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["token"], "verbs": ["get"]}]}))],
        cluster_role_bindings: vec![
            parse(binding("", "readers", cluster_role("reader"), json!([{"kind": "Group", "name": "dev"}]))),
            parse(binding("", "root", cluster_role("everything"), json!([{"kind": "User", "name": "root"}]))),
            parse(binding(
                "",
                "as",
                cluster_role("impersonator"),
                json!([{"kind": "User", "name": "robot"}]),
            )),
            parse(binding("", "agents", cluster_role("agent"), json!([{"kind": "User", "name": "agent"}]))),
            parse(binding(
                "",
                "dangling",
                cluster_role("nowhere"),
                json!([{"kind": "User", "name": "lost"}]),
            )),
            parse(binding(
                "",
                "nobody",
                cluster_role("everything"),
                json!([{"kind": "ServiceAccount", "name": "runner"}]),
            )),
        ],
        role_bindings: vec![
            parse(binding(
                "build",
                "secret",
                json!({"kind": "Role", "name": "one-secret"}),
                json!([
                {"kind": "ServiceAccount", "name": "runner"}, {"kind": "ServiceAccount", "name": "other", "namespace": "far"}]),
            )),
            parse(binding(
                "build",
                "scale",
                cluster_role("scaler"),
                json!([{"kind": "User", "name": "jane"}]),
            )),
            parse(binding(
                "build",
                "write",
                cluster_role("role-writer"),
                json!([{"kind": "User", "name": "writer"}]),
            )),
        ],
    }
}

fn authorizer() -> Authorizer {
    Authorizer::fixed(Index::build(objects()))
}

fn who(name: &str) -> Identity {
    match name.split_once('/') {
        Some((namespace, name)) => Identity::service_account(namespace, name),
        None if name == "jane" => Identity::new("jane", ["dev", "system:authenticated"]),
        None if name == "admin" => Identity::administrator(),
        None => Identity::new(name, ["system:authenticated"]),
    }
}

/// `verb group/resource[/subresource] namespace[/name]`, or `verb /path`; `-` is the cluster.
fn attributes(question: &str) -> Attributes<'_> {
    let mut words = question.split(' ');
    let (verb, what) = (words.next().unwrap(), words.next().unwrap());
    if what.starts_with('/') {
        return Attributes::path(verb, what);
    }
    let mut parts = what.split('/');
    let (group, resource, subresource) =
        (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap_or(""));
    let place = words.next().unwrap();
    let (namespace, name) = place.split_once('/').unwrap_or((place, ""));
    let namespace = if namespace == "-" { "" } else { namespace };
    let group = if group == "core" { "" } else { group };
    Attributes::resource(verb, Resource { group, version: "v1", resource, subresource, name, namespace })
}

#[test]
fn rights_follow_roles_and_bindings() {
    let authorizer = authorizer();
    let check = |user: &str, question: &str, expected: &str| {
        let answer = match authorizer.check(&who(user), &attributes(question)) {
            Verdict::Allowed { reason } => format!("yes {reason}"),
            Verdict::Denied { reason } => format!("no {reason}"),
        };
        assert_eq!(answer.trim_end(), expected, "{user}: {question}");
    };
    let readers =
        r#"yes RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to Group "dev""#;
    let secret = r#"yes RBAC: allowed by RoleBinding "secret/build" of Role "one-secret" to ServiceAccount "runner/build""#;
    let scale = r#"yes RBAC: allowed by RoleBinding "scale/build" of ClusterRole "scaler" to User "jane""#;
    let root = r#"yes RBAC: allowed by ClusterRoleBinding "root" of ClusterRole "everything" to User "root""#;
    check("jane", "list core/pods default", readers);
    check("jane", "list core/pods -", readers);
    check("jane", "get core/pods/log default/a", readers);
    check("jane", "get core/pods/exec default/a", "no");
    check("jane", "delete core/pods default/a", "no");
    check("jane", "list apps/pods default", "no");
    check("jane", "update apps/deployments/scale build/a", scale);
    check("jane", "update apps/deployments/scale other/a", "no");
    check("jane", "update apps/deployments build/a", "no");
    check("jane", "get /metrics", readers);
    check("jane", "get /debug/pprof", readers);
    check("jane", "get /metrics/more", "no");
    check("jane", "post /metrics", "no");
    check("joe", "list core/pods default", "no");
    check("build/runner", "get core/secrets build/token", secret);
    check("build/runner", "get core/secrets build/other", "no");
    check("build/runner", "list core/secrets build", "no");
    check("build/runner", "get core/secrets far/token", "no");
    check("far/other", "get core/secrets build/token", &secret.replace("runner/build", "other/far"));
    check("other/runner", "get core/secrets build/token", "no");
    check("root", "delete any.group/things/status anywhere/x", root);
    check("root", "get /anything", root);
    check("admin", "delete core/nodes -/x", "yes");
    check(
        "lost",
        "list core/pods default",
        r#"no RBAC: clusterrole.rbac.authorization.k8s.io "nowhere" not found"#,
    );
}

#[test]
fn a_refusal_says_who_cannot_do_what() {
    let refusal = authorizer().require(&who("joe"), &attributes("list core/pods default")).unwrap_err();
    assert_eq!(refusal.code(), 403);
    assert_eq!(
        refusal.to_string(),
        r#"pods is forbidden: User "joe" cannot list resource "pods" in API group "" in the namespace "default""#
    );
}

#[test]
fn impersonation_is_checked_for_each_thing_that_is_asked_for() {
    let authorizer = authorizer();
    let check = |user: &str, headers: &[(&str, &str)], expected: Result<(&str, &str), &str>| {
        let mut map = http::HeaderMap::new();
        for (name, value) in headers {
            map.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let answer =
            impersonation::resolve(&who(user), &mut map, &attributes("list core/pods default"), &authorizer);
        let answer = answer.map(|identity| (identity.user.to_string(), identity.groups.join(",")));
        let answer = answer.map_err(|refusal| refusal.to_string());
        let expected =
            expected.map(|(user, groups)| (user.to_owned(), groups.to_owned())).map_err(str::to_owned);
        assert_eq!(answer, expected, "{user}: {headers:?}");
        if answer.is_ok() {
            assert!(map.is_empty(), "the headers are taken away: {map:?}");
        }
    };
    check("robot", &[], Ok(("robot", "system:authenticated")));
    check("robot", &[("impersonate-user", "jane")], Ok(("jane", "system:authenticated")));
    check(
        "robot",
        &[("impersonate-user", "jane"), ("impersonate-group", "dev")],
        Ok(("jane", "dev,system:authenticated")),
    );
    check(
        "robot",
        &[("impersonate-user", "system:serviceaccount:build:runner")],
        Ok((
            "system:serviceaccount:build:runner",
            "system:serviceaccounts,system:serviceaccounts:build,system:authenticated",
        )),
    );
    check(
        "robot",
        &[("impersonate-user", "jane"), ("impersonate-extra-scopes", "view")],
        Ok(("jane", "system:authenticated")),
    );
    check(
        "admin",
        &[("impersonate-user", "system:anonymous")],
        Ok(("system:anonymous", "system:unauthenticated")),
    );
    // Who may act as nobody is told what the first mode lacks that fits whom they ask for.
    let on = |mode: &str| {
        format!(
            r#"pods is forbidden: User "robot" cannot impersonate-on:{mode}:list resource "pods" in API group "" in the namespace "default""#
        )
    };
    check("robot", &[("impersonate-user", "root")], Err(&on("user-info")));
    check("robot", &[("impersonate-user", "system:node:n")], Err(&on("arbitrary-node")));
    check(
        "robot",
        &[("impersonate-user", "jane"), ("impersonate-group", "system:masters")],
        Err(&on("user-info")),
    );
    check(
        "robot",
        &[("impersonate-user", "jane"), ("impersonate-extra-acme.com%2Froles", "x")],
        Err(&on("user-info")),
    );
    check("robot", &[("impersonate-user", "jane"), ("impersonate-uid", "7")], Err(&on("user-info")));
    check("agent", &[("impersonate-user", "jane")], Ok(("jane", "system:authenticated")));
    check(
        "agent",
        &[("impersonate-user", "system:node:n")],
        Ok(("system:node:n", "system:nodes,system:authenticated")),
    );
    check(
        "agent",
        &[("impersonate-user", "joe")],
        Err(
            r#"users.authentication.k8s.io "joe" is forbidden: User "agent" cannot impersonate:user-info resource "users" in API group "authentication.k8s.io" at the cluster scope"#,
        ),
    );
    check(
        "agent",
        &[("impersonate-user", "jane"), ("impersonate-group", "system:masters")],
        Err(
            r#"groups.authentication.k8s.io "system:masters" is forbidden: User "agent" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope: impersonating the system:masters group is not allowed"#,
        ),
    );
    check(
        "agent",
        &[("impersonate-user", "jane"), ("impersonate-extra-scopes", "view")],
        Err(
            r#"userextras.authentication.k8s.io is forbidden: User "agent" cannot impersonate:user-info resource "userextras" in API group "authentication.k8s.io" at the cluster scope: impersonating an invalid key in extra is not allowed: extra.key: Invalid value: "scopes": must be a domain-prefixed path (such as "acme.io/foo")"#,
        ),
    );
    check(
        "robot",
        &[("impersonate-group", "dev")],
        Err(
            r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"dev"}, Extra:map[string][]string(nil)} without impersonating a user name"#,
        ),
    );
}

/// A store with these objects, as (group/plural, object).
async fn store_with(objects: &[(&str, Value)]) -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("store.db"), Options::default()).unwrap();
    for (collection, object) in objects {
        put(&store, collection, object.clone()).await;
    }
    (directory, store)
}

fn key_of(collection: &str, object: &Value) -> Key {
    let (group, plural) = collection.split_once('/').unwrap();
    let text = |field: &str| object.pointer(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    Key::new(Collection::new(group, plural), &text("/metadata/namespace"), &text("/metadata/name"))
}

async fn put(store: &Store, collection: &str, object: Value) {
    let key = key_of(collection, &object);
    let op = match store.snapshot().get(&key) {
        None => Op::Create { key, object },
        Some(stored) => Op::Update { key, expected: stored.revision, object },
    };
    store.write(vec![op]).await.unwrap();
}

async fn remove(store: &Store, collection: &str, object: Value) {
    let key = key_of(collection, &object);
    let expected = store.snapshot().get(&key).unwrap().revision;
    store.write(vec![Op::Delete { key, expected, object }]).await.unwrap();
}

#[tokio::test]
async fn rights_that_are_given_or_taken_count_at_once() {
    let role = json!({"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]});
    let binding = json!({"metadata": {"name": "b"}, "subjects": [{"kind": "User", "name": "joe"}],
                         "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "reader"}});
    let (_directory, store) = store_with(&[("rbac.authorization.k8s.io/clusterroles", role)]).await;
    let authorizer = Authorizer::new(store.clone());
    let may = || authorizer.check(&who("joe"), &attributes("list core/pods default")).is_allowed();
    assert!(!may());
    put(&store, "rbac.authorization.k8s.io/clusterrolebindings", binding.clone()).await;
    assert!(may(), "given");
    let index = authorizer.index();
    put(&store, "/configmaps", json!({"metadata": {"namespace": "a", "name": "b"}})).await;
    assert!(Arc::ptr_eq(&index, &authorizer.index()), "other writes build nothing");
    // One that cannot be read gives nothing and takes nothing.
    put(&store, "rbac.authorization.k8s.io/clusterroles", json!({"metadata": {"name": "bad"}, "rules": 7}))
        .await;
    assert!(may());
    remove(&store, "rbac.authorization.k8s.io/clusterrolebindings", binding).await;
    assert!(!may(), "taken");
}

fn role(namespace: &str, rules: Value) -> Value {
    json!({"metadata": {"name": "new", "namespace": namespace}, "rules": rules})
}

fn bound(namespace: &str, kind: &str, role: &str) -> Value {
    json!({"metadata": {"name": "new", "namespace": namespace},
           "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role}, "subjects": [{"kind": "User", "name": "joe"}]})
}

#[test]
fn nobody_gives_away_more_than_they_have() {
    let authorizer = authorizer();
    let check = |user: &str,
                 resource: &str,
                 namespace: &str,
                 object: Value,
                 old: Option<Value>,
                 expected: Result<(), &str>| {
        let written = Resource { group: RBAC, version: "v1", resource, namespace, ..Resource::default() };
        let answer = escalation::check(&authorizer, &who(user), written, &object, old.as_ref());
        assert_eq!(
            answer.map_err(|refusal| refusal.to_string()),
            expected.map_err(str::to_owned),
            "{user}: {object}"
        );
    };
    let get_pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let more = json!([{"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get", "list"]},
                      {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
    check("writer", "roles", "build", role("build", get_pods.clone()), None, Ok(()));
    check(
        "writer",
        "roles",
        "build",
        role("build", more.clone()),
        None,
        Err(concat!(
            r#"roles.rbac.authorization.k8s.io "new" is forbidden: user "writer" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:"#,
            "\n",
            r#"{APIGroups:[""], Resources:["pods"], Verbs:["list"]}"#,
            "\n",
            r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}"#,
            "\n",
            r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#
        )),
    );
    check(
        "writer",
        "roles",
        "other",
        role("other", get_pods),
        None,
        Err(concat!(
            r#"roles.rbac.authorization.k8s.io "new" is forbidden: user "writer" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:"#,
            "\n",
            r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#
        )),
    );
    check("admin", "roles", "build", role("build", more.clone()), None, Ok(()));
    check("root", "clusterroles", "", role("", more.clone()), None, Ok(()));
    check("writer", "rolebindings", "build", bound("build", "ClusterRole", "scaler"), None, Ok(()));
    check("jane", "rolebindings", "build", bound("build", "ClusterRole", "scaler"), None, Ok(()));
    check(
        "writer",
        "rolebindings",
        "build",
        bound("build", "ClusterRole", "gone"),
        None,
        Err(r#"clusterroles.rbac.authorization.k8s.io "gone" not found"#),
    );
    check(
        "joe",
        "rolebindings",
        "build",
        bound("build", "Role", "one-secret"),
        None,
        Err(concat!(
            r#"rolebindings.rbac.authorization.k8s.io "new" is forbidden: user "joe" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:"#,
            "\n",
            r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["token"], Verbs:["get"]}"#
        )),
    );
    // A collector that only takes a finalizer away grants nothing.
    let mut old = role("build", more.clone());
    old["metadata"]["finalizers"] = json!(["a/b"]);
    check("writer", "roles", "build", role("build", more.clone()), Some(old), Ok(()));
    let mut aggregating = role("", json!([]));
    aggregating["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    check(
        "writer",
        "clusterroles",
        "",
        aggregating,
        None,
        Err(
            r#"clusterroles.rbac.authorization.k8s.io "new" is forbidden: must have cluster-admin privileges to use the aggregationRule"#,
        ),
    );
}

#[test]
fn default_roles_mean_what_they_mean_on_a_cluster() {
    let installed = [
        defaults::Installed {
            group: "terrane.dev".into(),
            plural: "terraformlayers".into(),
            writers: defaults::Writers::Editors,
        },
        defaults::Installed {
            group: "terrane.dev".into(),
            plural: "terraformapprovals".into(),
            writers: defaults::Writers::Admins,
        },
    ];
    let bind = |user: &str| {
        serde_json::from_value(
            json!({"metadata": {"name": user, "namespace": "a"}, "subjects": [{"kind": "User", "name": user}],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": user}}),
        )
        .unwrap()
    };
    let authorizer = Authorizer::fixed(Index::build(Objects {
        cluster_roles: defaults::cluster_roles(&installed),
        cluster_role_bindings: defaults::cluster_role_bindings(),
        role_bindings: ["view", "edit", "admin"].map(bind).to_vec(),
        ..Objects::default()
    }));
    // In the order anonymous, anybody, view, edit, admin.
    let check = |question: &str, expected: [bool; 5]| {
        let users = [Identity::anonymous(), who("joe"), who("view"), who("edit"), who("admin-of-a")];
        let users = users.map(|user| {
            if &*user.user == "admin-of-a" { Identity::new("admin", ["system:authenticated"]) } else { user }
        });
        let answers = users.map(|user| authorizer.check(&user, &attributes(question)).is_allowed());
        assert_eq!(answers, expected, "{question}");
    };
    check("get /healthz", [true; 5]);
    check("get /version", [false, true, true, true, true]);
    check("get /apis/terrane.dev/v1alpha1", [false, true, true, true, true]);
    check("create authorization.k8s.io/selfsubjectaccessreviews -", [false, true, true, true, true]);
    check("list core/pods a", [false, false, true, true, true]);
    check("get core/pods/log a/x", [false, false, true, true, true]);
    check("list core/pods b", [false; 5]);
    check("get core/secrets a/x", [false, false, false, true, true]);
    check("create core/serviceaccounts/token a/x", [false, false, false, true, true]);
    check("list terrane.dev/terraformlayers a", [false, false, true, true, true]);
    check("create terrane.dev/terraformlayers a", [false, false, false, true, true]);
    check("patch terrane.dev/terraformlayers/status a/x", [false; 5]);
    check("create terrane.dev/terraformapprovals a", [false, false, false, false, true]);
    check("create rbac.authorization.k8s.io/rolebindings a", [false, false, false, false, true]);
    check("create core/namespaces -", [false; 5]);
    check("update core/pods/status a/x", [false; 5]);
}

#[test]
fn access_reviews_answer_as_the_authorizer_does() {
    let authorizer = authorizer();
    let review = |spec: Value| -> Result<Value, String> {
        let review: SubjectAccessReview = serde_json::from_value(json!({"spec": spec})).unwrap();
        let answer = reviews::subject_access(&authorizer, review).map_err(|refusal| refusal.to_string())?;
        Ok(serde_json::to_value(answer.status).unwrap())
    };
    let pods = json!({"verb": "list", "resource": "pods", "namespace": "default"});
    assert_eq!(
        review(json!({"groups": ["dev"], "resourceAttributes": pods})),
        Ok(
            json!({"allowed": true, "reason": r#"RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to Group "dev""#})
        )
    );
    assert_eq!(review(json!({"user": "joe", "resourceAttributes": pods})), Ok(json!({"allowed": false})));
    assert_eq!(
        review(json!({"user": "jane", "groups": ["dev"], "nonResourceAttributes": {"verb": "get", "path": "/metrics"}})).unwrap()["allowed"],
        true
    );
    assert_eq!(
        review(json!({"resourceAttributes": pods})),
        Err(r#".authorization.k8s.io "" is invalid: spec.user: Invalid value: "": at least one of user or group must be specified"#.into())
    );
    assert_eq!(
        review(json!({"user": "joe"})),
        Err(r#".authorization.k8s.io "" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"#.into())
    );
    let local = |namespace: &str| -> Result<Value, String> {
        let spec = json!({"user": "system:serviceaccount:build:runner",
            "resourceAttributes": {"verb": "get", "resource": "secrets", "name": "token", "namespace": namespace}});
        let review: LocalSubjectAccessReview = serde_json::from_value(json!({"spec": spec})).unwrap();
        let answer = reviews::local_subject_access(&authorizer, "build", review)
            .map_err(|refusal| refusal.to_string())?;
        Ok(serde_json::to_value(answer.status.unwrap().allowed).unwrap())
    };
    assert_eq!(local("build"), Ok(json!(true)));
    assert_eq!(
        local("far"),
        Err(r#".authorization.k8s.io "" is invalid: spec.resourceAttributes.namespace: Invalid value: "far": must match metadata.namespace"#.into())
    );
}

#[test]
fn who_am_i_and_what_may_i() {
    let authorizer = authorizer();
    let me = serde_json::to_value(reviews::self_subject(&who("jane"), Timestamp::UNIX_EPOCH)).unwrap();
    assert_eq!(
        me["status"]["userInfo"],
        json!({"username": "jane", "groups": ["dev", "system:authenticated"]})
    );
    let rules = |user: &str, namespace: &str| {
        let review: SelfSubjectRulesReview =
            serde_json::from_value(json!({"spec": {"namespace": namespace}})).unwrap();
        serde_json::to_value(reviews::self_subject_rules(&authorizer, &who(user), review).unwrap().status)
            .unwrap()
    };
    let jane = rules("jane", "build");
    assert_eq!(
        jane["resourceRules"],
        json!([{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
               {"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["*"]}])
    );
    assert_eq!(
        jane["nonResourceRules"],
        json!([{"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]}])
    );
    assert_eq!(rules("jane", "other")["resourceRules"].as_array().unwrap().len(), 1);
    assert_eq!(
        rules("lost", "other")["evaluationError"],
        r#"clusterrole.rbac.authorization.k8s.io "nowhere" not found"#
    );
}

#[tokio::test]
async fn admission_refuses_what_no_right_allows() {
    let (_directory, store) = store_with(&[
        ("/namespaces", json!({"metadata": {"name": "here"}, "status": {"phase": "Active"}})),
        ("/namespaces", json!({"metadata": {"name": "going"}, "status": {"phase": "Terminating"}})),
    ])
    .await;
    let authorizer = Authorizer::new(store.clone());
    let check = |user: &str, resource: Resource<'_>, change: Change<'_>, expected: Result<(), &str>| {
        let identity = who(user);
        let answer = admission::admit(
            &authorizer,
            &store.snapshot(),
            &Write { identity: &identity, resource, change },
        );
        assert_eq!(answer.map_err(|refusal| refusal.to_string()), expected.map_err(str::to_owned));
    };
    let object = json!({"metadata": {"name": "x"}});
    let pods = |namespace| Resource { resource: "pods", version: "v1", namespace, ..Resource::default() };
    check("admin", pods("here"), Change::Create { object: &object }, Ok(()));
    check("admin", pods("none"), Change::Create { object: &object }, Err(r#"namespaces "none" not found"#));
    check(
        "admin",
        pods("going"),
        Change::Create { object: &object },
        Err(
            r#"pods "x" is forbidden: unable to create new content in namespace going because it is being terminated"#,
        ),
    );
    check("admin", pods("going"), Change::Update { object: &object, old: &object }, Ok(()));
    let namespace = |name| Resource {
        resource: "namespaces",
        version: "v1",
        name,
        namespace: name,
        ..Resource::default()
    };
    check(
        "admin",
        namespace("default"),
        Change::Delete,
        Err(r#"namespaces "default" is forbidden: this namespace may not be deleted"#),
    );
    check("admin", namespace("here"), Change::Delete, Ok(()));
    check("admin", namespace("new"), Change::Create { object: &object }, Ok(()));
    let approvals = Resource {
        group: "terrane.dev",
        resource: "terraformapprovals",
        version: "v1alpha1",
        namespace: "here",
        ..Resource::default()
    };
    let by = |user: &str| json!({"metadata": {"name": "x"}, "spec": {"user": user}});
    check("jane", approvals, Change::Create { object: &by("jane") }, Ok(()));
    check(
        "admin",
        approvals,
        Change::Create { object: &by("jane") },
        Err(
            r#"terraformapprovals.terrane.dev "x" is forbidden: spec.user is "jane" but the request is made by "terrane-admin": an approval is signed by who makes it; set spec.user to "terrane-admin", or let "jane" approve"#,
        ),
    );
    check(
        "jane",
        approvals,
        Change::Update { object: &by("root"), old: &by("jane") },
        Err(
            r#"terraformapprovals.terrane.dev "x" is forbidden: spec.user cannot be changed: an approval is signed once; delete it and create another"#,
        ),
    );
}

#[tokio::test]
async fn a_pod_runs_as_an_account_that_exists() {
    let (_directory, store) = store_with(&[(
        "/serviceaccounts",
        json!({"metadata": {"namespace": "a", "name": "runner"}, "imagePullSecrets": [{"name": "registry"}]}),
    )])
    .await;
    let pods = Resource { resource: "pods", version: "v1", namespace: "a", ..Resource::default() };
    let complete = |resource, spec: Value| {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
        accounts::complete(&store.snapshot(), resource, &mut pod)
            .map(|()| pod["spec"].clone())
            .map_err(|no| no.to_string())
    };
    let ran_as = |name: &str| json!({"serviceAccountName": name, "serviceAccount": name});
    assert_eq!(complete(pods, json!({})), Ok(ran_as("default")));
    let mut runner = ran_as("runner");
    runner["imagePullSecrets"] = json!([{"name": "registry"}]);
    assert_eq!(complete(pods, json!({"serviceAccountName": "runner"})), Ok(runner));
    assert_eq!(
        complete(pods, json!({"serviceAccountName": "nobody"})),
        Err(r#"pods "p" is forbidden: error looking up service account a/nobody: serviceaccount "nobody" not found"#.into())
    );
    assert_eq!(complete(Resource { resource: "configmaps", ..pods }, json!({})), Ok(json!({})), "pods only");
}
