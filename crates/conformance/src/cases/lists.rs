//! Lists: selectors, pages, revisions; tables and metadata alone.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use crate::scope::{config_map, names, pod, revision, text};
use crate::{Call, Scope};

cases!("lists": label_selectors, bad_label_selector, field_selectors, bad_field_selector, unknown_field_label, pages, page_is_consistent, foreign_token, bad_limit,
    revision_zero, revision_exact, revision_in_future, bad_revision, match_without_revision, bad_match, all_namespaces, table, table_of_pods, table_without_objects, table_with_metadata,
    metadata_only, metadata_of_a_list, yaml_answer, protobuf_falls_to_json, not_acceptable, table_of_a_status, services_where_there_are_none);

async fn three(s: &Scope) -> Result<String> {
    let ns = s.namespace().await?;
    for (name, labels) in [
        ("lab-a", json!({"app": "x", "tier": "1"})),
        ("lab-b", json!({"app": "y"})),
        ("lab-c", json!({"tier": "2"})),
    ] {
        s.post(&format!("{ns}/secrets"), &json!({"metadata": {"name": name, "labels": labels}}))
            .await?
            .code(201)?;
    }
    Ok(format!("{ns}/secrets"))
}

async fn label_selectors(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let table: [(&str, &[&str]); 10] = [
        ("app%3Dx", &["lab-a"]),
        ("app%3D%3Dx", &["lab-a"]),
        ("app%21%3Dx", &["lab-b", "lab-c"]),
        ("app", &["lab-a", "lab-b"]),
        ("%21app", &["lab-c"]),
        ("app%20in%20%28x,y%29", &["lab-a", "lab-b"]),
        ("app%20notin%20%28x%29", &["lab-b", "lab-c"]),
        ("app%3Dx,tier%3D1", &["lab-a"]),
        ("tier%3E1", &["lab-c"]),
        ("tier%3C2", &["lab-a"]),
    ];
    for (selector, wanted) in table {
        let found = names(&s.get(&format!("{path}?labelSelector={selector}")).await?.code(200)?);
        holds!(found == wanted, "{selector}: {found:?}");
    }
    Ok(())
}

async fn bad_label_selector(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    for (selector, message) in [
        ("a%3D%3Db%3Dc", "found '=', expected: ',' or 'end of string'"),
        ("app%20in%20x", "unable to parse requirement: found 'x' expected: '('"),
        ("%28", "found '(', expected: !, identifier, or 'end of string'"),
    ] {
        let answer = s.get(&format!("{ns}/secrets?labelSelector={selector}")).await?;
        same!(answer.code, 400);
        let status = answer.json()?;
        same!(text(&status, "/message"), message);
        same!(text(&status, "/reason"), "BadRequest");
    }
    Ok(())
}

async fn field_selectors(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    for (selector, wanted) in [
        ("metadata.name%3Dlab-b", vec!["lab-b"]),
        ("metadata.name%21%3Dlab-b", vec!["lab-a", "lab-c"]),
        ("type%3DOpaque,metadata.name%3Dlab-a", vec!["lab-a"]),
        ("type%3Dother", vec![]),
    ] {
        same!(names(&s.get(&format!("{path}?fieldSelector={selector}")).await?.code(200)?), wanted);
    }
    Ok(())
}

async fn bad_field_selector(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.get(&format!("{ns}/secrets?fieldSelector=nonsense")).await?.refused(
        400,
        "BadRequest",
        "invalid selector: 'nonsense'; can't understand 'nonsense'",
    )?;
    Ok(())
}

async fn unknown_field_label(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.get(&format!("{ns}/configmaps?fieldSelector=data.a%3D1")).await?.refused(
        400,
        "BadRequest",
        "\"data.a\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
    )?;
    s.get(&format!("{ns}/pods?fieldSelector=spec.color%3D1")).await?.refused(
        400,
        "BadRequest",
        "field label not supported: spec.color",
    )?;
    Ok(())
}

async fn pages(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let first = s.get(&format!("{path}?limit=2")).await?.code(200)?;
    same!(names(&first), ["lab-a", "lab-b"]);
    same!(first["metadata"]["remainingItemCount"], 1);
    let token = text(&first, "/metadata/continue");
    let rest = s.get(&format!("{path}?limit=2&continue={token}")).await?.code(200)?;
    same!(names(&rest), ["lab-c"]);
    same!(rest["metadata"].get("continue"), None);
    let chosen = s.get(&format!("{path}?limit=1&labelSelector=app")).await?.code(200)?;
    same!(names(&chosen), ["lab-a"]);
    same!(chosen["metadata"].get("remainingItemCount"), None);
    Ok(())
}

async fn page_is_consistent(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let first = s.get(&format!("{path}?limit=1")).await?.code(200)?;
    s.delete(&format!("{path}/lab-b")).await?.ok()?;
    let rest =
        s.get(&format!("{path}?limit=5&continue={}", text(&first, "/metadata/continue"))).await?.code(200)?;
    same!(names(&rest), ["lab-b", "lab-c"]);
    same!(revision(&rest), revision(&first));
    Ok(())
}

async fn foreign_token(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.get(&format!("{ns}/secrets?limit=1&continue=garbage!")).await?.refused(
        400,
        "BadRequest",
        "invalid continue token: continue key is not valid: illegal base64 data at input byte 7",
    )?;
    Ok(())
}

async fn bad_limit(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let answer = s.get(&format!("{ns}/secrets?limit=many")).await?;
    same!(answer.code, 400);
    same!(text(&answer.json()?, "/message"), "strconv.ParseInt: parsing \"many\": invalid syntax");
    Ok(())
}

async fn revision_zero(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let answer = s
        .until(&format!("{path}?resourceVersion=0"), |a| a.json().is_ok_and(|l| names(&l).len() == 3))
        .await?;
    same!(answer.code(200)?["kind"], "SecretList");
    Ok(())
}

async fn revision_exact(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let then = revision(&s.get(&format!("{path}?limit=1")).await?.code(200)?);
    s.delete(&format!("{path}/lab-b")).await?.ok()?;
    let list =
        s.get(&format!("{path}?resourceVersion={then}&resourceVersionMatch=Exact")).await?.code(200)?;
    same!((names(&list).len(), revision(&list)), (3, then));
    Ok(())
}

async fn revision_in_future(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let answer =
        s.get(&format!("{path}?resourceVersion=999999999&resourceVersionMatch=NotOlderThan")).await?;
    let status = answer.json()?;
    same!((answer.code, text(&status, "/reason")), (504, "Timeout".to_owned()));
    let message = text(&status, "/message");
    holds!(message.starts_with("Timeout: Too large resource version: 999999999, current: "), "{message}");
    same!(
        status["details"]["causes"],
        json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}])
    );
    Ok(())
}

async fn bad_revision(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let answer = s.get(&format!("{path}?resourceVersion=abc")).await?;
    same!(answer.code, 400);
    Ok(())
}

async fn match_without_revision(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.get(&format!("{ns}/secrets?resourceVersionMatch=Exact")).await?.refused(422, "Invalid", "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided")?;
    Ok(())
}

async fn bad_match(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let answer = s.get(&format!("{ns}/secrets?resourceVersion=1&resourceVersionMatch=Nearly")).await?;
    same!(answer.code, 422);
    holds!(text(&answer.json()?, "/message").ends_with("resourceVersionMatch: Unsupported value: \"Nearly\": supported values: \"Exact\", \"NotOlderThan\", \"\""), "{answer}");
    Ok(())
}

async fn all_namespaces(s: Scope) -> Result<()> {
    three(&s).await?;
    let all = s
        .get(&format!("/api/v1/secrets?fieldSelector=metadata.namespace%3D{}", s.name()))
        .await?
        .code(200)?;
    same!(names(&all), ["lab-a", "lab-b", "lab-c"]);
    Ok(())
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

async fn in_form(s: &Scope, path: &str, accept: &str) -> Result<Value> {
    s.call(Call::new(Method::GET, path).accept(accept)).await?.code(200)
}

fn columns(table: &Value) -> Vec<String> {
    table["columnDefinitions"].as_array().into_iter().flatten().map(|c| text(c, "/name")).collect()
}

async fn table(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let table = in_form(&s, &path, TABLE).await?;
    same!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    same!(columns(&table), ["Name", "Type", "Data", "Age"]);
    same!(table["columnDefinitions"][0]["format"], "name");
    let cells = &table["rows"][0]["cells"];
    same!((&cells[0], &cells[1], &cells[2]), (&json!("lab-a"), &json!("Opaque"), &json!(0)));
    same!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    Ok(())
}

async fn table_of_pods(s: Scope) -> Result<()> {
    let ns = s.pod_namespace().await?;
    s.post(&format!("{ns}/pods"), &pod("a")).await?.code(201)?;
    let table = in_form(&s, &format!("{ns}/pods"), TABLE).await?;
    same!(
        columns(&table),
        ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"]
    );
    let cells = &table["rows"][0]["cells"];
    same!(
        (&cells[0], &cells[1], &cells[2], &cells[3]),
        (&json!("a"), &json!("0/1"), &json!("Pending"), &json!("0"))
    );
    same!((&cells[5], &cells[6]), (&json!("<none>"), &json!("<none>")));
    Ok(())
}

async fn table_without_objects(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let table = in_form(&s, &format!("{path}/lab-a?includeObject=None"), TABLE).await?;
    same!(table["rows"][0]["object"], Value::Null);
    let whole = in_form(&s, &format!("{path}/lab-a?includeObject=Object"), TABLE).await?;
    same!(whole["rows"][0]["object"]["kind"], "Secret");
    Ok(())
}

async fn table_with_metadata(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let table = in_form(&s, &format!("{ns}/configmaps/a"), TABLE).await?;
    same!(columns(&table), ["Name", "Data", "Age"]);
    same!(table["rows"][0]["cells"][1], 1);
    same!(table["rows"][0]["object"]["metadata"]["name"], "a");
    Ok(())
}

async fn metadata_only(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let one = in_form(
        &s,
        &format!("{ns}/configmaps/a"),
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    )
    .await?;
    same!((&one["kind"], &one["apiVersion"]), (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1")));
    holds!(one.get("data").is_none(), "{one}");
    Ok(())
}

async fn metadata_of_a_list(s: Scope) -> Result<()> {
    let path = three(&s).await?;
    let list = in_form(&s, &path, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").await?;
    same!(list["kind"], "PartialObjectMetadataList");
    same!(names(&list), ["lab-a", "lab-b", "lab-c"]);
    Ok(())
}

async fn yaml_answer(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.post(&format!("{ns}/configmaps"), &config_map("a")).await?.code(201)?;
    let answer =
        s.call(Call::new(Method::GET, &format!("{ns}/configmaps/a")).accept("application/yaml")).await?;
    same!((answer.code, answer.header("content-type")), (200, "application/yaml"));
    holds!(answer.text().starts_with("apiVersion: v1\ndata:\n  a: \"1\"\nkind: ConfigMap\n"), "{answer}");
    Ok(())
}

async fn protobuf_falls_to_json(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let answer = s.call(Call::new(Method::GET, &ns).accept("application/x-unknown,application/json")).await?;
    same!((answer.code, answer.header("content-type")), (200, "application/json"));
    Ok(())
}

async fn not_acceptable(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    s.call(Call::new(Method::GET, &ns).accept("text/csv")).await?.refused(406, "NotAcceptable", "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf")?;
    Ok(())
}

async fn table_of_a_status(s: Scope) -> Result<()> {
    let ns = s.namespace().await?;
    let answer = s.call(Call::new(Method::GET, &format!("{ns}/secrets/none")).accept(TABLE)).await?;
    answer.refused(404, "NotFound", "secrets \"none\" not found")?;
    Ok(())
}

/// What clients ask of Services wherever nobody made one, as `kubectl cluster-info` and `kubectl get all` do.
async fn services_where_there_are_none(s: Scope) -> Result<()> {
    let path = format!("{}/services", s.namespace().await?);
    for query in [
        "",
        "?labelSelector=kubernetes.io%2Fcluster-service%3Dtrue",
        "?fieldSelector=spec.type%3DClusterIP,spec.clusterIP%3DNone",
    ] {
        let found = s.get(&format!("{path}{query}")).await?.code(200)?;
        same!((&found["kind"], &found["apiVersion"]), (&json!("ServiceList"), &json!("v1")));
        same!(found["items"], json!([]));
    }
    s.get(&format!("{path}/s")).await?.refused(404, "NotFound", "services \"s\" not found")?;
    s.get(&format!("{path}?fieldSelector=spec.color%3D1")).await?.refused(
        400,
        "BadRequest",
        "field label not supported: spec.color",
    )?;
    let table = s.call(Call::new(Method::GET, &path).accept(TABLE)).await?.code(200)?;
    same!(table["rows"], json!([]));
    let columns: Vec<(String, String)> = table["columnDefinitions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|column| (text(column, "/name"), column["priority"].to_string()))
        .collect();
    let wanted = [
        ("Name", "0"),
        ("Type", "0"),
        ("Cluster-IP", "0"),
        ("External-IP", "0"),
        ("Port(s)", "0"),
        ("Age", "0"),
        ("Selector", "1"),
    ];
    same!(columns, wanted.map(|(name, priority)| (name.to_owned(), priority.to_owned())));
    let mut events = s.watch(&format!("{path}?watch=true&timeoutSeconds=1")).await?;
    same!(events.next_or_end().await?, None);
    Ok(())
}
