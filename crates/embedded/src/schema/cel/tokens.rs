//! Where the parts of a rule stand in its text. The parser does not keep that, and messages point at it.

use std::collections::HashMap;

/// Line and column, both from one.
pub(super) type Position = (usize, usize);

struct Token<'a> {
    text: &'a str,
    at: Position,
}

/// The words and operators of a text in order. Each is asked for in the order in which it occurs, and so found again.
pub(super) struct Tokens<'a> {
    tokens: Vec<Token<'a>>,
    asked: HashMap<(Role, String), usize>,
}

/// The same word means different things.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// A variable; found at its word.
    Name,
    /// A field after a dot; found at the dot.
    Field,
    /// A function before a parenthesis; found at the parenthesis.
    Function,
    Operator,
    /// A bracket that begins an index, not a list.
    Index,
    Literal,
}

impl<'a> Tokens<'a> {
    /// Linear in the text.
    pub(super) fn new(source: &'a str) -> Self {
        Self { tokens: lex(source), asked: HashMap::new() }
    }

    /// The place of the next occurrence of a word in its role; the beginning if there is none.
    pub(super) fn next(&mut self, role: Role, word: &str) -> Position {
        let nth = self.asked.entry((role, word.to_owned())).or_default();
        let found = (0..self.tokens.len()).filter_map(|at| self.tokens.position(at, role, word)).nth(*nth);
        *nth += 1;
        found.unwrap_or((1, 1))
    }
}

trait Roles {
    fn position(&self, at: usize, role: Role, word: &str) -> Option<Position>;
}

impl Roles for Vec<Token<'_>> {
    /// Where the token at `at` stands if it has the role and the word.
    fn position(&self, at: usize, role: Role, word: &str) -> Option<Position> {
        let token = self.get(at)?;
        let before = at.checked_sub(1).and_then(|before| self.get(before)).map_or("", |token| token.text);
        let after = self.get(at + 1).map_or("", |token| token.text);
        let ends_value =
            before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '"' | '\''));
        let fits = match role {
            Role::Name => token.text == word && before != "." && before != "?" && after != "(",
            Role::Field => {
                return (token.text == "."
                    && after == word
                    && self.get(at + 2).map_or("", |t| t.text) != "(")
                    .then_some(token.at);
            }
            Role::Function => {
                return (token.text == word && after == "(")
                    .then(|| self.get(at + 1).map(|t| t.at))
                    .flatten();
            }
            Role::Operator => token.text == word,
            Role::Index => token.text == "[" && ends_value,
            Role::Literal => token.text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '"' | '\'')),
        };
        fits.then_some(token.at)
    }
}

const OPERATORS: [&str; 6] = ["==", "!=", "<=", ">=", "&&", "||"];

fn lex(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (line, text) in source.lines().enumerate() {
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let length = token_length(rest);
            let token = rest.get(..length).unwrap_or(rest);
            if !token.trim().is_empty() {
                let column = text.get(..at).map_or(0, |before| before.chars().count());
                tokens.push(Token { text: token, at: (line + 1, column + 1) });
            }
            at += length.max(1);
        }
    }
    tokens
}

fn token_length(rest: &str) -> usize {
    let Some(first) = rest.chars().next() else { return 0 };
    if let Some(operator) = OPERATORS.iter().find(|operator| rest.starts_with(**operator)) {
        return operator.len();
    }
    let while_true = |test: fn(char) -> bool| rest.find(|c| !test(c)).unwrap_or(rest.len());
    match first {
        c if c.is_alphabetic() || c == '_' => while_true(|c| c.is_alphanumeric() || c == '_'),
        c if c.is_ascii_digit() => while_true(|c| c.is_ascii_alphanumeric() || c == '.'),
        quote @ ('"' | '\'') => {
            let mut escaped = false;
            for (at, c) in rest.char_indices().skip(1) {
                if c == quote && !escaped {
                    return at + c.len_utf8();
                }
                escaped = c == '\\' && !escaped;
            }
            rest.len()
        }
        c => c.len_utf8(),
    }
}

/// One complaint with the line it is about and a mark below the place.
pub(super) fn issue(source: &str, (line, column): Position, message: &str) -> String {
    let text = line.checked_sub(1).and_then(|line| source.lines().nth(line)).unwrap_or_default();
    let dots = ".".repeat(column.saturating_sub(1));
    format!("ERROR: <input>:{line}:{column}: {message}\n | {text}\n | {dots}^")
}
