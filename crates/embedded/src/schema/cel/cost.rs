//! What a rule may cost at worst, told from the schema before any object is seen. A definition with a rule that could cost too much is
//! refused, as kube-apiserver refuses it, so that no write is ever slow for its rules.
//!
//! The units are those of CEL: a name or a field costs 1, most calls 1 more, a text a tenth of its length. Sizes come from `maxItems`,
//! `maxProperties` and `maxLength`; what has no bound is as large as a request can be.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators as names};

use crate::schema::node::{Node, Type};

use super::functions;
use super::kinds::{self, BOOL, Kind, STRING};
use super::source::children;
use super::values::{Place, escape};

/// The most that one rule, and all rules of one version together, may cost.
pub(super) const RULE_LIMIT: u64 = 10_000_000;
pub(super) const TOTAL_LIMIT: u64 = 100_000_000;
/// Objects are no larger than a request.
const REQUEST: u64 = 3 * 1024 * 1024;

const TEXT: f64 = 0.1;
const PATTERN: f64 = 0.25;
const LIST: u64 = 10;
const MAP: u64 = 30;
/// What each turn of a loop adds: testing the condition, and reading what was gathered so far.
const STEP: u64 = 3;
/// The longest pattern behind the name of a format.
const NAMED_FORMAT: f64 = 128.0;

/// What the expression may cost, evaluated once.
pub(super) fn estimate(expr: &IdedExpr, node: &Node, place: Place) -> u64 {
    let at = Seen { size: None, entry: None, kind: kind(node, place), path: Path::Node(node, place) };
    let root = Names { parent: None, name: "oldSelf", seen: at.clone() };
    part(expr, &Names { parent: Some(&root), name: "self", seen: at }).cost
}

/// How often a place can occur below lists and maps without a bound.
pub(super) fn cardinality(node: &Node, place: Place) -> u64 {
    REQUEST / (smallest(node, place) + 1)
}

/// By how much a place multiplies what is below it; none without a bound.
pub(super) fn multiplies(node: &Node) -> Option<u64> {
    match node.kind {
        Some(Type::Object) if node.additional.is_some() => node.max_properties,
        Some(Type::Array) => node.max_items,
        _ => Some(1),
    }
}

pub(super) fn complaint(what: &str, cost: u64, limit: u64) -> String {
    let excess = cost as f64 / limit as f64;
    let factor = if excess > 100.0 {
        "more than 100x".to_owned()
    } else if excess < 1.5 {
        format!("{excess:.6}x")
    } else {
        format!("{excess:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// The fewest bytes that a value of a place takes in JSON.
fn smallest(node: &Node, place: Place) -> u64 {
    if node.int_or_string {
        return 1;
    }
    match node.kind {
        Some(Type::Integer | Type::Number) | None => 1,
        Some(Type::Boolean) => 4,
        Some(Type::String) => match node.format.as_deref() {
            Some("duration") => 3,
            Some("date") => 12,
            Some("date-time") => 21,
            Some(_) | None => 2,
        },
        Some(Type::Array) => 2,
        Some(Type::Object) if node.additional.is_some() => 2,
        Some(Type::Object) => {
            let required = node.required.iter().filter_map(|name| {
                let property = node.properties.get(name).filter(|property| property.default.is_none())?;
                // What every resource has is not counted by what its schema says of it.
                let shown =
                    place == Place::Inside || !matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                Kind::of(property, Place::of(property))?;
                let size = if shown { smallest(property, Place::of(property)) } else { 2 };
                Some(u64::try_from(name.len()).unwrap_or(u64::MAX).saturating_add(size + 4))
            });
            required.fold(2, u64::saturating_add)
        }
    }
}

/// The most elements, or letters, that a value of a place has. Numbers and objects have none.
fn largest(node: &Node) -> u64 {
    let whole = REQUEST - 2;
    let letters = |bound: Option<u64>| bound.map(|length| length.saturating_mul(4));
    if node.int_or_string {
        return letters(node.max_length).unwrap_or(whole);
    }
    match node.kind {
        Some(Type::String) => match node.format.as_deref() {
            Some("byte") => node.max_length.unwrap_or(whole),
            Some("duration" | "date-time") => 32,
            Some("date") => 12,
            Some(_) | None => letters(node.max_length).unwrap_or_else(|| {
                let lengths = node.enumeration.iter().filter_map(|value| value.as_str().map(str::len));
                lengths.max().map_or(whole, |longest| u64::try_from(longest).unwrap_or(whole))
            }),
        },
        Some(Type::Array) => node.max_items.unwrap_or_else(|| {
            let item = node.items.as_deref().map_or(0, |items| smallest(items, Place::of(items)));
            whole / (item + 1)
        }),
        Some(Type::Object) => match &node.additional {
            Some(values) => {
                node.max_properties.unwrap_or_else(|| whole / (smallest(values, Place::of(values)) + 6))
            }
            None => 0,
        },
        Some(Type::Integer | Type::Number | Type::Boolean) | None => 0,
    }
}

fn kind(node: &Node, place: Place) -> Kind<'_> {
    Kind::of(node, place).unwrap_or(Kind::Dyn)
}

/// Where in the schema a value comes from.
#[derive(Clone, Copy)]
enum Path<'n> {
    Node(&'n Node, Place),
    /// The key of a map, which has no bound of its own and is not counted.
    Key,
    /// A text that every resource has.
    Name,
    Unknown,
}

impl<'n> Path<'n> {
    fn size(self) -> Option<Size> {
        match self {
            Path::Node(node, _) => Some(Size { min: 0, max: largest(node) }),
            Path::Key => Some(Size { min: 0, max: 0 }),
            Path::Name => Some(Size { min: 0, max: REQUEST - 2 }),
            Path::Unknown => None,
        }
    }

    fn inside(self) -> Self {
        let Path::Node(node, _) = self else { return Path::Unknown };
        match node.items.as_deref().or(node.additional.as_deref()) {
            Some(inner) => Path::Node(inner, Place::of(inner)),
            None => Path::Unknown,
        }
    }

    fn field(self, field: &str) -> (Kind<'n>, Self) {
        let Path::Node(node, place) = self else { return (Kind::Dyn, Path::Unknown) };
        if place == Place::Resource {
            match field {
                "apiVersion" | "kind" => return (STRING, Path::Name),
                "metadata" => return (Kind::Metadata, Path::Unknown),
                _ => {}
            }
        }
        let named =
            node.properties.iter().find(|(name, _)| escape(name).is_some_and(|escaped| escaped == field));
        match (named, &node.additional) {
            (Some((_, found)), _) | (None, Some(found)) => {
                let place = Place::of(found);
                (kind(found, place), Path::Node(found, place))
            }
            (None, None) => (Kind::Dyn, Path::Unknown),
        }
    }
}

#[derive(Clone, Copy)]
struct Size {
    min: u64,
    max: u64,
}

impl Size {
    const UNKNOWN: Size = Size { min: 0, max: u64::MAX };

    fn exactly(size: usize) -> Self {
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        Size { min: size, max: size }
    }

    fn plus(self, other: Size) -> Self {
        Size { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn either(self, other: Size) -> Self {
        Size { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// The cost of going over so many, rounded up.
fn share(count: u64, factor: f64) -> u64 {
    // A float that is too large for the type becomes its largest value.
    (count as f64 * factor).ceil() as u64
}

/// What is known of the value of one part.
#[derive(Clone)]
struct Seen<'n> {
    /// Where the expression itself tells it.
    size: Option<Size>,
    /// The size of its items, where the expression tells it.
    entry: Option<Size>,
    kind: Kind<'n>,
    path: Path<'n>,
}

impl<'n> Seen<'n> {
    fn of(kind: Kind<'n>) -> Self {
        Seen { size: None, entry: None, kind, path: Path::Unknown }
    }

    fn sized(kind: Kind<'n>, size: Size) -> Self {
        Seen { size: Some(size), ..Seen::of(kind) }
    }

    fn known_size(&self) -> Option<Size> {
        let scalar =
            matches!(self.kind, Kind::Scalar("bool" | "int" | "uint" | "double" | "duration" | "timestamp"));
        self.size.or_else(|| self.path.size()).or_else(|| scalar.then(|| Size::exactly(1)))
    }

    fn size(&self) -> Size {
        self.known_size().unwrap_or(Size::UNKNOWN)
    }

    /// What a macro with one variable binds: an item of a list, a key of a map.
    fn bound(&self) -> Self {
        let path = match (&self.kind, self.path) {
            (Kind::Map(_), Path::Node(..)) => Path::Key,
            (Kind::Map(_), _) => Path::Unknown,
            (_, path) => path.inside(),
        };
        Seen { size: self.entry, entry: None, kind: self.kind.element(), path }
    }

    fn inside(&self) -> Self {
        Seen { size: self.entry, entry: None, kind: self.kind.value(), path: self.path.inside() }
    }
}

struct Part<'n> {
    cost: u64,
    seen: Seen<'n>,
}

struct Names<'p, 'n> {
    parent: Option<&'p Names<'p, 'n>>,
    name: &'p str,
    seen: Seen<'n>,
}

impl<'n> Names<'_, 'n> {
    fn find(&self, name: &str) -> Option<&Seen<'n>> {
        if self.name == name {
            return Some(&self.seen);
        }
        self.parent.and_then(|parent| parent.find(name))
    }

    fn outermost(&self) -> &Seen<'n> {
        self.parent.map_or(&self.seen, Names::outermost)
    }
}

fn add(costs: impl IntoIterator<Item = u64>) -> u64 {
    costs.into_iter().fold(0, u64::saturating_add)
}

/// O(parts of the expression).
fn part<'n>(expr: &IdedExpr, scope: &Names<'_, 'n>) -> Part<'n> {
    match &expr.expr {
        Expr::Unspecified => Part { cost: 0, seen: Seen::of(Kind::Dyn) },
        Expr::Literal(literal) => Part { cost: 0, seen: constant(literal) },
        Expr::Ident(name) => {
            // The name of a type is taken for the whole value, which is how kube-apiserver sizes it.
            let other = || Seen { kind: Kind::Scalar("type"), ..scope.outermost().clone() };
            Part { cost: 1, seen: scope.find(name).cloned().unwrap_or_else(other) }
        }
        Expr::Select(select) => {
            let operand = part(&select.operand, scope);
            // Whether a field is there costs nothing beyond what has it.
            if select.test {
                return Part { cost: operand.cost, seen: Seen::of(BOOL) };
            }
            let cost = operand.cost.saturating_add(1);
            let (kind, path) = match operand.seen.kind {
                Kind::Metadata => (STRING, Path::Name),
                _ => operand.seen.path.field(&select.field),
            };
            Part { cost, seen: Seen { path, ..Seen::of(kind) } }
        }
        Expr::Call(call) => called(call, scope),
        Expr::List(list) => {
            let parts: Vec<Part<'n>> = list.elements.iter().map(|element| part(element, scope)).collect();
            let sizes = parts.iter().map(|part| part.seen.size());
            let entry = sizes.reduce(Size::either).unwrap_or(Size { min: 0, max: 0 });
            let item = parts.first().map_or(Kind::Dyn, |first| first.seen.kind.clone());
            let seen = Seen::sized(Kind::List(Box::new(item)), Size::exactly(parts.len()));
            let cost = add(parts.iter().map(|part| part.cost)).saturating_add(LIST);
            Part { cost, seen: Seen { entry: Some(entry), ..seen } }
        }
        Expr::Map(map) => {
            let cost = add(children(expr).into_iter().map(|child| part(child, scope).cost));
            let seen = Seen::sized(Kind::Map(Box::new(Kind::Dyn)), Size::exactly(map.entries.len()));
            Part { cost: cost.saturating_add(MAP), seen }
        }
        Expr::Struct(_) => Part { cost: 0, seen: Seen::of(Kind::Dyn) },
        Expr::Comprehension(macro_) => comprehension(macro_, scope),
    }
}

fn constant<'n>(literal: &LiteralValue) -> Seen<'n> {
    match literal {
        LiteralValue::String(text) => Seen::sized(STRING, Size::exactly(text.inner().chars().count())),
        LiteralValue::Bytes(bytes) => Seen::sized(Kind::Scalar("bytes"), Size::exactly(bytes.inner().len())),
        LiteralValue::Boolean(_) => Seen::sized(BOOL, Size::exactly(1)),
        LiteralValue::Double(_) => Seen::sized(Kind::Scalar("double"), Size::exactly(1)),
        LiteralValue::Int(_) => Seen::sized(kinds::INT, Size::exactly(1)),
        LiteralValue::UInt(_) => Seen::sized(Kind::Scalar("uint"), Size::exactly(1)),
        LiteralValue::Null => Seen::sized(Kind::Scalar("null"), Size::exactly(1)),
    }
}

fn comprehension<'n>(macro_: &ComprehensionExpr, scope: &Names<'_, 'n>) -> Part<'n> {
    let range = part(&macro_.iter_range, scope);
    let start = part(&macro_.accu_init, scope);
    let accumulated = Names { parent: Some(scope), name: &macro_.accu_var, seen: start.seen.clone() };
    let (first, second) = match &macro_.iter_var2 {
        None => (range.seen.bound(), None),
        Some(name) => {
            let key = match range.seen.kind {
                Kind::Map(_) => Seen { path: Path::Key, ..Seen::of(STRING) },
                _ => Seen::of(kinds::INT),
            };
            (key, Some((name, range.seen.inside())))
        }
    };
    let outer = Names { parent: Some(&accumulated), name: &macro_.iter_var, seen: first };
    let each = |scope: &Names<'_, 'n>| {
        let step = part(&macro_.loop_step, scope);
        (part(&macro_.loop_cond, scope).cost.saturating_add(step.cost), step.seen)
    };
    let (each, step) = match second {
        None => each(&outer),
        Some((name, seen)) => each(&Names { parent: Some(&outer), name, seen }),
    };
    let result = part(&macro_.result, &accumulated);
    let count = range.seen.size();
    let cost = add([range.cost, start.cost, result.cost, count.max.saturating_mul(each)]);
    let seen = match &macro_.accu_init.expr {
        Expr::List(_) | Expr::Map(_) => Seen { size: Some(count), entry: step.entry, ..Seen::of(step.kind) },
        _ => Seen { size: start.seen.known_size(), ..Seen::of(result.seen.kind) },
    };
    Part { cost, seen }
}

fn called<'n>(call: &CallExpr, scope: &Names<'_, 'n>) -> Part<'n> {
    let prefix = match call.target.as_ref().map(|target| &target.expr) {
        Some(Expr::Ident(name)) if functions::is_namespace(name) && scope.find(name).is_none() => Some(name),
        _ => None,
    };
    let target = call.target.as_ref().filter(|_| prefix.is_none()).map(|target| part(target, scope));
    if let Some(target) = &target
        && let Some(part) = bound_macro(call, target, scope)
    {
        return part;
    }
    let arguments: Vec<Part<'n>> = call.args.iter().map(|argument| part(argument, scope)).collect();
    let name = prefix.map_or_else(|| call.func_name.clone(), |prefix| format!("{prefix}.{}", call.func_name));
    let spent = add(target.iter().chain(&arguments).map(|part| part.cost));
    let seen: Vec<&Seen<'n>> = arguments.iter().map(|part| &part.seen).collect();
    match name.as_str() {
        names::LOGICAL_AND | names::LOGICAL_OR => return Part { cost: spent, seen: Seen::of(BOOL) },
        names::CONDITIONAL => {
            if let [condition, yes, no] = arguments.as_slice() {
                let seen = Seen {
                    size: Some(yes.seen.size().either(no.seen.size())),
                    entry: yes.seen.entry.zip(no.seen.entry).map(|(yes, no)| yes.either(no)),
                    ..Seen::of(yes.seen.kind.clone())
                };
                return Part { cost: condition.cost.saturating_add(yes.cost.max(no.cost)), seen };
            }
        }
        names::INDEX => {
            if let [container, _] = seen.as_slice() {
                return Part { cost: spent.saturating_add(1), seen: container.inside() };
            }
        }
        names::OPT_SELECT => {
            if let ([container, _], Some(Expr::Literal(LiteralValue::String(field)))) =
                (seen.as_slice(), call.args.get(1).map(|argument| &argument.expr))
            {
                let (kind, _) = container.path.field(field.inner());
                return Part { cost: spent.saturating_add(1), seen: Seen::of(kind) };
            }
        }
        names::OPT_INDEX => {
            if let [container, _] = seen.as_slice() {
                return Part { cost: spent.saturating_add(1), seen: Seen::of(container.kind.value()) };
            }
        }
        "value" | "orValue" | "or" | "optional.of" | "optional.ofNonZeroValue" => {
            if let Some(inner) = target.as_ref().map(|part| &part.seen).or(seen.first().copied()) {
                return Part { cost: spent.saturating_add(1), seen: Seen::of(inner.kind.clone()) };
            }
        }
        "dyn" => {
            if let [inner] = seen.as_slice() {
                let seen = Seen { kind: Kind::Dyn, size: inner.known_size(), ..(*inner).clone() };
                return Part { cost: spent.saturating_add(1), seen };
            }
        }
        _ => {}
    }
    let operands: Vec<Kind<'n>> = target
        .iter()
        .map(|part| &part.seen)
        .chain(seen.iter().copied())
        .map(|seen| seen.kind.clone())
        .collect();
    let result = kinds::result(&call.func_name, &operands).unwrap_or(Kind::Dyn);
    let (cost, size, entry) = function(&name, target.as_ref().map(|part| &part.seen), &seen);
    Part { cost: spent.saturating_add(cost), seen: Seen { size, entry, ..Seen::of(result) } }
}

/// The cost of the call itself, and the size of its result and of the result's items where they are known.
fn function(
    name: &str,
    target: Option<&Seen<'_>>,
    arguments: &[&Seen<'_>],
) -> (u64, Option<Size>, Option<Size>) {
    let size = |at: usize| arguments.get(at).map_or(Size::UNKNOWN, |seen| seen.size());
    let text = |of: Size| share(of.max, TEXT);
    let nothing = |cost: u64| (cost, None, None);
    let sized = |cost: u64, size: Size| (cost, Some(size), None);
    let may_be = |at: usize, names: &[&str]| {
        arguments.get(at).is_some_and(|seen| {
            names.contains(&seen.kind.to_string().as_str()) || matches!(seen.kind, Kind::Dyn)
        })
    };
    let matched = |of: Size, pattern: Size| {
        share(of.max.saturating_add(1), TEXT).saturating_mul(share(pattern.max, PATTERN))
    };
    match (name, target, arguments.len()) {
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target), _) => {
            match &target.kind {
                Kind::List(item) => {
                    let item = match **item {
                        Kind::Scalar("string" | "bytes") => {
                            1_u64.saturating_add(text(target.path.inside().size().unwrap_or(Size::UNKNOWN)))
                        }
                        _ => 1,
                    };
                    nothing(target.size().max.saturating_mul(item))
                }
                _ => nothing(text(target.size())),
            }
        }
        ("url" | "jsonpatch.escapeKey", _, 1) => sized(text(size(0)), size(0)),
        ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(target), _) => {
            sized(text(target.size()), target.size())
        }
        ("replace", Some(target), 2..) => {
            sized(share(target.size().max, 2.0 * TEXT), replaced(target.size(), size(0), size(1)))
        }
        ("split", Some(target), _) => {
            sized(share(target.size().max, 2.0 * TEXT), Size { min: 0, max: target.size().max })
        }
        ("join", Some(target), _) => {
            let count = target.size();
            let item = target.path.inside().size().unwrap_or(Size::UNKNOWN);
            let separators = if arguments.is_empty() {
                0
            } else {
                size(0).max.saturating_mul(count.max.saturating_sub(1))
            };
            let joined = Size { min: 0, max: count.max.saturating_mul(item.max).saturating_add(separators) };
            sized(text(joined), joined)
        }
        ("find" | "findAll", Some(target), 1..) => {
            sized(matched(target.size(), size(0)), Size { min: 0, max: target.size().max })
        }
        ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver", _, 1..) => {
            nothing(text(size(0)))
        }
        ("ip.isCanonical", _, 1..) => nothing(share(size(0).max, 2.0 * TEXT)),
        ("containsIP" | "containsCIDR", _, 1..) => {
            let bytes = 16;
            let compared = share(2 * bytes, TEXT);
            let masked = if name == "containsCIDR" { share(bytes, TEXT) + 1 } else { 0 };
            let parsed = if may_be(0, &["string"]) { text(size(0)) } else { 0 };
            nothing(add([compared, masked, parsed]))
        }
        ("validate", _, 1..) => nothing(share(text(size(0)), NAMED_FORMAT * PATTERN)),
        ("sets.contains" | "sets.intersects", _, 2) => {
            nothing(size(0).max.saturating_mul(size(1).max).saturating_add(1))
        }
        ("sets.equivalent", _, 2) => {
            nothing(size(0).max.saturating_mul(size(1).max).saturating_mul(2).saturating_add(1))
        }
        ("startsWith" | "endsWith", Some(_), 1) => nothing(text(size(0))),
        ("contains", Some(target), 1) => nothing(text(target.size()).saturating_mul(text(size(0)))),
        ("matches", Some(target), 1) => nothing(matched(target.size(), size(0))),
        ("format", Some(target), _) => nothing(text(target.size())),
        ("strings.quote", _, 1) => sized(
            text(size(0)),
            Size { min: size(0).min.saturating_add(2), max: size(0).max.saturating_mul(2).saturating_add(2) },
        ),
        ("string", _, 1) if may_be(0, &["bytes"]) => {
            sized(text(size(0)), Size { min: size(0).min / 4, max: size(0).max })
        }
        ("bytes", _, 1) if may_be(0, &["string"]) => {
            sized(text(size(0)), Size { min: size(0).min, max: size(0).max.saturating_mul(4) })
        }
        (names::IN, _, 2) => match arguments.get(1).map(|seen| &seen.kind) {
            Some(Kind::Map(_)) => nothing(1),
            _ => nothing(size(1).max),
        },
        (names::ADD, _, 2) => {
            let whole = size(0).plus(size(1));
            let entry = |at: usize| arguments.get(at).and_then(|seen| seen.entry);
            let entry = entry(0).zip(entry(1)).map(|(left, right)| left.either(right));
            match arguments.first().map(|seen| &seen.kind) {
                Some(Kind::List(_)) => (1, Some(whole), entry),
                Some(Kind::Scalar("string" | "bytes") | Kind::Dyn) => (text(whole), Some(whole), None),
                _ => nothing(1),
            }
        }
        (names::EQUALS | names::NOT_EQUALS, _, 2) => nothing(share(size(0).max.min(size(1).max), TEXT)),
        (names::LESS | names::LESS_EQUALS | names::GREATER | names::GREATER_EQUALS, _, 2)
            if may_be(0, &["string", "bytes"]) =>
        {
            nothing(share(size(0).max.min(size(1).max), TEXT))
        }
        _ => nothing(1),
    }
}

/// The longest text that comes of replacing the shortest parts by the longest others.
fn replaced(whole: Size, part: Size, by: Size) -> Size {
    let (count, kept) = if part.min == 0 {
        (whole.max.saturating_add(1), whole.max)
    } else if by.max <= part.min {
        (0, whole.max)
    } else {
        (whole.max.div_ceil(part.min), 0)
    };
    Size { min: 0, max: count.saturating_mul(by.max).saturating_add(kept) }
}

/// Macros that the parser left as calls: their body runs once for each entry of the target.
fn bound_macro<'n>(call: &CallExpr, target: &Part<'n>, scope: &Names<'_, 'n>) -> Option<Part<'n>> {
    let ident = |expr: &IdedExpr| match &expr.expr {
        Expr::Ident(name) => Some(name.clone()),
        _ => None,
    };
    let (names, bodies, times) = match (call.func_name.as_str(), call.args.as_slice()) {
        ("optMap" | "optFlatMap", [name, body]) => {
            // Whether there is a value, the value, its variable's empty list, and what it is wrapped in.
            const WRAPPING: u64 = LIST + 3;
            let name = ident(name)?;
            let seen = Seen::of(target.seen.kind.clone());
            let body = part(body, &Names { parent: Some(scope), name: &name, seen });
            let cost = add([target.cost, target.cost, WRAPPING, body.cost]);
            return Some(Part { cost, seen: Seen::of(body.seen.kind) });
        }
        ("sortBy", [name, bodies @ ..]) => (vec![ident(name)?], bodies, target.seen.size().max),
        (
            "all" | "exists" | "existsOne" | "exists_one" | "transformList" | "transformMap"
            | "transformMapEntry",
            [first, second, bodies @ ..],
        ) if !bodies.is_empty() => (vec![ident(first)?, ident(second)?], bodies, target.seen.size().max),
        _ => return None,
    };
    let (first, second) = match names.as_slice() {
        [only] => (Names { parent: Some(scope), name: only, seen: target.seen.bound() }, None),
        [key, value] => {
            let seen = Seen { path: Path::Key, ..Seen::of(target.seen.kind.element()) };
            (Names { parent: Some(scope), name: key, seen }, Some((value, target.seen.inside())))
        }
        _ => return None,
    };
    let cost = |scope: &Names<'_, 'n>| add(bodies.iter().map(|body| part(body, scope).cost));
    let each = match second {
        None => cost(&first),
        Some((name, seen)) => cost(&Names { parent: Some(&first), name, seen }),
    };
    let looped = times.saturating_mul(each.saturating_add(STEP));
    Some(Part { cost: add([target.cost, looped, 1]), seen: Seen::sized(Kind::Dyn, target.seen.size()) })
}
