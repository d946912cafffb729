//! Tables that fit an ordinary terminal: what is too much is taken from the widest column, and `-o wide` has the rest.

/// A line fits an ordinary terminal.
const LINE_WIDTH: usize = 100;
/// Less than this of a cell says nothing.
const LEAST_WIDTH: usize = 20;
/// Between two columns.
const GAP: usize = 2;

/// Shortens cells of the widest column until a line fits, then of the next, as far as that goes. What names a thing is never cut, as it is typed
/// again. O(cells).
pub(super) fn fit<H: AsRef<str>>(header: &[H], lines: &mut [Vec<String>]) {
    let mut widths: Vec<usize> = header.iter().map(|title| title.as_ref().chars().count()).collect();
    for line in lines.iter() {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let is_name = |index: usize| {
        header
            .get(index)
            .is_some_and(|title| matches!(title.as_ref(), "NAMESPACE" | "NAME" | "ID" | "OBJECT"))
    };
    loop {
        let total = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let cuttable = widths
            .iter()
            .copied()
            .enumerate()
            .filter(|(index, width)| *width > LEAST_WIDTH && !is_name(*index));
        let Some((index, width)) = cuttable.max_by_key(|(_, width)| *width).filter(|_| total > LINE_WIDTH)
        else {
            return;
        };
        let room = width.saturating_sub(total - LINE_WIDTH).max(LEAST_WIDTH);
        for cell in lines.iter_mut().filter_map(|line| line.get_mut(index)) {
            *cell = shortened(cell, room);
        }
        if let Some(width) = widths.get_mut(index) {
            *width = room;
        }
    }
}

fn shortened(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let kept: String = cell.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn width_of(line: &[String]) -> usize {
        line.iter().map(|cell| cell.chars().count()).sum::<usize>() + GAP * (line.len() - 1)
    }

    #[test]
    fn a_line_fits_a_terminal_and_names_stay_whole() {
        let name = "a-name-that-is-rather-long-and-must-not-be-cut";
        let row = |why: &str| vec![name.to_owned(), "Idle".to_owned(), why.to_owned(), "3f2a91c".to_owned()];
        let mut lines = vec![row(&"w".repeat(200)), row("short")];
        fit(&["NAME", "STATE", "WHY", "COMMIT"], &mut lines);
        assert_eq!(lines[0][0], name);
        assert_eq!(lines[1][2], "short");
        assert!(width_of(&lines[0]) <= LINE_WIDTH, "{:?}", lines[0]);
        assert!(lines[0][2].ends_with('…'));
    }

    #[test]
    fn several_wide_columns_are_cut_and_a_name_at_the_end_is_not() {
        let name = "database-apply-4c9ec858d4cf".to_owned();
        let mut lines = vec![vec!["b".repeat(60), "r".repeat(80), name.clone()]];
        fit(&["BY", "RESULT", "NAME"], &mut lines);
        assert!(width_of(&lines[0]) <= LINE_WIDTH, "{:?}", lines[0]);
        assert_eq!(lines[0][2], name);
        let mut narrow = vec![vec!["a".to_owned(), "b".to_owned(), name]];
        let before = narrow.clone();
        fit(&["BY", "RESULT", "NAME"], &mut narrow);
        assert_eq!(narrow, before);
    }
}
