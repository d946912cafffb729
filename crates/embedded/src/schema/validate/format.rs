//! The formats that kube-apiserver checks. Any other format says nothing about a value and is ignored.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

use crate::schema::node::{Node, Type};

/// A format that matters at its place, under the name that the schema gives it.
#[derive(Clone, Copy)]
pub(super) struct Format<'a> {
    pub(super) name: &'a str,
    check: Option<fn(&str) -> bool>,
}

impl Format<'_> {
    /// Formats of numbers say nothing about texts.
    pub(super) fn applies_to_text(&self) -> bool {
        self.check.is_some()
    }

    pub(super) fn accepts(&self, text: &str) -> bool {
        self.check.is_none_or(|check| check(text))
    }
}

/// The format of a place, if it is one that is checked for the place's type.
pub(super) fn known(node: &Node) -> Option<Format<'_>> {
    let name = node.format.as_deref().filter(|name| !name.is_empty())?;
    let kind = if node.int_or_string { None } else { node.kind };
    match kind {
        None | Some(Type::String) => text_check(name).map(|check| Format { name, check: Some(check) }),
        Some(Type::Integer) => matches!(name, "int32" | "int64").then_some(Format { name, check: None }),
        Some(Type::Number) => matches!(name, "float" | "double").then_some(Format { name, check: None }),
        Some(Type::Object | Type::Array | Type::Boolean) => None,
    }
}

/// Dashes in the names of formats do not count.
fn text_check(name: &str) -> Option<fn(&str) -> bool> {
    Some(match name.replace('-', "").as_str() {
        "bsonobjectid" => |text| text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => is_request_uri,
        "email" => is_email,
        "hostname" => is_hostname,
        "ipv4" => is_ipv4,
        "ipv6" => |text| text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr,
        "mac" => is_mac,
        "uuid" => |text| is_uuid(text, None),
        "uuid3" => |text| is_uuid(text, Some(b'3')),
        "uuid4" => |text| is_uuid(text, Some(b'4')),
        "uuid5" => |text| is_uuid(text, Some(b'5')),
        "isbn" => |text| is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10,
        "isbn13" => is_isbn13,
        "creditcard" => is_credit_card,
        "ssn" => |text| text.len() == 11 && matches(&SSN, text),
        "hexcolor" => |text| matches(&HEX_COLOR, text),
        "rgbcolor" => |text| matches(&RGB_COLOR, text),
        "byte" => |text| matches(&BASE64, text),
        "password" => |_| true,
        "date" => is_date,
        "duration" => is_duration,
        "datetime" => is_date_time,
        "k8sshortname" => |text| text.len() <= 63 && matches(&SHORT_NAME, text),
        "k8slongname" => |text| text.len() <= 253 && matches(&LONG_NAME, text),
        _ => return None,
    })
}

type Pattern = LazyLock<Option<Regex>>;

static SSN: Pattern = LazyLock::new(|| Regex::new("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").ok());
static HEX_COLOR: Pattern = LazyLock::new(|| Regex::new("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$").ok());
static RGB_COLOR: Pattern = LazyLock::new(|| {
    let part = r"[\t\n\f\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\t\n\f\r ]*";
    Regex::new(&format!(r"^rgb\({part},{part},{part}\)$")).ok()
});
static BASE64: Pattern = LazyLock::new(|| {
    let c = "[A-Za-z0-9+/]";
    Regex::new(&format!("^(?:{c}{{4}})*(?:{c}{{2}}==|{c}{{3}}=|{c}{{4}})$")).ok()
});
static SHORT_NAME: Pattern = LazyLock::new(|| Regex::new("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$").ok());
static LONG_NAME: Pattern =
    LazyLock::new(|| Regex::new(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$").ok());
static CARD: Pattern = LazyLock::new(|| {
    Regex::new(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}\
         |3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$",
    )
    .ok()
});
static TIME: Pattern = LazyLock::new(|| {
    Regex::new("^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$").ok()
});
static LOOSE_DURATION: Pattern = LazyLock::new(|| Regex::new("([0-9]+)[\\t\\n\\f\\r ]*([A-Za-zµ]+)").ok());
static HOST_CHARACTER: Pattern = LazyLock::new(|| Regex::new(r"^[a-zA-Z0-9\p{S}\p{L}]$").ok());

fn matches(pattern: &Pattern, text: &str) -> bool {
    pattern.as_ref().is_some_and(|regex| regex.is_match(text))
}

/// An absolute path, or a scheme and something after it.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.chars().any(|c| c.is_ascii_control()) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let without_query = text.split('?').next().unwrap_or_default();
    if without_query.starts_with('/') {
        return escapes_are_whole(without_query);
    }
    let Some((scheme, rest)) = without_query.split_once(':') else { return false };
    let mut letters = scheme.chars();
    let valid_scheme = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if !valid_scheme {
        return false;
    }
    let Some(after) = rest.strip_prefix("//") else { return escapes_are_whole(rest) };
    let (authority, path) = match after.find('/') {
        Some(at) => after.split_at(at),
        None => (after, ""),
    };
    let host = authority.rsplit('@').next().unwrap_or_default();
    let port = match host.rsplit_once(']') {
        Some((_, port)) => port,
        None => host.find(':').map_or("", |at| host.get(at..).unwrap_or_default()),
    };
    let port_ok =
        port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()));
    let host_ok =
        !host.contains([' ', '"', '<', '>', '\\', '^', '`', '{', '|', '}']) && escapes_are_whole(host);
    port_ok && host_ok && escapes_are_whole(path)
}

fn escapes_are_whole(text: &str) -> bool {
    text.split('%').skip(1).all(|after| after.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2)
}

/// `a@b`, or `Name <a@b>`.
fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    let address = match text.strip_suffix('>') {
        Some(inside) => match inside.rsplit_once('<') {
            Some((_, address)) => address,
            None => return false,
        },
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain.starts_with('[') && domain.ends_with(']');
    (quoted || is_dot_atom(local)) && (literal || is_dot_atom(domain))
}

fn is_dot_atom(text: &str) -> bool {
    let atom = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    !text.is_empty() && text.split('.').all(|part| !part.is_empty() && part.chars().all(atom))
}

fn is_hostname(text: &str) -> bool {
    if text.len() > 255 || text.split('.').any(|label| label.len() > 63) {
        return false;
    }
    let plain = |c: char| matches(&HOST_CHARACTER, c.encode_utf8(&mut [0; 4]));
    let labels: Vec<&str> = text.split('.').collect();
    match labels.as_slice() {
        [single] => {
            // One label: a dash may only be its second character.
            let mut characters = single.chars();
            let first = characters.next();
            let rest = characters.as_str();
            first.is_some_and(plain) && rest.strip_prefix('-').unwrap_or(rest).chars().all(plain)
        }
        [labels @ .., top] => {
            let label_ok = |label: &&str| {
                label.chars().next().is_some_and(plain)
                    && label.chars().next_back().is_some_and(plain)
                    && label.chars().all(|c| c == '-' || plain(c))
            };
            labels.iter().all(label_ok)
                && top.chars().count() >= 2
                && top.chars().all(|c| c.is_ascii_alphabetic() || (!c.is_ascii() && c.is_alphabetic()))
        }
        [] => false,
    }
}

/// Leading zeros are taken as decimal, as kube-apiserver always did.
fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn is_ipv4(text: &str) -> bool {
    text.contains('.') && (parse_ipv4(text).is_some() || text.parse::<Ipv6Addr>().is_ok())
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let digits = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
    let limit = match (parse_ipv4(address), address.parse::<Ipv6Addr>()) {
        (Some(_), _) => 32,
        (None, Ok(_)) => 128,
        (None, Err(_)) => return false,
    };
    digits && bits.parse::<u32>().is_ok_and(|bits| bits <= limit)
}

fn is_mac(text: &str) -> bool {
    let groups = |separator: char, width: usize, counts: [usize; 3]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len())
            && parts.iter().all(|part| part.len() == width && part.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    groups(':', 2, [6, 8, 20]) || groups('-', 2, [6, 8, 20]) || groups('.', 4, [3, 4, 10])
}

/// Groups of 8, 4, 4, 4 and 12 digits, each dash optional.
fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let bytes = text.as_bytes();
    let mut position = 0;
    for (group, width) in [8usize, 4, 4, 4, 12].into_iter().enumerate() {
        if group > 0 && bytes.get(position) == Some(&b'-') {
            position += 1;
        }
        let Some(digits) = bytes.get(position..position + width) else { return false };
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return false;
        }
        let first = digits.first().copied().unwrap_or_default();
        let fits = match (group, version) {
            (2, Some(version)) => first == version,
            (3, Some(b'4' | b'5')) => matches!(first.to_ascii_lowercase(), b'8' | b'9' | b'a' | b'b'),
            _ => true,
        };
        if !fits {
            return false;
        }
        position += width;
    }
    position == bytes.len()
}

fn digits_of_isbn(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, ' ' | '\t' | '\n' | '\u{c}' | '\r' | '-')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = digits_of_isbn(text);
    if digits.len() != 10 {
        return false;
    }
    let mut sum = 0;
    for (position, byte) in digits.bytes().enumerate() {
        let digit = match byte {
            b'0'..=b'9' => usize::from(byte - b'0'),
            b'X' if position == 9 => 10,
            _ => return false,
        };
        sum += (position + 1) * digit;
    }
    sum % 11 == 0
}

fn is_isbn13(text: &str) -> bool {
    let digits = digits_of_isbn(text);
    if digits.len() != 13 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let weighted = digits
        .bytes()
        .enumerate()
        .map(|(at, byte)| usize::from(byte - b'0') * if at % 2 == 0 { 1 } else { 3 });
    weighted.sum::<usize>() % 10 == 0
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if !matches(&CARD, &digits) {
        return false;
    }
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(position, byte)| {
            let digit = u32::from(byte - b'0');
            match (position % 2, digit * 2) {
                (0, _) => digit,
                (_, doubled) if doubled >= 10 => doubled % 10 + 1,
                (_, doubled) => doubled,
            }
        })
        .sum();
    sum.is_multiple_of(10)
}

/// A calendar day, as `2006-01-02`.
fn is_date(text: &str) -> bool {
    let shaped = text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    let part = |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<u32>().ok());
    let (Some(year), Some(month), Some(day), true) = (part(0..4), part(5..7), part(8..10), shaped) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(found) = TIME.as_ref().and_then(|regex| regex.captures(time)) else { return false };
    let within = |group: usize, limit: &str| found.get(group).is_some_and(|part| part.as_str() <= limit);
    is_date(date) && within(1, "23") && within(2, "59") && within(3, "59")
}

/// What Go reads as a duration, or at least one number with a unit of time in words.
fn is_duration(text: &str) -> bool {
    if is_go_duration(text) {
        return true;
    }
    let Some(regex) = LOOSE_DURATION.as_ref() else { return false };
    let mut found = false;
    for part in regex.captures_iter(text) {
        if part.get(1).is_none_or(|number| number.as_str().parse::<i64>().is_err()) {
            return false;
        }
        found |= part.get(2).is_some_and(|unit| is_loose_unit(&unit.as_str().to_lowercase()));
    }
    found
}

fn is_loose_unit(unit: &str) -> bool {
    const EXACT: [&str; 12] = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk", "μs"];
    const PREFIXES: [&str; 8] = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    EXACT.contains(&unit) || PREFIXES.iter().any(|prefix| unit.starts_with(prefix))
}

fn is_go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut nanoseconds = 0f64;
    let mut any = false;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        if !number.bytes().any(|b| b.is_ascii_digit()) || number.matches('.').count() > 1 {
            return false;
        }
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let factor = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return false,
        };
        nanoseconds += number.trim_end_matches('.').parse::<f64>().unwrap_or(f64::INFINITY) * factor;
        any = true;
        rest = next;
    }
    any && nanoseconds < 9.223_372_036_854_776e18
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;

    fn check(name: &str, accepted: &[&str], refused: &[&str]) {
        let Some(holds) = text_check(name) else { panic!("{name} is not known") };
        for text in accepted {
            assert!(holds(text), "{name} should accept {text:?}");
        }
        for text in refused {
            assert!(!holds(text), "{name} should refuse {text:?}");
        }
    }

    #[test]
    fn formats() {
        check(
            "date-time",
            &["2024-02-29T23:59:59Z", "2024-01-01t00:00:00.123+02:00"],
            &["2023-02-29T00:00:00Z", "2024-01-01", "2024-01-01T24:00:00Z", "x"],
        );
        check("date", &["2024-01-31"], &["2024-1-31", "2024-04-31", ""]);
        check("duration", &["1h30m", "-1.5s", "0", "22 ns", "3 days", "2w"], &["", "1x", "h", "5"]);
        check("email", &["a@b.c", "A B <a@b>"], &["a", "@b", "a@", "a b@c"]);
        check("ipv4", &["1.2.3.4", "01.2.3.4"], &["1.2.3", "::1", "1.2.3.256"]);
        check("ipv6", &["::1", "fe80::1"], &["1.2.3.4", "::g"]);
        check("cidr", &["10.0.0.0/8", "::/0"], &["10.0.0.0/33", "10.0.0.0"]);
        check("mac", &["00:11:22:33:44:55", "0011.2233.4455"], &["00:11"]);
        check(
            "uuid",
            &["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"],
            &["1", ""],
        );
        check("uuid4", &["123e4567-e89b-42d3-a456-426614174000"], &["123e4567-e89b-12d3-a456-426614174000"]);
        check("byte", &["YWI=", "YWJj"], &["", "YWI", "a"]);
        check("uri", &["/a", "https://a.b:8/c", "mailto:x"], &["", "a", "http://a:b", "/%zz", ":a"]);
        check("hostname", &["a", "a-b", "example.com", "a.b-c.london"], &["-a", "a.", "a_b.com", "a.b1"]);
        check("isbn10", &["0321751043"], &["0321751044"]);
        check("isbn13", &["978-0321751041"], &["978-0321751042"]);
        check("creditcard", &["4111-1111-1111-1111"], &["4111111111111112"]);
        check("ssn", &["111-11-1111"], &["111111111"]);
        check("hexcolor", &["#fff", "ABCDEF"], &["#ffff"]);
        check("rgbcolor", &["rgb(0, 255,1)"], &["rgb(256,0,0)"]);
        check("k8s-short-name", &["a-b"], &["A", "a.b"]);
        check("k8s-long-name", &["a.b"], &["a..b"]);
        check("password", &["", "x"], &[]);
        assert!(text_check("made-up").is_none());
    }
}
