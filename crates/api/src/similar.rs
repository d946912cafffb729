//! The name that was probably meant by one that is none.

/// One letter in so many may be wrong; more make another name, not a slip.
const LETTERS_A_SLIP: usize = 3;

/// The name that takes the fewest changes to become the one that was written, if it takes few.
pub fn similar(known: impl IntoIterator<Item = String>, name: &str) -> Option<String> {
    let allowed = (name.chars().count() / LETTERS_A_SLIP).max(1);
    let distances = known.into_iter().map(|known| (distance(&known, name), known));
    distances.filter(|(distance, _)| *distance <= allowed).min().map(|(_, known)| known)
}

/// How many letters must change to make one name the other. O(a · b), names are short.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let change = diagonal + usize::from(x != *y);
            diagonal = *cell;
            left = change.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_letters_that_must_change() {
        for (a, b, expected) in
            [("", "", 0), ("abc", "", 3), ("databse", "database", 1), ("app", "db", 3), ("x", "x", 0)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn only_a_slip_is_taken_for_another_name() {
        let known = ["app", "database", "motd", "network"].map(str::to_owned);
        for (written, meant) in [
            ("databse", Some("database")),
            ("netwrk", Some("network")),
            ("apq", Some("app")),
            ("zz", None),
            ("nope", None),
        ] {
            assert_eq!(similar(known.clone(), written).as_deref(), meant, "{written}");
        }
    }
}
