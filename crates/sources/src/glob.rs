//! Patterns of paths, as git reads them after `:(glob)`: `*` and `?` stay within a directory, `**` crosses directories, and a pattern
//! that names a directory means everything below it.

/// Whether a pattern covers a file. O(pattern × path) at worst.
pub(crate) fn covers(pattern: &str, path: &str) -> bool {
    let wanted: Vec<&str> = pattern.trim_end_matches('/').split('/').collect();
    let found: Vec<&str> = path.split('/').collect();
    let names_a_directory_above = found.len() > wanted.len() && found.starts_with(&wanted);
    names_a_directory_above || parts(&wanted, &found)
}

fn parts(wanted: &[&str], found: &[&str]) -> bool {
    match wanted.split_first() {
        None => found.is_empty(),
        // At the end it stands for everything inside, which is something at least.
        Some((&"**", [])) => !found.is_empty(),
        Some((&"**", rest)) => {
            (0..=found.len()).any(|skipped| parts(rest, found.get(skipped..).unwrap_or_default()))
        }
        Some((first, rest)) => {
            found.split_first().is_some_and(|(name, below)| within(first, name) && parts(rest, below))
        }
    }
}

/// One part of a path: the last `*` is stretched whenever the rest does not fit.
fn within(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut seen) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while seen < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || Some(wanted) == name.get(seen) => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((stretched, from)) = star else { return false };
                star = Some((stretched, from + 1));
                at = stretched + 1;
                seen = from + 1;
            }
        }
    }
    pattern.iter().skip(at).all(|left| *left == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `git ls-files ":(top,glob)PATTERN"` answers to the same; `tests/relevance.rs` asks it.
    #[test]
    fn stars_stay_within_a_directory_and_double_stars_do_not() {
        let table = [
            ("vars/*.tfvars", "vars/prod.tfvars", true),
            ("vars/*.tfvars", "vars/eu/prod.tfvars", false),
            ("vars/**/*.tfvars", "vars/eu/prod.tfvars", true),
            ("vars/**/*.tfvars", "vars/prod.tfvars", true),
            ("vars/**", "vars/eu/prod.tfvars", true),
            ("vars/**", "vars", false),
            ("**/shared.yaml", "shared.yaml", true),
            ("**/shared.yaml", "a/b/shared.yaml", true),
            ("vars", "vars/eu/prod.tfvars", true),
            ("vars/", "vars/prod.tfvars", true),
            ("vars", "variables", false),
            ("v?rs/a*b*c", "vars/a-b-b-c", true),
            ("v?rs/a*b*c", "vars/a-b-b", false),
            ("*", "main.tf", true),
            ("*", "a/main.tf", false),
        ];
        for (pattern, path, expected) in table {
            assert_eq!(covers(pattern, path), expected, "{pattern} {path}");
        }
    }
}
