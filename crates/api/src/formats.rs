//! Number formats as Kubernetes knows them. It has none without a sign and warns about every definition that names one, so they are told
//! as the signed format that holds all their values; the minimum of 0 stands beside it already.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

pub(crate) fn signed(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let versions = definition.spec.versions.iter_mut();
    for schema in versions.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut()) {
        sign(schema);
    }
    definition
}

/// A `usize` is as wide as the widest of them.
fn sign(schema: &mut JSONSchemaProps) {
    if let Some("uint" | "uint8" | "uint16" | "uint32" | "uint64") = schema.format.as_deref() {
        schema.format = Some("int64".to_owned());
    }
    schema.properties.iter_mut().flatten().for_each(|(_, property)| sign(property));
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => sign(items),
        Some(JSONSchemaPropsOrArray::Schemas(all)) => all.iter_mut().for_each(sign),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        sign(values);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    #[test]
    fn no_definition_has_a_format_that_kubernetes_does_not_know() {
        for definition in crate::custom_resources() {
            let text = serde_json::to_string(&definition).unwrap();
            assert!(!text.contains("\"format\":\"uint"), "{}", definition.spec.names.kind);
        }
    }
}
