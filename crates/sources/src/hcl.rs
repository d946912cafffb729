//! A scan of Terraform and OpenTofu files for the few facts that are needed before the tool runs: local modules,
//! version constraints, the backend. It is not a parser of HCL: it reads untrusted bytes inside the controller, so it
//! is total, linear in the input, without recursion, and gives what it understood of a file that has errors. The tool
//! itself reports the errors later, with line numbers.

/// What is read of one file; the rest is ignored. Real files are thousands of times smaller.
const FILE_LIMIT: usize = 4 * 1024 * 1024;
/// Nesting of blocks and of templates inside strings beyond which the scan stops.
const DEPTH_LIMIT: usize = 128;

/// What one file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// `source` of each `module` block, as written.
    pub module_sources: Vec<String>,
    /// `required_version` of each `terraform` block.
    pub required_versions: Vec<String>,
    pub backend: Option<Backend>,
    /// Each `variable` block, as far as it could be read.
    pub variables: Vec<Variable>,
    /// `terragrunt_version_constraint` of a Terragrunt file.
    pub terragrunt_version: Option<String>,
    /// `terraform_version_constraint` of a Terragrunt file: about the tool that Terragrunt runs.
    pub terraform_version: Option<String>,
}

/// What a `variable` block says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    /// The type as written.
    pub kind: Option<String>,
    pub description: Option<String>,
    pub has_default: bool,
    pub sensitive: Option<bool>,
}

impl Variable {
    /// A block of the same name in another file, such as an override: what either says counts.
    pub fn merge(&mut self, other: Variable) {
        self.kind = other.kind.or(self.kind.take());
        self.description = other.description.or(self.description.take());
        self.has_default |= other.has_default;
        self.sensitive = other.sensitive.or(self.sensitive);
    }
}

/// Where the code itself says its state lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    Named(String),
    Cloud,
}

/// Whether the tools read a file of this name as configuration.
pub fn is_configuration(file_name: &str) -> bool {
    [".tf", ".tofu", ".tf.json", ".tofu.json"].iter().any(|ending| file_name.ends_with(ending))
        && !file_name.starts_with('.')
}

/// Scans one configuration file, in either of the two syntaxes.
pub fn outline(file_name: &str, content: &[u8]) -> Outline {
    let content = content.get(..FILE_LIMIT).unwrap_or(content);
    if file_name.ends_with(".json") { outline_json(content) } else { Scanner::new(content).run() }
}

/// The variables that a `.tfvars` or `.tfvars.json` file gives a value to.
pub fn assigned(file_name: &str, content: &[u8]) -> Vec<String> {
    let content = content.get(..FILE_LIMIT).unwrap_or(content);
    if file_name.ends_with(".json") {
        let root = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(content);
        return root.map(|root| root.keys().cloned().collect()).unwrap_or_default();
    }
    let mut scanner = Scanner::new(content);
    scanner.scan();
    scanner.assigned
}

impl Outline {
    pub fn merge(&mut self, other: Outline) {
        self.module_sources.extend(other.module_sources);
        self.variables.extend(other.variables);
        self.required_versions.extend(other.required_versions);
        self.backend = other.backend.or(self.backend.take());
        self.terragrunt_version = other.terragrunt_version.or(self.terragrunt_version.take());
        self.terraform_version = other.terraform_version.or(self.terraform_version.take());
    }

    fn block_opened(&mut self, stack: &[Vec<String>]) {
        if let [header] = stack
            && let [kind, name] = header.as_slice()
            && kind == "variable"
        {
            self.variables.push(Variable { name: name.clone(), ..Variable::default() });
        }
        if let [terraform, inner] = stack
            && names(terraform).eq(["terraform"])
        {
            match inner.first().map(String::as_str) {
                Some("backend") => self.backend = inner.get(1).cloned().map(Backend::Named),
                Some("cloud") => self.backend = Some(Backend::Cloud),
                Some(_) | None => {}
            }
        }
    }

    fn attribute(&mut self, stack: &[Vec<String>], name: &str, literal: Option<String>, written: &[u8]) {
        if let [header] = stack
            && let [kind, _] = header.as_slice()
            && kind == "variable"
            && let Some(variable) = self.variables.last_mut()
        {
            let written = String::from_utf8_lossy(written);
            let told = || match written.trim() {
                "true" => Some(true),
                "false" => Some(false),
                _ => None,
            };
            match name {
                "type" => variable.kind = Some(written.trim().to_owned()),
                "description" => variable.description = literal,
                "default" => variable.has_default = true,
                "sensitive" => variable.sensitive = told(),
                _ => {}
            }
            return;
        }
        let Some(literal) = literal else { return };
        let block = match stack {
            [] => None,
            [block] => block.first().map(String::as_str),
            [_, _, ..] => return,
        };
        match (block, name) {
            (None, "terragrunt_version_constraint") => self.terragrunt_version = Some(literal),
            (None, "terraform_version_constraint") => self.terraform_version = Some(literal),
            (Some("module"), "source") => self.module_sources.push(literal),
            (Some("terraform"), "required_version") => self.required_versions.push(literal),
            (_, _) => {}
        }
    }
}

fn names(header: &[String]) -> impl Iterator<Item = &str> {
    header.iter().map(String::as_str)
}

pub(crate) struct Scanner<'a> {
    input: &'a [u8],
    pub(crate) at: usize,
    /// Headers of the blocks that are open, outermost first.
    stack: Vec<Vec<String>>,
    found: Outline,
    /// Names of attributes outside of all blocks.
    assigned: Vec<String>,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        let input = input.get(..FILE_LIMIT).unwrap_or(input);
        Self { input, at: 0, stack: Vec::new(), found: Outline::default(), assigned: Vec::new() }
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.input.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn between(&self, start: usize, end: usize) -> &'a [u8] {
        self.input.get(start..end).unwrap_or_default()
    }

    fn starts_with(&self, prefix: &[u8]) -> bool {
        self.rest().starts_with(prefix)
    }

    fn run(mut self) -> Outline {
        self.scan();
        self.found
    }

    /// Each turn consumes at least one byte, so the whole scan is linear in the input.
    fn scan(&mut self) {
        if self.starts_with(b"\xef\xbb\xbf") {
            self.at += 3;
        }
        while let Some(byte) = self.peek() {
            if self.skip_comment() || self.skip_heredoc() {
                continue;
            }
            match byte {
                b'}' => {
                    self.stack.pop();
                    self.at += 1;
                }
                _ if is_identifier_start(byte) => self.statement(),
                b'"' => drop(self.string()),
                _ => self.at += 1,
            }
            if self.stack.len() > DEPTH_LIMIT {
                break;
            }
        }
    }

    /// An identifier at the start of a statement: an attribute, or the header of a block.
    fn statement(&mut self) {
        let mut header = vec![self.identifier()];
        loop {
            self.skip_blanks();
            match self.peek() {
                Some(b'=') => {
                    self.at += 1;
                    let start = self.at;
                    let (literal, end) = self.expression();
                    if let [name] = header.as_slice() {
                        let written = self.input.get(start..end).unwrap_or_default();
                        self.found.attribute(&self.stack, name, literal, written);
                        if self.stack.is_empty() {
                            self.assigned.push(name.clone());
                        }
                    }
                    return;
                }
                Some(b'{') => {
                    self.at += 1;
                    self.stack.push(header);
                    self.found.block_opened(&self.stack);
                    return;
                }
                Some(b'"') => header.push(self.string().unwrap_or_default()),
                Some(byte) if is_identifier_start(byte) => {
                    let label = self.identifier();
                    header.push(label);
                }
                Some(_) | None => return,
            }
            if header.len() > DEPTH_LIMIT {
                return;
            }
        }
    }

    pub(crate) fn identifier(&mut self) -> String {
        let start = self.at;
        while self
            .peek()
            .is_some_and(|byte| is_identifier_start(byte) || byte.is_ascii_digit() || byte == b'-')
        {
            self.at += 1;
        }
        String::from_utf8_lossy(self.input.get(start..self.at).unwrap_or_default()).into_owned()
    }

    fn skip_blanks(&mut self) {
        loop {
            while matches!(self.peek(), Some(b' ' | b'\t' | b'\r')) {
                self.at += 1;
            }
            if !self.starts_with(b"/*") || !self.skip_comment() {
                return;
            }
        }
    }

    /// Consumes a comment without the newline that ends it.
    pub(crate) fn skip_comment(&mut self) -> bool {
        if self.starts_with(b"/*") {
            self.at += 2;
            while self.at < self.input.len() && !self.starts_with(b"*/") {
                self.at += 1;
            }
            self.at = (self.at + 2).min(self.input.len());
            return true;
        }
        if self.peek() == Some(b'#') || self.starts_with(b"//") {
            while self.peek().is_some_and(|byte| byte != b'\n') {
                self.at += 1;
            }
            return true;
        }
        false
    }

    /// Consumes an expression up to the newline or the closing brace that ends it; returns its value when it is one
    /// plain string, and where its last token ends.
    fn expression(&mut self) -> (Option<String>, usize) {
        let mut literal = None;
        let mut end = self.at;
        let mut tokens = 0usize;
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            if self.skip_comment() || self.skip_heredoc() {
                tokens += usize::from(byte == b'<');
                continue;
            }
            match byte {
                b'\n' if depth == 0 => break,
                b'}' | b')' | b']' if depth == 0 => break,
                b' ' | b'\t' | b'\r' | b'\n' => {
                    self.at += 1;
                    continue;
                }
                b'(' | b'[' | b'{' => {
                    depth += 1;
                    tokens += 1;
                    self.at += 1;
                }
                b')' | b']' | b'}' => {
                    depth -= 1;
                    self.at += 1;
                }
                b'"' => {
                    tokens += 1;
                    literal = self.string();
                }
                _ => {
                    tokens += 1;
                    self.at += 1;
                }
            }
            end = self.at;
        }
        (literal.filter(|_| tokens == 1), end)
    }

    /// Consumes a quoted string, templates inside it included; returns its text when it has no template.
    fn string(&mut self) -> Option<String> {
        enum Inside {
            String,
            Template,
            Braces,
        }
        let mut stack = vec![Inside::String];
        let mut text = Vec::new();
        let mut plain = true;
        self.at += 1;
        while let Some(byte) = self.peek() {
            match stack.last() {
                None => break,
                Some(Inside::String) => match byte {
                    b'\\' => {
                        if let Some(escaped) = self.input.get(self.at + 1) {
                            text.push(match escaped {
                                b'n' => b'\n',
                                b't' => b'\t',
                                b'r' => b'\r',
                                other => *other,
                            });
                        }
                        self.at += 2;
                        continue;
                    }
                    b'"' => drop(stack.pop()),
                    // A newline cannot be inside a quoted string: whoever forgot the quote loses this line only.
                    b'\n' if stack.len() == 1 => return None,
                    b'$' | b'%' if self.starts_with(b"$${") || self.starts_with(b"%%{") => {
                        text.extend_from_slice(&[byte, b'{']);
                        self.at += 3;
                        continue;
                    }
                    b'$' | b'%' if self.input.get(self.at + 1) == Some(&b'{') => {
                        plain = false;
                        stack.push(Inside::Template);
                        self.at += 2;
                        continue;
                    }
                    other => text.push(other),
                },
                Some(Inside::Template | Inside::Braces) => match byte {
                    b'"' => stack.push(Inside::String),
                    b'{' => stack.push(Inside::Braces),
                    b'}' => drop(stack.pop()),
                    _ => {}
                },
            }
            self.at += 1;
            if stack.is_empty() {
                return plain.then(|| String::from_utf8_lossy(&text).into_owned());
            }
            if stack.len() > DEPTH_LIMIT {
                self.at = self.input.len();
            }
        }
        None
    }

    /// Consumes a heredoc; leaves the newline after its end mark, which also ends the attribute it belongs to.
    pub(crate) fn skip_heredoc(&mut self) -> bool {
        if !self.starts_with(b"<<") {
            return false;
        }
        let start = self.at;
        self.at += 2;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let mark = self.identifier();
        if mark.is_empty() {
            self.at = start;
            return false;
        }
        while self.peek().is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
        while self.peek() == Some(b'\n') {
            let line_start = self.at + 1;
            self.at = line_start;
            while self.peek().is_some_and(|byte| byte != b'\n') {
                self.at += 1;
            }
            let line = self.input.get(line_start..self.at).unwrap_or_default();
            if line.trim_ascii() == mark.as_bytes() {
                break;
            }
        }
        true
    }
}

fn is_identifier_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn outline_json(content: &[u8]) -> Outline {
    use serde_json::Value;
    /// The JSON syntax allows an object or a list of objects wherever blocks may repeat.
    fn objects(value: Option<&Value>) -> impl Iterator<Item = &serde_json::Map<String, Value>> {
        let (one, many) = match value {
            Some(Value::Object(map)) => (Some(map), [].as_slice()),
            Some(Value::Array(items)) => (None, items.as_slice()),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => {
                (None, [].as_slice())
            }
        };
        one.into_iter().chain(many.iter().filter_map(Value::as_object))
    }
    let mut found = Outline::default();
    // serde_json limits nesting by itself.
    let Ok(root) = serde_json::from_slice::<Value>(content) else { return found };
    for modules in objects(root.get("module")) {
        for module in modules.values().flat_map(|value| objects(Some(value))) {
            found.module_sources.extend(module.get("source").and_then(Value::as_str).map(str::to_owned));
        }
    }
    for variables in objects(root.get("variable")) {
        for (name, blocks) in variables {
            for block in objects(Some(blocks)) {
                let text = |key: &str| block.get(key).and_then(Value::as_str).map(str::to_owned);
                found.variables.push(Variable {
                    name: name.clone(),
                    kind: text("type"),
                    description: text("description"),
                    has_default: block.contains_key("default"),
                    sensitive: block.get("sensitive").and_then(Value::as_bool),
                });
            }
        }
    }
    for terraform in objects(root.get("terraform")) {
        found
            .required_versions
            .extend(terraform.get("required_version").and_then(Value::as_str).map(str::to_owned));
        for backend in objects(terraform.get("backend")) {
            found.backend = backend.keys().next().cloned().map(Backend::Named).or(found.backend.take());
        }
        if terraform.contains_key("cloud") {
            found.backend = Some(Backend::Cloud);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_modules_versions_and_backend_in_a_realistic_file() {
        let text = br#"
            # module "no" { source = "./commented" }
            terraform {
              required_version = ">= 1.5, < 2.0" // why
              backend "s3" { bucket = "b" }
              required_providers { local = { source = "hashicorp/local" } }
            }
            /* module "neither" { source = "./block" } */
            locals {
              script = <<-EOT
                module "heredoc" {
                  source = "./not-this"
                }
              EOT
              text = "module \"quoted\" { source = \"./nor-this\" } ${join(",", [for m in ["a"] : "}${m}{"])}"
            }
            module "net" {
              source = "../modules/net"
              cidr   = { a = "x", b = ["y", "z"] }[var.k]
            }
            module "one_line" { source = "./b" }
            module "remote" {
              version = "1.0"
              source  = "terraform-aws-modules/vpc/aws"
            }
            module "computed" { source = "./x/${var.y}" }
            output "o" { value = { source = "./no" } }
        "#;
        assert_eq!(
            outline("main.tf", text),
            Outline {
                module_sources: vec![
                    "../modules/net".to_owned(),
                    "./b".to_owned(),
                    "terraform-aws-modules/vpc/aws".to_owned()
                ],
                required_versions: vec![">= 1.5, < 2.0".to_owned()],
                backend: Some(Backend::Named("s3".to_owned())),
                ..Outline::default()
            }
        );
    }

    #[test]
    fn finds_the_versions_that_a_terragrunt_file_asks_for() {
        let text = b"# terragrunt_version_constraint = \"1\"\nterragrunt_version_constraint = \">= 0.50\"\n\
            terraform_version_constraint = \"~> 1.5\"\ninputs = { terraform_version_constraint = \"no\" }\n";
        let found = outline("terragrunt.hcl", text);
        assert_eq!(found.terragrunt_version.as_deref(), Some(">= 0.50"));
        assert_eq!(found.terraform_version.as_deref(), Some("~> 1.5"));
    }

    #[test]
    fn reads_the_json_syntax() {
        let text = br#"{"module": {"a": {"source": "./a"}, "b": [{"source": "../b"}]},
            "terraform": [{"required_version": "~> 1.6", "backend": {"http": {}}}]}"#;
        let found = outline("main.tf.json", text);
        assert_eq!(found.module_sources, ["./a", "../b"]);
        assert_eq!(found.required_versions, ["~> 1.6"]);
        assert_eq!(found.backend, Some(Backend::Named("http".to_owned())));
    }

    #[test]
    fn finds_variables_and_what_is_said_of_them() {
        let text = br#"
            variable "plain" {}
            variable "name" { type = string }
            variable size {
              description = "How many { there are }"
              type        = number   # whole ones
              default     = 3
              validation {
                condition     = var.size > 0
                error_message = "type = none"
              }
            }
            variable "disks" {
              type = list(object({
                size = number // GB
              }))
              default   = []
              nullable  = false
            }
            variable "password" {
              type      = string
              sensitive = true
            }
            locals { variable = "no" }
        "#;
        let found = outline("variables.tf", text).variables;
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["plain", "name", "size", "disks", "password"]);
        let of = |name: &str| found.iter().find(|one| one.name == name).cloned().unwrap_or_default();
        assert_eq!(of("plain"), Variable { name: "plain".to_owned(), ..Variable::default() });
        assert_eq!(of("name").kind.as_deref(), Some("string"));
        assert_eq!((of("size").kind.as_deref(), of("size").has_default), (Some("number"), true));
        assert_eq!(of("size").description.as_deref(), Some("How many { there are }"));
        assert!(
            of("disks").kind.is_some_and(|kind| kind.starts_with("list(object({") && kind.ends_with("))"))
        );
        assert_eq!((of("disks").sensitive, of("password").sensitive), (None, Some(true)));

        let json = br#"{"variable": {"a": {"type": "number", "default": null}, "b": [{"sensitive": true}]}}"#;
        let found = outline("variables.tf.json", json).variables;
        assert_eq!((found.len(), found.iter().filter(|one| one.has_default).count()), (2, 1));
    }

    #[test]
    fn finds_what_a_file_of_variables_gives_values_to() {
        let text = b"a = 1\nb = { c = \"x\", d = [\n1,\n2] }\n# e = 2\nf = <<EOT\ng = 1\nEOT\nh = \"i\"\n";
        assert_eq!(assigned("terraform.tfvars", text), ["a", "b", "f", "h"]);
        assert_eq!(assigned("x.auto.tfvars.json", br#"{"a": {"b": 1}, "c": 2}"#), ["a", "c"]);
        assert!(assigned("x.tfvars.json", b"[").is_empty());
    }

    #[test]
    fn a_cloud_block_is_a_backend() {
        assert_eq!(outline("x.tf", b"terraform {\n cloud {}\n}").backend, Some(Backend::Cloud));
    }

    #[test]
    fn a_broken_file_still_gives_what_comes_before_the_break() {
        let found = outline("x.tf", b"module \"a\" { source = \"./a\" }\nmodule \"b { source = ");
        assert_eq!(found.module_sources, ["./a"]);
    }

    /// Nothing is found twice or made up: all that was found takes no more room than the text, of which a broken letter becomes three.
    fn is_said(found: &Outline, text: &[u8]) -> bool {
        let names = found.variables.iter().map(|variable| &variable.name);
        let kinds = found.variables.iter().filter_map(|variable| variable.kind.as_ref());
        let texts = found.module_sources.iter().chain(&found.required_versions).chain(names).chain(kinds);
        texts.map(String::len).sum::<usize>() <= 3 * text.len()
    }

    #[test]
    fn deep_nesting_ends_quickly_and_quietly() {
        for unit in ["a {", "\"${", "[", "<<", "{", "x = (", "!"] {
            assert_eq!(outline("x.tf", unit.repeat(200_000).as_bytes()), Outline::default(), "{unit}");
        }
        assert_eq!(outline("x.tf.json", "[".repeat(200_000).as_bytes()), Outline::default());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_scanned_without_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..2000)) {
            for name in ["x.tf", "x.tf.json"] {
                proptest::prop_assert!(is_said(&outline(name, &bytes), &bytes));
            }
        }

        #[test]
        fn hcl_shaped_text_is_scanned_without_panic(text in "([a-z_]{1,3}|[{}\\[\\]()=\"$%\n #/*<-]){0,200}") {
            proptest::prop_assert!(is_said(&outline("x.tf", text.as_bytes()), text.as_bytes()));
        }
    }
}
