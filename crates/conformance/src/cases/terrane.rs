//! Terrane's own kinds: the API takes exactly what the code can read. An object that is taken and cannot be read would be worked on by
//! nobody, and what cannot be told apart from it would wait with it.

use anyhow::Result;
use api::{
    Repo, TerraformApproval, TerraformLayer, TerraformNotification, TerraformRepository, TerraformRun,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Scope;

cases!("terrane": layers_are_readable, repositories_are_readable, repos_are_readable, runs_are_readable, approvals_are_readable, notifications_are_readable,
    jobs_of_another_manager_say_what_it_writes);

const NAMES: &[&str] = &["a", "a-1", "a.b", "", "A", "a..b", "a.-b", "-a", "a-", ".a", "a_b"];
const REFS: &[&str] = &[
    "main",
    "release/1.2",
    "refs/tags/v1",
    "feature_x#3",
    "a.b/c.d",
    "",
    "-x",
    "a..b",
    "a b",
    "main/",
    "x.lock",
    "a.lock/b",
    "a/.b",
    "a//b",
    "a@{1}",
    "a\nb",
    "main\n",
    "a.",
    ".a",
    "/a",
    "ü",
];
const PATHS: &[&str] = &[
    ".",
    "envs/prod",
    "a b/c",
    "envs/prod/",
    ".hidden",
    "a.git/b",
    "a...b",
    "",
    "/etc",
    "..",
    "../x",
    "a/../b",
    "envs/..",
    "a//b",
    "a//",
    "./a",
    "a/.",
    "a/./b",
    "-x",
    ".git",
    "a/.git/b",
    "a\u{0}b",
    "a\nb",
    "ü",
];
const PATTERNS: &[&str] =
    &["vars/*.tfvars", "**", "a?", "modules/", "", ".", "./a", "/etc", "a/../*", "-x", "!x", "a[b]", "a//b"];
const WORKSPACES: &[&str] = &["default", "a.b-c_d", "", "-a", ".a", "a/b", "a b"];
const SPANS: &[&str] = &[
    "1s",
    "0s",
    "250ms",
    "1h30m",
    "8784h",
    "",
    "5",
    "1d",
    "-1s",
    "8785h",
    "999999999h",
    "999999999h999999999h",
    "1h junk",
    "1.5h",
];
const URLS: &[&str] = &[
    "https://host/a.git",
    "https://host:8443/a",
    "https://host",
    "https://[::1]/a",
    "ssh://git@host:22/a",
    "ssh://host/a",
    "git@host:a/b.git",
    "file:///srv/a",
    "https://host/a@b",
    "https://ü/a",
    "",
    "https:///a",
    "https://user:secret@host/a",
    "https://token@host/a",
    "https://-x/a",
    "ssh://git:pw@host/a",
    "ssh://git@-oProxyCommand=x/a",
    "ssh://-oProxyCommand=x/a",
    "ext::sh -c id",
    "file://host/a",
    "file:///-x",
    "-x@host:a",
    "git@-x:a",
    "git@host:-x",
    "http://host/a",
    "HTTPS://host/a",
    "/srv/a",
    "https://host/a b",
    "https://host/a\u{7f}",
    "https://host/\u{a0}x",
];
/// The code reads any text as a version; a runner would fail with these.
const BAD_VERSIONS: &[&str] =
    &["", "latest", "not a version", ">=", "1.2.3.4", "1..2", ",", "1.9 1.8", "~> 1.9,", "=> 1.2", "1.2\n"];
const GOOD_VERSIONS: &[&str] = &[
    "1.9.8",
    "v1.9.8",
    "~> 1.9",
    "~>1.9",
    ">= 1.5, < 2",
    "1",
    "1.2.3-beta1",
    "!= 1.0.0",
    "= 1.2.3",
    ">1,<2,!=1.5.0",
];
const ADDRESSES: &[&str] = &[
    "a.b+c@x",
    "o'neill_1=2@EXAMPLE.co.uk",
    "!#$%&'*+/=?^_`{|}~-@x",
    "",
    "ann",
    "ann@",
    "@x",
    "ann@x\n",
    "ann@x\r\nRCPT TO:<eve@x>",
    "<ann@x>",
    "Ann <ann@x>",
    "ann@x,eve@x",
    "\"ann b\"@x",
    "ann..b@x",
    "ann@-x",
    "ann@[127.0.0.1]",
    "ann@eve@x",
    "änn@x",
];
const DIGESTS: &[&str] = &["", "abc", "A000000000000000000000000000000000000000000000000000000000000000"];

/// One field of an object, as a JSON pointer, and texts that it may or may not hold.
type Field = (&'static str, &'static [&'static str]);

/// Sends the object once for every text in every field. What the API says must be what the code says, in both directions.
async fn agree<K: DeserializeOwned>(s: &Scope, plural: &str, object: &Value, fields: &[Field]) -> Result<()> {
    s.namespace().await?;
    agree_there::<K>(s, plural, object, fields).await
}

/// The same in the case's namespace, which is there already.
async fn agree_there<K: DeserializeOwned>(
    s: &Scope,
    plural: &str,
    object: &Value,
    fields: &[Field],
) -> Result<()> {
    let path = format!("/apis/terrane.dev/v1alpha1/namespaces/{}/{plural}?dryRun=All", s.name());
    let usual = s.post(&path, object).await?;
    holds!(usual.code == 201, "the object itself is refused: {usual}");
    for (field, texts) in fields {
        for text in *texts {
            let mut changed = object.clone();
            let place = changed.pointer_mut(field);
            holds!(place.is_some(), "the object has no {field}");
            place.into_iter().for_each(|place| *place = json!(text));
            let answer = s.post(&path, &changed).await?;
            holds!(answer.code == 201 || answer.code == 422, "{field} {text:?}: {answer}");
            let read = serde_json::from_value::<K>(changed).map(drop);
            holds!(
                (answer.code == 201) == read.is_ok(),
                "{field} {text:?}: the code says {read:?}, the API {answer}"
            );
        }
        let long = "a".repeat(5000);
        let mut changed = object.clone();
        changed.pointer_mut(field).into_iter().for_each(|place| *place = json!(long));
        same!(s.post(&path, &changed).await?.code, 422);
    }
    Ok(())
}

fn object(kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "terrane.dev/v1alpha1", "kind": kind, "metadata": {"name": "a"}, "spec": spec})
}

async fn layers_are_readable(s: Scope) -> Result<()> {
    let spec = json!({
        "repository": {"name": "r"}, "branch": "main", "path": "x", "triggerPaths": ["y"], "workspace": "w", "terraform": {"version": "1.9.8"},
        "drift": {"interval": "1h"}, "timeouts": {"plan": "1h"}, "remediationStrategy": {"onError": {"maxRetries": 1}},
    });
    let layer = object("TerraformLayer", spec);
    let fields = [
        ("/spec/repository/name", NAMES),
        ("/spec/branch", REFS),
        ("/spec/path", PATHS),
        ("/spec/triggerPaths/0", PATTERNS),
        ("/spec/workspace", WORKSPACES),
        ("/spec/drift/interval", SPANS),
        ("/spec/timeouts/plan", SPANS),
    ];
    agree::<TerraformLayer>(&s, "terraformlayers", &layer, &fields).await?;
    let path = format!("/apis/terrane.dev/v1alpha1/namespaces/{}/terraformlayers?dryRun=All", s.name());
    for (versions, code) in [(GOOD_VERSIONS, 201), (BAD_VERSIONS, 422)] {
        for version in versions {
            let mut changed = layer.clone();
            changed["spec"]["terraform"]["version"] = json!(version);
            let answer = s.post(&path, &changed).await?;
            holds!(answer.code == code, "version {version:?}: {answer}");
        }
    }
    for retries in [json!(-1), json!(4_294_967_296_u64), json!(1e300), json!(1.5)] {
        let mut changed = layer.clone();
        changed["spec"]["remediationStrategy"]["onError"]["maxRetries"] = retries.clone();
        let answer = s.post(&path, &changed).await?;
        holds!(answer.code == 422, "maxRetries {retries}: {answer}");
    }
    Ok(())
}

async fn repositories_are_readable(s: Scope) -> Result<()> {
    let spec =
        json!({"repository": {"url": "https://host/a"}, "pollInterval": "1m", "timeouts": {"apply": "1h"}});
    let fields =
        [("/spec/repository/url", URLS), ("/spec/pollInterval", SPANS), ("/spec/timeouts/apply", SPANS)];
    agree::<TerraformRepository>(&s, "terraformrepositories", &object("TerraformRepository", spec), &fields)
        .await
}

async fn repos_are_readable(s: Scope) -> Result<()> {
    let spec = json!({"url": "https://host/a", "interval": "1m", "credentials": {"secretName": "s"}});
    let fields = [("/spec/url", URLS), ("/spec/interval", SPANS), ("/spec/credentials/secretName", NAMES)];
    agree::<Repo>(&s, "repos", &object("Repo", spec), &fields).await
}

async fn runs_are_readable(s: Scope) -> Result<()> {
    let spec = json!({
        "layer": {"name": "l", "uid": "u", "revision": "0".repeat(40)}, "action": "plan", "state": "0".repeat(64),
        "trigger": {"kind": "manual", "reason": "asked"},
    });
    let fields = [("/spec/layer/name", NAMES), ("/spec/layer/revision", DIGESTS), ("/spec/state", DIGESTS)];
    agree::<TerraformRun>(&s, "terraformruns", &object("TerraformRun", spec), &fields).await
}

async fn approvals_are_readable(s: Scope) -> Result<()> {
    let me = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let me = s.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &me).await?.code(201)?;
    let spec = json!({
        "layer": "l", "planSha256": "0".repeat(64), "user": me["status"]["userInfo"]["username"], "decision": "approve",
    });
    let fields = [("/spec/layer", NAMES), ("/spec/planSha256", DIGESTS)];
    agree::<TerraformApproval>(&s, "terraformapprovals", &object("TerraformApproval", spec), &fields).await
}

async fn notifications_are_readable(s: Scope) -> Result<()> {
    let spec = json!({
        "to": {"webhook": {"secretName": "s"}}, "events": ["Applied"], "layers": {"names": ["l"], "matchLabels": {"a": "b"}},
        "template": {"title": "{layer}"},
    });
    let notification = object("TerraformNotification", spec);
    let fields = [("/spec/to/webhook/secretName", NAMES), ("/spec/layers/names/0", NAMES)];
    agree::<TerraformNotification>(&s, "terraformnotifications", &notification, &fields).await?;
    let path =
        format!("/apis/terrane.dev/v1alpha1/namespaces/{}/terraformnotifications?dryRun=All", s.name());
    let mail = |to: &[&str]| json!({"email": {"secretName": "s", "from": "a@x", "to": to}});
    let by_mail = object("TerraformNotification", json!({ "to": mail(&["b@example.org"]) }));
    let fields = [
        ("/spec/to/email/secretName", NAMES),
        ("/spec/to/email/from", ADDRESSES),
        ("/spec/to/email/to/0", ADDRESSES),
    ];
    agree_there::<TerraformNotification>(&s, "terraformnotifications", &by_mail, &fields).await?;
    let both = json!({"slack": {"secretName": "s"}, "teams": {"secretName": "s"}});
    for to in [json!({}), both, mail(&[]), mail(&["a@x"; 21])] {
        let answer = s.post(&path, &object("TerraformNotification", json!({ "to": to }))).await?;
        holds!(answer.code == 422, "to {to}: {answer}");
    }
    Ok(())
}

/// The Job that shows a run of a Repo: nobody else touches it, and what it says is accepted step by step.
async fn jobs_of_another_manager_say_what_it_writes(s: Scope) -> Result<()> {
    s.namespace().await?;
    let path = format!("/apis/batch/v1/namespaces/{}/jobs", s.name());
    let time = "2026-01-01T00:00:00Z";
    let made = |name: &str| {
        let container =
            json!({"name": "runner", "image": "terrane.dev/local", "command": ["terrane", "runner"]});
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {
            "managedBy": api::JOB_MANAGER, "suspend": true, "completions": 1, "parallelism": 1, "backoffLimit": 0,
            "template": template,
        }})
    };
    let asked = s.post(&format!("{path}?dryRun=All"), &made("good")).await?.code(201)?;
    same!(asked["spec"]["managedBy"], json!(api::JOB_MANAGER));
    for (name, first, last, succeeded) in
        [("good", "SuccessCriteriaMet", "Complete", Some(1)), ("bad", "FailureTarget", "Failed", None)]
    {
        let mut job = s.post(&path, &made(name)).await?.code(201)?;
        let said = |kind: &str| json!({"type": kind, "status": "True", "reason": "Ended", "message": "so", "lastProbeTime": time, "lastTransitionTime": time});
        let mut over = json!({"startTime": time, "failed": 1, "conditions": [said(first), said(last)]});
        if let Some(count) = succeeded {
            over["succeeded"] = json!(count);
            over["completionTime"] = json!(time);
        }
        for status in [json!({"startTime": time}), json!({"startTime": time, "active": 1}), over] {
            job["status"] = status.clone();
            job = s.put(&format!("{path}/{name}/status"), &job).await?.code(200)?;
            same!(job["status"], status);
        }
    }
    Ok(())
}
