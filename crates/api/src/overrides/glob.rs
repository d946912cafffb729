//! Patterns of an administrator: `*` stands for anything but a slash, `**` for anything.

/// Whether a pattern covers a text. O(pattern · text).
pub(super) fn covers(pattern: &str, text: &str) -> bool {
    // Which ends of the pattern are reached by the part of the text so far.
    let pattern: Vec<Part> = parts(pattern);
    let mut reached = vec![false; pattern.len() + 1];
    start(&mut reached, &pattern, 0);
    for letter in text.chars() {
        let mut next = vec![false; pattern.len() + 1];
        for (at, part) in pattern.iter().enumerate() {
            if !reached.get(at).copied().unwrap_or_default() {
                continue;
            }
            match part {
                Part::Letter(wanted) if *wanted == letter => start(&mut next, &pattern, at + 1),
                Part::Letter(_) => {}
                Part::Within if letter != '/' => start(&mut next, &pattern, at),
                Part::Within => {}
                Part::Across => start(&mut next, &pattern, at),
            }
        }
        reached = next;
    }
    reached.last().copied().unwrap_or_default()
}

/// Whether the pattern says anything beside its stars.
pub(super) fn names_something(pattern: &str) -> bool {
    pattern.chars().any(|letter| letter != '*')
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Letter(char),
    Within,
    Across,
}

fn parts(pattern: &str) -> Vec<Part> {
    let mut found = Vec::new();
    for letter in pattern.chars() {
        match (letter, found.last().copied()) {
            ('*', Some(Part::Within)) => {
                found.pop();
                found.push(Part::Across);
            }
            ('*', Some(Part::Across)) => {}
            ('*', Some(Part::Letter(_)) | None) => found.push(Part::Within),
            (letter, _) => found.push(Part::Letter(letter)),
        }
    }
    found
}

/// This place is reached, and with it all that only stars lie before: they stand for nothing too.
fn start(reached: &mut [bool], pattern: &[Part], from: usize) {
    let mut at = from;
    loop {
        if let Some(place) = reached.get_mut(at) {
            *place = true;
        }
        match pattern.get(at) {
            Some(Part::Within | Part::Across) => at += 1,
            Some(Part::Letter(_)) | None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_star_stays_between_slashes_and_two_do_not() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a", "", false),
            ("", "", true),
            ("*", "", true),
            ("*", "abc", true),
            ("*", "a/b", false),
            ("**", "a/b", true),
            ("example.org/*", "example.org/runner:1", true),
            ("example.org/*", "example.org/team/runner", false),
            ("example.org/**", "example.org/team/runner", true),
            ("example.org/**", "example.org.evil/team/runner", false),
            ("*.example.org/a", "x.example.org/a", true),
            ("*.example.org/a", "evil/x.example.org/a", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXbY", false),
            ("-parallelism", "-parallelism", true),
        ] {
            assert_eq!(covers(pattern, text), expected, "{pattern} {text}");
        }
        assert!(!names_something("**") && names_something("*a"));
    }
}
