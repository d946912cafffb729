//! `x-kubernetes-validations`: rules in the Common Expression Language, compiled once per place and evaluated on every write.

mod checker;
mod cost;
mod eval;
mod fields;
mod functions;
mod kinds;
mod operators;
mod source;
mod tokens;
mod values;

use serde_json::Value;

use super::correlate::{Correlated, KeyedItems};
use super::error::{ErrorKind, FieldError, NO_PATH, child, index, key};
use super::node::{ListType, Node, Rule, Type};
use super::wording::{self, MAX_DEPTH};

use checker::{OldSelf, Wanted};
use eval::{Evaluator, Fault, Outcome, Scope};
use source::{Program, Refusal};

pub(super) use fields::field_path;
pub(super) use values::Place;

/// What all rules of one object may cost together, in steps.
const BUDGET: u64 = 10_000_000;
const MAX_MESSAGE: usize = 5 * 1024;

/// A rule ready to be evaluated, or why it cannot be.
pub(super) struct Compiled {
    rule: Rule,
    program: Result<Program, String>,
    message: Option<Result<Program, String>>,
    field_path: Option<String>,
}

impl Compiled {
    fn uses_old_self(&self) -> bool {
        self.program.as_ref().is_ok_and(|program| program.uses_old_self)
    }

    /// What stands for the rule in a message about it.
    fn name(&self) -> &str {
        self.rule.message.as_deref().unwrap_or(&self.rule.rule).trim()
    }
}

/// Compiles the rules of one place.
pub(super) fn compile(node: &Node, place: Place) -> Vec<Compiled> {
    let one = |rule: &Rule| {
        let old_self = if rule.optional_old_self { OldSelf::Optional } else { OldSelf::Plain };
        let build = |text: &str, wanted: Wanted, prefix: &str, wrong_result: &str| {
            source::compile(text, node, place, old_self, wanted).map_err(|refusal| match refusal {
                Refusal::Issues(issues) => format!("{prefix}compilation failed: {issues}"),
                Refusal::WrongResult => wrong_result.to_owned(),
                Refusal::Pattern(error) => format!("program instantiation failed: {error}"),
            })
        };
        Compiled {
            program: build(&rule.rule, Wanted::Bool, "", "cel expression must evaluate to a bool"),
            message: rule.message_expression.as_ref().map(|text| {
                let wrong_result = "messageExpression must evaluate to a string";
                build(text, Wanted::Text, "messageExpression ", wrong_result)
            }),
            field_path: rule.field_path.as_ref().and_then(|path| field_path(node, path)),
            rule: rule.clone(),
        }
    };
    node.validations.iter().map(one).collect()
}

/// Whether a place or anything below it has rules.
pub(super) fn has_rules(node: &Node) -> bool {
    node.has_rules(|| {
        !node.validations.is_empty()
            || node.properties.values().any(|property| has_rules(property))
            || node.items.as_deref().is_some_and(has_rules)
            || node.additional.as_deref().is_some_and(has_rules)
    })
}

/// The rules of a definition that do not compile, or may not stand where they do.
pub(super) fn compile_faults(node: &Node, path: &str) -> Vec<FieldError> {
    let mut faults = Faults { errors: Vec::new(), total: 0, dearest: Vec::new() };
    faults.below(node, Around { place: Place::Resource, path, uncorrelatable: None, occurs: Some(1) });
    faults.end(path)
}

/// What is wrong with the rules of one version.
struct Faults {
    errors: Vec<FieldError>,
    /// What all rules together may cost.
    total: u64,
    /// The rules that cost the most, the dearest first.
    dearest: Vec<(u64, String)>,
}

/// Where a place stands.
#[derive(Clone, Copy)]
struct Around<'a> {
    place: Place,
    path: &'a str,
    /// The list around it whose old items cannot be told.
    uncorrelatable: Option<&'a str>,
    /// How often it may occur; none below a list or map without a bound.
    occurs: Option<u64>,
}

impl Faults {
    fn end(mut self, path: &str) -> Vec<FieldError> {
        if self.total > cost::TOTAL_LIMIT {
            let each =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            self.errors.extend(self.dearest.into_iter().map(|(_, path)| FieldError::forbidden(path, each)));
            let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
            self.errors
                .push(FieldError::forbidden(path, cost::complaint(what, self.total, cost::TOTAL_LIMIT)));
        }
        self.errors
    }

    /// Refuses what costs too much by itself, and remembers the rest.
    fn spend(&mut self, what: &str, cost: u64, path: String) {
        if cost > cost::RULE_LIMIT {
            self.errors
                .push(FieldError::forbidden(path.as_str(), cost::complaint(what, cost, cost::RULE_LIMIT)));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= cost::TOTAL_LIMIT / 100 {
            self.dearest.push((cost, path));
            self.dearest.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.dearest.truncate(4);
        }
    }

    fn below(&mut self, node: &Node, around: Around<'_>) {
        if !has_rules(node) {
            return;
        }
        let Around { place, path, uncorrelatable, occurs } = around;
        let inner = occurs.zip(cost::multiplies(node)).map(|(occurs, times)| occurs.saturating_mul(times));
        let inside = |node: &Node, path: &str, uncorrelatable: Option<&str>, faults: &mut Faults| {
            faults.below(node, Around { place: Place::of(node), path, uncorrelatable, occurs: inner });
        };
        if let Some(values) = &node.additional {
            inside(values, &child(path, "additionalProperties"), uncorrelatable, self);
        }
        for (name, property) in &node.properties {
            inside(property, &key(&child(path, "properties"), name), uncorrelatable, self);
        }
        if let Some(items) = &node.items {
            // Only a list of type map tells which old item a new one replaces.
            let within = match node.list_type {
                ListType::Map => uncorrelatable,
                ListType::Atomic | ListType::Set => uncorrelatable.or(Some(path)),
            };
            inside(items, &child(path, "items"), within, self);
        }
        let occurs = occurs.unwrap_or_else(|| cost::cardinality(node, place));
        for (position, compiled) in node.rules(place).iter().enumerate() {
            let rule_path = index(&child(path, "x-kubernetes-validations"), position);
            self.rule(node, place, compiled, &rule_path, uncorrelatable, occurs);
        }
    }

    fn rule(
        &mut self,
        node: &Node,
        place: Place,
        compiled: &Compiled,
        rule_path: &str,
        uncorrelatable: Option<&str>,
        occurs: u64,
    ) {
        let at = |name: &str| child(rule_path, name);
        let complain = |place: String, detail: &str| FieldError {
            value: None,
            ..FieldError::invalid(place, "", format!("{}: {detail}", show_rule(&compiled.rule)))
        };
        match &compiled.program {
            Err(detail) => self.errors.push(complain(at("rule"), detail)),
            Ok(program) => {
                let cost = cost::estimate(&program.expr, node, place).saturating_mul(occurs);
                self.spend("estimated rule cost", cost, at("rule"));
            }
        }
        match &compiled.message {
            Some(Err(detail)) => self.errors.push(complain(at("messageExpression"), detail)),
            Some(Ok(program)) => {
                let cost = cost::estimate(&program.expr, node, place);
                self.spend("estimated messageExpression cost", cost, at("messageExpression"));
            }
            None => {}
        }
        match (compiled.uses_old_self(), uncorrelatable) {
            (true, Some(within)) => self.errors.push(FieldError::invalid(
                at("rule"),
                compiled.rule.rule.as_str(),
                format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"),
            )),
            (false, _) if compiled.rule.optional_old_self && compiled.program.is_ok() => {
                let detail = "may not be set if oldSelf is not used in rule";
                self.errors.push(FieldError::invalid(at("optionalOldSelf"), true, detail));
            }
            (_, _) => {}
        }
    }
}

/// A rule as kube-apiserver shows it, in the order of its own fields.
fn show_rule(rule: &Rule) -> String {
    let text = |text: Option<&str>| wording::json(&Value::from(text.unwrap_or_default()));
    let reason = rule.reason.as_deref().map_or("null".to_owned(), |reason| text(Some(reason)));
    let optional = if rule.optional_old_self { "true" } else { "null" };
    format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{reason},"FieldPath":{},"OptionalOldSelf":{optional}}}"#,
        text(Some(&rule.rule)),
        text(rule.message.as_deref()),
        text(rule.message_expression.as_deref()),
        text(rule.field_path.as_deref()),
    )
}

/// The rules that an object breaks. With `old`, rules about the change are evaluated too, and others only where it changed.
pub(super) fn check(node: &Node, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let correlated = old.map(|old| Correlated::new(node, new, old));
    let mut run = Run { evaluator: Evaluator::new(), errors: Vec::new(), remaining: BUDGET };
    let ratchet = Ratchet { current: correlated.as_ref(), nearest: None };
    // Out of budget, what was found so far is reported.
    let _ = run.visit(node, Place::Resource, "", new, old, ratchet, 0);
    run.errors
}

/// The rules that a default breaks, as a new value and as one that stays.
pub(super) fn check_default(node: &Node, default: &Value, path: &str) -> Vec<FieldError> {
    if !has_rules(node) {
        return Vec::new();
    }
    let mut run = Run { evaluator: Evaluator::new(), errors: Vec::new(), remaining: BUDGET };
    let ratchet = Ratchet { current: None, nearest: None };
    for old in [Some(default), None] {
        if run.errors.is_empty() {
            let _ = run.visit(node, Place::of(node), path, default, old, ratchet, 0);
        }
    }
    run.errors
}

/// What tells whether the value at a place is what it was; where it cannot be told, what tells of the place around it.
#[derive(Clone, Copy)]
struct Ratchet<'r, 'v> {
    current: Option<&'r Correlated<'v>>,
    nearest: Option<&'r Correlated<'v>>,
}

impl<'r, 'v> Ratchet<'r, 'v> {
    fn below<'s>(self, inner: Option<&'s Correlated<'v>>) -> Ratchet<'s, 'v>
    where
        'r: 's,
    {
        match self.current {
            Some(current) => Ratchet { current: inner, nearest: Some(current) },
            None => self,
        }
    }

    fn forgives(self) -> bool {
        self.current.or(self.nearest).is_some_and(Correlated::same)
    }
}

struct OutOfBudget;

struct Run {
    evaluator: Evaluator,
    errors: Vec<FieldError>,
    remaining: u64,
}

impl Run {
    /// Visits only what has rules at or below it.
    #[allow(clippy::too_many_arguments)]
    fn visit(
        &mut self,
        node: &Node,
        place: Place,
        path: &str,
        new: &Value,
        old: Option<&Value>,
        ratchet: Ratchet<'_, '_>,
        depth: usize,
    ) -> Result<(), OutOfBudget> {
        if new.is_null() || depth > MAX_DEPTH || !has_rules(node) {
            return Ok(());
        }
        let old = old.filter(|old| !old.is_null());
        self.rules(node, place, path, new, old, ratchet)?;
        match new {
            Value::Array(items) => {
                let Some(item_node) = &node.items else { return Ok(()) };
                let old_items = old.and_then(Value::as_array);
                let keyed = match node.list_type {
                    ListType::Map => old_items.map(|items| KeyedItems::new(node, items)),
                    ListType::Atomic | ListType::Set => None,
                };
                for (position, item) in items.iter().enumerate() {
                    let old_item = keyed.as_ref().and_then(|keyed| keyed.find(item));
                    let inner = ratchet.current.and_then(|current| current.item(position));
                    let below = ratchet.below(inner.as_ref());
                    let path = index(path, position);
                    self.visit(item_node, Place::of(item_node), &path, item, old_item, below, depth + 1)?;
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    let old_field = old.and_then(|old| old.get(name));
                    let (field_node, path) = match (node.properties.get(name), &node.additional) {
                        (Some(property), _) => (property, child(path, name)),
                        (None, Some(values)) => (values, key(path, name)),
                        (None, None) => continue,
                    };
                    let hidden = depth == 0 && matches!(name.as_str(), "apiVersion" | "kind");
                    let inner = ratchet.current.filter(|_| !hidden).and_then(|current| current.field(name));
                    let below = if hidden {
                        Ratchet { current: None, nearest: None }
                    } else {
                        ratchet.below(inner.as_ref())
                    };
                    self.visit(field_node, Place::of(field_node), &path, field, old_field, below, depth + 1)?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        Ok(())
    }

    fn rules(
        &mut self,
        node: &Node,
        place: Place,
        path: &str,
        new: &Value,
        old: Option<&Value>,
        ratchet: Ratchet<'_, '_>,
    ) -> Result<(), OutOfBudget> {
        let rules = node.rules(place);
        if rules.is_empty() {
            return Ok(());
        }
        let shown_path = if path.is_empty() { NO_PATH } else { path };
        let type_name = type_name(node);
        let self_value: Outcome = Ok(values::convert(node, new, place));
        let old_value: Option<Outcome> = old.map(|old| Ok(values::convert(node, old, place)));
        let optional_old: Outcome =
            Ok(values::optional(old_value.as_ref().and_then(|old| old.as_ref().ok()).cloned()));
        for compiled in rules {
            let program = match &compiled.program {
                Ok(program) => program,
                Err(detail) => {
                    self.push(shown_path, type_name, format!("rule compile error: {detail}"));
                    continue;
                }
            };
            if program.uses_old_self && old.is_none() && !compiled.rule.optional_old_self {
                continue;
            }
            let old_self = match compiled.rule.optional_old_self {
                true => Some(&optional_old),
                false => old_value.as_ref(),
            };
            let outcome = self.run_program(program, &self_value, old_self);
            let Some(outcome) = outcome else {
                let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
                self.push(shown_path, type_name, detail.to_owned());
                return Err(OutOfBudget);
            };
            match outcome {
                Ok(kube_cel::cel::Value::Bool(true)) => {}
                Ok(_) => {
                    let detail = self.detail(compiled, &self_value, old_value.as_ref());
                    let error = broken(node, compiled, path, new, detail);
                    if compiled.uses_old_self() || !ratchet.forgives() {
                        self.errors.push(error);
                    }
                }
                Err(fault) => {
                    let (name, text) = (compiled.name(), fault.message());
                    let detail = match fault {
                        Fault::Overload => format!(
                            "'{text}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
                        ),
                        Fault::Cost => format!(
                            "'{text}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
                        ),
                        Fault::Text(_) => format!("{text} evaluating rule: {name}"),
                    };
                    self.push(shown_path, type_name, detail);
                    if fault == Fault::Cost {
                        return Err(OutOfBudget);
                    }
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, path: &str, type_name: &str, detail: String) {
        self.errors.push(FieldError::invalid(path, type_name, detail));
    }

    /// The result of a program; none if the object's budget is used up.
    fn run_program(
        &mut self,
        program: &Program,
        self_value: &Outcome,
        old: Option<&Outcome>,
    ) -> Option<Outcome> {
        let outer = old.map(|old| Scope::new(None, "oldSelf", old));
        let scope = Scope::new(outer.as_ref(), "self", self_value);
        let (outcome, cost) = self.evaluator.run(&program.expr, &program.known, &scope);
        self.remaining = self.remaining.checked_sub(cost)?;
        Some(outcome)
    }

    /// What is said of a broken rule: its message expression's text, else its message, else the rule itself.
    fn detail(&mut self, compiled: &Compiled, self_value: &Outcome, old: Option<&Outcome>) -> String {
        if let Some(Ok(program)) = &compiled.message
            && let Some(Ok(kube_cel::cel::Value::String(text))) = self.run_program(program, self_value, old)
        {
            let text = text.trim();
            if !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n') {
                return text.to_owned();
            }
        }
        match &compiled.rule.message {
            Some(message) => message.trim().to_owned(),
            None => format!("failed rule: {}", compiled.name()),
        }
    }
}

fn type_name(node: &Node) -> &'static str {
    match node.kind {
        Some(Type::Object) => "object",
        Some(Type::Array) => "array",
        Some(Type::String) => "string",
        Some(Type::Integer) => "integer",
        Some(Type::Number) => "number",
        Some(Type::Boolean) => "boolean",
        None => "",
    }
}

fn broken(node: &Node, compiled: &Compiled, path: &str, new: &Value, detail: String) -> FieldError {
    let path = match &compiled.field_path {
        Some(field) => child(path, field),
        None if path.is_empty() => NO_PATH.to_owned(),
        None => path.to_owned(),
    };
    let value = match node.kind {
        Some(Type::Object | Type::Array) => None,
        _ => Some(new.clone()),
    };
    match compiled.rule.reason.as_deref() {
        Some("FieldValueForbidden") => FieldError::forbidden(path, detail),
        Some("FieldValueRequired") => FieldError::required(path, detail),
        Some("FieldValueDuplicate") => {
            FieldError { path, kind: ErrorKind::Duplicate, value, detail: String::new() }
        }
        _ => FieldError { path, kind: ErrorKind::Invalid, value, detail },
    }
}
