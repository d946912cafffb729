//! The functions and the remaining macros of the language. Those of Kubernetes' own libraries come from `kube-cel`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr};
use kube_cel::cel::objects::{Map, Opaque};
use kube_cel::cel::{Context, ExecutionError, Value};

use crate::schema::{pattern, wording};

use super::eval::{Fault, Outcome, Scope, Walk, pairs};
use super::operators;
use super::values::{as_optional, optional, text};

/// The prefixes of functions that belong to no value, as in `sets.contains`.
pub(super) fn is_namespace(name: &str) -> bool {
    matches!(name, "format" | "ip" | "lists" | "optional" | "sets" | "strings")
}

pub(super) fn context() -> Context<'static> {
    Context::default().with_all()
}

/// A type as a value, as in `type(self.port) == int`.
#[derive(Debug, PartialEq, Eq)]
struct TypeName(&'static str);

impl Opaque for TypeName {
    fn runtime_type_name(&self) -> &str {
        "type"
    }
}

const TYPES: [&str; 10] =
    ["bool", "bytes", "double", "dyn", "int", "list", "map", "null_type", "string", "uint"];

pub(super) fn type_named(name: &str) -> Option<Value> {
    let name = TYPES.iter().find(|known| **known == name)?;
    Some(Value::Opaque(Arc::new(TypeName(name))))
}

fn type_of(value: &Value) -> Value {
    let name = match value {
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Int(_) => "int",
        Value::UInt(_) => "uint",
        Value::Float(_) => "double",
        Value::String(_) => "string",
        Value::Bytes(_) => "bytes",
        Value::Bool(_) => "bool",
        Value::Null => "null_type",
        Value::Duration(_) => "google.protobuf.Duration",
        Value::Timestamp(_) => "google.protobuf.Timestamp",
        Value::Opaque(_) | Value::Function(_, _) => "type",
    };
    Value::Opaque(Arc::new(TypeName(name)))
}

/// What compiling a pattern costs: about as much as this many steps, in the worst case.
const PATTERN_COST: usize = 10_000;

/// What handling a value costs beyond the step itself.
pub(super) fn weight(value: &Value) -> usize {
    match value {
        Value::List(items) => items.len(),
        Value::Map(map) => map.map.len(),
        Value::String(text) => text.len() / 10,
        Value::Bytes(bytes) => bytes.len() / 10,
        _ => 0,
    }
}

pub(super) fn timestamp(value: &str) -> Option<Value> {
    direct("timestamp", value)
}

pub(super) fn duration(value: &str) -> Option<Value> {
    direct("duration", value)
}

fn direct(function: &str, argument: &str) -> Option<Value> {
    invoke(&Context::default(), function, None, vec![text(argument)]).ok()
}

fn identifier(expr: &IdedExpr) -> Result<&str, Fault> {
    match &expr.expr {
        Expr::Ident(name) => Ok(name),
        _ => Err(Fault::text("argument must be a simple name")),
    }
}

pub(super) fn call(walk: &mut Walk<'_>, call: &CallExpr, scope: &Scope<'_>) -> Outcome {
    let namespace = match call.target.as_ref().map(|target| &target.expr) {
        Some(Expr::Ident(name)) if is_namespace(name) && scope.find(name).is_none() => Some(name.as_str()),
        _ => None,
    };
    let target = match (&call.target, namespace) {
        (Some(target), None) => Some(walk.eval(target, scope)?),
        _ => None,
    };
    if let Some(target) = &target
        && let Some(outcome) = macros(walk, &call.func_name, target, &call.args, scope)
    {
        return outcome;
    }
    let mut arguments = Vec::with_capacity(call.args.len());
    for argument in &call.args {
        arguments.push(walk.eval(argument, scope)?);
    }
    let cost: usize = target.iter().chain(&arguments).map(weight).sum();
    let compiles = matches!(call.func_name.as_str(), "find" | "findAll");
    walk.spend(cost + if compiles { PATTERN_COST / 10 } else { 1 })?;
    if namespace.is_none()
        && let Some(outcome) = native(walk, &call.func_name, target.as_ref(), &arguments)
    {
        return outcome;
    }
    let receiver = match (namespace, target) {
        (Some(namespace), _) => Some(Receiver::Namespace(namespace)),
        (None, Some(target)) => Some(Receiver::Value(target)),
        (None, None) => None,
    };
    invoke(&walk.evaluator.functions, &call.func_name, receiver, arguments)
}

/// Macros that the parser left as calls, because it does not know them.
fn macros(
    walk: &mut Walk<'_>,
    name: &str,
    target: &Value,
    arguments: &[IdedExpr],
    scope: &Scope<'_>,
) -> Option<Outcome> {
    Some(match (name, arguments) {
        ("all" | "exists" | "existsOne" | "exists_one", [first, second, body]) => {
            quantifier(walk, name, target, [first, second], body, scope)
        }
        ("transformList", [first, second, rest @ ..]) => {
            transform(walk, target, [first, second], rest, scope)
                .map(|made| Value::List(Arc::new(made.into_iter().map(|(_, value)| value).collect())))
        }
        ("transformMap", [first, second, rest @ ..]) => {
            transform(walk, target, [first, second], rest, scope).and_then(into_map)
        }
        ("transformMapEntry", [first, second, rest @ ..]) => {
            transform(walk, target, [first, second], rest, scope).and_then(|made| {
                let mut entries = HashMap::new();
                for (_, value) in made {
                    let Value::Map(map) = value else { return Err(Fault::overload()) };
                    for (key, value) in map.map.iter() {
                        if entries.insert(key.clone(), value.clone()).is_some() {
                            return Err(Fault::text("insert failed: key already exists"));
                        }
                    }
                }
                Ok(Value::Map(Map { map: Arc::new(entries) }))
            })
        }
        ("sortBy", [variable, body]) => sort_by(walk, target, variable, body, scope),
        ("optMap" | "optFlatMap", [variable, body]) => {
            let held = as_optional(target)?;
            match held {
                None => Ok(optional(None)),
                Some(held) => identifier(variable).and_then(|variable| {
                    let held = Ok(held.clone());
                    let value = walk.eval(body, &Scope::new(Some(scope), variable, &held))?;
                    Ok(if name == "optMap" { optional(Some(value)) } else { value })
                }),
            }
        }
        _ => return None,
    })
}

fn quantifier(
    walk: &mut Walk<'_>,
    name: &str,
    target: &Value,
    variables: [&IdedExpr; 2],
    body: &IdedExpr,
    scope: &Scope<'_>,
) -> Outcome {
    let [first, second] = [identifier(variables[0])?, identifier(variables[1])?];
    let mut found = 0;
    let mut fault = None;
    walk.spend(weight(target))?;
    for (key, value) in pairs(target)? {
        let (key, value) = (Ok(key), Ok(value));
        let outer = Scope::new(Some(scope), first, &key);
        let holds = match walk.eval(body, &Scope::new(Some(&outer), second, &value)) {
            Ok(Value::Bool(holds)) => holds,
            Ok(_) => return Err(Fault::overload()),
            Err(Fault::Cost) => return Err(Fault::Cost),
            Err(other) => {
                fault.get_or_insert(other);
                continue;
            }
        };
        match (name, holds) {
            ("all", false) => return Ok(Value::Bool(false)),
            ("exists", true) => return Ok(Value::Bool(true)),
            (_, holds) => found += usize::from(holds),
        }
    }
    match (fault, name) {
        (Some(fault), _) => Err(fault),
        (None, "all") => Ok(Value::Bool(true)),
        (None, "exists") => Ok(Value::Bool(false)),
        (None, _) => Ok(Value::Bool(found == 1)),
    }
}

/// Each entry that passes the filter, if there is one, with its transformed value.
fn transform(
    walk: &mut Walk<'_>,
    target: &Value,
    variables: [&IdedExpr; 2],
    rest: &[IdedExpr],
    scope: &Scope<'_>,
) -> Result<Vec<(Value, Value)>, Fault> {
    let (filter, body) = match rest {
        [body] => (None, body),
        [filter, body] => (Some(filter), body),
        _ => return Err(Fault::overload()),
    };
    let [first, second] = [identifier(variables[0])?, identifier(variables[1])?];
    let mut made = Vec::new();
    walk.spend(weight(target))?;
    for (key, value) in pairs(target)? {
        let (bound_key, bound_value) = (Ok(key.clone()), Ok(value));
        let outer = Scope::new(Some(scope), first, &bound_key);
        let inner = Scope::new(Some(&outer), second, &bound_value);
        if let Some(filter) = filter {
            match walk.eval(filter, &inner)? {
                Value::Bool(true) => {}
                Value::Bool(false) => continue,
                _ => return Err(Fault::overload()),
            }
        }
        made.push((key, walk.eval(body, &inner)?));
    }
    Ok(made)
}

fn into_map(entries: Vec<(Value, Value)>) -> Outcome {
    let mut map = HashMap::with_capacity(entries.len());
    for (key, value) in entries {
        map.insert(operators::key_of(&key).ok_or_else(Fault::overload)?, value);
    }
    Ok(Value::Map(Map { map: Arc::new(map) }))
}

fn sort_by(
    walk: &mut Walk<'_>,
    target: &Value,
    variable: &IdedExpr,
    body: &IdedExpr,
    scope: &Scope<'_>,
) -> Outcome {
    let variable = identifier(variable)?;
    let mut keyed = Vec::new();
    for element in walk.elements(target)?.iter() {
        let bound = Ok(element.clone());
        keyed.push((walk.eval(body, &Scope::new(Some(scope), variable, &bound))?, element.clone()));
    }
    walk.spend(keyed.len())?;
    keyed.sort_by(|(a, _), (b, _)| operators::compare(a, b).unwrap_or(Ordering::Equal));
    Ok(Value::List(Arc::new(keyed.into_iter().map(|(_, element)| element).collect())))
}

/// Functions that the libraries do not have, or have with another meaning.
fn native(walk: &mut Walk<'_>, name: &str, target: Option<&Value>, arguments: &[Value]) -> Option<Outcome> {
    let flag = |holds: bool| Ok(Value::Bool(holds));
    Some(match (name, target, arguments) {
        ("size", Some(value), []) | ("size", None, [value]) => match value {
            // The size of a text is counted in characters, not in bytes.
            Value::String(text) => Ok(Value::Int(text.chars().count() as i64)),
            Value::Bytes(bytes) => Ok(Value::Int(bytes.len() as i64)),
            Value::List(items) => Ok(Value::Int(items.len() as i64)),
            Value::Map(map) => Ok(Value::Int(map.map.len() as i64)),
            _ => Err(Fault::overload()),
        },
        ("matches", Some(Value::String(text)), [Value::String(pattern)])
        | ("matches", None, [Value::String(text), Value::String(pattern)]) => {
            if !walk.evaluator.patterns.contains_key(pattern.as_str()) {
                if let Err(fault) = walk.spend(PATTERN_COST) {
                    return Some(Err(fault));
                }
                walk.evaluator.patterns.insert(pattern.to_string(), pattern::compile(pattern).ok());
            }
            match walk.evaluator.patterns.get(pattern.as_str()) {
                Some(Some(regex)) => flag(regex.is_match(text)),
                Some(None) | None => Err(Fault::text(format!("error parsing regexp: `{pattern}`"))),
            }
        }
        ("startsWith", Some(Value::String(text)), [Value::String(part)]) => {
            flag(text.starts_with(part.as_str()))
        }
        ("endsWith", Some(Value::String(text)), [Value::String(part)]) => flag(text.ends_with(part.as_str())),
        ("contains", Some(Value::String(text)), [Value::String(part)]) => flag(text.contains(part.as_str())),
        ("startsWith" | "endsWith" | "contains" | "matches", Some(_), [_]) => Err(Fault::overload()),
        ("type", None, [value]) => Ok(type_of(value)),
        ("dyn", None, [value]) => Ok(value.clone()),
        ("bool", None, [Value::Bool(holds)]) => flag(*holds),
        ("bool", None, [Value::String(text)]) => match text.as_str() {
            "true" | "True" | "TRUE" | "t" | "1" => flag(true),
            "false" | "False" | "FALSE" | "f" | "0" => flag(false),
            other => Err(Fault::text(format!("strconv.ParseBool: parsing \"{other}\": invalid syntax"))),
        },
        ("int", None, [Value::String(text)]) => text
            .parse()
            .map(Value::Int)
            .map_err(|_| Fault::text(format!("strconv.ParseInt: parsing \"{text}\": invalid syntax"))),
        ("double", None, [Value::String(text)]) => text
            .parse()
            .map(Value::Float)
            .map_err(|_| Fault::text(format!("strconv.ParseFloat: parsing \"{text}\": invalid syntax"))),
        ("hasValue", Some(value), []) => flag(as_optional(value)?.is_some()),
        ("value", Some(value), []) => {
            as_optional(value)?.cloned().ok_or_else(|| Fault::text("optional.none() dereference"))
        }
        ("orValue", Some(value), [other]) => Ok(as_optional(value)?.unwrap_or(other).clone()),
        ("or", Some(value), [other]) => {
            Ok(if as_optional(value)?.is_some() { value.clone() } else { other.clone() })
        }
        _ => return None,
    })
}

enum Receiver<'a> {
    Value(Value),
    Namespace(&'a str),
}

/// Calls a library function through the one door that the library has: an expression whose parts are already values.
fn invoke(
    functions: &Context<'static>,
    name: &str,
    receiver: Option<Receiver<'_>>,
    arguments: Vec<Value>,
) -> Outcome {
    let ident = |name: String| IdedExpr { id: 0, expr: Expr::Ident(name) };
    let first = match arguments.first() {
        Some(Value::String(text)) => text.to_string(),
        _ => String::new(),
    };
    let mut scope = functions.new_inner_scope();
    let mut args = Vec::with_capacity(arguments.len());
    for (position, argument) in arguments.into_iter().enumerate() {
        let name = format!("@{position}");
        scope.add_variable_from_value(name.as_str(), argument);
        args.push(ident(name));
    }
    let target = match receiver {
        None => None,
        Some(Receiver::Namespace(namespace)) => Some(Box::new(ident(namespace.to_owned()))),
        Some(Receiver::Value(value)) => {
            scope.add_variable_from_value("@target", value);
            Some(Box::new(ident("@target".to_owned())))
        }
    };
    let call = IdedExpr { id: 0, expr: Expr::Call(CallExpr { func_name: name.to_owned(), target, args }) };
    // A library that panics on an odd argument must not take the server with it.
    match catch_unwind(AssertUnwindSafe(|| Value::resolve(&call, &scope))) {
        Ok(outcome) => outcome.map_err(|error| match (name, fault(&error)) {
            ("url", Fault::Text(_)) => Fault::text(format!(
                "URL parse error during conversion from string: parse {}: invalid URI for request",
                wording::quoted(&first)
            )),
            (_, fault) => fault,
        }),
        Err(_) => Err(Fault::text(format!("the function '{name}' failed"))),
    }
}

fn fault(error: &ExecutionError) -> Fault {
    match error {
        ExecutionError::NoSuchOverload
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::NotSupportedAsMethod { .. }
        | ExecutionError::InvalidArgumentCount { .. }
        | ExecutionError::MissingArgumentOrTarget => Fault::overload(),
        ExecutionError::FunctionError { message, .. } => Fault::text(message.as_str()),
        other => Fault::text(other.to_string()),
    }
}

/// Every function that a rule may call, by its name alone.
pub(super) fn is_known(name: &str) -> bool {
    const LANGUAGE: &[&str] = &[
        "bool",
        "bytes",
        "contains",
        "double",
        "duration",
        "dyn",
        "endsWith",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getFullYear",
        "getHours",
        "getMilliseconds",
        "getMinutes",
        "getMonth",
        "getSeconds",
        "has",
        "int",
        "matches",
        "size",
        "startsWith",
        "string",
        "timestamp",
        "type",
        "uint",
    ];
    const OPTIONALS: &[&str] =
        &["hasValue", "none", "of", "ofNonZeroValue", "optFlatMap", "optMap", "or", "orValue", "value"];
    const TEXTS_AND_LISTS: &[&str] = &[
        "charAt",
        "distinct",
        "equivalent",
        "find",
        "findAll",
        "first",
        "flatten",
        "format",
        "indexOf",
        "intersects",
        "isSorted",
        "join",
        "last",
        "lastIndexOf",
        "lowerAscii",
        "max",
        "min",
        "quote",
        "range",
        "replace",
        "reverse",
        "slice",
        "sort",
        "sortBy",
        "split",
        "substring",
        "sum",
        "trim",
        "upperAscii",
    ];
    const KUBERNETES: &[&str] = &[
        "add",
        "asApproximateFloat",
        "asInteger",
        "cidr",
        "compareTo",
        "containsCIDR",
        "containsIP",
        "family",
        "getEscapedPath",
        "getHost",
        "getHostname",
        "getPort",
        "getQuery",
        "getScheme",
        "ip",
        "isCIDR",
        "isCanonical",
        "isGlobalUnicast",
        "isGreaterThan",
        "isIP",
        "isInteger",
        "isLessThan",
        "isLinkLocalMulticast",
        "isLinkLocalUnicast",
        "isLoopback",
        "isQuantity",
        "isSemver",
        "isURL",
        "isUnspecified",
        "major",
        "masked",
        "minor",
        "patch",
        "prefixLength",
        "quantity",
        "semver",
        "sign",
        "sub",
        "url",
        "byte",
        "date",
        "datetime",
        "dns1035Label",
        "dns1035LabelPrefix",
        "dns1123Label",
        "dns1123LabelPrefix",
        "dns1123Subdomain",
        "dns1123SubdomainPrefix",
        "labelValue",
        "named",
        "qualifiedName",
        "uri",
        "uuid",
        "validate",
    ];
    [LANGUAGE, OPTIONALS, TEXTS_AND_LISTS, KUBERNETES].iter().any(|names| names.contains(&name))
}
