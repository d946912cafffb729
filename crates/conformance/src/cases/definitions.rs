//! Custom resources: their definitions, schemas, defaults, pruning, rules, versions, columns; and Terrane's own.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use crate::scope::{DEFINITIONS, MERGE, causes, names, text};
use crate::{Call, Scope};

cases!("definitions": established, name_must_match, no_schema, not_structural, no_storage_version, bad_rule, dear_rule, dear_rules, bounded_rule, validation_messages, more_validation_messages, defaults, pruning, preserved, strict_unknown, rules, transition_rule, ratcheting, status_apart, generation,
    columns, versions, deletion_removes_objects, wrong_kind, discovery_follows, field_selector, embedded_resource, no_unknown_formats, not_served_version, terrane_layer_rule, terrane_approval_never_changes, terrane_run, terrane_layer_messages, terrane_columns, terrane_enum);

struct Things {
    path: String,
    definition: String,
    kind: String,
    group: String,
}

fn definition(group: &str, schema: &Value, more: &Value) -> Value {
    let mut version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    if let (Some(version), Some(more)) = (version.as_object_mut(), more.as_object()) {
        version.extend(more.clone());
    }
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("things.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}, "versions": [version]}})
}

fn schema(spec: &Value) -> Value {
    json!({"type": "object", "properties": {"spec": spec, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
}

async fn things(s: &Scope, spec: &Value, more: &Value) -> Result<Things> {
    s.namespace().await?;
    let group = format!("{}.example.com", s.name());
    let definition = s.install(&definition(&group, &schema(spec), more)).await?;
    Ok(Things {
        path: format!("/apis/{group}/v1/namespaces/{}/things", s.name()),
        definition,
        kind: format!("Thing.{group}"),
        group,
    })
}

impl Things {
    fn thing(&self, name: &str, spec: Value) -> Value {
        json!({"apiVersion": format!("{}/v1", self.group), "kind": "Thing", "metadata": {"name": name}, "spec": spec})
    }

    async fn done(self, s: &Scope) -> Result<()> {
        s.delete(&self.definition).await?.ok().map(drop)
    }
}

async fn established(s: Scope) -> Result<()> {
    let things = things(&s, &json!({"type": "object"}), &json!({})).await?;
    let found = s.get(&things.definition).await?.code(200)?;
    let conditions: Vec<Value> = found["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| json!([c["type"], c["status"], c["reason"], c["message"]]))
        .collect();
    same!(
        conditions,
        [
            json!(["NamesAccepted", "True", "NoConflicts", "no conflicts found"]),
            json!(["Established", "True", "InitialNamesAccepted", "the initial names have been accepted"])
        ]
    );
    same!(found["status"]["storedVersions"], json!(["v1"]));
    same!(
        found["status"]["acceptedNames"],
        json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"})
    );
    same!(found["spec"]["conversion"], json!({"strategy": "None"}));
    let managers = found["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let of_status =
        managers.iter().find(|entry| entry["subresource"] == "status").cloned().unwrap_or_default();
    same!((&of_status["manager"], &of_status["operation"]), (&json!("kube-apiserver"), &json!("Update")));
    things.done(&s).await
}

async fn refuse(s: &Scope, definition: &Value, wanted: &str) -> Result<()> {
    let message = format!(
        "CustomResourceDefinition.apiextensions.k8s.io {:?} is invalid: {wanted}",
        text(definition, "/metadata/name")
    );
    s.post(DEFINITIONS, definition).await?.refused(422, "Invalid", &message).map(drop)
}

async fn name_must_match(s: Scope) -> Result<()> {
    let group = format!("{}.example.com", s.name());
    let mut bad = definition(&group, &json!({"type": "object"}), &json!({}));
    bad["metadata"]["name"] = json!(format!("others.{group}"));
    refuse(
        &s,
        &bad,
        &format!(
            "metadata.name: Invalid value: \"others.{group}\": must be spec.names.plural+\".\"+spec.group"
        ),
    )
    .await
}

async fn no_schema(s: Scope) -> Result<()> {
    let mut bad = definition(&format!("{}.example.com", s.name()), &json!({}), &json!({}));
    bad["spec"]["versions"][0]["schema"] = Value::Null;
    refuse(&s, &bad, "spec.versions[0].schema.openAPIV3Schema: Required value").await
}

async fn not_structural(s: Scope) -> Result<()> {
    let bad = definition(
        &format!("{}.example.com", s.name()),
        &json!({"type": "object", "properties": {"spec": {"properties": {"a": {"type": "string"}}}}}),
        &json!({}),
    );
    refuse(&s, &bad, "spec.validation.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields").await
}

async fn no_storage_version(s: Scope) -> Result<()> {
    let bad = definition(
        &format!("{}.example.com", s.name()),
        &json!({"type": "object"}),
        &json!({"storage": false}),
    );
    let answer = s.post(DEFINITIONS, &bad).await?;
    same!(answer.code, 422);
    holds!(
        text(&answer.json()?, "/message").contains("must have exactly one version marked as storage version"),
        "{answer}"
    );
    Ok(())
}

async fn bad_rule(s: Scope) -> Result<()> {
    let bad = definition(
        &format!("{}.example.com", s.name()),
        &schema(
            &json!({"type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [{"rule": "self.b > 1"}]}),
        ),
        &json!({}),
    );
    let answer = s.post(DEFINITIONS, &bad).await?;
    same!(answer.code, 422);
    let message = text(&answer.json()?, "/message");
    holds!(
        message.contains("x-kubernetes-validations[0].rule: Invalid value: ")
            && message.contains("compilation failed: ERROR: <input>:1:5: undefined field 'b'"),
        "{message}"
    );
    Ok(())
}

const BUDGET: &str = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";

/// A definition whose objects have a list of texts with one rule.
fn with_rule_on_a_list(s: &Scope, list: Value, rule: &str) -> Value {
    let mut list = list;
    list["type"] = json!("array");
    list["x-kubernetes-validations"] = json!([{"rule": rule}]);
    let spec = json!({"type": "object", "properties": {"list": list}});
    definition(&format!("{}.example.com", s.name()), &schema(&spec), &json!({}))
}

const RULE_PLACE: &str =
    "spec.validation.openAPIV3Schema.properties[spec].properties[list].x-kubernetes-validations[0].rule";

async fn dear_rule(s: Scope) -> Result<()> {
    let bad = with_rule_on_a_list(
        &s,
        json!({"items": {"type": "string", "maxLength": 100}}),
        "self.all(x, x.matches('^a+$'))",
    );
    let wanted =
        format!("{RULE_PLACE}: Forbidden: estimated rule cost exceeds budget by factor of 4.7x {BUDGET}");
    refuse(&s, &bad, &wanted).await
}

async fn dear_rules(s: Scope) -> Result<()> {
    let bad =
        with_rule_on_a_list(&s, json!({"items": {"type": "string"}}), "self.all(x, self.exists(y, y == x))");
    let more = "more than 100x";
    let wanted = format!(
        "[{RULE_PLACE}: Forbidden: estimated rule cost exceeds budget by factor of {more} {BUDGET}, {RULE_PLACE}: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema, spec.validation.openAPIV3Schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of {more} {BUDGET}]"
    );
    refuse(&s, &bad, &wanted).await
}

async fn bounded_rule(s: Scope) -> Result<()> {
    let good = with_rule_on_a_list(
        &s,
        json!({"maxItems": 50, "items": {"type": "string", "maxLength": 100}}),
        "self.all(x, self.exists_one(y, y == x) && x.matches('^a+$') && size(x) < 90)",
    );
    s.post(&format!("{DEFINITIONS}?dryRun=All"), &good).await?.code(201)?;
    // One that is cheap enough although nothing is bounded.
    let good = with_rule_on_a_list(
        &s,
        json!({"items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}, "x-kubernetes-validations": [{"rule": "self.name.startsWith('a')"}]}}),
        "self.all(x, has(x.name) && x.name != '')",
    );
    s.post(&format!("{DEFINITIONS}?dryRun=All"), &good).await?.code(201)?;
    Ok(())
}

async fn validation_messages(s: Scope) -> Result<()> {
    let spec = json!({"type": "object", "required": ["size"], "properties": {"size": {"type": "integer", "minimum": 1, "maximum": 9}, "colour": {"type": "string", "enum": ["red", "green"]}}});
    let things = things(&s, &spec, &json!({})).await?;
    let kind = &things.kind;
    for (spec, wanted) in [
        (json!({}), "spec.size: Required value"),
        (
            json!({"size": 0}),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"size": 10}),
            "spec.size: Invalid value: 10: spec.size in body should be less than or equal to 9",
        ),
        (
            json!({"size": "big"}),
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
        (
            json!({"size": 1, "colour": "blue"}),
            "spec.colour: Unsupported value: \"blue\": supported values: \"red\", \"green\"",
        ),
    ] {
        s.post(&things.path, &things.thing("a", spec)).await?.refused(
            422,
            "Invalid",
            &format!("{kind} \"a\" is invalid: {wanted}"),
        )?;
    }
    let status = s.post(&things.path, &things.thing("a", json!({"size": 0}))).await?.json()?;
    same!(
        causes(&status),
        [json!([
            "FieldValueInvalid",
            "Invalid value: 0: spec.size in body should be greater than or equal to 1",
            "spec.size"
        ])]
    );
    things.done(&s).await
}

async fn more_validation_messages(s: Scope) -> Result<()> {
    let spec = json!({"type": "object", "properties": {"name": {"type": "string", "pattern": "^a+$", "maxLength": 3, "minLength": 1}, "list": {"type": "array", "maxItems": 1, "minItems": 1, "items": {"type": "string"}}, "on": {"type": "boolean"}, "when": {"type": "string", "format": "date-time"}, "ratio": {"type": "number", "multipleOf": 2.0}}});
    let things = things(&s, &spec, &json!({})).await?;
    let kind = &things.kind;
    for (spec, wanted) in [
        (json!({"name": "b"}), "spec.name: Invalid value: \"b\": spec.name in body should match '^a+$'"),
        (json!({"name": "aaaa"}), "spec.name: Too long: may not be more than 3 bytes"),
        (json!({"list": ["a", "b"]}), "spec.list: Too many: 2: must have at most 1 item"),
        (json!({"list": []}), "spec.list: Invalid value: 0: spec.list in body should have at least 1 items"),
        (
            json!({"list": [1]}),
            "spec.list[0]: Invalid value: \"integer\": spec.list[0] in body must be of type string: \"integer\"",
        ),
        (
            json!({"on": "yes"}),
            "spec.on: Invalid value: \"string\": spec.on in body must be of type boolean: \"string\"",
        ),
        (
            json!({"when": "noon"}),
            "spec.when: Invalid value: \"noon\": spec.when in body must be of type date-time: \"noon\"",
        ),
        (json!({"ratio": 3}), "spec.ratio: Invalid value: 3: spec.ratio in body should be a multiple of 2"),
        (json!("text"), "spec: Invalid value: \"string\": spec in body must be of type object: \"string\""),
    ] {
        s.post(&things.path, &things.thing("a", spec)).await?.refused(
            422,
            "Invalid",
            &format!("{kind} \"a\" is invalid: {wanted}"),
        )?;
    }
    things.done(&s).await
}

async fn defaults(s: Scope) -> Result<()> {
    let spec = json!({"type": "object", "default": {}, "properties": {"size": {"type": "integer", "default": 3}, "inner": {"type": "object", "properties": {"x": {"type": "string", "default": "y"}}}, "null": {"type": "string", "nullable": true, "default": "d"}}});
    let things = things(&s, &spec, &json!({})).await?;
    let made =
        s.post(&things.path, &things.thing("a", json!({"inner": {}, "null": null}))).await?.code(201)?;
    same!(made["spec"], json!({"size": 3, "inner": {"x": "y"}, "null": null}));
    let mut bare = things.thing("b", json!({}));
    if let Some(bare) = bare.as_object_mut() {
        bare.remove("spec");
    }
    same!(s.post(&things.path, &bare).await?.code(201)?["spec"], json!({"size": 3, "null": "d"}));
    things.done(&s).await
}

async fn pruning(s: Scope) -> Result<()> {
    let things =
        things(&s, &json!({"type": "object", "properties": {"a": {"type": "string"}}}), &json!({})).await?;
    let answer = s.post(&things.path, &things.thing("a", json!({"a": "1", "b": "2"}))).await?;
    same!(answer.code(201)?["spec"], json!({"a": "1"}));
    same!(answer.warnings(), ["299 - \"unknown field \\\"spec.b\\\"\""]);
    things.done(&s).await
}

async fn preserved(s: Scope) -> Result<()> {
    let things = things(&s, &json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}), &json!({})).await?;
    let made = s
        .post(&things.path, &things.thing("a", json!({"x": {"y": 1}, "a": {"b": "1", "c": "2"}})))
        .await?
        .code(201)?;
    same!(made["spec"], json!({"x": {"y": 1}, "a": {"b": "1"}}));
    things.done(&s).await
}

async fn strict_unknown(s: Scope) -> Result<()> {
    let things =
        things(&s, &json!({"type": "object", "properties": {"a": {"type": "string"}}}), &json!({})).await?;
    let message = "Thing in version \"v1\" cannot be handled as a Thing: strict decoding error: unknown field \"spec.b\"";
    s.post(&format!("{}?fieldValidation=Strict", things.path), &things.thing("a", json!({"b": "2"})))
        .await?
        .refused(400, "BadRequest", message)?;
    things.done(&s).await
}

async fn rules(s: Scope) -> Result<()> {
    let spec = json!({"type": "object", "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}}, "x-kubernetes-validations": [
        {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "message": "min must not be above max"},
        {"rule": "!has(self.max) || self.max < 100", "messageExpression": "'max is above ' + '99'", "reason": "FieldValueForbidden", "fieldPath": ".max"}]});
    let things = things(&s, &spec, &json!({})).await?;
    let kind = &things.kind;
    s.post(&things.path, &things.thing("a", json!({"min": 2, "max": 1}))).await?.refused(
        422,
        "Invalid",
        &format!("{kind} \"a\" is invalid: spec: Invalid value: min must not be above max"),
    )?;
    s.post(&things.path, &things.thing("a", json!({"max": 100}))).await?.refused(
        422,
        "Invalid",
        &format!("{kind} \"a\" is invalid: spec.max: Forbidden: max is above 99"),
    )?;
    s.post(&things.path, &things.thing("a", json!({"min": 1, "max": 1}))).await?.code(201)?;
    things.done(&s).await
}

async fn transition_rule(s: Scope) -> Result<()> {
    let spec = json!({"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "a is fixed"}]}}});
    let things = things(&s, &spec, &json!({})).await?;
    s.post(&things.path, &things.thing("a", json!({"a": "1"}))).await?.code(201)?;
    s.patch(&format!("{}/a", things.path), MERGE, &json!({"spec": {"a": "2"}})).await?.refused(
        422,
        "Invalid",
        &format!("{} \"a\" is invalid: spec.a: Invalid value: \"2\": a is fixed", things.kind),
    )?;
    s.patch(&format!("{}/a", things.path), MERGE, &json!({"metadata": {"labels": {"x": "1"}}}))
        .await?
        .code(200)?;
    things.done(&s).await
}

async fn ratcheting(s: Scope) -> Result<()> {
    let spec = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}});
    let things = things(&s, &spec, &json!({})).await?;
    s.post(&things.path, &things.thing("old", json!({"a": "long"}))).await?.code(201)?;
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a/maxLength";
    s.patch(
        &things.definition,
        "application/json-patch+json",
        &json!([{"op": "add", "path": pointer, "value": 2}]),
    )
    .await?
    .code(200)?;
    let probe = format!("{}?dryRun=All", things.path);
    let limit = std::time::Instant::now() + crate::scope::LIMIT;
    while s.post(&probe, &things.thing("probe", json!({"a": "long"}))).await?.code != 422 {
        holds!(std::time::Instant::now() < limit, "the new schema is never used");
        tokio::task::yield_now().await;
    }
    let changed =
        s.patch(&format!("{}/old", things.path), MERGE, &json!({"spec": {"b": "1"}})).await?.code(200)?;
    same!(changed["spec"], json!({"a": "long", "b": "1"}));
    s.patch(&format!("{}/old", things.path), MERGE, &json!({"spec": {"a": "longer"}})).await?.refused(
        422,
        "Invalid",
        &format!("{} \"old\" is invalid: spec.a: Too long: may not be more than 2 bytes", things.kind),
    )?;
    things.done(&s).await
}

async fn status_apart(s: Scope) -> Result<()> {
    let things = things(
        &s,
        &json!({"type": "object", "properties": {"a": {"type": "string"}}}),
        &json!({"subresources": {"status": {}}}),
    )
    .await?;
    let mut body = things.thing("a", json!({"a": "1"}));
    body["status"] = json!({"x": 1});
    let made = s.post(&things.path, &body).await?.code(201)?;
    same!(made.get("status"), None);
    let path = format!("{}/a", things.path);
    let now = s
        .patch(&format!("{path}/status"), MERGE, &json!({"spec": {"a": "2"}, "status": {"x": 2}}))
        .await?
        .code(200)?;
    same!((&now["spec"]["a"], &now["status"]["x"]), (&json!("1"), &json!(2)));
    same!(now["metadata"]["generation"], 1);
    let now = s.patch(&path, MERGE, &json!({"status": {"x": 3}})).await?.code(200)?;
    same!(now["status"]["x"], 2);
    things.done(&s).await
}

async fn generation(s: Scope) -> Result<()> {
    let things =
        things(&s, &json!({"type": "object", "properties": {"a": {"type": "string"}}}), &json!({})).await?;
    let made = s.post(&things.path, &things.thing("a", json!({"a": "1"}))).await?.code(201)?;
    same!(made["metadata"]["generation"], 1);
    let path = format!("{}/a", things.path);
    same!(
        s.patch(&path, MERGE, &json!({"metadata": {"annotations": {"x": "1"}}})).await?.code(200)?["metadata"]
            ["generation"],
        1
    );
    same!(s.patch(&path, MERGE, &json!({"spec": {"a": "2"}})).await?.code(200)?["metadata"]["generation"], 2);
    things.done(&s).await
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

async fn columns(s: Scope) -> Result<()> {
    let more = json!({"additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".spec.a", "description": "the a"}, {"name": "N", "type": "integer", "jsonPath": ".spec.n", "priority": 1}, {"name": "List", "type": "string", "jsonPath": ".spec.list[*]"}]});
    let things =
        things(&s, &json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), &more).await?;
    s.post(&things.path, &things.thing("a", json!({"a": "x", "n": 5, "list": ["p", "q"]})))
        .await?
        .code(201)?;
    s.post(&things.path, &things.thing("b", json!({}))).await?.code(201)?;
    let table = s.call(Call::new(Method::GET, &things.path).accept(TABLE)).await?.code(200)?;
    let columns: Vec<Value> = table["columnDefinitions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| json!([c["name"], c["type"], c["priority"]]))
        .collect();
    same!(
        columns,
        [
            json!(["Name", "string", 0]),
            json!(["A", "string", 0]),
            json!(["N", "integer", 1]),
            json!(["List", "string", 0])
        ]
    );
    same!(table["rows"][0]["cells"], json!(["a", "x", 5, "p"]));
    same!(table["rows"][1]["cells"], json!(["b", null, null, null]));
    things.done(&s).await
}

async fn versions(s: Scope) -> Result<()> {
    s.namespace().await?;
    let group = format!("{}.example.com", s.name());
    let mut two = definition(
        &group,
        &schema(&json!({"type": "object", "properties": {"a": {"type": "string"}}})),
        &json!({}),
    );
    two["spec"]["versions"] = json!([two["spec"]["versions"][0], {"name": "v2", "served": true, "storage": false, "schema": two["spec"]["versions"][0]["schema"]}]);
    let path = s.install(&two).await?;
    s.post(&format!("/apis/{group}/v1/namespaces/{}/things", s.name()), &json!({"apiVersion": format!("{group}/v1"), "kind": "Thing", "metadata": {"name": "a"}, "spec": {"a": "1"}})).await?.code(201)?;
    let seen = s.get(&format!("/apis/{group}/v2/namespaces/{}/things/a", s.name())).await?.code(200)?;
    same!(seen["apiVersion"], format!("{group}/v2"));
    same!(seen["spec"], json!({"a": "1"}));
    let document = s
        .until(&format!("/apis/{group}"), |a| {
            a.json().is_ok_and(|d| d["versions"].as_array().is_some_and(|v| v.len() == 2))
        })
        .await?
        .json()?;
    same!(document["preferredVersion"]["version"], "v2");
    s.delete(&path).await?.ok()?;
    Ok(())
}

async fn deletion_removes_objects(s: Scope) -> Result<()> {
    let things = things(&s, &json!({"type": "object"}), &json!({})).await?;
    let mut held = things.thing("a", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    s.post(&things.path, &held).await?.code(201)?;
    let going = s.delete(&things.definition).await?.code(200)?;
    same!(going["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    let one = format!("{}/a", things.path);
    s.until(&one, |a| a.json().is_ok_and(|o| o["metadata"]["deletionTimestamp"].is_string())).await?;
    let refused = s.post(&things.path, &things.thing("b", json!({}))).await?;
    holds!(refused.code == 405 || refused.code == 403, "{refused}");
    s.patch(&one, MERGE, &json!({"metadata": {"finalizers": null}})).await?.ok()?;
    s.until_gone(&things.definition).await?;
    s.until(&things.path, |a| a.code == 404).await?;
    Ok(())
}

async fn wrong_kind(s: Scope) -> Result<()> {
    let things = things(&s, &json!({"type": "object"}), &json!({})).await?;
    let mut body = things.thing("a", json!({}));
    body["kind"] = json!("Other");
    let answer = s.post(&things.path, &body).await?;
    let message =
        format!("Other.{} \"a\" is invalid: kind: Invalid value: \"Other\": must be Thing", things.group);
    answer.refused(422, "Invalid", &message)?;
    things.done(&s).await
}

async fn discovery_follows(s: Scope) -> Result<()> {
    let things = things(&s, &json!({"type": "object"}), &json!({})).await?;
    let mut found = s.until(&format!("/apis/{}/v1", things.group), |a| a.code == 200).await?.json()?;
    // An opaque number that says when stored objects have to be rewritten.
    if let Some(found) = found.pointer_mut("/resources/0").and_then(Value::as_object_mut) {
        found.remove("storageVersionHash");
    }
    same!(
        found["resources"],
        json!([{"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]}])
    );
    let path = format!("/openapi/v3/apis/{}/v1", things.group);
    s.until(&path, |a| a.code == 200 && a.text().contains("\"kind\":\"Thing\"")).await?;
    things.done(&s).await
}

async fn field_selector(s: Scope) -> Result<()> {
    let things = things(
        &s,
        &json!({"type": "object", "properties": {"a": {"type": "string"}}}),
        &json!({"selectableFields": [{"jsonPath": ".spec.a"}]}),
    )
    .await?;
    s.post(&things.path, &things.thing("x", json!({"a": "1"}))).await?.code(201)?;
    s.post(&things.path, &things.thing("y", json!({"a": "2"}))).await?.code(201)?;
    same!(names(&s.get(&format!("{}?fieldSelector=spec.a%3D2", things.path)).await?.code(200)?), ["y"]);
    s.get(&format!("{}?fieldSelector=spec.b%3D2", things.path)).await?.refused(
        400,
        "BadRequest",
        "field label not supported: spec.b",
    )?;
    things.done(&s).await
}

async fn embedded_resource(s: Scope) -> Result<()> {
    let spec = json!({"type": "object", "properties": {"template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}});
    let things = things(&s, &spec, &json!({})).await?;
    let template =
        |name: Value| json!({"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}});
    let answer = s.post(&things.path, &things.thing("a", template(json!(5)))).await?;
    let status = answer.json()?;
    same!((answer.code, text(&status, "/reason")), (400, "BadRequest".to_owned()));
    let message = text(&status, "/message");
    holds!(
        message.starts_with(
            "Thing in version \"v1\" cannot be handled as a Thing: spec.template.metadata: Invalid value: "
        ) && message
            .ends_with("json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"),
        "{message}"
    );
    s.post(&things.path, &things.thing("a", template(json!("b")))).await?.code(201)?;
    things.done(&s).await
}

async fn no_unknown_formats(s: Scope) -> Result<()> {
    let name = "terraformruns.terrane.dev";
    let found = s.get(&format!("{DEFINITIONS}/{name}")).await?.code(200)?;
    let again = s
        .patch(
            &format!("{DEFINITIONS}/{name}?dryRun=All"),
            MERGE,
            &json!({"spec": {"versions": found["spec"]["versions"]}}),
        )
        .await?;
    same!((again.code, again.warnings()), (200, Vec::<&str>::new()));
    Ok(())
}

async fn not_served_version(s: Scope) -> Result<()> {
    s.namespace().await?;
    let group = format!("{}.example.com", s.name());
    let mut two = definition(&group, &schema(&json!({"type": "object"})), &json!({}));
    two["spec"]["versions"] = json!([two["spec"]["versions"][0], {"name": "v0", "served": false, "storage": false, "schema": two["spec"]["versions"][0]["schema"]}]);
    let path = s.install(&two).await?;
    same!(s.get(&format!("/apis/{group}/v0/things")).await?.code, 404);
    s.delete(&path).await?.ok()?;
    Ok(())
}

fn layer(s: &Scope) -> (String, Value) {
    (
        format!("/apis/terrane.dev/v1alpha1/namespaces/{}/terraformlayers", s.name()),
        json!({"apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformLayer", "metadata": {"name": "a"}, "spec": {"repository": {"name": "r"}, "branch": "main", "path": "x"}}),
    )
}

async fn terrane_layer_rule(s: Scope) -> Result<()> {
    s.namespace().await?;
    let (path, mut body) = layer(&s);
    body["spec"]["terraform"] = json!({"enabled": true});
    body["spec"]["opentofu"] = json!({"enabled": true});
    s.post(&path, &body).await?.refused(422, "Invalid", "TerraformLayer.terrane.dev \"a\" is invalid: spec: Invalid value: at most one of terraform and opentofu can be enabled")?;
    Ok(())
}

fn run(s: &Scope) -> (String, Value) {
    (
        format!("/apis/terrane.dev/v1alpha1/namespaces/{}/terraformruns", s.name()),
        json!({"apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformRun", "metadata": {"name": "a"}, "spec": {"layer": {"name": "l", "uid": "u", "revision": "0".repeat(40)}, "action": "plan", "state": "0".repeat(64), "trigger": {"kind": "manual", "reason": "asked"}}}),
    )
}

async fn terrane_run(s: Scope) -> Result<()> {
    s.namespace().await?;
    let (path, mut body) = run(&s);
    let made = s.post(&path, &body).await?.code(201)?;
    same!(made["spec"]["maxRetries"], 5);
    s.patch(&format!("{path}/a"), MERGE, &json!({"spec": {"maxRetries": 6}})).await?.refused(
        422,
        "Invalid",
        "TerraformRun.terrane.dev \"a\" is invalid: spec: Invalid value: a run's spec never changes",
    )?;
    body["metadata"]["name"] = json!("b");
    body["spec"]["action"] = json!("apply");
    s.post(&path, &body).await?
        .refused(422, "Invalid", "TerraformRun.terrane.dev \"b\" is invalid: spec: Invalid value: an apply names the plan it applies, a plan names none")?;
    Ok(())
}

async fn terrane_approval_never_changes(s: Scope) -> Result<()> {
    s.namespace().await?;
    let me = s
        .post(
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
        )
        .await?
        .code(201)?;
    let path = format!("/apis/terrane.dev/v1alpha1/namespaces/{}/terraformapprovals", s.name());
    let body = json!({"apiVersion": "terrane.dev/v1alpha1", "kind": "TerraformApproval", "metadata": {"name": "a"}, "spec": {"layer": "l", "planSha256": "0".repeat(64), "user": me["status"]["userInfo"]["username"], "decision": "approve"}});
    s.post(&path, &body).await?.code(201)?;
    s.patch(&format!("{path}/a"), MERGE, &json!({"spec": {"reason": "so"}})).await?.refused(422, "Invalid", "TerraformApproval.terrane.dev \"a\" is invalid: spec: Invalid value: an approval never changes; make another for another plan")?;
    Ok(())
}

async fn terrane_layer_messages(s: Scope) -> Result<()> {
    s.namespace().await?;
    let (path, mut body) = layer(&s);
    body["spec"] = json!({"branch": "main"});
    let answer = s.post(&path, &body).await?;
    answer.refused(422, "Invalid", "TerraformLayer.terrane.dev \"a\" is invalid: [spec.path: Required value, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]")?;
    body["spec"] = json!({"path": "."});
    let answer = s.post(&path, &body).await?;
    answer.refused(422, "Invalid", "TerraformLayer.terrane.dev \"a\" is invalid: spec: Invalid value: exactly one of repository and image must be set")?;
    Ok(())
}

async fn terrane_columns(s: Scope) -> Result<()> {
    s.namespace().await?;
    let (path, body) = layer(&s);
    s.post(&path, &body).await?.code(201)?;
    s.patch(&format!("{path}/a/status"), MERGE, &json!({"status": {"state": "Idle", "why": "nothing to do", "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})).await?.code(200)?;
    let table = s.call(Call::new(Method::GET, &path).accept(TABLE)).await?.code(200)?;
    let columns: Vec<String> =
        table["columnDefinitions"].as_array().into_iter().flatten().map(|c| text(c, "/name")).collect();
    same!(columns, ["Name", "State", "Changes", "Why", "Commit", "Ready", "Age"]);
    let cells = &table["rows"][0]["cells"];
    same!(
        (&cells[0], &cells[1], &cells[2], &cells[3], &cells[5]),
        (&json!("a"), &json!("Idle"), &Value::Null, &json!("nothing to do"), &json!("True"))
    );
    Ok(())
}

async fn terrane_enum(s: Scope) -> Result<()> {
    s.namespace().await?;
    let (path, mut body) = run(&s);
    body["spec"]["action"] = json!("dance");
    let answer = s.post(&path, &body).await?;
    same!(answer.code, 422);
    holds!(
        text(&answer.json()?, "/message")
            .contains("spec.action: Unsupported value: \"dance\": supported values: \"plan\", \"apply\""),
        "{answer}"
    );
    Ok(())
}
