//! Create, read, update, delete; names; what the server fills in; optimistic concurrency.

use anyhow::Result;
use serde_json::json;

use crate::Scope;
use crate::scope::{causes, config_map, names, pod, revision, text};

cases!("objects": create_fills_in_metadata, create_twice, get_missing, list_kind, update_changes_data, update_missing, update_conflict,
    update_without_revision, update_wrong_name, update_wrong_namespace, update_keeps_uid, update_wrong_uid, delete_answers, delete_missing, no_change_no_revision,
    generation_of_a_job, bad_name, long_name, no_name, generate_name, bad_labels, bad_annotation_key, wrong_kind, wrong_version,
    create_with_revision, bad_data_key, secret_string_data, secret_immutable, config_map_immutable, secret_type_is_fixed, pod_needs_containers,
    pod_spec_is_fixed, pod_gets_a_token, pod_without_a_token, lease, lease_bad, event_core_seen_in_both, ingress, job_defaults, namespace_field_mismatch, post_to_an_object);

async fn create_fills_in_metadata(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    same!(text(&made, "/metadata/uid").len(), 36);
    holds!(text(&made, "/metadata/creationTimestamp").ends_with('Z'), "{made}");
    same!(text(&made, "/metadata/namespace"), s.name());
    holds!(revision(&made).parse::<u64>().is_ok(), "{made}");
    holds!(made["metadata"].get("generation").is_none(), "{made}");
    same!(s.get(&format!("{ns}/configmaps/a")).await?.code(200)?, made);
    Ok(())
}

async fn create_twice(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let status = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.refused(
        409,
        "AlreadyExists",
        "configmaps \"a\" already exists",
    )?;
    same!(status["details"], json!({"name": "a", "kind": "configmaps"}));
    Ok(())
}

async fn get_missing(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let status =
        s.get(&format!("{ns}/secrets/none")).await?.refused(404, "NotFound", "secrets \"none\" not found")?;
    same!(status["details"], json!({"name": "none", "kind": "secrets"}));
    let group = format!("/apis/batch/v1/namespaces/{}/jobs/none", s.name());
    let status = s.get(&group).await?.refused(404, "NotFound", "jobs.batch \"none\" not found")?;
    same!(status["details"], json!({"name": "none", "group": "batch", "kind": "jobs"}));
    Ok(())
}

async fn list_kind(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/secrets"), &json!({"metadata": {"name": "b"}})).await?.code(201)?;
    s.post(&format!("{ns}/secrets"), &json!({"metadata": {"name": "a"}})).await?.code(201)?;
    let list = s.get(&format!("{ns}/secrets")).await?.code(200)?;
    same!((&list["kind"], &list["apiVersion"]), (&json!("SecretList"), &json!("v1")));
    same!(names(&list), ["a", "b"]);
    holds!(list["items"][0].get("kind").is_none(), "{list}");
    holds!(revision(&list).parse::<u64>().is_ok(), "{list}");
    let empty = s.get(&format!("{ns}/events")).await?.code(200)?;
    same!(empty["items"], json!([]));
    Ok(())
}

async fn update_changes_data(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut made = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    made["data"] = json!({"b": "2"});
    let changed = s.put(&format!("{ns}/configmaps/a"), &made).await?.code(200)?;
    same!(changed["data"], json!({"b": "2"}));
    holds!(revision(&changed) != revision(&made), "{changed}");
    same!(changed["metadata"]["uid"], made["metadata"]["uid"]);
    Ok(())
}

async fn update_missing(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.put(&format!("{ns}/configmaps/none"), &config_map("none")).await?.refused(
        404,
        "NotFound",
        "configmaps \"none\" not found",
    )?;
    Ok(())
}

const STALE: &str = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again";

async fn update_conflict(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let mut next = made.clone();
    next["data"] = json!({"b": "2"});
    s.put(&format!("{ns}/configmaps/a"), &next).await?.code(200)?;
    let status = s.put(&format!("{ns}/configmaps/a"), &made).await?.refused(409, "Conflict", STALE)?;
    same!(status["details"], json!({"name": "a", "kind": "configmaps"}));
    Ok(())
}

async fn update_without_revision(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let mut next = config_map("a");
    next["data"] = json!({"b": "2"});
    same!(s.put(&format!("{ns}/configmaps/a"), &next).await?.code(200)?["data"], json!({"b": "2"}));
    Ok(())
}

async fn update_wrong_name(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    s.put(&format!("{ns}/configmaps/a"), &config_map("b")).await?.refused(
        400,
        "BadRequest",
        "the name of the object (b) does not match the name on the URL (a)",
    )?;
    Ok(())
}

async fn update_wrong_namespace(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let mut other = config_map("a");
    other["metadata"]["namespace"] = json!("elsewhere");
    s.put(&format!("{ns}/configmaps/a"), &other).await?.refused(
        400,
        "BadRequest",
        "the namespace of the provided object does not match the namespace sent on the request",
    )?;
    Ok(())
}

async fn namespace_field_mismatch(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut other = config_map("a");
    other["metadata"]["namespace"] = json!("elsewhere");
    s.post(&format!("{ns}/configmaps"), &other).await?.refused(
        400,
        "BadRequest",
        "the namespace of the provided object does not match the namespace sent on the request",
    )?;
    Ok(())
}

async fn update_keeps_uid(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let mut next = config_map("a");
    next["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    let changed = s.put(&format!("{ns}/configmaps/a"), &next).await?.code(200)?;
    same!(changed["metadata"]["uid"], made["metadata"]["uid"]);
    same!(changed["metadata"]["creationTimestamp"], made["metadata"]["creationTimestamp"]);
    Ok(())
}

async fn update_wrong_uid(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let mut next = config_map("a");
    next["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    let answer = s.put(&format!("{ns}/configmaps/a"), &next).await?;
    let status = answer.json()?;
    same!((answer.code, text(&status, "/reason")), (409, "Conflict".to_owned()));
    // Between the two a server may say where it stores the object, which is nobody's business.
    let message = text(&status, "/message");
    holds!(message.starts_with("Operation cannot be fulfilled on configmaps \"a\": "), "{message}");
    holds!(message.ends_with(&format!("Precondition failed: UID in precondition: 11111111-2222-3333-4444-555555555555, UID in object meta: {}", text(&made, "/metadata/uid"))), "{message}");
    Ok(())
}

async fn delete_answers(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let status = s.delete(&format!("{ns}/configmaps/a")).await?.code(200)?;
    same!((&status["kind"], &status["status"]), (&json!("Status"), &json!("Success")));
    same!(status["details"], json!({"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}));
    s.get(&format!("{ns}/configmaps/a")).await?.refused(404, "NotFound", "configmaps \"a\" not found")?;
    Ok(())
}

async fn delete_missing(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.delete(&format!("{ns}/configmaps/none")).await?.refused(
        404,
        "NotFound",
        "configmaps \"none\" not found",
    )?;
    Ok(())
}

async fn no_change_no_revision(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let same = s.put(&format!("{ns}/configmaps/a"), &made).await?.code(200)?;
    same!(revision(&same), revision(&made));
    Ok(())
}

async fn generation_of_a_job(s: Scope) -> Result<()> {
    s.pod_namespace().await?;
    let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", s.name());
    let job = json!({"metadata": {"name": "a"}, "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let made = s.post(&jobs, &job).await?.code(201)?;
    same!(made["metadata"]["generation"], 1);
    let path = format!("{jobs}/a");
    let labelled =
        s.patch(&path, crate::scope::MERGE, &json!({"metadata": {"labels": {"x": "y"}}})).await?.code(200)?;
    same!(labelled["metadata"]["generation"], 1);
    let changed =
        s.patch(&path, crate::scope::MERGE, &json!({"spec": {"parallelism": 3}})).await?.code(200)?;
    same!(changed["metadata"]["generation"], 2);
    Ok(())
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

async fn bad_name(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let cause = format!("Invalid value: \"Bad_Name\": {SUBDOMAIN}");
    let status = s.post(&format!("{ns}/configmaps"), &config_map("Bad_Name")).await?.refused(
        422,
        "Invalid",
        &format!("ConfigMap \"Bad_Name\" is invalid: metadata.name: {cause}"),
    )?;
    same!(causes(&status), [json!(["FieldValueInvalid", cause, "metadata.name"])]);
    same!(
        (&status["details"]["name"], &status["details"]["kind"]),
        (&json!("Bad_Name"), &json!("ConfigMap"))
    );
    Ok(())
}

async fn long_name(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let name = "a".repeat(254);
    s.post(&format!("{ns}/configmaps"), &config_map(&name)).await?.refused(422, "Invalid", &format!("ConfigMap \"{name}\" is invalid: metadata.name: Invalid value: \"{name}\": must be no more than 253 characters"))?;
    s.post(&format!("{ns}/configmaps"), &config_map(&"a".repeat(253))).await?.code(201)?;
    Ok(())
}

async fn no_name(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &json!({"data": {}})).await?.refused(
        422,
        "Invalid",
        "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required",
    )?;
    Ok(())
}

async fn generate_name(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let body = json!({"metadata": {"generateName": "job-"}});
    let first = s.post(&format!("{ns}/configmaps"), &body).await?.code(201)?;
    let second = s.post(&format!("{ns}/configmaps"), &body).await?.code(201)?;
    let name = text(&first, "/metadata/name");
    holds!(name.starts_with("job-") && name.len() == 9, "{name}");
    holds!(name != text(&second, "/metadata/name"), "{name}");
    same!(text(&first, "/metadata/generateName"), "job-");
    let long = s
        .post(&format!("{ns}/configmaps"), &json!({"metadata": {"generateName": "x".repeat(70)}}))
        .await?
        .code(201)?;
    same!(text(&long, "/metadata/name").len(), 63);
    Ok(())
}

async fn bad_labels(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let key = "Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let value = "Invalid value: \"no spaces\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    // One bad label a request: kube-apiserver walks the labels as a Go map, so two mistakes come in either order.
    for (labels, wanted) in [(json!({"a b": "x"}), key), (json!({"ok": "no spaces"}), value)] {
        let mut bad = config_map("a");
        bad["metadata"]["labels"] = labels;
        s.post(&format!("{ns}/configmaps"), &bad).await?.refused(
            422,
            "Invalid",
            &format!("ConfigMap \"a\" is invalid: metadata.labels: {wanted}"),
        )?;
    }
    Ok(())
}

async fn bad_annotation_key(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut bad = config_map("a");
    bad["metadata"]["annotations"] = json!({"x/": "1"});
    let text = "metadata.annotations: Invalid value: \"x/\": name part must be non-empty";
    let shape = "metadata.annotations: Invalid value: \"x/\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    s.post(&format!("{ns}/configmaps"), &bad).await?.refused(
        422,
        "Invalid",
        &format!("ConfigMap \"a\" is invalid: [{text}, {shape}]"),
    )?;
    Ok(())
}

async fn wrong_kind(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}})).await?
        .refused(400, "BadRequest", "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion")?;
    Ok(())
}

async fn wrong_version(s: Scope) -> Result<()> {
    s.namespace().await?;
    let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", s.name());
    let answer =
        s.post(&jobs, &json!({"apiVersion": "batch/v7", "kind": "Job", "metadata": {"name": "a"}})).await?;
    let status = answer.json()?;
    same!((answer.code, text(&status, "/reason")), (400, "BadRequest".to_owned()));
    // What follows is a line number in the server's source.
    let message = text(&status, "/message");
    holds!(message.starts_with("Job in version \"v7\" cannot be handled as a Job: no kind \"Job\" is registered for version \"batch/v7\" in scheme "), "{message}");
    Ok(())
}

async fn create_with_revision(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut body = config_map("a");
    body["metadata"]["resourceVersion"] = json!("5");
    let answer = s.post(&format!("{ns}/configmaps"), &body).await?;
    let status = answer.json()?;
    same!(
        (answer.code, text(&status, "/message")),
        (500, "resourceVersion should not be set on objects to be created".to_owned())
    );
    same!(status.get("reason"), None);
    Ok(())
}

async fn bad_data_key(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &json!({"metadata": {"name": "a"}, "data": {"a/b": "1"}})).await?
        .refused(422, "Invalid", "ConfigMap \"a\" is invalid: data[a/b]: Invalid value: \"a/b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')")?;
    Ok(())
}

async fn secret_string_data(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let made = s.post(&format!("{ns}/secrets"), &json!({"metadata": {"name": "a"}, "stringData": {"k": "hello"}, "data": {"k": "eA==", "l": "eA=="}})).await?.code(201)?;
    same!(made["data"], json!({"k": "aGVsbG8=", "l": "eA=="}));
    holds!(made.get("stringData").is_none(), "{made}");
    same!(made["type"], "Opaque");
    Ok(())
}

async fn secret_immutable(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut made = s
        .post(
            &format!("{ns}/secrets"),
            &json!({"metadata": {"name": "a"}, "immutable": true, "data": {"k": "eA=="}}),
        )
        .await?
        .code(201)?;
    made["data"]["k"] = json!("eQ==");
    s.put(&format!("{ns}/secrets/a"), &made).await?.refused(
        422,
        "Invalid",
        "Secret \"a\" is invalid: data: Forbidden: field is immutable when `immutable` is set",
    )?;
    made["data"]["k"] = json!("eA==");
    made["immutable"] = json!(false);
    s.put(&format!("{ns}/secrets/a"), &made).await?.refused(
        422,
        "Invalid",
        "Secret \"a\" is invalid: immutable: Forbidden: field is immutable when `immutable` is set",
    )?;
    Ok(())
}

async fn config_map_immutable(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut body = config_map("a");
    body["immutable"] = json!(true);
    let mut made = s.post(&format!("{ns}/configmaps"), &body).await?.code(201)?;
    made["data"] = json!({});
    s.put(&format!("{ns}/configmaps/a"), &made).await?.refused(
        422,
        "Invalid",
        "ConfigMap \"a\" is invalid: data: Forbidden: field is immutable when `immutable` is set",
    )?;
    Ok(())
}

async fn secret_type_is_fixed(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let mut made = s.post(&format!("{ns}/secrets"), &json!({"metadata": {"name": "a"}})).await?.code(201)?;
    made["type"] = json!("example.com/other");
    s.put(&format!("{ns}/secrets/a"), &made).await?.refused(
        422,
        "Invalid",
        "Secret \"a\" is invalid: type: Invalid value: \"example.com/other\": field is immutable",
    )?;
    Ok(())
}

async fn pod_needs_containers(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    s.post(&format!("{ns}/pods"), &json!({"metadata": {"name": "a"}, "spec": {}})).await?.refused(
        422,
        "Invalid",
        "Pod \"a\" is invalid: spec.containers: Required value",
    )?;
    Ok(())
}

async fn pod_spec_is_fixed(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    let made = s.post(&format!("{ns}/pods"), &pod("a")).await?.code(201)?;
    same!(made["spec"]["restartPolicy"], "Always");
    same!(made["spec"]["serviceAccountName"], "default");
    same!(made["spec"]["terminationGracePeriodSeconds"], 30);
    same!(made["status"]["phase"], "Pending");
    let answer = s
        .patch(&format!("{ns}/pods/a"), crate::scope::MERGE, &json!({"spec": {"restartPolicy": "Never"}}))
        .await?;
    same!(answer.code, 422);
    let message = text(&answer.json()?, "/message");
    let wanted = "Pod \"a\" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    holds!(message.starts_with(wanted), "{message}");
    Ok(())
}

const TOKEN_PLACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

async fn pod_gets_a_token(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    let mut body = pod("a");
    let own = json!([{"name": "own", "mountPath": TOKEN_PLACE}]);
    body["spec"]["volumes"] = json!([{"name": "own", "emptyDir": {}}]);
    body["spec"]["initContainers"] = json!([{"name": "first", "image": "i"}]);
    body["spec"]["containers"] =
        json!([{"name": "main", "image": "i"}, {"name": "own", "image": "i", "volumeMounts": own}]);
    let made = s.post(&format!("{ns}/pods?fieldManager=maker"), &body).await?.code(201)?;
    let mut volume = made["spec"]["volumes"][1].clone();
    let name = text(&volume, "/name");
    holds!(name.len() == 21 && name.starts_with("kube-api-access-"), "{name}");
    volume["name"] = json!("x");
    same!(
        volume,
        json!({"name": "x", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]}})
    );
    let mount = json!([{"name": name, "readOnly": true, "mountPath": TOKEN_PLACE}]);
    same!(made["spec"]["initContainers"][0]["volumeMounts"], mount);
    same!(made["spec"]["containers"][0]["volumeMounts"], mount);
    same!(made["spec"]["containers"][1]["volumeMounts"][0]["name"], "own");
    same!(made["spec"]["volumes"].as_array().map(Vec::len), Some(2));
    // What the server adds is nobody's.
    let owned = made["metadata"]["managedFields"].to_string();
    holds!(!owned.contains("kube-api-access") && !owned.contains("serviceAccount"), "{owned}");
    Ok(())
}

async fn pod_without_a_token(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    let none = |made: &serde_json::Value| made["spec"].get("volumes").is_none();
    let mut body = pod("a");
    body["spec"]["automountServiceAccountToken"] = json!(false);
    let made = s.post(&format!("{ns}/pods"), &body).await?.code(201)?;
    holds!(none(&made), "{made}");
    let account = json!({"metadata": {"name": "quiet"}, "automountServiceAccountToken": false});
    s.post(&format!("{ns}/serviceaccounts"), &account).await?.code(201)?;
    let mut body = pod("b");
    body["spec"]["serviceAccountName"] = json!("quiet");
    let made = s.post(&format!("{ns}/pods"), &body).await?.code(201)?;
    holds!(none(&made), "{made}");
    // The pod's own wish counts more than its account's.
    let mut body = pod("c");
    body["spec"]["serviceAccountName"] = json!("quiet");
    body["spec"]["automountServiceAccountToken"] = json!(true);
    let made = s.post(&format!("{ns}/pods"), &body).await?.code(201)?;
    holds!(!none(&made), "{made}");
    Ok(())
}

async fn lease(s: Scope) -> Result<()> {
    s.namespace().await?;
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", s.name());
    let spec = json!({"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.678901Z"});
    let made = s.post(&leases, &json!({"metadata": {"name": "a"}, "spec": spec})).await?.code(201)?;
    same!(made["spec"], spec);
    same!((&made["apiVersion"], &made["kind"]), (&json!("coordination.k8s.io/v1"), &json!("Lease")));
    Ok(())
}

async fn lease_bad(s: Scope) -> Result<()> {
    s.namespace().await?;
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", s.name());
    s.post(&leases, &json!({"metadata": {"name": "a"}, "spec": {"leaseDurationSeconds": 0}})).await?
        .refused(422, "Invalid", "Lease.coordination.k8s.io \"a\" is invalid: spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0")?;
    Ok(())
}

async fn event_core_seen_in_both(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "namespace": s.name(), "name": "p"}, "reason": "Why", "message": "words", "type": "Normal",
        "source": {"component": "me"}, "count": 1, "firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:05Z"});
    s.post(&format!("{ns}/events"), &event).await?.code(201)?;
    let seen = s.get(&format!("/apis/events.k8s.io/v1/namespaces/{}/events/e", s.name())).await?.code(200)?;
    same!(seen["note"], "words");
    same!(seen["regarding"]["name"], "p");
    same!(seen["deprecatedCount"], 1);
    same!(seen["apiVersion"], "events.k8s.io/v1");
    let chosen =
        s.get(&format!("{ns}/events?fieldSelector=involvedObject.name%3Dp,reason%3DWhy")).await?.code(200)?;
    same!(names(&chosen), ["e"]);
    Ok(())
}

async fn ingress(s: Scope) -> Result<()> {
    s.namespace().await?;
    let path = format!("/apis/networking.k8s.io/v1/namespaces/{}/ingresses", s.name());
    let made = s.post(&path, &json!({"metadata": {"name": "a"}, "spec": {"rules": [{"host": "x.example.com", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}})).await?.code(201)?;
    same!(made["status"], json!({"loadBalancer": {}}));
    same!(made["metadata"]["generation"], 1);
    Ok(())
}

async fn job_defaults(s: Scope) -> Result<()> {
    s.pod_namespace().await?;
    let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", s.name());
    let job = json!({"metadata": {"name": "a"}, "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let made = s.post(&jobs, &job).await?.code(201)?;
    same!(
        (&made["spec"]["completions"], &made["spec"]["parallelism"], &made["spec"]["backoffLimit"]),
        (&json!(1), &json!(1), &json!(6))
    );
    same!(made["spec"]["completionMode"], "NonIndexed");
    same!(
        made["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"],
        made["metadata"]["uid"]
    );
    same!(made["spec"]["template"]["metadata"]["labels"]["job-name"], "a");
    let mut bad = job;
    bad["metadata"]["name"] = json!("b");
    bad["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    s.post(&jobs, &bad).await?.refused(422, "Invalid", "Job.batch \"b\" is invalid: spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"")?;
    Ok(())
}

async fn post_to_an_object(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps/a"), &config_map("a")).await?.refused(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    )?;
    Ok(())
}
