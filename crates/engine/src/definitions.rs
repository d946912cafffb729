//! Whether an API knows Terrane's kinds as this version of the controllers needs them. An API drops what its definitions do not name,
//! without a word: a controller that is newer than the definitions would write what it can never read again.

use api::custom_resources;
use serde_json::{Map, Value};

/// What the API's definitions lack of what this version reads and writes, each as `Kind path`; of what is missing with all that is below
/// it, only the uppermost. `served` is the API's own description of our version of that group, in OpenAPI v3. O(fields of all kinds).
pub fn lacking(group: &str, served: &Value) -> Vec<String> {
    let mut lacking = Vec::new();
    for wanted in custom_resources().into_iter().filter(|wanted| wanted.spec.group == group) {
        let (kind, plural) = (wanted.spec.names.kind, wanted.spec.names.plural);
        let Some(found) = schema_of(served, &kind) else {
            lacking.push(kind);
            continue;
        };
        for version in wanted.spec.versions.iter().filter(|version| version.name == api::VERSION) {
            let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
            let schema = serde_json::to_value(schema).unwrap_or_default();
            compare(&schema, found, &kind, "", &mut lacking);
            let is_selectable = |path: &str| {
                let fields = found.get("x-kubernetes-selectable-fields").and_then(Value::as_array);
                fields.into_iter().flatten().any(|field| field.get("fieldPath") == Some(&path.into()))
            };
            for field in version.selectable_fields.iter().flatten() {
                let path = field.json_path.trim_start_matches('.');
                if !is_selectable(path) {
                    lacking.push(format!("{kind} {path} as a selectable field"));
                }
            }
            let has_status = version.subresources.as_ref().is_some_and(|all| all.status.is_some());
            if has_status && !serves_status(served, group, &plural) {
                lacking.push(format!("{kind} status as a subresource"));
            }
        }
    }
    lacking
}

/// In words for a person. The parts that are named first are enough to find the rest.
pub fn words(lacking: &[String]) -> String {
    const NAMED: usize = 3;
    let named = lacking.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match lacking.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "the cluster's definitions of Terrane's kinds are of another version and lack {named}{more}; apply those of this version: `helm \
         upgrade` with crds.install, or `kubectl apply --server-side --force-conflicts --filename deploy/crds`"
    )
}

fn schema_of<'a>(served: &'a Value, kind: &str) -> Option<&'a Value> {
    let is_it = |schema: &&Value| {
        let names = schema.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
        names.into_iter().flatten().any(|name| name.get("kind") == Some(&kind.into()))
    };
    served.pointer("/components/schemas")?.as_object()?.values().find(is_it)
}

fn serves_status(served: &Value, group: &str, plural: &str) -> bool {
    let path = format!("/apis/{group}/{}/namespaces/{{namespace}}/{plural}/{{name}}/status", api::VERSION);
    served.get("paths").and_then(|paths| paths.get(path)).is_some()
}

fn compare(wanted: &Value, found: &Value, kind: &str, path: &str, lacking: &mut Vec<String>) {
    if found.get("x-kubernetes-preserve-unknown-fields") == Some(&true.into()) {
        return;
    }
    let list = |schema: &'_ Value| schema.get("enum").and_then(Value::as_array).cloned();
    if let (Some(wanted), Some(found)) = (list(wanted), list(found)) {
        let missing = wanted.iter().filter(|value| !value.is_null() && !found.contains(value));
        lacking.extend(missing.map(|value| format!("{kind} {path} {value}")));
    }
    let nothing = Map::new();
    let properties = |schema: &'_ Value| schema.get("properties").and_then(Value::as_object).cloned();
    let known = properties(found).unwrap_or_else(|| nothing.clone());
    for (name, wanted) in properties(wanted).unwrap_or(nothing) {
        // These are of every object, and described elsewhere.
        if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            continue;
        }
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match known.get(&name) {
            Some(found) => compare(&wanted, found, kind, &below, lacking),
            None => lacking.push(format!("{kind} {below}")),
        }
    }
    for (inner, mark) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let (Some(wanted), Some(found)) = (wanted.get(inner), found.get(inner)) {
            compare(wanted, found, kind, &format!("{path}{mark}"), lacking);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    /// As an API that knows all of it would describe itself.
    fn whole() -> Value {
        let (mut schemas, mut paths) = (Map::new(), Map::new());
        for definition in custom_resources().into_iter().filter(|one| one.spec.group == api::GROUP) {
            let names = definition.spec.names;
            let version = definition.spec.versions.into_iter().next().unwrap();
            let mut schema = serde_json::to_value(version.schema.unwrap().open_api_v3_schema).unwrap();
            schema["x-kubernetes-group-version-kind"] =
                json!([{ "group": api::GROUP, "kind": names.kind, "version": api::VERSION }]);
            let fields = version.selectable_fields.unwrap_or_default();
            schema["x-kubernetes-selectable-fields"] = fields
                .iter()
                .map(|field| json!({ "fieldPath": field.json_path.trim_start_matches('.') }))
                .collect();
            schemas.insert(format!("dev.terrane.v1alpha1.{}", names.kind), schema);
            let path = format!(
                "/apis/terrane.dev/v1alpha1/namespaces/{{namespace}}/{}/{{name}}/status",
                names.plural
            );
            paths.insert(path, json!({}));
        }
        json!({ "components": { "schemas": schemas }, "paths": paths })
    }

    fn without(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut served = whole();
        change(&mut served);
        lacking(api::GROUP, &served)
    }

    fn remove(served: &mut Value, place: &str, name: &str) {
        let removed = served.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(name);
        assert!(removed.is_some(), "{name} is not at {place}");
    }

    const LAYER: &str = "/components/schemas/dev.terrane.v1alpha1.TerraformLayer";
    const RUN: &str = "/components/schemas/dev.terrane.v1alpha1.TerraformRun";

    #[test]
    fn this_version_lacks_nothing_of_itself() {
        assert_eq!(lacking(api::GROUP, &whole()), Vec::<String>::new());
    }

    #[test]
    fn what_an_older_definition_lacks_is_named() {
        let field = |at: &str, name: &str| without(|served| remove(served, at, name));
        let layer = format!("{LAYER}/properties/spec/properties");
        assert_eq!(field(&layer, "hooks"), ["TerraformLayer spec.hooks"]);
        let nested = format!("{RUN}/properties/status/properties/attempts/items/properties");
        assert_eq!(field(&nested, "fence"), ["TerraformRun status.attempts[].fence"]);
        let values = without(|served| {
            let trigger =
                served.pointer_mut(&format!("{RUN}/properties/spec/properties/trigger/properties/kind/enum"));
            trigger.unwrap().as_array_mut().unwrap().retain(|value| value != "inputs");
        });
        assert_eq!(values, [r#"TerraformRun spec.trigger.kind "inputs""#]);
        let selectable = without(|served| remove(served, RUN, "x-kubernetes-selectable-fields"));
        assert_eq!(selectable, ["TerraformRun spec.layer.name as a selectable field"]);
        let path = "/apis/terrane.dev/v1alpha1/namespaces/{namespace}/terraformapprovals/{name}/status";
        assert_eq!(field("/paths", path), ["TerraformApproval status as a subresource"]);
        assert_eq!(field("/components/schemas", "dev.terrane.v1alpha1.TerraformRun"), ["TerraformRun"]);
        assert_eq!(lacking(api::WORKLOAD_GROUP, &json!({})), ["Terraform"]);
        let none = lacking(api::GROUP, &json!({}));
        assert_eq!(
            none,
            [
                "TerraformRepository",
                "TerraformLayer",
                "TerraformRun",
                "TerraformApproval",
                "Repo",
                "TerraformNotification"
            ]
        );
    }

    #[test]
    fn a_newer_definition_lacks_nothing() {
        let newer = without(|served| {
            served[&"components"]["schemas"]["dev.terrane.v1alpha1.TerraformLayer"]["properties"]["spec"]["properties"]
                ["later"] = json!({ "type": "string" });
        });
        assert_eq!(newer, Vec::<String>::new());
    }

    #[test]
    fn the_sentence_names_a_few_and_says_what_to_do() {
        let all: Vec<String> = ["A a", "B b", "C c", "D d", "E e"].map(str::to_owned).into();
        let said = words(&all);
        assert!(
            said.contains("lack A a, B b, C c and 2 more; apply those of this version: `helm upgrade`"),
            "{said}"
        );
        assert!(words(&all[..1]).contains("lack A a; apply"));
    }
}
