//! The dependency lock file of a root module, as far as it is about providers: which version of each was chosen and what it may
//! hash to. A total parser: what it does not understand it leaves to the tool, which has the last word about this file.

use api::provider::Address;
use semver::Version;

pub const NAME: &str = ".terraform.lock.hcl";
/// A lock file has a few hundred bytes for each provider.
pub const LIMIT: u64 = 4 * 1024 * 1024;

/// A provider that the file names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    pub address: Address,
    pub version: Version,
    /// `h1:` of unpacked packages and `zh:` of archives, for any platform.
    pub hashes: Vec<String>,
    /// Where the list of hashes begins, after its bracket.
    list: Option<usize>,
}

/// The providers of a lock file, in its order. Blocks that name no sound address and version are left out. O(length).
pub fn read(text: &str) -> Vec<Locked> {
    let mut tokens = Tokens { text, at: 0 };
    let mut found = Vec::new();
    while let Some(token) = tokens.next() {
        if token != Token::Word("provider") {
            continue;
        }
        let (Some(Token::Text(address)), Some(Token::Mark('{'))) = (tokens.next(), tokens.next()) else {
            continue;
        };
        found.extend(block(&mut tokens, address));
    }
    found
}

fn block(tokens: &mut Tokens<'_>, address: &str) -> Option<Locked> {
    let (mut version, mut hashes, mut list) = (None, Vec::new(), None);
    loop {
        match tokens.next()? {
            Token::Mark('}') => break,
            Token::Word("version") => {
                if let (Some(Token::Mark('=')), Some(Token::Text(text))) = (tokens.next(), tokens.next()) {
                    version = Version::parse(text).ok();
                }
            }
            Token::Word("hashes") => {
                if let (Some(Token::Mark('=')), Some(Token::Mark('['))) = (tokens.next(), tokens.next()) {
                    list = Some(tokens.at);
                    loop {
                        match tokens.next()? {
                            Token::Mark(']') => break,
                            Token::Text(hash) => hashes.push(hash.to_owned()),
                            Token::Word(_) | Token::Mark(_) => {}
                        }
                    }
                }
            }
            Token::Word(_) | Token::Text(_) | Token::Mark(_) => {}
        }
    }
    Some(Locked { address: Address::parse(address).ok()?, version: version?, hashes, list })
}

/// The same file with one more hash for a provider, as the tool itself adds one that it has found to belong to the others.
/// Nothing changes where the provider has no list, or has the hash.
pub fn with_hash(text: &str, address: &Address, hash: &str) -> String {
    let place = read(text)
        .into_iter()
        .find(|locked| locked.address == *address && !locked.hashes.iter().any(|known| known == hash))
        .and_then(|locked| locked.list)
        .and_then(|at| text.split_at_checked(at));
    match place {
        Some((before, after)) => format!("{before}\n    \"{hash}\",{after}"),
        None => text.to_owned(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Text(&'a str),
    Mark(char),
}

struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Takes so many bytes, and skips so many more.
    fn take(&mut self, length: usize, skipped: usize) -> &'a str {
        let taken = self.rest().get(..length).unwrap_or_default();
        self.at = (self.at + length + skipped).min(self.text.len());
        taken
    }

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let rest = self.rest();
            let first = rest.chars().next()?;
            if first.is_whitespace() {
                self.at += first.len_utf8();
            } else if first == '#' || rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                self.at += rest.find("*/").map_or(rest.len(), |end| end + 2);
            } else if first == '"' {
                self.at += 1;
                let rest = self.rest();
                // Nothing in a lock file is escaped; where something is, this string is none that is looked for.
                let end = rest.find('"').unwrap_or(rest.len());
                return Some(Token::Text(self.take(end, 1)));
            } else if first.is_alphanumeric() || first == '_' {
                let end = rest.find(|c: char| !c.is_alphanumeric() && !"_-".contains(c));
                return Some(Token::Word(self.take(end.unwrap_or(rest.len()), 0)));
            } else {
                self.at += first.len_utf8();
                return Some(Token::Mark(first));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FILE: &str = "# This file is maintained automatically by \"terraform init\".\n\nprovider \"registry.terraform.io/hashicorp/local\" {\n  version     = \"2.5.1\"\n  constraints = \"~> 2.5\"\n  hashes = [\n    \"h1:aaaa=\",\n    \"zh:0123\",\n  ]\n}\n\nprovider \"localhost:8443/acme/x\" {\n  version = \"0.1.0-beta1\"\n}\n";

    #[test]
    fn providers_are_read_with_version_and_hashes() {
        let found = read(FILE);
        let all: Vec<String> = found
            .iter()
            .map(|locked| format!("{} {} {}", locked.address, locked.version, locked.hashes.join(" ")))
            .collect();
        assert_eq!(
            all,
            [
                "registry.terraform.io/hashicorp/local 2.5.1 h1:aaaa= zh:0123",
                "localhost:8443/acme/x 0.1.0-beta1 "
            ]
        );
        let narrow =
            "provider \"a/b/c\"{version=\"1.0.0\" hashes=[\"h1:x\",/* y */\"zh:z\"]}// provider \"d/e/f\" {";
        assert_eq!(read(narrow).first().unwrap().hashes, ["h1:x", "zh:z"]);
    }

    #[test]
    fn a_hash_is_added_where_its_provider_is_and_only_once() {
        let address = Address::parse("registry.terraform.io/hashicorp/local").unwrap();
        let more = with_hash(FILE, &address, "h1:bbbb=");
        assert_eq!(read(&more).first().unwrap().hashes, ["h1:bbbb=", "h1:aaaa=", "zh:0123"]);
        assert_eq!(read(&more).len(), 2);
        assert_eq!(with_hash(&more, &address, "h1:bbbb="), more);
        let other = Address::parse("localhost:8443/acme/x").unwrap();
        assert_eq!(with_hash(FILE, &other, "h1:bbbb="), FILE, "no list, nothing to add to");
    }

    #[test]
    fn anything_else_is_no_provider() {
        for text in [
            "",
            "provider",
            "provider \"a/b/c",
            "provider \"a/b/c\" {",
            "provider \"../b/c\" { version = \"1.0.0\" }",
            "provider \"a/b/c\" { version = \"new\" }",
            "provider \"a/b/c\" { hashes = [",
            "provider \"a/b/c\" { hashes = [] }",
            "/*",
            "\u{e9}\"\u{e9}",
        ] {
            assert_eq!(read(text), [], "{text}");
        }
        // Whatever is cut off, and wherever.
        for end in (0..FILE.len()).filter(|end| FILE.is_char_boundary(*end)) {
            assert!(read(&FILE[..end]).len() <= 2);
        }
    }
}
