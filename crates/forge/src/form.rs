//! The body of a form, as hosts send it that were told so: JSON under the name `payload`.

/// The one value of that name. Nothing where there is none, or more than one. O(bytes).
pub(crate) fn value(form: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut found = form.split(|byte| *byte == b'&').filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let (key, value) = pair.split_at(at);
        (decoded(key) == name.as_bytes()).then(|| decoded(value.get(1..).unwrap_or_default()))
    });
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// What is no escape stands for itself.
fn decoded(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let mut byte = [0];
        let digits = after.get(..2).unwrap_or_default();
        if *first == b'%' && hex::decode_to_slice(digits, &mut byte).is_ok() {
            bytes.extend(byte);
            rest = after.get(2..).unwrap_or_default();
        } else {
            bytes.push(if *first == b'+' { b' ' } else { *first });
            rest = after;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_and_unescaped() {
        let find = |form: &str| {
            value(form.as_bytes(), "payload").map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        assert_eq!(find("payload=%7B%22a%22%3A+1%7D").as_deref(), Some("{\"a\": 1}"));
        assert_eq!(find("other=1&p%61yload=x%3dy&more").as_deref(), Some("x=y"));
        assert_eq!(find("payload=100%").as_deref(), Some("100%"));
        assert_eq!(find("payload=%zz%4").as_deref(), Some("%zz%4"));
        assert_eq!(find("payload="), Some(String::new()));
        assert_eq!(find("payload=a&payload=b"), None);
        assert_eq!(find(""), None);
    }
}
