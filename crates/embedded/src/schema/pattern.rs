//! Patterns are written for Go's RE2; they are carried over here to the `regex` crate, whose time is linear too.
//!
//! Both speak nearly the same language. What differs: Go's `\d`, `\w` and `\s` are ASCII, a `[` or a `&&` inside a class has no
//! meaning of its own, a `{` that begins no repetition is itself, and `\Q…\E` quotes.

use regex::Regex;

/// The compiled form of a pattern, or what Go would say of it.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    let translated = Translator::new(pattern).run()?;
    Regex::new(&translated).map_err(|error| complaint(pattern, &error))
}

fn complaint(pattern: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let reason = match text.lines().last().unwrap_or_default().trim() {
        line if line.contains("unclosed group") => "missing closing )".to_owned(),
        line if line.contains("unopened group") => "unexpected )".to_owned(),
        line if line.contains("unclosed character class") => "missing closing ]".to_owned(),
        line if line.contains("repetition operator missing expression") => {
            return "error parsing regexp: missing argument to repetition operator: `*`".to_owned();
        }
        line => line.trim_start_matches("error: ").to_owned(),
    };
    format!("error parsing regexp: {reason}: `{pattern}`")
}

struct Translator<'a> {
    rest: &'a str,
    out: String,
}

impl<'a> Translator<'a> {
    fn new(pattern: &'a str) -> Self {
        Self { rest: pattern, out: String::with_capacity(pattern.len() + 16) }
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        Some(c)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Linear in the length of the pattern: every step consumes a character.
    fn run(mut self) -> Result<String, String> {
        while let Some(c) = self.next() {
            match c {
                '\\' => self.escape()?,
                '[' => self.class()?,
                '(' => self.group()?,
                '{' if !starts_repetition(self.rest) => self.out.push_str("\\{"),
                '}' => self.out.push_str("\\}"),
                '{' => self.repetition(),
                c => self.out.push(c),
            }
        }
        Ok(self.out)
    }

    /// A repetition that is one is copied with its closing brace, so that a lone `}` can be told apart.
    fn repetition(&mut self) {
        self.out.push('{');
        while let Some(c) = self.next() {
            self.out.push(c);
            if c == '}' {
                return;
            }
        }
    }

    fn group(&mut self) -> Result<(), String> {
        self.out.push('(');
        let Some(inside) = self.rest.strip_prefix('?') else { return Ok(()) };
        let flags: String = inside.chars().take_while(|c| !matches!(c, ':' | ')' | '<' | 'P')).collect();
        if let Some(bad) = flags.chars().find(|c| !"imsU-".contains(*c)) {
            let shown: String = flags.chars().take_while(|c| *c != bad).chain([bad]).collect();
            return Err(format!("error parsing regexp: invalid or unsupported Perl syntax: `(?{shown}`"));
        }
        if inside.starts_with("<=") || inside.starts_with("<!") {
            return Err("error parsing regexp: invalid or unsupported Perl syntax: `(?<`".to_owned());
        }
        Ok(())
    }

    fn escape(&mut self) -> Result<(), String> {
        let Some(c) = self.next() else {
            return Err("error parsing regexp: trailing backslash at end of expression: ``".to_owned());
        };
        match c {
            'd' => self.out.push_str("[0-9]"),
            'D' => self.out.push_str("[^0-9]"),
            'w' => self.out.push_str("[0-9A-Za-z_]"),
            'W' => self.out.push_str("[^0-9A-Za-z_]"),
            's' => self.out.push_str("[\\t\\n\\f\\r ]"),
            'S' => self.out.push_str("[^\\t\\n\\f\\r ]"),
            'b' => self.out.push_str("(?-u:\\b)"),
            'B' => self.out.push_str("\\B"),
            'A' | 'z' | 'p' | 'P' | 'x' | 'a' | 'f' | 'n' | 'r' | 't' | 'v' => {
                self.out.push('\\');
                self.out.push(c);
                self.braces();
            }
            'Q' => {
                let end = self.rest.find("\\E").unwrap_or(self.rest.len());
                let (quoted, after) = self.rest.split_at(end);
                self.out.push_str(&regex::escape(quoted));
                self.rest = after.strip_prefix("\\E").unwrap_or(after);
            }
            '0'..='7' => {
                let code = self.octal(c);
                self.out.push_str(&code);
            }
            c if c.is_ascii_alphanumeric() => {
                return Err(format!("error parsing regexp: invalid escape sequence: `\\{c}`"));
            }
            c => self.out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
        Ok(())
    }

    /// `\p{Greek}` and `\x{10ffff}` carry their argument in braces, which is no repetition.
    fn braces(&mut self) {
        if self.peek() == Some('{')
            && (self.out.ends_with('p') || self.out.ends_with('P') || self.out.ends_with('x'))
        {
            self.next();
            self.repetition();
        }
    }

    fn octal(&mut self, first: char) -> String {
        let mut code = first.to_digit(8).unwrap_or_default();
        for _ in 0..2 {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(8)) else { break };
            code = code * 8 + digit;
            self.next();
        }
        format!("\\x{{{code:x}}}")
    }

    fn class(&mut self) -> Result<(), String> {
        let start = self.rest;
        let unclosed = || format!("error parsing regexp: missing closing ]: `[{start}`");
        self.out.push('[');
        if self.peek() == Some('^') {
            self.next();
            self.out.push('^');
        }
        let mut first = true;
        loop {
            match self.peek().ok_or_else(unclosed)? {
                ']' if !first => {
                    self.next();
                    self.out.push(']');
                    return Ok(());
                }
                '[' if self.rest.starts_with("[:") && self.rest.contains(":]") => {
                    let end = self.rest.find(":]").map_or(self.rest.len(), |at| at + 2);
                    let (name, after) = self.rest.split_at(end);
                    self.out.push_str(name);
                    self.rest = after;
                }
                '\\' if self.is_class_escape() => {
                    self.next();
                    self.escape()?;
                }
                _ => {
                    self.class_character(unclosed)?;
                    // A dash makes a range unless it is the last character of the class.
                    if self.rest.starts_with('-') && !self.rest.starts_with("-]") && self.rest.len() > 1 {
                        self.next();
                        self.out.push('-');
                        self.class_character(unclosed)?;
                    }
                }
            }
            first = false;
        }
    }

    /// Whether the backslash ahead stands for a set of characters, not for one.
    fn is_class_escape(&self) -> bool {
        matches!(self.rest.chars().nth(1), Some('d' | 'D' | 'w' | 'W' | 's' | 'S' | 'p' | 'P'))
    }

    /// One character of a class, escaped, so that none has a meaning that Go does not give it.
    fn class_character(&mut self, unclosed: impl Fn() -> String) -> Result<(), String> {
        match self.next().ok_or_else(unclosed)? {
            '\\' => self.escape(),
            // Escaped they would be the edges of words, which no class has.
            c @ ('<' | '>') => {
                self.out.push(c);
                Ok(())
            }
            c if c.is_ascii_punctuation() => {
                self.out.push('\\');
                self.out.push(c);
                Ok(())
            }
            c => {
                self.out.push(c);
                Ok(())
            }
        }
    }
}

/// `{n}`, `{n,}` and `{n,m}` repeat; anything else after `{` is plain text.
fn starts_repetition(rest: &str) -> bool {
    let Some((inside, _)) = rest.split_once('}') else { return false };
    let mut parts = inside.splitn(2, ',');
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match (parts.next(), parts.next()) {
        (Some(low), None) => number(low),
        (Some(low), Some(high)) => number(low) && (high.is_empty() || number(high)),
        (None, _) => false,
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    fn check(pattern: &str, matching: &[&str], other: &[&str]) {
        let regex = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        for text in matching {
            assert!(regex.is_match(text), "{pattern} should match {text:?}");
        }
        for text in other {
            assert!(!regex.is_match(text), "{pattern} should not match {text:?}");
        }
    }

    #[test]
    fn reads_re2() {
        check(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", &["a", "a-b"], &["-a", "A", "a\n"]);
        check(r"^\d+$", &["12"], &["٣", "a"]);
        check(r"^\w+\s$", &["ab_ "], &["é ", "a\u{a0}"]);
        check(r"^[\d.]+$", &["1.2"], &["a", ""]);
        check(r"^[^\s]+$", &["a"], &["a b"]);
        check(r"^[\w.-]+$", &["a.b-c"], &["a b"]);
        check(r"^[a-z&&[b]+\]$", &["a&[]"], &["é]"]);
        check(r"^[+--]$", &["+", ",", "-"], &["."]);
        check(r"^[--/]$", &["-", ".", "/"], &["+"]);
        check(r"^a{,2}$", &["a{,2}"], &["aa"]);
        check(r"^a{2}$", &["aa"], &["a"]);
        check(r"^\Qa.b\E+$", &["a.b", "a.bb"], &["axb"]);
        check(r"^(?i)abc$", &["ABC"], &["abd"]);
        check(r"^(?P<x>a)\/\-$", &["a/-"], &["a"]);
        check(r"^\p{Greek}\x{41}\x42$", &["αAB"], &["aAB"]);
        check(r"^{}$", &["{}"], &[""]);
        check(r"^[[:alpha:]]+$", &["ab"], &["1"]);
        check(r"^[]a]+$", &["]a"], &["b"]);
        check(r"^[<=>~^!|-]+$", &["<=", ">", "~", "^", "-"], &["a"]);
    }

    #[test]
    fn refuses_what_go_refuses() {
        let check = |pattern: &str, want: &str| assert_eq!(compile(pattern).expect_err(pattern), want);
        check("(?=a)", "error parsing regexp: invalid or unsupported Perl syntax: `(?=`");
        check("(a", "error parsing regexp: missing closing ): `(a`");
        check("[a", "error parsing regexp: missing closing ]: `[a`");
        check(r"\y", r"error parsing regexp: invalid escape sequence: `\y`");
    }
}
