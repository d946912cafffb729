//! The schema as merging sees it: which shapes a place accepts, what lies below it, and how its lists are keyed. The rules are
//! those by which kube-apiserver turns an OpenAPI schema into merge types.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value, json};

use super::path::PathElement;
use super::wording;
use crate::schema::{ListType, MapType, Node, Type};

/// Looks up a built-in type by name.
pub type Resolve<'a> = dyn Fn(&str) -> Option<Arc<Node>> + 'a;

/// The schema of an object, and what is needed to follow it.
#[derive(Clone, Copy)]
pub struct Schema<'a> {
    node: Option<&'a Node>,
    resolve: &'a Resolve<'a>,
    origin: Origin,
}

/// Where a kind comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Compiled into the server.
    BuiltIn,
    /// Defined by a CustomResourceDefinition.
    Custom,
}

impl<'a> Schema<'a> {
    pub fn built_in(node: &'a Node, resolve: &'a Resolve<'a>) -> Self {
        Self { node: Some(node), resolve, origin: Origin::BuiltIn }
    }

    pub fn custom(node: &'a Node) -> Self {
        Self { node: Some(node), resolve: &unresolved, origin: Origin::Custom }
    }

    /// No schema: objects are merged field by field, lists are replaced.
    pub fn deduced() -> Schema<'static> {
        Schema { node: None, resolve: &unresolved, origin: Origin::Custom }
    }

    pub(crate) fn root(&self) -> Place<'a> {
        match self.node {
            Some(node) => Place::of(Held::Borrowed(node), self.resolve, Inherited::Nothing, Role::Object),
            None => Place {
                what: What::Deduced,
                ..Place::of(Held::Borrowed(&ANY), self.resolve, Inherited::Nothing, Role::Field)
            },
        }
    }

    /// An object of this kind on which nothing is set. Fields that every built-in object carries as an empty object, whether
    /// set or not, are known by their default; nobody comes to own them by creating an object.
    pub(super) fn blank(&self, api_version: &str, kind: &str) -> Value {
        let mut fields = match (self.origin, self.node) {
            (Origin::BuiltIn, Some(_)) => blank_fields(&self.root(), 0),
            (Origin::BuiltIn, None) | (Origin::Custom, _) => Map::new(),
        };
        fields.insert("apiVersion".to_owned(), api_version.into());
        fields.insert("kind".to_owned(), kind.into());
        Value::Object(fields)
    }
}

impl fmt::Debug for Schema<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Schema")
            .field("node", &self.node)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

fn unresolved(_: &str) -> Option<Arc<Node>> {
    None
}

fn blank_fields(place: &Place<'_>, depth: usize) -> Map<String, Value> {
    // Types of built-in kinds nest by value only a few levels; the bound guards against a schema that says otherwise.
    const DEEPEST: usize = 16;
    let Some(node) = place.node().filter(|_| depth < DEEPEST) else { return Map::new() };
    let by_value = node.properties.iter().filter(|(_, field)| field.default == Some(json!({})));
    // A list that must be there is there as null, and is not added but changed when it gets elements.
    let lists = node
        .properties
        .iter()
        .filter(|(name, field)| field.kind == Some(Type::Array) && node.required.contains(name));
    by_value
        .map(|(name, _)| (name.clone(), Value::Object(blank_fields(&place.field(name).place, depth + 1))))
        .chain(lists.map(|(name, _)| (name.clone(), Value::Null)))
        .collect()
}

/// One place of a schema. Borrowed from the place above it, so that following a schema copies nothing.
#[derive(Clone)]
pub(crate) struct Place<'a> {
    what: What<'a>,
    resolve: &'a Resolve<'a>,
    inherited: Inherited,
    role: Role,
    /// Set where a field refers to a type and declares it atomic for itself.
    atomic: bool,
}

#[derive(Clone)]
enum What<'a> {
    Typed(Held<'a>),
    /// Anything: objects field by field, lists as one.
    Deduced,
    /// Anything, as one.
    Untyped,
}

#[derive(Clone)]
enum Held<'a> {
    Borrowed(&'a Node),
    Shared(Arc<Node>),
}

/// `x-kubernetes-preserve-unknown-fields` holds for everything below it.
#[derive(Clone, Copy)]
enum Inherited {
    Nothing,
    PreserveUnknown,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A whole Kubernetes object, which has apiVersion, kind and metadata whatever its schema says.
    Object,
    Field,
}

pub(crate) struct Field<'p> {
    pub(crate) place: Place<'p>,
    /// Whether the schema names this field. Otherwise it is an entry of a map, or unknown.
    pub(crate) declared: bool,
}

/// How a value is walked at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Map,
    Scalar,
    List,
}

/// How the items of a list are told apart.
pub(crate) enum Items<'p> {
    /// They are not: the list is one value.
    Atomic,
    Set,
    Keyed(&'p [String]),
}

impl Held<'_> {
    fn get(&self) -> &Node {
        match self {
            Held::Borrowed(node) => node,
            Held::Shared(node) => node,
        }
    }
}

static ANY: LazyLock<Node> = LazyLock::new(Node::default);

impl<'a> Place<'a> {
    fn of(node: Held<'a>, resolve: &'a Resolve<'a>, inherited: Inherited, role: Role) -> Self {
        // A reference may lead to a reference; a chain longer than this is a cycle.
        const LONGEST: usize = 8;
        let mut place = Place { what: What::Deduced, resolve, inherited, role, atomic: false };
        let mut node = node;
        for _ in 0..LONGEST {
            place.atomic |= node.get().map_type == MapType::Atomic;
            let Some(name) = node.get().reference.clone() else {
                if node.get().preserve_unknown {
                    place.inherited = Inherited::PreserveUnknown;
                }
                if node.get().embedded_resource {
                    place.role = Role::Object;
                }
                place.what = What::Typed(node);
                return place;
            };
            match resolve(&name) {
                Some(found) => node = Held::Shared(found),
                None => return place,
            }
        }
        place
    }

    pub(crate) fn node(&self) -> Option<&Node> {
        match &self.what {
            What::Typed(node) => Some(node.get()),
            What::Deduced | What::Untyped => None,
        }
    }

    fn child<'p>(&'p self, node: &'p Node) -> Place<'p> {
        Place::of(Held::Borrowed(node), self.resolve, self.inherited, Role::Field)
    }

    fn anything(&self, what: What<'a>) -> Place<'_> {
        Place { what, resolve: self.resolve, inherited: self.inherited, role: Role::Field, atomic: false }
    }

    /// What a field of this place holds. A field that the schema does not know may hold anything.
    pub(crate) fn field(&self, name: &str) -> Field<'_> {
        let node = match &self.what {
            What::Typed(node) => node.get(),
            What::Deduced => return Field { place: self.anything(What::Deduced), declared: false },
            What::Untyped => return Field { place: self.anything(What::Untyped), declared: false },
        };
        if self.role == Role::Object {
            let known = node.properties.get(name);
            let says_little = known.is_none_or(|field| {
                field.properties.is_empty() && field.reference.is_none() && field.additional.is_none()
            });
            match name {
                "metadata" if says_little => {
                    return Field { place: self.child(&OBJECT_META), declared: true };
                }
                "apiVersion" | "kind" if known.is_none() => {
                    return Field { place: self.child(&STRING), declared: true };
                }
                _ => {}
            }
        }
        if let Some(field) = node.properties.get(name) {
            return Field { place: self.child(field), declared: true };
        }
        let place = match &node.additional {
            Some(additional) => self.child(additional),
            None => self.anything(What::Deduced),
        };
        Field { place, declared: false }
    }

    /// The place a path element leads to, and whether the schema names it.
    pub(super) fn at(&self, element: &PathElement) -> (Place<'_>, bool) {
        match element {
            PathElement::Field(name) => {
                let field = self.field(name);
                (field.place, field.declared)
            }
            PathElement::Key(_) => (self.item(), false),
            PathElement::Value(_) | PathElement::Index(_) => (self.anything(What::Deduced), false),
        }
    }

    /// Whether an applied object may set this field at all.
    pub(super) fn allows(&self, name: &str) -> bool {
        let Some(node) = self.node() else { return true };
        let open = match self.inherited {
            Inherited::PreserveUnknown => true,
            Inherited::Nothing => {
                node.additional.is_some() || (node.properties.is_empty() && self.role == Role::Field)
            }
        };
        open || self.field(name).declared
    }

    pub(crate) fn item(&self) -> Place<'_> {
        match self.node().and_then(|node| node.items.as_deref()) {
            Some(items) => self.child(items),
            None => self.anything(What::Untyped),
        }
    }

    pub(super) fn is_atomic_map(&self) -> bool {
        match &self.what {
            What::Typed(_) => self.atomic,
            What::Deduced => false,
            What::Untyped => true,
        }
    }

    pub(super) fn items(&self) -> Items<'_> {
        let Some(node) = self.node() else { return Items::Atomic };
        match node.list_type {
            ListType::Atomic => Items::Atomic,
            ListType::Set => Items::Set,
            ListType::Map => Items::Keyed(&node.list_map_keys),
        }
    }

    /// Whether nothing at all is said of this place's fields, so that it may not be taken for a change of the schema.
    pub(super) fn is_free_form(&self) -> bool {
        match self.node() {
            Some(node) => node.properties.is_empty() && node.additional.is_none() && self.role == Role::Field,
            None => true,
        }
    }

    /// The scalar type that this place accepts, `None` if it accepts any.
    fn scalar(&self) -> Option<Type> {
        let node = self.node()?;
        match node.kind? {
            Type::String => {
                matches!(node.format.as_deref(), None | Some("" | "byte")).then_some(Type::String)
            }
            kind @ (Type::Integer | Type::Number | Type::Boolean) => Some(kind),
            Type::Object | Type::Array => None,
        }
    }

    fn accepts(&self, shape: Shape) -> bool {
        match self.node().and_then(|node| node.kind) {
            None => true,
            Some(Type::Object) => shape == Shape::Map,
            Some(Type::Array) => shape == Shape::List,
            Some(Type::String | Type::Integer | Type::Number | Type::Boolean) => shape == Shape::Scalar,
        }
    }

    /// How a value is walked here: by what it is where that is accepted, else by what the place expects.
    pub(super) fn shape(&self, value: &Value) -> Shape {
        let own = match value {
            Value::Object(_) => Some(Shape::Map),
            Value::Array(_) => Some(Shape::List),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(Shape::Scalar),
            Value::Null => None,
        };
        own.filter(|shape| self.accepts(*shape)).unwrap_or_else(|| self.expected())
    }

    pub(super) fn expected(&self) -> Shape {
        match self.node().and_then(|node| node.kind) {
            None | Some(Type::Object) => Shape::Map,
            Some(Type::Array) => Shape::List,
            Some(Type::String | Type::Integer | Type::Number | Type::Boolean) => Shape::Scalar,
        }
    }

    /// Why this is not a value of the place's scalar type.
    pub(super) fn scalar_fault(&self, value: &Value) -> Option<String> {
        let fits = match (self.scalar(), value) {
            (_, Value::Null) => true,
            (Some(Type::Integer | Type::Number), value) => value.is_number(),
            (Some(Type::String), value) => value.is_string(),
            (Some(Type::Boolean), value) => value.is_boolean(),
            (Some(Type::Object | Type::Array) | None, value) => !value.is_object() && !value.is_array(),
        };
        if fits {
            return None;
        }
        Some(match self.scalar() {
            Some(Type::Integer | Type::Number) => {
                format!("expected numeric (int or float), got {}", wording::type_name(value))
            }
            Some(Type::String) => {
                format!("expected string, got &value.valueUnstructured{{Value:{}}}", wording::syntax(value))
            }
            Some(Type::Boolean) => format!("expected boolean, got &{{{}}}", wording::plain(value)),
            Some(Type::Object | Type::Array) | None => {
                format!("expected any scalar, got &{{{}}}", wording::plain(value))
            }
        })
    }

    /// The path element by which an item of this list is known; a message if it has none.
    pub(super) fn element_of(&self, item: &Value) -> Result<PathElement, String> {
        match self.items() {
            Items::Atomic => Err("invalid indexing of non-associative list".to_owned()),
            Items::Set => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".to_owned())
                }
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => {
                    Err("associative list without keys has an element that's an explicit null".to_owned())
                }
                Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                    Ok(PathElement::Value(super::path::Json(item.clone())))
                }
            },
            Items::Keyed(keys) => self.key_of(keys, item),
        }
    }

    /// A key that is absent counts with its default, such as `TCP` for the protocol of a port.
    fn key_of(&self, keys: &[String], item: &Value) -> Result<PathElement, String> {
        let fields = match item {
            Value::Object(fields) => fields,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err("associative list with keys may not have non-map elements".to_owned());
            }
        };
        let item = self.item();
        let value = |key: &String| {
            let declared = || item.node()?.properties.get(key)?.default.clone();
            fields.get(key).cloned().or_else(declared).map(|value| (key.clone(), value))
        };
        let found: Vec<(String, Value)> = keys.iter().filter_map(value).collect();
        if found.is_empty() && !keys.is_empty() {
            let names: Vec<String> = keys.iter().map(|key| wording::quoted(key)).collect();
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                names.join(" ")
            ));
        }
        Ok(PathElement::key(found))
    }
}

static STRING: LazyLock<Node> = LazyLock::new(|| Node { kind: Some(Type::String), ..Node::default() });

/// The metadata of an object whose schema leaves it open, as those of custom resources do.
static OBJECT_META: LazyLock<Node> = LazyLock::new(|| {
    let scalar = |kind| Arc::new(Node { kind: Some(kind), ..Node::default() });
    let string = || scalar(Type::String);
    let time = || {
        Arc::new(Node { kind: Some(Type::String), format: Some("date-time".to_owned()), ..Node::default() })
    };
    let texts = || Arc::new(Node { kind: Some(Type::Object), additional: Some(string()), ..Node::default() });
    let list = |items, list_type, list_map_keys| {
        Arc::new(Node {
            kind: Some(Type::Array),
            items: Some(items),
            list_type,
            list_map_keys,
            ..Node::default()
        })
    };
    let object = |properties: Vec<(&str, Arc<Node>)>, map_type| {
        let properties = properties.into_iter().map(|(name, node)| (name.to_owned(), node)).collect();
        Node { kind: Some(Type::Object), properties, map_type, ..Node::default() }
    };
    let owner = object(
        vec![
            ("apiVersion", string()),
            ("blockOwnerDeletion", scalar(Type::Boolean)),
            ("controller", scalar(Type::Boolean)),
            ("kind", string()),
            ("name", string()),
            ("uid", string()),
        ],
        MapType::Atomic,
    );
    let entry = Node { kind: Some(Type::Object), ..Node::default() };
    object(
        vec![
            ("annotations", texts()),
            ("creationTimestamp", time()),
            ("deletionGracePeriodSeconds", scalar(Type::Integer)),
            ("deletionTimestamp", time()),
            ("finalizers", list(string(), ListType::Set, Vec::new())),
            ("generateName", string()),
            ("generation", scalar(Type::Integer)),
            ("labels", texts()),
            ("managedFields", list(Arc::new(entry), ListType::Atomic, Vec::new())),
            ("name", string()),
            ("namespace", string()),
            ("ownerReferences", list(Arc::new(owner), ListType::Map, vec!["uid".to_owned()])),
            ("resourceVersion", string()),
            ("selfLink", string()),
            ("uid", string()),
        ],
        MapType::Granular,
    )
});
