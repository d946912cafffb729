//! Whether a rule makes sense where it stands: its names and fields exist, its operators take their operands, its result is what is
//! wanted. The types of functions' arguments are known only in part; the rest is found when the rule runs.

use std::sync::Arc;

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators as names};

use crate::schema::node::{Node, Type};
use crate::schema::pattern;

use super::eval::KnownEqualities;
use super::functions;
use super::kinds::{self, BOOL, Kind, STRING};
use super::source::{Refusal, children};
use super::tokens::{Position, Role, Tokens, issue};
use super::values::{Place, escape};

/// What an expression has to yield.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Wanted {
    Bool,
    Text,
}

/// Whether `oldSelf` is there at all times, or only perhaps.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum OldSelf {
    Plain,
    Optional,
}

pub(super) struct Checked {
    pub(super) known: KnownEqualities,
    pub(super) uses_old_self: bool,
}

pub(super) fn check(
    expr: &IdedExpr,
    source: &str,
    node: &Node,
    place: Place,
    old_self: OldSelf,
    wanted: Wanted,
) -> Result<Checked, Refusal> {
    let mut checker = Checker {
        tokens: Tokens::new(source),
        issues: Vec::new(),
        bad_pattern: None,
        checked: Checked { known: KnownEqualities::new(), uses_old_self: false },
    };
    let self_place = Some((node, place));
    let self_kind = Kind::of(node, place).unwrap_or(Kind::Dyn);
    let old = match old_self {
        OldSelf::Plain => Seen { kind: self_kind.clone(), place: self_place, at: (1, 1) },
        OldSelf::Optional => Seen { kind: Kind::Dyn, place: None, at: (1, 1) },
    };
    let root = Names { parent: None, name: "oldSelf", seen: old };
    let scope = Names {
        parent: Some(&root),
        name: "self",
        seen: Seen { kind: self_kind, place: self_place, at: (1, 1) },
    };
    let result = checker.infer(expr, &scope);
    if !checker.issues.is_empty() {
        checker.issues.sort();
        let texts = checker.issues.iter().map(|(at, message)| issue(source, *at, message));
        return Err(Refusal::Issues(texts.collect::<Vec<_>>().join("\n")));
    }
    let wanted = match wanted {
        Wanted::Bool => BOOL,
        Wanted::Text => STRING,
    };
    match (result.kind.may_be(&wanted), checker.bad_pattern) {
        (false, _) => Err(Refusal::WrongResult),
        (true, Some(error)) => Err(Refusal::Pattern(error)),
        (true, None) => Ok(checker.checked),
    }
}

/// What is known of one part of an expression.
#[derive(Clone)]
struct Seen<'n> {
    kind: Kind<'n>,
    /// Its place in the schema, if it is one.
    place: Option<(&'n Node, Place)>,
    at: Position,
}

impl<'n> Seen<'n> {
    fn new(kind: Kind<'n>, at: Position) -> Self {
        Self { kind, place: None, at }
    }

    fn of_node(node: &'n Node, at: Position) -> Self {
        let place = Place::of(node);
        Self { kind: Kind::of(node, place).unwrap_or(Kind::Dyn), place: Some((node, place)), at }
    }

    /// An item or a value of it, as a macro binds it.
    fn inside(&self, kind: Kind<'n>) -> Self {
        let inner = self.place.and_then(|(node, _)| match node.kind {
            Some(Type::Array) => node.items.as_deref(),
            Some(Type::Object) => node.additional.as_deref().filter(|_| node.properties.is_empty()),
            _ => None,
        });
        match (inner, &kind) {
            (Some(inner), Kind::List(_) | Kind::Map(_) | Kind::Object(..)) => Self::of_node(inner, self.at),
            (_, _) => Self::new(kind, self.at),
        }
    }
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

    /// Whether the name is the outermost of that name, and no variable of a macro.
    fn is_root(&self, name: &str) -> bool {
        match self.parent {
            None => self.name == name,
            Some(parent) => self.name != name && parent.is_root(name),
        }
    }
}

struct Checker<'s> {
    tokens: Tokens<'s>,
    issues: Vec<(Position, String)>,
    bad_pattern: Option<String>,
    checked: Checked,
}

impl Checker<'_> {
    fn undeclared<'n>(&mut self, at: Position, name: &str) -> Seen<'n> {
        self.issues.push((at, format!("undeclared reference to '{name}' (in container '')")));
        Seen::new(Kind::Dyn, at)
    }

    /// Parts are looked at in the order in which they stand in the text, so that each finds its own place.
    fn infer<'n>(&mut self, expr: &IdedExpr, scope: &Names<'_, 'n>) -> Seen<'n> {
        match &expr.expr {
            Expr::Unspecified => Seen::new(Kind::Dyn, (1, 1)),
            Expr::Literal(literal) => {
                let at = match literal {
                    LiteralValue::Boolean(flag) => self.tokens.next(Role::Name, &flag.inner().to_string()),
                    LiteralValue::Null => self.tokens.next(Role::Name, "null"),
                    _ => self.tokens.next(Role::Literal, ""),
                };
                Seen::new(Kind::Scalar(literal_kind(literal)), at)
            }
            Expr::Ident(name) => {
                let at = self.tokens.next(Role::Name, name);
                match scope.find(name) {
                    Some(found) => {
                        self.checked.uses_old_self |= name == "oldSelf" && scope.is_root("oldSelf");
                        Seen { at, ..found.clone() }
                    }
                    None if functions::type_named(name).is_some() => Seen::new(Kind::Scalar("type"), at),
                    None => self.undeclared(at, name),
                }
            }
            Expr::Select(select) => {
                let operand = self.infer(&select.operand, scope);
                let found = self.field(&operand, &select.field);
                if select.test { Seen::new(BOOL, found.at) } else { found }
            }
            Expr::Call(call) => self.call(expr.id, call, scope),
            Expr::List(list) => {
                let mut item = None;
                let mut at = (1, 1);
                for element in &list.elements {
                    let seen = self.infer(element, scope);
                    at = seen.at;
                    item = Some(match item {
                        None => seen.kind,
                        Some(first) if seen.kind.may_be(&first) => first,
                        Some(_) => Kind::Dyn,
                    });
                }
                Seen::new(Kind::List(Box::new(item.unwrap_or(Kind::Dyn))), at)
            }
            Expr::Map(_) => {
                for child in children(expr) {
                    self.infer(child, scope);
                }
                Seen::new(Kind::Map(Box::new(Kind::Dyn)), (1, 1))
            }
            Expr::Struct(message) => {
                let at = self.tokens.next(Role::Name, &message.type_name);
                self.undeclared(at, &message.type_name)
            }
            Expr::Comprehension(macro_) => self.comprehension(macro_, scope),
        }
    }

    fn field<'n>(&mut self, operand: &Seen<'n>, field: &str) -> Seen<'n> {
        let at = self.tokens.next(Role::Field, field);
        match &operand.kind {
            Kind::Dyn => Seen::new(Kind::Dyn, at),
            Kind::Metadata if matches!(field, "name" | "generateName") => Seen::new(STRING, at),
            Kind::Object(_, Place::Resource) if matches!(field, "apiVersion" | "kind") => {
                Seen::new(STRING, at)
            }
            Kind::Object(_, Place::Resource) if field == "metadata" => Seen::new(Kind::Metadata, at),
            Kind::Map(value) => match operand.place {
                Some(_) => Seen { at, ..operand.inside((**value).clone()) },
                None => Seen::new((**value).clone(), at),
            },
            Kind::Object(node, _) => {
                let found = node.properties.iter().find(|(name, property)| {
                    let shown = Kind::of(property, Place::of(property)).is_some();
                    shown && escape(name).is_some_and(|escaped| escaped == field)
                });
                match found {
                    Some((_, property)) => Seen::of_node(property, at),
                    None => self.undefined(at, field),
                }
            }
            Kind::Metadata => self.undefined(at, field),
            kind @ (Kind::List(_) | Kind::Scalar(_)) => {
                self.issues.push((at, format!("type '{kind}' does not support field selection")));
                Seen::new(Kind::Dyn, at)
            }
        }
    }

    fn undefined<'n>(&mut self, at: Position, field: &str) -> Seen<'n> {
        self.issues.push((at, format!("undefined field '{field}'")));
        Seen::new(Kind::Dyn, at)
    }

    fn call<'n>(&mut self, id: u64, call: &CallExpr, scope: &Names<'_, 'n>) -> Seen<'n> {
        let name = call.func_name.as_str();
        if call.target.is_none()
            && let Some(symbol) = symbol(name)
        {
            return self.operator(id, name, symbol, &call.args, scope);
        }
        let namespace = match call.target.as_ref().map(|target| &target.expr) {
            Some(Expr::Ident(prefix)) => functions::is_namespace(prefix) && scope.find(prefix).is_none(),
            _ => false,
        };
        let target = match &call.target {
            Some(target) if !namespace => Some(self.infer(target, scope)),
            _ => None,
        };
        let at = self.tokens.next(Role::Function, name);
        if let Some(seen) = target.as_ref().and_then(|target| self.binding_macro(call, target, scope)) {
            return Seen { at, ..seen };
        }
        if !functions::is_known(name) {
            self.undeclared(at, name);
        }
        let arguments: Vec<Seen<'n>> = call.args.iter().map(|argument| self.infer(argument, scope)).collect();
        if let ("matches" | "find" | "findAll", Some(Expr::Literal(LiteralValue::String(text)))) =
            (name, call.args.last().map(|argument| &argument.expr))
            && let Err(error) = pattern::compile(text.inner())
        {
            self.bad_pattern.get_or_insert(error);
        }
        let operands: Vec<Kind<'n>> = target.iter().chain(&arguments).map(|seen| seen.kind.clone()).collect();
        match kinds::result(name, &operands) {
            // The same name means something else with a prefix, as in `sets.contains`.
            _ if namespace => Seen::new(Kind::Dyn, at),
            Ok(kind) => Seen::new(kind, at),
            Err(()) => {
                let shown: Vec<String> = arguments.iter().map(|seen| seen.kind.to_string()).collect();
                let target = target.map_or(String::new(), |target| format!("{}.", target.kind));
                let applied = format!("{target}({})", shown.join(", "));
                self.issues
                    .push((at, format!("found no matching overload for '{name}' applied to '{applied}'")));
                Seen::new(Kind::Dyn, at)
            }
        }
    }

    fn operator<'n>(
        &mut self,
        id: u64,
        name: &str,
        symbol: (Role, &str),
        operands: &[IdedExpr],
        scope: &Names<'_, 'n>,
    ) -> Seen<'n> {
        let prefix = operands.len() == 1;
        let mut at = if prefix { self.tokens.next(symbol.0, symbol.1) } else { (1, 1) };
        let mut seen = Vec::with_capacity(operands.len());
        for (position, operand) in operands.iter().enumerate() {
            seen.push(self.infer(operand, scope));
            if position == 0 && !prefix {
                at = self.tokens.next(symbol.0, symbol.1);
            }
        }
        if matches!(name, names::LOGICAL_AND | names::LOGICAL_OR) {
            for operand in &seen {
                self.expect_bool(operand);
            }
            return Seen::new(BOOL, at);
        }
        if let (names::EQUALS | names::NOT_EQUALS, Some((node, _))) =
            (name, seen.first().and_then(|seen| seen.place))
        {
            self.checked.known.insert(id, Arc::new(node.clone()));
        }
        let kinds: Vec<Kind<'n>> = seen.iter().map(|seen| seen.kind.clone()).collect();
        match (kinds::result(name, &kinds), seen.first()) {
            (Ok(kind), Some(container)) if name == names::INDEX => Seen { at, ..container.inside(kind) },
            (Ok(kind), _) => Seen::new(kind, at),
            (Err(()), _) => {
                let shown: Vec<String> = kinds.iter().map(ToString::to_string).collect();
                let applied = shown.join(", ");
                self.issues
                    .push((at, format!("found no matching overload for '{name}' applied to '({applied})'")));
                Seen::new(Kind::Dyn, at)
            }
        }
    }

    fn expect_bool(&mut self, seen: &Seen<'_>) {
        if !seen.kind.may_be(&BOOL) {
            self.issues.push((seen.at, format!("expected type 'bool' but found '{}'", seen.kind)));
        }
    }

    /// The macros that the parser expands: what it adds to them has no place in the text, and is not looked at.
    fn comprehension<'n>(&mut self, macro_: &ComprehensionExpr, scope: &Names<'_, 'n>) -> Seen<'n> {
        let range = self.infer(&macro_.iter_range, scope);
        let at = self.tokens.next(Role::Name, &macro_.iter_var);
        let bound = range.inside(range.kind.element());
        let inner = Names { parent: Some(scope), name: &macro_.iter_var, seen: bound.clone() };
        let synthetic = |expr: &IdedExpr| expr.expr == Expr::Ident(macro_.accu_var.clone());
        let Expr::Call(step) = &macro_.loop_step.expr else { return Seen::new(Kind::Dyn, at) };
        let added = |expr: &IdedExpr| match &expr.expr {
            Expr::Call(add) => match add.args.as_slice() {
                [_, addition] => match &addition.expr {
                    Expr::List(list) => list.elements.first().cloned(),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
        match (step.func_name.as_str(), step.args.as_slice()) {
            (names::LOGICAL_AND | names::LOGICAL_OR, [accumulated, predicate]) if synthetic(accumulated) => {
                let predicate = self.infer(predicate, &inner);
                self.expect_bool(&predicate);
                Seen::new(BOOL, at)
            }
            (names::ADD, [_, _]) => {
                let item = added(&macro_.loop_step).map(|item| self.infer(&item, &inner).kind);
                Seen::new(Kind::List(Box::new(item.unwrap_or(Kind::Dyn))), at)
            }
            (names::CONDITIONAL, [predicate, taken, _]) => {
                let predicate = self.infer(predicate, &inner);
                self.expect_bool(&predicate);
                match added(taken) {
                    // Of exists_one only the predicate is in the text, of filter the items are the list's own.
                    None => Seen::new(BOOL, at),
                    Some(item) if item.expr == Expr::Ident(macro_.iter_var.clone()) => Seen {
                        at,
                        kind: Kind::List(Box::new(bound.kind)),
                        place: range.place.filter(|_| !matches!(range.kind, Kind::Map(_))),
                    },
                    Some(item) => {
                        let item = self.infer(&item, &inner).kind;
                        Seen::new(Kind::List(Box::new(item)), at)
                    }
                }
            }
            _ => Seen::new(Kind::Dyn, at),
        }
    }

    /// Macros whose arguments name variables, and which the parser left as calls.
    fn binding_macro<'n>(
        &mut self,
        call: &CallExpr,
        target: &Seen<'n>,
        scope: &Names<'_, 'n>,
    ) -> Option<Seen<'n>> {
        let ident = |expr: &IdedExpr| match &expr.expr {
            Expr::Ident(name) => Some(name.clone()),
            _ => None,
        };
        match (call.func_name.as_str(), call.args.as_slice()) {
            ("sortBy" | "optMap" | "optFlatMap", [name, body]) => {
                let name = ident(name)?;
                self.tokens.next(Role::Name, &name);
                let seen = target.inside(target.kind.element());
                self.infer(body, &Names { parent: Some(scope), name: &name, seen });
                Some(Seen::new(Kind::Dyn, target.at))
            }
            (
                macro_ @ ("all" | "exists" | "existsOne" | "exists_one" | "transformList" | "transformMap"
                | "transformMapEntry"),
                [first, second, bodies @ ..],
            ) if !bodies.is_empty() => {
                let (first, second) = (ident(first)?, ident(second)?);
                self.tokens.next(Role::Name, &first);
                self.tokens.next(Role::Name, &second);
                let key = match &target.kind {
                    Kind::List(_) => kinds::INT,
                    Kind::Map(_) => STRING,
                    _ => Kind::Dyn,
                };
                let outer = Names { parent: Some(scope), name: &first, seen: Seen::new(key, target.at) };
                let seen = target.inside(target.kind.value());
                let inner = Names { parent: Some(&outer), name: &second, seen };
                let transforms = macro_.starts_with("transform");
                for body in bodies {
                    let seen = self.infer(body, &inner);
                    if !transforms {
                        self.expect_bool(&seen);
                    }
                }
                Some(Seen::new(if transforms { Kind::Dyn } else { BOOL }, target.at))
            }
            _ => None,
        }
    }
}

fn literal_kind(literal: &LiteralValue) -> &'static str {
    match literal {
        LiteralValue::Boolean(_) => "bool",
        LiteralValue::Bytes(_) => "bytes",
        LiteralValue::Double(_) => "double",
        LiteralValue::Int(_) => "int",
        LiteralValue::Null => "null",
        LiteralValue::String(_) => "string",
        LiteralValue::UInt(_) => "uint",
    }
}

/// How an operator is written, if the function is one.
fn symbol(name: &str) -> Option<(Role, &'static str)> {
    Some(match name {
        names::CONDITIONAL => (Role::Operator, "?"),
        names::LOGICAL_AND => (Role::Operator, "&&"),
        names::LOGICAL_OR => (Role::Operator, "||"),
        names::LOGICAL_NOT => (Role::Operator, "!"),
        names::NEGATE | names::SUBSTRACT => (Role::Operator, "-"),
        names::ADD => (Role::Operator, "+"),
        names::MULTIPLY => (Role::Operator, "*"),
        names::DIVIDE => (Role::Operator, "/"),
        names::MODULO => (Role::Operator, "%"),
        names::EQUALS => (Role::Operator, "=="),
        names::NOT_EQUALS => (Role::Operator, "!="),
        names::GREATER_EQUALS => (Role::Operator, ">="),
        names::LESS_EQUALS => (Role::Operator, "<="),
        names::GREATER => (Role::Operator, ">"),
        names::LESS => (Role::Operator, "<"),
        names::IN => (Role::Operator, "in"),
        names::INDEX => (Role::Index, ""),
        names::OPT_INDEX | names::OPT_SELECT => (Role::Operator, "?"),
        _ => return None,
    })
}
