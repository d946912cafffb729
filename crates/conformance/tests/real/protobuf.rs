//! `protobuf.txt` against the real server: the names and kinds of its fields against the published schemas, and their numbers against what
//! the server itself writes. Numbers never change once released, so a new field is what a newer server brings, and the schemas name it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use conformance::{Call, Scope, Target};
use http::Method;
use serde_json::{Value, json};
use testkit::cluster::RealCluster;

const MESSAGES: &str = include_str!("../../../embedded/src/kinds/protobuf.txt");
const SCHEMAS: &str = include_str!("../../../embedded/src/kinds/openapi.json");
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const META: &str = "io.k8s.apimachinery.pkg";

/// Field names and kinds of each message, those of inlined messages among them.
fn messages() -> Result<BTreeMap<&'static str, BTreeMap<&'static str, &'static str>>> {
    let mut lines = BTreeMap::new();
    for line in MESSAGES.lines() {
        let mut words = line.split(' ');
        let name = words.next().context("an empty line")?;
        let fields: Option<Vec<(&str, &str)>> =
            words.map(|word| word.split_once(':').and_then(|(_, rest)| rest.split_once('='))).collect();
        lines.insert(name, fields.with_context(|| format!("{name} has a field that cannot be read"))?);
    }
    let mut messages = BTreeMap::new();
    for name in lines.keys() {
        let mut fields = BTreeMap::new();
        let mut open = vec![*name];
        while let Some(message) = open.pop() {
            for (field, kind) in lines.get(message).with_context(|| format!("no message {message}"))? {
                let kind = kind.trim_start_matches('?');
                if field.is_empty() {
                    open.push(kind.trim_start_matches('m'));
                } else {
                    fields.insert(*field, kind);
                }
            }
        }
        messages.insert(*name, fields);
    }
    Ok(messages)
}

/// The kind that a field with this schema has in `protobuf.txt`.
fn kind_of(schema: &Value) -> String {
    let schema = schema.pointer("/allOf/0").unwrap_or(schema);
    let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
    if let Some(name) = text("$ref").rsplit('/').next().filter(|name| !name.is_empty()) {
        return match name.strip_prefix(META) {
            Some(".apis.meta.v1.Time") => "T".to_owned(),
            Some(".apis.meta.v1.MicroTime") => "M".to_owned(),
            Some(".api.resource.Quantity") => "Q".to_owned(),
            Some(".util.intstr.IntOrString") => "I".to_owned(),
            Some(".apis.meta.v1.FieldsV1" | ".runtime.RawExtension") => "R".to_owned(),
            _ => format!("m{name}"),
        };
    }
    let inner = |key: &str| schema.get(key).map(kind_of).unwrap_or_default();
    match (text("type"), text("format")) {
        ("array", _) => format!("*{}", inner("items")),
        // A map of lists needs a message for each list.
        ("object", _) if inner("additionalProperties") == "*s" => "%xs".to_owned(),
        ("object", _) => format!("%{}", inner("additionalProperties")),
        ("string", "byte") => "b".to_owned(),
        ("string", _) => "s".to_owned(),
        ("integer", _) => "i".to_owned(),
        ("boolean", _) => "t".to_owned(),
        ("number", _) => "f".to_owned(),
        _ => format!("unknown: {schema}"),
    }
}

/// The kept schemas are compared with the server's beside this, so what is compared here is the server's too.
#[test]
fn messages_have_the_fields_of_their_schemas() -> Result<()> {
    let schemas: Value = serde_json::from_str(SCHEMAS)?;
    let schemas = schemas.get("schemas").and_then(Value::as_object).context("no schemas")?;
    let messages = messages()?;
    ensure!(messages.len() > 200, "only {} messages are kept", messages.len());
    let mut wrong = BTreeSet::new();
    for (name, schema) in schemas {
        // Lists and answers are never sent to the server, and definitions are always sent as JSON.
        let Some(fields) = messages.get(name.as_str()) else {
            continue;
        };
        let own = schema.get("x-kubernetes-group-version-kind").is_some();
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let wanted: BTreeMap<&str, String> = properties
            .filter(|(field, _)| !own || !["apiVersion", "kind"].contains(&field.as_str()))
            .map(|(field, schema)| (field.as_str(), kind_of(schema)))
            .collect();
        let names: BTreeSet<&str> = fields.keys().copied().chain(wanted.keys().copied()).collect();
        for field in names {
            let (kept, served) = (fields.get(field).copied(), wanted.get(field).map(String::as_str));
            if kept != served {
                wrong.insert(format!("{name}.{field} is {kept:?} and should be {served:?}"));
            }
        }
    }
    let named = fields_that_name_messages(&messages);
    wrong.extend(
        named
            .into_iter()
            .filter(|name| !messages.contains_key(name))
            .map(|name| format!("{name} is missing")),
    );
    ensure!(wrong.is_empty(), "run `cargo xtask openapi`: {wrong:#?}");
    Ok(())
}

fn fields_that_name_messages(
    messages: &BTreeMap<&'static str, BTreeMap<&'static str, &'static str>>,
) -> BTreeSet<&'static str> {
    let kinds = messages.values().flat_map(BTreeMap::values);
    kinds.filter_map(|kind| kind.trim_start_matches(['*', '%']).strip_prefix('m')).collect()
}

/// Objects with many fields set: what the server writes as protobuf is read here as what it writes as JSON.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_writes_as_protobuf_is_read_as_its_json() -> Result<()> {
    let cluster = RealCluster::shared().await;
    let scope = Scope::new(Target::on_port(cluster.config()?, cluster.token())?, "protobuf")?;
    scope.pod_namespace().await?;
    let namespace = scope.name();
    for (collection, definition, object) in objects() {
        let collection = collection.replace("NS", namespace);
        let object: Value =
            serde_json::from_str(&object.to_string().replace("\"NS\"", &format!("{namespace:?}")))?;
        scope.post(&collection, &object).await?.ok()?;
        let name = object.pointer("/metadata/name").and_then(Value::as_str).context("it has no name")?;
        compare(&scope, &format!("{collection}/{name}"), definition).await?;
        if !collection.contains("/namespaces/") {
            scope.delete(&format!("{collection}/{name}")).await?.ok()?;
        }
    }
    for (path, definition) in [
        ("/api/v1/namespaces/kube-system", "io.k8s.api.core.v1.Namespace"),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles/admin", "io.k8s.api.rbac.v1.ClusterRole"),
    ] {
        compare(&scope, path, definition).await?;
    }
    for (path, definition, review) in reviews() {
        let asked = Call::new(Method::POST, path).json(&review).accept(PROTOBUF);
        let answer = scope.call(asked).await?;
        let read =
            embedded::kinds::protobuf::read(&answer.body, definition).with_context(|| path.to_owned())?;
        // Two questions, so two answers, each with its second.
        same(path, timeless(read), timeless(scope.post(path, &review).await?.ok()?))?;
    }
    Ok(())
}

/// Controllers touch what was just made, so the two answers are compared once they are of one revision.
async fn compare(scope: &Scope, path: &str, definition: &str) -> Result<()> {
    for _ in 0..100 {
        let json = scope.get(path).await?.code(200)?;
        let answer = scope.call(Call::new(Method::GET, path).accept(PROTOBUF)).await?;
        let read =
            embedded::kinds::protobuf::read(&answer.body, definition).with_context(|| path.to_owned())?;
        let revision = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
        if revision(&json) == revision(&read) {
            return same(path, read, json);
        }
    }
    anyhow::bail!("{path} never rests")
}

fn timeless(mut answer: Value) -> Value {
    if let Some(Value::String(time)) = answer.pointer_mut("/metadata/managedFields/0/time") {
        time.clear();
    }
    answer
}

fn same(path: &str, read: Value, json: Value) -> Result<()> {
    let (read, json) = (told(read), told(json));
    ensure!(read == json, "{path} in protobuf is read as\n{read}\nand is in JSON\n{json}");
    Ok(())
}

/// Without what says nothing: JSON has empty structs that protobuf leaves out.
fn told(value: Value) -> Value {
    let says = |value: &Value| match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    };
    match value {
        Value::Array(items) => items.into_iter().map(told).collect(),
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(key, value)| (key, told(value)))
                .filter(|(_, value)| says(value))
                .collect(),
        ),
        other => other,
    }
}

fn reviews() -> [(&'static str, &'static str, Value); 3] {
    [
        (
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            "io.k8s.api.authorization.v1.SubjectAccessReview",
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
                "user": "u", "uid": "1", "groups": ["g", "h"], "extra": {"example.com/scope": ["a", "b"]},
                "resourceAttributes": {"namespace": "n", "verb": "list", "group": "batch", "version": "v1", "resource": "jobs",
                    "subresource": "status", "name": "j", "labelSelector": {"requirements": [{"key": "k", "operator": "In", "values": ["v"]}]},
                    "fieldSelector": {"requirements": [{"key": "metadata.name", "operator": "In", "values": ["v"]}]}},
            }}),
        ),
        (
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}}),
        ),
        (
            "/apis/authentication.k8s.io/v1/tokenreviews",
            "io.k8s.api.authentication.v1.TokenReview",
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "no", "audiences": ["a"]}}),
        ),
    ]
}

/// Collection, definition, object.
fn objects() -> Vec<(&'static str, &'static str, Value)> {
    let mut objects = vec![
        ("/api/v1/namespaces/NS/pods", "io.k8s.api.core.v1.Pod", pod()),
        ("/apis/batch/v1/namespaces/NS/jobs", "io.k8s.api.batch.v1.Job", job()),
        ("/apis/networking.k8s.io/v1/namespaces/NS/ingresses", "io.k8s.api.networking.v1.Ingress", ingress()),
        ("/api/v1/nodes", "io.k8s.api.core.v1.Node", node()),
    ];
    objects.extend(small());
    objects
}

fn small() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        (
            "/api/v1/namespaces/NS/configmaps",
            "io.k8s.api.core.v1.ConfigMap",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "labels": {"a": "b"}, "annotations": {"c": "d"},
                "finalizers": ["example.com/f"], "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u",
                "controller": true, "blockOwnerDeletion": false}]}, "data": {"k": "v", "empty": ""}, "binaryData": {"b": "AQI="}, "immutable": true}),
        ),
        (
            "/api/v1/namespaces/NS/secrets",
            "io.k8s.api.core.v1.Secret",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "dg=="}, "type": "example.com/t", "immutable": true}),
        ),
        (
            "/api/v1/namespaces/NS/serviceaccounts",
            "io.k8s.api.core.v1.ServiceAccount",
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}, "secrets": [{"name": "s"}],
                "imagePullSecrets": [{"name": "p"}], "automountServiceAccountToken": true}),
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/NS/leases",
            "io.k8s.api.coordination.v1.Lease",
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "h",
                "leaseDurationSeconds": 15, "acquireTime": "2026-01-02T03:04:05.000006Z", "renewTime": "2026-01-02T03:04:06.700000Z", "leaseTransitions": 7}}),
        ),
        (
            "/api/v1/namespaces/NS/events",
            "io.k8s.api.core.v1.Event",
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "namespace": "NS",
                "name": "p", "uid": "u", "apiVersion": "v1", "resourceVersion": "5", "fieldPath": "spec"}, "reason": "R", "message": "m",
                "source": {"component": "c", "host": "h"}, "firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:06Z",
                "count": 3, "type": "Normal", "reportingComponent": "c", "reportingInstance": "i"}),
        ),
        (
            "/apis/events.k8s.io/v1/namespaces/NS/events",
            "io.k8s.api.events.v1.Event",
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "f"}, "eventTime": "2026-01-02T03:04:05.000006Z",
                "series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000001Z"}, "reportingController": "example.com/c", "reportingInstance": "i",
                "action": "A", "reason": "R", "regarding": {"kind": "Pod", "name": "p", "namespace": "NS"}, "related": {"kind": "Node", "name": "n"},
                "note": "n", "type": "Warning"}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/roles",
            "io.k8s.api.rbac.v1.Role",
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"},
                "rules": [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get"], "resourceNames": ["j"]}]}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/NS/rolebindings",
            "io.k8s.api.rbac.v1.RoleBinding",
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
                "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "n"}, {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "u"}],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}}),
        ),
    ]
}

fn pod() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "volumes": [
            {"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "s", "secret": {"secretName": "s", "items": [{"key": "k", "path": "p", "mode": 256}], "defaultMode": 420, "optional": true}},
            {"name": "c", "configMap": {"name": "c", "items": [{"key": "k", "path": "p"}], "defaultMode": 420, "optional": true}},
            {"name": "h", "hostPath": {"path": "/x", "type": "Directory"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "x", "readOnly": true}},
            {"name": "d", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}},
                {"path": "m", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}}]}},
            {"name": "p", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"audience": "a", "expirationSeconds": 700, "path": "t"}},
                {"configMap": {"name": "c", "optional": true}}, {"secret": {"name": "s", "items": [{"key": "k", "path": "q"}]}},
                {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}]}}]}},
        ],
        "initContainers": [{"name": "first", "image": "example.com/i:1", "restartPolicy": "Always",
            "startupProbe": {"httpGet": {"path": "/x", "port": "web", "host": "h", "scheme": "HTTPS", "httpHeaders": [{"name": "a", "value": "b"}]},
                "initialDelaySeconds": 1, "timeoutSeconds": 2, "periodSeconds": 3, "successThreshold": 1, "failureThreshold": 5}}],
        "containers": [{
            "name": "main", "image": "example.com/i:1", "command": ["a", "b"], "args": ["c"], "workingDir": "/w", "stdin": true, "stdinOnce": true, "tty": true,
            "ports": [{"name": "web", "containerPort": 80, "protocol": "UDP", "hostIP": "127.0.0.1", "hostPort": 8080}],
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c", "optional": true}}, {"secretRef": {"name": "s"}}],
            "env": [{"name": "A", "value": "v"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}, {"name": "D", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "2", "memory": "64Mi"}, "requests": {"cpu": "500m"}},
            "volumeMounts": [{"name": "e", "mountPath": "/e", "readOnly": true, "subPath": "x", "mountPropagation": "HostToContainer"},
                {"name": "h", "mountPath": "/h", "subPathExpr": "$(A)"}],
            "livenessProbe": {"exec": {"command": ["x"]}, "terminationGracePeriodSeconds": 9}, "readinessProbe": {"tcpSocket": {"port": 80, "host": "h"}},
            "lifecycle": {"postStart": {"exec": {"command": ["y"]}}, "preStop": {"sleep": {"seconds": 3}}},
            "terminationMessagePath": "/t", "terminationMessagePolicy": "FallbackToLogsOnError", "imagePullPolicy": "Never",
            "securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "runAsUser": 5, "runAsGroup": 6, "runAsNonRoot": true, "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false, "procMount": "Default", "seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}, "seLinuxOptions": {"user": "u", "role": "r", "type": "t", "level": "l"}}}],
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "activeDeadlineSeconds": 60, "dnsPolicy": "None", "nodeSelector": {"a": "b"}, "automountServiceAccountToken": false,
        "hostname": "h", "subdomain": "d", "schedulerName": "nobody", "setHostnameAsFQDN": false, "shareProcessNamespace": true, "enableServiceLinks": false,
        "securityContext": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4, 5], "fsGroupChangePolicy": "OnRootMismatch", "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]},
        "imagePullSecrets": [{"name": "p"}], "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["x", "y"]}], "dnsConfig": {"nameservers": ["127.0.0.1"], "searches": ["s"], "options": [{"name": "ndots", "value": "2"}]},
        "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 7}], "readinessGates": [{"conditionType": "example.com/x"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}, "minDomains": 2}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}],
                    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "preference": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}}]},
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "t", "namespaces": ["n"], "labelSelector": {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}}]},
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 2, "podAffinityTerm": {"topologyKey": "t", "namespaceSelector": {"matchLabels": {"a": "b"}}}}]}},
    }})
}

fn job() -> Value {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.com/i:1"}]}});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {
        "parallelism": 2, "completions": 3, "activeDeadlineSeconds": 60, "backoffLimit": 4, "completionMode": "Indexed", "suspend": true,
        "ttlSecondsAfterFinished": 9, "backoffLimitPerIndex": 1, "maxFailedIndexes": 2, "podReplacementPolicy": "Failed", "template": template,
        "successPolicy": {"rules": [{"succeededIndexes": "0-1", "succeededCount": 1}]},
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [3, 4]}},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]},
    }})
}

fn ingress() -> Value {
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i"}, "spec": {
        "ingressClassName": "c", "defaultBackend": {"resource": {"apiGroup": "g.example.com", "kind": "K", "name": "n"}}, "tls": [{"hosts": ["h.example.com"], "secretName": "s"}],
        "rules": [{"host": "h.example.com", "http": {"paths": [{"path": "/p", "pathType": "Prefix", "backend": backend}]}}],
    }})
}

fn node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "protobuf-case"}, "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "x://y", "unschedulable": true,
        "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "2", "memory": "1Gi"}, "allocatable": {"cpu": "1"}, "addresses": [{"type": "Hostname", "address": "h"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}, "nodeInfo": {"machineID": "m", "systemUUID": "s", "bootID": "b", "kernelVersion": "k", "osImage": "o",
            "containerRuntimeVersion": "c", "kubeletVersion": "v", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"},
            "images": [{"names": ["a", "b"], "sizeBytes": 5}], "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "m",
            "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}})
}
