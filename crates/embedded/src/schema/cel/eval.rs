//! Evaluating a rule: a walk over its parsed form that counts its steps and never goes deeper than the rule was found to be.
//!
//! The interpreter of the `cel` crate is not used for this. It has no cost limit, panics on parts of the language, and does not
//! know macros with two variables. Its values and its parser are, and the functions of `kube-cel`.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators as names,
};
use kube_cel::cel::objects::Map;
use kube_cel::cel::{Context, Value};
use regex::Regex;

use crate::schema::node::Node;

use super::functions;
use super::operators;
use super::values::{as_optional, optional, text, text_key};

/// What one rule may cost, in steps: about a tenth of a second.
pub(super) const CALL_LIMIT: u64 = 1_000_000;

/// Why a rule has no result.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fault {
    /// An operator or a function on values that it does not take.
    Overload,
    Cost,
    Text(String),
}

impl Fault {
    pub(super) fn overload() -> Self {
        Fault::Overload
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Fault::Text(text.into())
    }

    pub(super) fn message(&self) -> String {
        match self {
            Fault::Overload => "no such overload".to_owned(),
            Fault::Cost => "operation cancelled: actual cost limit exceeded".to_owned(),
            Fault::Text(text) => text.clone(),
        }
    }
}

pub(super) type Outcome = Result<Value, Fault>;

/// Names and what they stand for, innermost first. A name may stand for a fault, which matters to `all` and `exists`.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    parent: Option<&'a Scope<'a>>,
    name: &'a str,
    value: &'a Outcome,
}

impl<'a> Scope<'a> {
    pub(super) fn new(parent: Option<&'a Scope<'a>>, name: &'a str, value: &'a Outcome) -> Self {
        Self { parent, name, value }
    }

    pub(super) fn find(&self, name: &str) -> Option<&'a Outcome> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            if current.name == name {
                return Some(current.value);
            }
            scope = current.parent;
        }
        None
    }
}

/// Evaluates rules within one budget. Functions are registered, and patterns compiled, once for all of them.
pub(super) struct Evaluator {
    pub(super) functions: Context<'static>,
    pub(super) patterns: HashMap<String, Option<Regex>>,
    spent: u64,
}

/// The schema at each equality of a rule, where it is known.
pub(super) type KnownEqualities = HashMap<u64, Arc<Node>>;

impl Evaluator {
    pub(super) fn new() -> Self {
        Self { functions: functions::context(), patterns: HashMap::new(), spent: 0 }
    }

    /// The result of one expression and what it cost.
    pub(super) fn run(
        &mut self,
        expr: &IdedExpr,
        known: &KnownEqualities,
        scope: &Scope<'_>,
    ) -> (Outcome, u64) {
        self.spent = 0;
        let outcome = Walk { evaluator: self, known }.eval(expr, scope);
        (outcome, self.spent)
    }
}

pub(super) struct Walk<'e> {
    pub(super) evaluator: &'e mut Evaluator,
    known: &'e KnownEqualities,
}

impl Walk<'_> {
    pub(super) fn spend(&mut self, cost: usize) -> Result<(), Fault> {
        self.evaluator.spent = self.evaluator.spent.saturating_add(cost as u64);
        if self.evaluator.spent > CALL_LIMIT { Err(Fault::Cost) } else { Ok(()) }
    }

    pub(super) fn eval(&mut self, expr: &IdedExpr, scope: &Scope<'_>) -> Outcome {
        self.spend(1)?;
        match &expr.expr {
            Expr::Literal(literal) => Ok(literal_value(literal)),
            Expr::Ident(name) => match scope.find(name) {
                Some(outcome) => outcome.clone(),
                None => functions::type_named(name)
                    .ok_or_else(|| Fault::text(format!("undeclared reference to '{name}'"))),
            },
            Expr::Select(select) => self.select(&select.operand, &select.field, select.test, scope),
            Expr::Call(call) => self.call(expr.id, call, scope),
            Expr::List(list) => {
                let mut items = Vec::with_capacity(list.elements.len());
                for (position, element) in list.elements.iter().enumerate() {
                    let value = self.eval(element, scope)?;
                    match as_optional(&value).filter(|_| list.optional_indices.contains(&position)) {
                        Some(held) => items.extend(held.cloned()),
                        None => items.push(value),
                    }
                }
                Ok(Value::List(Arc::new(items)))
            }
            Expr::Map(map) => {
                let mut entries = HashMap::with_capacity(map.entries.len());
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { return Err(Fault::overload()) };
                    let key =
                        operators::key_of(&self.eval(&entry.key, scope)?).ok_or_else(Fault::overload)?;
                    let value = self.eval(&entry.value, scope)?;
                    match as_optional(&value).filter(|_| entry.optional) {
                        Some(Some(held)) => {
                            entries.insert(key, held.clone());
                        }
                        Some(None) => {}
                        None => {
                            entries.insert(key, value);
                        }
                    }
                }
                Ok(Value::Map(Map { map: Arc::new(entries) }))
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, scope),
            Expr::Struct(_) | Expr::Unspecified => Err(Fault::overload()),
        }
    }

    fn select(&mut self, operand: &IdedExpr, field: &str, test: bool, scope: &Scope<'_>) -> Outcome {
        let operand = self.eval(operand, scope)?;
        let (held, chained) = match as_optional(&operand) {
            Some(held) => (held, true),
            None => (Some(&operand), false),
        };
        let found = match held {
            Some(Value::Map(map)) => map.get(&text_key(field)).cloned(),
            Some(_) => return Err(Fault::overload()),
            None => None,
        };
        match (test, chained, found) {
            (true, _, found) => Ok(Value::Bool(found.is_some())),
            (false, true, found) => Ok(optional(found)),
            (false, false, Some(found)) => Ok(found),
            (false, false, None) => Err(Fault::text(format!("no such key: {field}"))),
        }
    }

    fn bool(&mut self, expr: &IdedExpr, scope: &Scope<'_>) -> Result<bool, Fault> {
        match self.eval(expr, scope)? {
            Value::Bool(flag) => Ok(flag),
            _ => Err(Fault::overload()),
        }
    }

    fn call(&mut self, id: u64, call: &CallExpr, scope: &Scope<'_>) -> Outcome {
        match (call.func_name.as_str(), call.args.as_slice()) {
            (names::CONDITIONAL, [condition, yes, no]) => {
                let chosen = if self.bool(condition, scope)? { yes } else { no };
                self.eval(chosen, scope)
            }
            (names::LOGICAL_AND, [a, b]) => self.junction(a, b, false, scope),
            (names::LOGICAL_OR, [a, b]) => self.junction(a, b, true, scope),
            (names::LOGICAL_NOT, [a]) => Ok(Value::Bool(!self.bool(a, scope)?)),
            (names::NOT_STRICTLY_FALSE, [a]) => match self.bool(a, scope) {
                Err(Fault::Cost) => Err(Fault::Cost),
                other => Ok(Value::Bool(other.unwrap_or(true))),
            },
            (names::NEGATE, [a]) => operators::negate(&self.eval(a, scope)?),
            (names::EQUALS, [a, b]) => Ok(Value::Bool(self.equality(id, a, b, scope)?)),
            (names::NOT_EQUALS, [a, b]) => Ok(Value::Bool(!self.equality(id, a, b, scope)?)),
            (names::INDEX, [container, at]) => self.index(container, at, scope),
            (names::OPT_INDEX, [container, at]) | (names::OPT_SELECT, [container, at]) => {
                let container = self.eval(container, scope)?;
                let at = self.eval(at, scope)?;
                let held = as_optional(&container).unwrap_or(Some(&container));
                Ok(optional(held.and_then(|held| operators::index(held, &at).ok())))
            }
            (operator, [a, b]) if call.target.is_none() && operator.contains(['_', '@']) => {
                let (a, b) = (self.eval(a, scope)?, self.eval(b, scope)?);
                self.spend(functions::weight(&a) + functions::weight(&b))?;
                operators::binary(operator, &a, &b).unwrap_or_else(|| Err(Fault::overload()))
            }
            _ => functions::call(self, call, scope),
        }
    }

    fn index(&mut self, container: &IdedExpr, at: &IdedExpr, scope: &Scope<'_>) -> Outcome {
        let container = self.eval(container, scope)?;
        let at = self.eval(at, scope)?;
        match as_optional(&container) {
            Some(held) => Ok(optional(held.and_then(|held| operators::index(held, &at).ok()))),
            None => operators::index(&container, &at),
        }
    }

    fn equality(&mut self, id: u64, a: &IdedExpr, b: &IdedExpr, scope: &Scope<'_>) -> Result<bool, Fault> {
        let (a, b) = (self.eval(a, scope)?, self.eval(b, scope)?);
        self.spend(functions::weight(&a).min(functions::weight(&b)))?;
        Ok(match self.known.get(&id) {
            Some(node) => operators::equal_in(node, &a, &b),
            None => operators::equal(&a, &b),
        })
    }

    /// `&&` and `||` are commutative in their faults: the side that decides wins over the side that fails.
    fn junction(&mut self, a: &IdedExpr, b: &IdedExpr, deciding: bool, scope: &Scope<'_>) -> Outcome {
        let left = self.bool(a, scope);
        match left {
            Ok(left) if left == deciding => return Ok(Value::Bool(deciding)),
            Err(Fault::Cost) => return Err(Fault::Cost),
            Ok(_) | Err(_) => {}
        }
        let right = self.bool(b, scope);
        match (left, right) {
            (_, Ok(right)) if right == deciding => Ok(Value::Bool(deciding)),
            (_, Err(Fault::Cost)) => Err(Fault::Cost),
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
            (Ok(_), Ok(_)) => Ok(Value::Bool(!deciding)),
        }
    }

    /// The macros that the parser expands. Each element costs what its step costs, so the budget bounds the loops.
    fn comprehension(&mut self, macro_: &ComprehensionExpr, scope: &Scope<'_>) -> Outcome {
        let range = self.eval(&macro_.iter_range, scope)?;
        let elements = self.elements(&range)?;
        if let Expr::List(list) = &macro_.accu_init.expr
            && list.elements.is_empty()
            && macro_.result.expr == Expr::Ident(macro_.accu_var.clone())
        {
            return self.collect(macro_, &elements, scope);
        }
        let mut accumulated = self.eval(&macro_.accu_init, scope);
        for element in elements.iter() {
            let element = Ok(element.clone());
            let next = {
                let outer = Scope::new(Some(scope), &macro_.accu_var, &accumulated);
                if !self.bool(&macro_.loop_cond, &outer)? {
                    break;
                }
                let inner = Scope::new(Some(&outer), &macro_.iter_var, &element);
                self.eval(&macro_.loop_step, &inner)
            };
            if next == Err(Fault::Cost) {
                return next;
            }
            accumulated = next;
        }
        self.eval(&macro_.result, &Scope::new(Some(scope), &macro_.accu_var, &accumulated))
    }

    /// What a macro with one variable runs over: the items of a list, which are shared, or the keys of a map, which are copied
    /// and so paid for at once.
    pub(super) fn elements(&mut self, range: &Value) -> Result<Arc<Vec<Value>>, Fault> {
        match range {
            Value::List(items) => Ok(items.clone()),
            Value::Map(map) => {
                self.spend(map.map.len())?;
                let mut keys: Vec<_> = map.map.keys().collect();
                keys.sort();
                Ok(Arc::new(keys.into_iter().map(operators::value_of_key).collect()))
            }
            _ => Err(Fault::overload()),
        }
    }

    /// `map` and `filter` grow a list; growing it in place keeps them linear.
    fn collect(&mut self, macro_: &ComprehensionExpr, elements: &[Value], scope: &Scope<'_>) -> Outcome {
        let mut collected = Vec::new();
        for element in elements {
            let element = Ok(element.clone());
            let inner = Scope::new(Some(scope), &macro_.iter_var, &element);
            let mut step = &macro_.loop_step;
            loop {
                match &step.expr {
                    Expr::Ident(name) if *name == macro_.accu_var => break,
                    Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
                        (names::CONDITIONAL, [condition, yes, no]) => {
                            step = if self.bool(condition, &inner)? { yes } else { no };
                        }
                        (names::ADD, [_, addition]) => {
                            match self.eval(addition, &inner)? {
                                Value::List(added) => collected.extend(added.iter().cloned()),
                                _ => return Err(Fault::overload()),
                            }
                            break;
                        }
                        _ => return Err(Fault::overload()),
                    },
                    _ => return Err(Fault::overload()),
                }
            }
        }
        Ok(Value::List(Arc::new(collected)))
    }
}

/// What a macro with two variables runs over: index and item, key and value.
pub(super) fn pairs(range: &Value) -> Result<Vec<(Value, Value)>, Fault> {
    match range {
        Value::List(items) => {
            Ok(items.iter().enumerate().map(|(at, item)| (Value::Int(at as i64), item.clone())).collect())
        }
        Value::Map(map) => {
            let mut entries: Vec<_> = map.map.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            Ok(entries
                .into_iter()
                .map(|(key, value)| (operators::value_of_key(key), value.clone()))
                .collect())
        }
        _ => Err(Fault::overload()),
    }
}

fn literal_value(literal: &LiteralValue) -> Value {
    match literal {
        LiteralValue::Boolean(flag) => Value::Bool(*flag.inner()),
        LiteralValue::Int(number) => Value::Int(*number.inner()),
        LiteralValue::UInt(number) => Value::UInt(*number.inner()),
        LiteralValue::Double(number) => Value::Float(*number.inner()),
        LiteralValue::String(literal) => text(literal.inner()),
        LiteralValue::Bytes(bytes) => Value::Bytes(Arc::new(bytes.inner().to_vec())),
        LiteralValue::Null => Value::Null,
    }
}
