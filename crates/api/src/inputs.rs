//! What a layer gives to its code beside the code: variables, the environment, hooks and scripts, as they are asked for. What is asked for of a Secret or
//! a ConfigMap stands here by reference; the values come in from outside, to be checked and to be told apart by a digest that says
//! nothing about them to whoever does not have the key.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backends::{Generated, Login};
use crate::hooks::{Hooks, Scripts};
use crate::overrides::ExtraArguments;
use crate::text::{DataKey, EnvironmentName, LayerPath, ObjectName, Sha256, VariableName};

/// One variable of the root module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("oneOf" = [{ "required": ["value"] }, { "required": ["valueFrom"] }]))]
pub struct Variable {
    /// As the code declares it.
    pub name: VariableName,
    /// The value, of any type: text, number, bool, list or object. Everybody who can read the layer can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub value: Option<Value>,
    /// Where the value is, in the layer's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueSource>,
    /// How the text that `valueFrom` leads to is read. Default: `string`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Hide the value in logs and plans, as values from Secrets always are. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
}

fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The text is the value.
    String,
    /// The text is JSON, for numbers, lists and objects.
    Json,
}

/// Where one value is: a key of a Secret, or one of a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secretKeyRef) != has(self.configMapKeyRef)")
        .message("exactly one of secretKeyRef and configMapKeyRef must be set")
)]
pub struct ValueSource {
    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// The object, in the layer's own namespace.
    pub name: ObjectName,
    /// The key of its data.
    pub key: DataKey,
}

impl KeyRef {
    /// The object, where it is a ConfigMap.
    pub fn config_map(&self) -> Object {
        Object { kind: Kind::ConfigMap, name: self.name.clone() }
    }
}

/// Each key of an object's data is a variable of that name, with the text as its value. Keys that cannot name a variable are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secretRef) != has(self.configMapRef)")
        .message("exactly one of secretRef and configMapRef must be set")
)]
pub struct VariablesFrom {
    /// A Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectRef>,
    /// A ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ObjectRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Its name, in the layer's own namespace.
    pub name: ObjectName,
}

/// One variable of the environment that the tool and its providers see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.value) != has(self.valueFrom)")
        .message("exactly one of value and valueFrom must be set")
)]
pub struct EnvironmentVariable {
    /// Such as `AWS_REGION`.
    pub name: EnvironmentName,
    /// The value. Everybody who can read the layer can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub value: Option<String>,
    /// Where the value is, in the layer's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueSource>,
    /// Hide the value in logs and plans, as values from Secrets always are. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
    /// The referenced value is a credential that is replaced now and then: another one leads to no new plan, and may come between a plan
    /// and its apply. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rotates: bool,
}

/// Each key of an object's data is a variable of the environment. Keys that cannot name one are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secretRef) != has(self.configMapRef)")
        .message("exactly one of secretRef and configMapRef must be set")
)]
pub struct EnvironmentFrom {
    /// A Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectRef>,
    /// A ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ObjectRef>,
    /// They are credentials that are replaced now and then: others lead to no new plan, and may come between a plan and its apply.
    /// Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rotates: bool,
}

/// All that one layer gives to its code.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inputs {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Variable>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variable_files: Vec<LayerPath>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables_from: Vec<VariablesFrom>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvironmentVariable>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment_from: Vec<EnvironmentFrom>,
    #[serde(default, skip_serializing_if = "Hooks::is_empty")]
    pub hooks: Hooks,
    #[serde(default, skip_serializing_if = "Scripts::is_empty")]
    pub scripts: Scripts,
    /// Where the state is to be kept; none leaves that to the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Generated>,
    /// What the tool's commands are given more.
    #[serde(default, skip_serializing_if = "ExtraArguments::is_empty")]
    pub arguments: ExtraArguments,
}

/// A kind of object that values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    Secret,
    ConfigMap,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Secret => "Secret",
            Kind::ConfigMap => "ConfigMap",
        }
    }
}

/// An object that values come from, in the layer's own namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    pub kind: Kind,
    pub name: ObjectName,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}

/// What of an object is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    All,
    Only(BTreeSet<DataKey>),
}

/// What an object holds, by key.
pub type Data = BTreeMap<String, Vec<u8>>;
/// What the objects hold. One that is not there has no entry.
pub type Contents = BTreeMap<Object, Data>;

/// Something that a layer refers to and that is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("{0} does not exist in this namespace; create it, and the layer goes on")]
    Object(Object),
    #[error("{0} has no key {1}; add it, and the layer goes on")]
    Key(Object, DataKey),
    #[error("{0} has none of the keys that the backend reads ({1}); add one, and the layer goes on")]
    Login(Object, String),
}

impl ValueSource {
    /// The object and the key; none of what no API accepts.
    pub fn place(&self) -> Option<(Object, &DataKey)> {
        let of_secret = self.secret_key_ref.as_ref().map(|found| (Kind::Secret, found));
        let of_config_map = || self.config_map_key_ref.as_ref().map(|found| (Kind::ConfigMap, found));
        let (kind, found) = of_secret.or_else(of_config_map)?;
        Some((Object { kind, name: found.name.clone() }, &found.key))
    }
}

fn whole(secret: Option<&ObjectRef>, config_map: Option<&ObjectRef>) -> Option<Object> {
    let of = |kind, found: &ObjectRef| Object { kind, name: found.name.clone() };
    secret.map(|found| of(Kind::Secret, found)).or_else(|| config_map.map(|found| of(Kind::ConfigMap, found)))
}

impl VariablesFrom {
    pub fn object(&self) -> Option<Object> {
        whole(self.secret_ref.as_ref(), self.config_map_ref.as_ref())
    }
}

impl EnvironmentFrom {
    pub fn object(&self) -> Option<Object> {
        whole(self.secret_ref.as_ref(), self.config_map_ref.as_ref())
    }
}

/// Whether another value is another input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Yes,
    No,
}

/// One reference of the inputs.
enum Reference<'a> {
    Key(Object, &'a DataKey, Counts),
    Whole(Object, Counts),
    /// What a backend logs in with; another login is not another backend.
    Login(&'a Login),
}

impl Inputs {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// In the order in which they stand. O(inputs).
    fn references(&self) -> Vec<Reference<'_>> {
        let counts = |rotates: bool| if rotates { Counts::No } else { Counts::Yes };
        let mut found = Vec::new();
        for variable in &self.variables {
            if let Some((object, key)) = variable.value_from.as_ref().and_then(ValueSource::place) {
                found.push(Reference::Key(object, key, Counts::Yes));
            }
        }
        for object in self.variables_from.iter().filter_map(VariablesFrom::object) {
            found.push(Reference::Whole(object, Counts::Yes));
        }
        for variable in &self.environment {
            if let Some((object, key)) = variable.value_from.as_ref().and_then(ValueSource::place) {
                found.push(Reference::Key(object, key, counts(variable.rotates)));
            }
        }
        for from in &self.environment_from {
            if let Some(object) = from.object() {
                found.push(Reference::Whole(object, counts(from.rotates)));
            }
        }
        let of_hooks = self.hooks.all().filter_map(|hook| hook.config_map_ref.as_ref());
        let of_scripts = self.scripts.all().filter_map(|script| script.config_map_ref.as_ref());
        for text in of_hooks.chain(of_scripts) {
            found.push(Reference::Key(text.config_map(), &text.key, Counts::Yes));
        }
        let login = self.backend.as_ref().and_then(|backend| backend.credentials.as_ref());
        found.extend(login.map(Reference::Login));
        found
    }

    /// The objects that are referred to, each once and in an order that is always the same. O(inputs · log).
    pub fn objects(&self) -> BTreeMap<Object, Keys> {
        let mut found = BTreeMap::new();
        for reference in self.references() {
            match reference {
                Reference::Whole(object, _) => drop(found.insert(object, Keys::All)),
                // A key that is not there cannot be asked for, and some of them are not.
                Reference::Login(login) => drop(found.insert(login.object(), Keys::All)),
                Reference::Key(object, key, _) => {
                    match found.entry(object).or_insert_with(|| Keys::Only(BTreeSet::new())) {
                        Keys::All => {}
                        Keys::Only(keys) => drop(keys.insert(key.clone())),
                    }
                }
            }
        }
        found
    }

    /// What tells these inputs, with these values, from others. It depends on each value that counts, and on nothing else that an object
    /// holds. O(inputs and their bytes).
    pub fn digest(&self, key: &DigestKey, contents: &Contents) -> Result<Sha256, Missing> {
        let mut message = Message::default();
        message.value(&serde_json::to_value(self).unwrap_or_default());
        for reference in self.references() {
            match reference {
                Reference::Key(object, key, counts) => {
                    let data = contents.get(&object).ok_or_else(|| Missing::Object(object.clone()))?;
                    let value =
                        data.get(key.as_str()).ok_or_else(|| Missing::Key(object.clone(), key.clone()))?;
                    if counts == Counts::Yes {
                        message.part(value);
                    }
                }
                Reference::Whole(object, counts) => {
                    let data = contents.get(&object).ok_or(Missing::Object(object))?;
                    if counts == Counts::Yes {
                        message.count(data.len());
                        for (name, value) in data {
                            message.part(name.as_bytes());
                            message.part(value);
                        }
                    }
                }
                Reference::Login(login) => {
                    let object = login.object();
                    let data = contents.get(&object).ok_or_else(|| Missing::Object(object.clone()))?;
                    if !login.keys.iter().any(|known| data.contains_key(known.key.as_str())) {
                        return Err(Missing::Login(object, login.known()));
                    }
                }
            }
        }
        Ok(key.digest(&message.0))
    }
}

/// Parts behind their lengths, so that none can be taken for another.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn count(&mut self, count: usize) {
        self.0.extend((count as u64).to_le_bytes());
    }

    fn part(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend(bytes);
    }

    /// The same for the same value, whatever the order of its fields. Its depth is bounded by its parser.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => self.part(value.to_string().as_bytes()),
            Value::String(text) => {
                self.part(b"text");
                self.part(text.as_bytes());
            }
            Value::Array(items) => {
                self.part(b"list");
                self.count(items.len());
                items.iter().for_each(|item| self.value(item));
            }
            Value::Object(fields) => {
                self.part(b"object");
                self.count(fields.len());
                let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
                for (name, field) in sorted {
                    self.part(name.as_bytes());
                    self.value(field);
                }
            }
        }
    }
}

/// What digests of inputs are made with. Without it nobody can try out which value a digest is of.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DigestKey([u8; DigestKey::LENGTH]);

impl DigestKey {
    pub const LENGTH: usize = 32;

    pub const fn new(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// The key of one layer: whoever has it can compare the inputs of that layer and of no other.
    pub fn of_layer(&self, uid: &str) -> Self {
        let mut message = Message::default();
        message.part(b"layer");
        message.part(uid.as_bytes());
        Self(self.authenticate(&message.0))
    }

    fn digest(&self, message: &[u8]) -> Sha256 {
        Sha256::new(hex::encode(self.authenticate(message))).unwrap_or_else(|_| Sha256::of(b""))
    }

    /// HMAC-SHA256 (RFC 2104), with a key of half a block.
    fn authenticate(&self, message: &[u8]) -> [u8; 32] {
        use sha2::Digest;
        let padded = |with: u8| {
            let key = self.0.iter().map(move |byte| byte ^ with);
            key.chain(std::iter::repeat_n(with, 64 - Self::LENGTH)).collect::<Vec<u8>>()
        };
        let inner = sha2::Sha256::new().chain_update(padded(0x36)).chain_update(message).finalize();
        sha2::Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey(…)")
    }
}

impl From<DigestKey> for String {
    fn from(key: DigestKey) -> Self {
        hex::encode(key.0)
    }
}

impl TryFrom<String> for DigestKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = hex::decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or("a digest key has 64 hex digits")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn inputs(value: Value) -> Inputs {
        serde_json::from_value(value).unwrap()
    }

    /// What is in an object: its kind, its name, its keys with their values.
    type Held<'a> = (Kind, &'a str, Pairs<'a>);
    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn contents(objects: &[Held<'_>]) -> Contents {
        let data = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
        };
        let object = |kind: Kind, name: &str| Object { kind, name: ObjectName::new(name).unwrap() };
        objects.iter().map(|(kind, name, pairs)| (object(*kind, name), data(pairs))).collect()
    }

    fn key() -> DigestKey {
        DigestKey::new([7; DigestKey::LENGTH])
    }

    fn referring() -> Inputs {
        inputs(json!({
            "variables": [
                { "name": "size", "value": { "b": [1, "x"], "a": null } },
                { "name": "password", "valueFrom": { "secretKeyRef": { "name": "db", "key": "password" } } },
            ],
            "variablesFrom": [{ "configMapRef": { "name": "common" } }],
            "environment": [
                { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "cloud", "key": "token" } }, "rotates": true },
            ],
        }))
    }

    const WORLD: [Held<'static>; 3] = [
        (Kind::Secret, "db", &[("password", "one"), ("other", "x")]),
        (Kind::ConfigMap, "common", &[("region", "north")]),
        (Kind::Secret, "cloud", &[("token", "first")]),
    ];

    #[test]
    fn a_known_authentication_code_comes_out() {
        // What another implementation of HMAC-SHA256 makes of the same key and text.
        let expected = "0f6782ba6fe614b54305a8ae0d3ba36f895805a5edc67906435be89d0b5c6118";
        assert_eq!(DigestKey::new([0x0b; 32]).digest(b"terrane").as_str(), expected);
    }

    #[test]
    fn what_counts_changes_the_digest_and_the_rest_does_not() {
        let of = |world: &[Held<'_>]| referring().digest(&key(), &contents(world)).unwrap();
        let before = of(&WORLD);
        let changed = |at: usize, pairs: Pairs<'static>| {
            let mut world = WORLD;
            world[at].2 = pairs;
            of(&world)
        };
        assert_eq!(before, of(&WORLD));
        assert_ne!(before, changed(0, &[("password", "two"), ("other", "x")]));
        assert_eq!(before, changed(0, &[("password", "one"), ("other", "y")]), "nobody asked for that key");
        assert_ne!(before, changed(1, &[("region", "south")]));
        assert_ne!(before, changed(1, &[("region", "north"), ("zone", "a")]));
        assert_eq!(before, changed(2, &[("token", "second")]), "it rotates");
        let other = DigestKey::new([8; DigestKey::LENGTH]);
        assert_ne!(before, referring().digest(&other, &contents(&WORLD)).unwrap());
        assert_ne!(key().of_layer("a"), key().of_layer("b"));
    }

    #[test]
    fn literals_count_by_their_value_and_not_by_the_order_of_their_fields() {
        let of = |value: Value| {
            inputs(json!({ "variables": [{ "name": "a", "value": value }] }))
                .digest(&key(), &Contents::new())
                .unwrap()
        };
        assert_eq!(of(json!({ "x": 1, "y": [2] })), of(json!({ "y": [2], "x": 1 })));
        for other in [json!({ "x": 1, "y": [2, 3] }), json!({ "x": "1", "y": [2] }), json!("x"), json!(["x"])]
        {
            assert_ne!(of(json!({ "x": 1, "y": [2] })), of(other));
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let words = |at: usize, pairs: Option<Pairs<'static>>| {
            let mut world = WORLD.to_vec();
            match pairs {
                Some(pairs) => world[at].2 = pairs,
                None => drop(world.remove(at)),
            }
            referring().digest(&key(), &contents(&world)).unwrap_err().to_string()
        };
        assert_eq!(
            words(0, None),
            "Secret db does not exist in this namespace; create it, and the layer goes on"
        );
        assert_eq!(words(0, Some(&[])), "Secret db has no key password; add it, and the layer goes on");
        assert_eq!(
            words(1, None),
            "ConfigMap common does not exist in this namespace; create it, and the layer goes on"
        );
        assert_eq!(words(2, Some(&[])), "Secret cloud has no key token; add it, and the layer goes on");
    }

    #[test]
    fn an_object_is_asked_for_once_and_for_no_more_than_is_needed() {
        let objects = referring().objects();
        let words: Vec<String> = objects.keys().map(ToString::to_string).collect();
        assert_eq!(words, ["Secret cloud", "Secret db", "ConfigMap common"]);
        let keys: Vec<&Keys> = objects.values().collect();
        let only = |key: &str| Keys::Only([DataKey::new(key).unwrap()].into());
        assert_eq!(keys, [&only("token"), &only("password"), &Keys::All]);
    }

    #[test]
    fn a_key_is_written_and_read_and_never_shown() {
        let text = serde_json::to_string(&key()).unwrap();
        assert_eq!(serde_json::from_str::<DigestKey>(&text).unwrap(), key());
        assert!(serde_json::from_str::<DigestKey>("\"07\"").is_err());
        assert_eq!(format!("{:?}", key()), "DigestKey(…)");
    }
}
