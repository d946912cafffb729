//! From the text of a rule to what is evaluated, if the rule makes sense where it stands.

use kube_cel::cel::IdedExpr;
use kube_cel::cel::common::ast::{EntryExpr, Expr};
use kube_cel::cel::parser::Parser;

use crate::schema::node::Node;

use super::checker::{self, OldSelf, Wanted};
use super::eval::KnownEqualities;
use super::tokens;
use super::values::Place;

/// An expression that may be evaluated.
pub(super) struct Program {
    pub(super) expr: IdedExpr,
    pub(super) known: KnownEqualities,
    pub(super) uses_old_self: bool,
}

/// Why an expression is refused.
pub(super) enum Refusal {
    /// It is no expression, or speaks of what does not exist.
    Issues(String),
    /// It yields something else than is wanted.
    WrongResult,
    /// A pattern in it is none.
    Pattern(String),
}

/// Longer expressions are refused: no rule that people write comes near, and parsing costs stack.
const MAX_LENGTH: usize = 16 << 10;
/// Deeper expressions are refused, so that evaluating one cannot overflow the stack.
const MAX_EXPRESSION_DEPTH: usize = 100;
const PARSER_STACK: usize = 256 << 20;

pub(super) fn compile(
    source: &str,
    node: &Node,
    place: Place,
    old_self: OldSelf,
    wanted: Wanted,
) -> Result<Program, Refusal> {
    if source.len() > MAX_LENGTH {
        let size = source.len();
        return Err(Refusal::Issues(format!(
            "ERROR: <input>:-1:0: expression code point size exceeds limit: size: {size}, limit {MAX_LENGTH}"
        )));
    }
    // The parser recurses by its input, so it gets a stack that no accepted input exhausts, and a panic in it stays there.
    let work = || {
        let expr = parse(source)?;
        let checked = checker::check(&expr, source, node, place, old_self, wanted)?;
        Ok(Program { expr, known: checked.known, uses_old_self: checked.uses_old_self })
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(PARSER_STACK).spawn_scoped(scope, work);
        match thread.map(|thread| thread.join()) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => {
                Err(Refusal::Issues("ERROR: <input>:1:1: the expression could not be parsed".to_owned()))
            }
        }
    })
}

fn parse(source: &str) -> Result<IdedExpr, Refusal> {
    let parsed = Parser::new().enable_optional_syntax(true).parse(source);
    let expr = parsed.map_err(|errors| {
        let issues = errors.errors.iter().map(|error| {
            let position = |at: isize| usize::try_from(at).unwrap_or_default();
            tokens::issue(source, (position(error.pos.0), position(error.pos.1)), &error.msg)
        });
        Refusal::Issues(issues.collect::<Vec<_>>().join("\n"))
    })?;
    if depth(&expr) > MAX_EXPRESSION_DEPTH {
        let message = format!("expression recursion limit exceeded: {MAX_EXPRESSION_DEPTH}");
        return Err(Refusal::Issues(tokens::issue(source, (1, 1), &message)));
    }
    Ok(expr)
}

pub(super) fn children(expr: &IdedExpr) -> Vec<&IdedExpr> {
    match &expr.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.iter().map(|target| &**target).chain(&call.args).collect(),
        Expr::Comprehension(macro_) => {
            vec![&macro_.iter_range, &macro_.accu_init, &macro_.loop_cond, &macro_.loop_step, &macro_.result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_children(&entry.expr)).collect(),
        Expr::Select(select) => vec![&*select.operand],
        Expr::Struct(message) => {
            message.entries.iter().flat_map(|entry| entry_children(&entry.expr)).collect()
        }
    }
}

fn entry_children(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

fn depth(expr: &IdedExpr) -> usize {
    let mut deepest = 0;
    let mut pending = vec![(expr, 1)];
    while let Some((expr, level)) = pending.pop() {
        deepest = deepest.max(level);
        pending.extend(children(expr).into_iter().map(|child| (child, level + 1)));
    }
    deepest
}
