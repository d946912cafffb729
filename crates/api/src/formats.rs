//! Number formats as Kubernetes knows them. It has none without a sign and warns about every definition that names one, so they are told
//! as the signed format that holds all their values; the minimum of 0 stands beside it already. And it checks no format: what a
//! number of the code can hold at most is told as the maximum, or an object that was accepted could not be read.

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

/// The widest whole number that every JSON reader keeps exactly.
const EXACT: f64 = 9_007_199_254_740_991.0;

/// A `usize` is as wide as the widest of them.
fn sign(schema: &mut JSONSchemaProps) {
    let (minimum, maximum) = match schema.format.as_deref() {
        Some("uint8") => (0.0, f64::from(u8::MAX)),
        Some("uint16") => (0.0, f64::from(u16::MAX)),
        Some("uint32") => (0.0, f64::from(u32::MAX)),
        Some("uint" | "uint64") => (0.0, EXACT),
        Some("int32") => (f64::from(i32::MIN), f64::from(i32::MAX)),
        Some("int64") => (-EXACT, EXACT),
        Some(_) | None => (f64::NEG_INFINITY, f64::INFINITY),
    };
    if minimum.is_finite() {
        schema.format = Some(if maximum <= f64::from(i32::MAX) { "int32" } else { "int64" }.to_owned());
        schema.minimum = Some(schema.minimum.unwrap_or(minimum).max(minimum));
        schema.maximum = Some(schema.maximum.unwrap_or(maximum).min(maximum));
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
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn no_definition_has_a_format_that_kubernetes_does_not_know() {
        for definition in crate::custom_resources() {
            let text = serde_json::to_string(&definition).unwrap();
            assert!(!text.contains("\"format\":\"uint"), "{}", definition.spec.names.kind);
        }
    }

    /// Every schema below this one, with its place.
    fn below<'a>(place: &str, schema: &'a JSONSchemaProps, found: &mut Vec<(String, &'a JSONSchemaProps)>) {
        found.push((place.to_owned(), schema));
        for (name, property) in schema.properties.iter().flatten() {
            below(&format!("{place}.{name}"), property, found);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            below(&format!("{place}[]"), items, found);
        }
        if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
            below(&format!("{place}.*"), values, found);
        }
    }

    #[test]
    fn whole_numbers_are_bounded_and_fields_explain_themselves() {
        let mut silent = Vec::new();
        for definition in crate::custom_resources() {
            let schema =
                definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
            let mut all = Vec::new();
            below(&definition.spec.names.kind, schema, &mut all);
            for (place, schema) in all {
                if schema.type_.as_deref() == Some("integer") {
                    assert!(schema.minimum.is_some() && schema.maximum.is_some(), "{place} has no bounds");
                }
                if !place.ends_with("[]")
                    && !place.ends_with(".*")
                    && schema.description.as_deref().is_none_or(str::is_empty)
                {
                    silent.push(place);
                }
            }
        }
        assert!(silent.is_empty(), "`kubectl explain` says nothing about {silent:#?}");
    }
}
