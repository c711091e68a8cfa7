//! Tables for the log, drawn as Triton draws them.

use std::fmt;

/// The width of a whole table at most, which is Triton's where there is no terminal.
const WIDTH_MAX: usize = 500;

/// A table with a head. A cell may have several lines, and one that is too wide for its column is broken.
#[derive(Debug)]
pub(crate) struct Table<const COLUMNS: usize> {
    /// The head first.
    rows: Vec<[Vec<String>; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub fn new(head: [&str; COLUMNS]) -> Self {
        Self { rows: vec![head.map(|cell| vec![cell.to_owned()])] }
    }

    pub fn push(&mut self, row: [&str; COLUMNS]) {
        self.rows.push(row.map(|cell| cell.lines().map(str::to_owned).collect()));
    }

    /// The width of each column: that of its widest line, and where all of them are too wide, a fair share: what narrow
    /// columns leave is divided among the others.
    fn widths(&self) -> [usize; COLUMNS] {
        let line_width = |line: &String| line.chars().count();
        let wanted = std::array::from_fn(|column| {
            self.rows.iter().flat_map(|row| &row[column]).map(line_width).max().unwrap_or_default()
        });
        let mut order: [usize; COLUMNS] = std::array::from_fn(|column| column);
        order.sort_by_key(|&column| wanted[column]);
        let mut left = WIDTH_MAX.saturating_sub(3 * COLUMNS + 1);
        let mut widths: [usize; COLUMNS] = wanted;
        for (done, &column) in order.iter().enumerate() {
            widths[column] = wanted[column].min(left / (COLUMNS - done)).max(1);
            left = left.saturating_sub(widths[column]);
        }
        widths
    }
}

/// The lines of a cell in a column of `width` characters.
fn broken(cell: &[String], width: usize) -> Vec<String> {
    let pieces = |line: &String| {
        let characters: Vec<char> = line.chars().collect();
        match characters.is_empty() {
            true => vec![String::new()],
            false => characters.chunks(width).map(|piece| piece.iter().collect()).collect(),
        }
    };
    cell.iter().flat_map(pieces).collect()
}

impl<const COLUMNS: usize> fmt::Display for Table<COLUMNS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let rule = |f: &mut fmt::Formatter<'_>| {
            widths.iter().try_for_each(|width| write!(f, "+{:-<1$}", "", width + 2))?;
            writeln!(f, "+")
        };
        rule(f)?;
        for (number, row) in self.rows.iter().enumerate() {
            let cells: [Vec<String>; COLUMNS] = std::array::from_fn(|column| broken(&row[column], widths[column]));
            let height = cells.iter().map(Vec::len).max().unwrap_or_default();
            for line in 0..height {
                for (cell, &width) in cells.iter().zip(&widths) {
                    write!(f, "| {:<width$} ", cell.get(line).map_or("", String::as_str))?;
                }
                writeln!(f, "|")?;
            }
            if number == 0 {
                rule(f)?;
            }
        }
        rule(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_lines() {
        let mut table = Table::new(["Model", "Version", "Status"]);
        table.push(["é", "1", "READY"]);
        table.push(["other", "2", "UNAVAILABLE: one\ntwo"]);
        let expected = "\
+-------+---------+------------------+
| Model | Version | Status           |
+-------+---------+------------------+
| é     | 1       | READY            |
| other | 2       | UNAVAILABLE: one |
|       |         | two              |
+-------+---------+------------------+
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn wide_cells_are_broken_where_there_is_no_room() {
        let mut table = Table::new(["A", "B", "C"]);
        table.push(["x", &"y".repeat(600), &"z".repeat(300)]);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.len() == WIDTH_MAX), "{text}");
        assert_eq!(text.matches('y').count(), 600);
        assert_eq!(text.matches('z').count(), 300);
        // 490 characters for the text, of which the first column takes one.
        assert_eq!(lines[3].matches('z').count(), 244);
        assert_eq!(lines[3].matches('y').count(), 245);
    }

    #[test]
    fn a_table_without_rows_has_its_head() {
        assert_eq!(Table::new(["Model"]).to_string(), "+-------+\n| Model |\n+-------+\n+-------+\n");
    }
}
