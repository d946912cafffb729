//! Making a stack: its id, the layer that it is, and that the same request makes it once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::layer::{DeletionPolicy, OnError};
use api::text::{Sha256, Workspace};
use api::{TerraformLayer, TerraformLayerSpec, annotation, label};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use rand::TryRngCore;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::requests::Which;
use super::variables::{Given, Held, Values, keep, secrets_of};
use super::views::first_secret;
use super::{Accepted, accepted};
use crate::answers::Told;
use crate::may::{CreateLayer, May};
use crate::person::Person;
use crate::{Refusal, Service};

/// How often an id that is taken is followed by another; one in 2^50 is.
const TRIES: usize = 5;
const KEY_LIMIT: usize = 255;
/// Two that cannot be taken for each other are enough to try again once, and then to tell.
const RETRIES: u32 = 1;

/// A stack to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewStack {
    /// The template; without one, the default of the namespace.
    template: Option<String>,
    /// Values of the code's variables, by name and of any JSON type. Null is no value.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Value>)]
    variables: Values,
    /// Variables whose values are to be kept in a Secret and shown nowhere; those that the code marks as sensitive are anyway.
    #[serde(default)]
    sensitive: BTreeSet<String>,
    /// Labels to find it by.
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Make a stack: a copy of a template with variables and a workspace of its own, which is applied at once
///
/// The answer comes before anything is applied: `Location` is where the request tells what became of it. With `Idempotency-Key`, the
/// same request of the same caller makes one stack however often it is sent; another body with the same key is refused (422). Variables
/// that the code does not declare, that miss or have the wrong type are refused (422), each named in `errors`.
#[utoipa::path(
    post, operation_id = "createStack", tag = "stacks",
    path = "/tfstacks",
    params(
        ("namespace" = Option<String>, Query, description = "Where the template is, and the stack will be; without it `default`"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible characters"),
    ),
    request_body = NewStack,
    responses((
        status = 202, body = Accepted,
        headers(("Location" = String, description = "Where the request tells what became of it")),
    )),
)]
pub(crate) async fn create(
    may: May<CreateLayer>,
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Told(body): Told<NewStack>,
) -> Result<Response, Refusal> {
    let key = idempotency_key(&headers)?;
    check_labels(body.labels.keys())?;
    let template = service.template(&may, body.template.as_deref()).await?;
    let given = Given { values: &body.variables, sensitive: &body.sensitive, kept: BTreeSet::new() };
    given.check(&template)?;
    let hidden = given.hidden(&template);
    let client = service.acting(&may.person)?;
    let layers = Api::<TerraformLayer>::namespaced(client.clone(), &may.namespace);
    for _ in 0..TRIES {
        let id = match key {
            Some(key) => derived_id(&may.person, &may.namespace, key),
            None => id_of(&random_word()?),
        };
        let secret = first_secret(&id);
        let layer = build_layer(&id, &template, &body, given.laid(&hidden, &secret)?, &hidden)?;
        match layers.create(&PostParams::default(), &layer).await {
            Ok(layer) => {
                if let Err(refusal) = keep(&client, &layer, &secret, &hidden).await {
                    undo(&layers, &layer).await;
                    return Err(refusal);
                }
                return Ok(accepted(&layer, Which::Create));
            }
            Err(kube::Error::Api(answer)) if answer.reason == "AlreadyExists" => {
                let Some(key) = key else { continue };
                let layer = match service.stack(&may.namespace, &id).await {
                    // It went meanwhile.
                    Err(Refusal::NotFound(_)) => continue,
                    other => other?,
                };
                check_same(&layer, &body, key)?;
                // What another replica began and could not finish is finished here.
                if secrets_of(&layer.spec.variables).contains(&secret)
                    && keep(&client, &layer, &secret, &hidden).await? == Held::Others
                {
                    return Err(another_body(key));
                }
                return Ok(accepted(&layer, Which::Create));
            }
            Err(error) => return Err(Refusal::answered("make a stack", error)),
        }
    }
    Err(Refusal::Unavailable("no id was found for the stack that is not taken; try again".to_owned()))
}

fn build_layer(
    id: &str,
    template: &TerraformLayer,
    body: &NewStack,
    variables: Vec<api::inputs::Variable>,
    hidden: &Values,
) -> Result<TerraformLayer, Refusal> {
    let names: Vec<&str> = variables.iter().map(|variable| variable.name.as_str()).collect();
    let names = names.join(",");
    let mut remedy = template.spec.remediation_strategy.clone().unwrap_or_default();
    remedy.auto_apply = Some(true);
    remedy.on_error.get_or_insert(OnError { max_retries: Some(RETRIES) });
    let workspace = Workspace::new(id).map_err(|error| Refusal::Unavailable(error.to_string()))?;
    let fixed = template.spec.variables.iter().cloned();
    let spec = TerraformLayerSpec {
        template: None,
        workspace: Some(workspace),
        delete_workspace: true,
        deletion_policy: Some(DeletionPolicy::Destroy),
        remediation_strategy: Some(remedy),
        variables: fixed.chain(variables).collect(),
        ..template.spec.clone()
    };
    let mut layer = TerraformLayer::new(id, spec);
    let mut labels = body.labels.clone();
    labels.insert(label::STACK_TEMPLATE.to_owned(), template.name_any());
    layer.metadata.labels = Some(labels);
    let digest = digest(body, &hidden.keys().cloned().collect());
    layer.metadata.annotations = Some(
        [
            (annotation::STACK_REQUEST.to_owned(), digest.to_string()),
            (annotation::STACK_VARIABLES.to_owned(), names),
        ]
        .into(),
    );
    Ok(layer)
}

/// A stack whose Secret could not be made would wait for it for ever.
async fn undo(layers: &Api<TerraformLayer>, layer: &TerraformLayer) {
    let only = Preconditions { uid: layer.uid(), resource_version: None };
    let only = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    if let Err(error) = layers.delete(&layer.name_any(), &only).await {
        tracing::warn!(stack = layer.name_any(), %error, "a stack without its Secret could not be deleted");
    }
}

/// Labels of Terrane's own are not for requests.
pub(super) fn check_labels<'a>(mut keys: impl Iterator<Item = &'a String>) -> Result<(), Refusal> {
    let is_ours = |key: &&String| {
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        prefix == api::GROUP || prefix.ends_with(&format!(".{}", api::GROUP))
    };
    match keys.find(is_ours) {
        None => Ok(()),
        Some(key) => Err(Refusal::Invalid(format!(
            "the label {key} cannot be set: those of {} are Terrane's own",
            api::GROUP
        ))),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut all = headers.get_all("idempotency-key").into_iter();
    let (Some(value), None) = (all.next(), all.next()) else {
        return match headers.contains_key("idempotency-key") {
            false => Ok(None),
            true => Err(Refusal::BadRequest("there must be one Idempotency-Key at most".to_owned())),
        };
    };
    let text = value.to_str().unwrap_or_default();
    if text.is_empty() || text.len() > KEY_LIMIT || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Refusal::BadRequest(format!(
            "Idempotency-Key must be 1 to {KEY_LIMIT} visible characters"
        )));
    }
    Ok(Some(text))
}

fn another_body(key: &str) -> Refusal {
    Refusal::Invalid(format!(
        "the Idempotency-Key {key} has made a stack of another body; another request needs another key"
    ))
}

/// A stack of the same key is the answer to the same request only.
fn check_same(layer: &TerraformLayer, body: &NewStack, key: &str) -> Result<(), Refusal> {
    if layer.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::Conflict(format!(
            "stack {} of this Idempotency-Key is being deleted; another one needs another key",
            layer.name_any()
        )));
    }
    // What was sensitive then, whatever the code says now.
    let prefix = first_secret(&layer.name_any());
    let known = layer.annotations().get(annotation::STACK_REQUEST);
    let hidden = layer.spec.variables.iter().filter(|variable| {
        let place = variable.value_from.as_ref().and_then(|from| from.secret_key_ref.as_ref());
        place.is_some_and(|place| place.name.as_str().starts_with(&prefix))
    });
    let hidden = hidden.map(|variable| variable.name.to_string()).collect();
    if known.is_some_and(|known| *known == digest(body, &hidden).to_string()) {
        Ok(())
    } else {
        Err(another_body(key))
    }
}

/// What tells one request from another. It is shown on the layer, so a value that could be guessed by it must be no part of it.
fn digest(body: &NewStack, hidden: &BTreeSet<String>) -> Sha256 {
    let values: BTreeMap<&String, &Value> =
        body.variables.iter().filter(|(name, _)| !hidden.contains(*name)).collect();
    let names: Vec<&String> = body.variables.keys().collect();
    let told = json!([body.template, names, values, body.sensitive, body.labels]);
    Sha256::of(told.to_string().as_bytes())
}

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Ten letters, which are fifty bits.
fn letters(bytes: [u8; 10]) -> String {
    let letters = bytes.iter().filter_map(|byte| LETTERS.get(usize::from(byte % 32)));
    letters.map(|letter| char::from(*letter)).collect()
}

/// A word that nobody guesses, and that never comes twice.
pub(super) fn random_word() -> Result<String, Refusal> {
    let mut bytes = [0; 10];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| Refusal::Unavailable(format!("the operating system gave no randomness: {error}")))?;
    Ok(letters(bytes))
}

fn id_of(word: &str) -> String {
    format!("stack-{word}")
}

/// The same of the same caller, namespace and key: the API itself sees to it that there is one.
fn derived_id(person: &Person, namespace: &str, key: &str) -> String {
    let text = json!([namespace, person.name, key]).to_string();
    let digest = Sha256::of(text.as_bytes());
    let mut bytes = [0; 10];
    for (byte, pair) in bytes.iter_mut().zip(digest.as_str().as_bytes().chunks(2)) {
        *byte = std::str::from_utf8(pair).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0);
    }
    id_of(&letters(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn body(text: &str) -> NewStack {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn ids_are_names_and_do_not_repeat() {
        let all: BTreeSet<String> = (0..1000).map(|_| id_of(&random_word().unwrap())).collect();
        assert_eq!(all.len(), 1000);
        for id in all {
            assert_eq!(id.len(), "stack-".len() + 10);
            assert!(api::text::ObjectName::new(&*id).is_ok() && Workspace::new(&*id).is_ok(), "{id}");
        }
    }

    #[test]
    fn what_is_hidden_is_no_part_of_the_digest() {
        let hidden = BTreeSet::from(["b".to_owned()]);
        let of = |text: &str| digest(&body(text), &hidden);
        let one = of(r#"{"variables": {"a": 1, "b": "x"}}"#);
        assert_eq!(one, of(r#"{"variables": {"b": "y", "a": 1}}"#));
        for other in [
            r#"{"variables": {"a": 2, "b": "x"}}"#,
            r#"{"variables": {"a": 1}}"#,
            r#"{"variables": {"a": 1, "b": "x"}, "template": "t"}"#,
            r#"{"variables": {"a": 1, "b": "x"}, "labels": {"k": "v"}}"#,
        ] {
            assert_ne!(one, of(other), "{other}");
        }
    }

    #[test]
    fn labels_of_terrane_are_its_own() {
        let check = |key: &str| check_labels([key.to_owned()].iter());
        assert!(
            check("team").is_ok() && check("example.com/team").is_ok() && check("notterrane.dev/x").is_ok()
        );
        assert!(check("terrane.dev/layer").is_err() && check("x.terrane.dev/y").is_err());
    }
}
