//! A table that shows as many columns as fit.

use std::fmt;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use textwrap::core::display_width;

use super::Width;

/// A table. Names of rows are in the first columns, figures, aligned right, in the others.
#[derive(Clone, Debug)]
pub struct Sheet {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// The number of columns that name a row; these and the most important figure are always shown.
    names: usize,
    /// Columns of figures, the most important first.
    order: Vec<usize>,
}

impl Sheet {
    /// An empty table. Figures further to the right are less important.
    pub fn new(header: &[String], names: usize) -> Self {
        let order = (names..header.len()).collect();
        Self { header: header.to_vec(), rows: Vec::new(), names, order }
    }

    /// Appends a row.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether the table has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Makes these columns of figures more important than the others, the first of them most.
    pub fn prefer(&mut self, columns: impl IntoIterator<Item = usize>) {
        let mut order: Vec<usize> = Vec::with_capacity(self.order.len());
        for column in columns.into_iter().chain(std::mem::take(&mut self.order)) {
            if column >= self.names && column < self.header.len() && !order.contains(&column) {
                order.push(column);
            }
        }
        self.order = order;
    }

    /// The table within `width` columns of the terminal, and below it the columns that were left out.
    /// Headings break between words before a column is left out; cells break where even the first columns are
    /// too wide.
    pub fn fit(&self, width: Option<usize>) -> String {
        let all = self.table(&self.shown(self.order.len()), false);
        let Some(width) = width.filter(|width| width_of(&all) > *width) else { return all.to_string() };
        let least = self.order.len().min(1);
        let fitting = (least..=self.order.len())
            .rev()
            .map(|figures| (figures, self.table(&self.shown(figures), true)))
            .find(|(figures, table)| *figures == least || width_of(table) <= width);
        let Some((figures, mut table)) = fitting else { return all.to_string() };
        if width_of(&table) > width {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width as u16);
        }
        let mut left: Vec<usize> = self.order[figures..].to_vec();
        left.sort_unstable();
        if left.is_empty() {
            return table.to_string();
        }
        let names: Vec<&str> = left.iter().map(|&column| self.header[column].as_str()).collect();
        let told = format!("left out here, shown by --wide: {}", names.join(", "));
        format!("{table}\n{}", textwrap::fill(&told, textwrap::Options::new(width).subsequent_indent("  ")))
    }

    /// The columns to show with `figures` columns of figures, from left to right.
    fn shown(&self, figures: usize) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.names).chain(self.order[..figures].iter().copied()).collect();
        shown.sort_unstable();
        shown
    }

    fn table(&self, columns: &[usize], narrow: bool) -> Table {
        let mut table = Table::new();
        let heading =
            |&column: &usize| if narrow { self.heading(column) } else { self.header[column].clone() };
        table.load_style(presets::UTF8_FULL_CONDENSED).set_header(columns.iter().map(heading));
        for row in &self.rows {
            table.add_row(columns.iter().map(|&column| row.get(column).cloned().unwrap_or_default()));
        }
        for column in table.column_iter_mut().skip(self.names) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// A heading, broken into lines no longer than its longest word or the cells below it.
    fn heading(&self, column: usize) -> String {
        let heading = &self.header[column];
        let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| display_width(cell));
        let widest = heading.split(' ').map(display_width).chain(cells).max().unwrap_or(1);
        textwrap::fill(heading, widest)
    }
}

fn width_of(table: &Table) -> usize {
    table.lines().map(|line| display_width(&line)).max().unwrap_or(0)
}

impl fmt::Display for Sheet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.fit(Width::of_output().columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let header = ["case", "faults", "page tables KiB", "fault time", "bytes cleared in all"];
        let mut sheet = Sheet::new(&header.map(str::to_owned), 1);
        for case in ["4KiB/shuffled/2threads", "2MiB"] {
            sheet.add_row([case, "3311", "123456", "1.25 ms", "40472"].map(str::to_owned));
        }
        sheet
    }

    #[test]
    fn a_table_loses_its_least_important_columns_first() {
        let mut sheet = sheet();
        sheet.prefer([3]);
        let narrow = sheet.fit(Some(46));
        assert!(narrow.lines().all(|line| display_width(line) <= 46), "{narrow}");
        assert!(
            narrow.contains("1.25 ms") && narrow.contains("3311") && !narrow.contains("40472"),
            "{narrow}"
        );
        let told = narrow.replace("\n  ", " ");
        assert!(told.ends_with("shown by --wide: page tables KiB, bytes cleared in all"), "{narrow}");
        let wide = sheet.fit(None);
        assert!(wide.contains("page tables KiB") && !wide.contains("left out"), "{wide}");
        assert_eq!(sheet.fit(Some(200)), wide);
    }

    #[test]
    fn headings_break_before_columns_go() {
        let all = sheet().fit(Some(70));
        assert!(all.lines().all(|line| display_width(line) <= 70) && all.contains("40472"), "{all}");
        assert!(!all.contains("left out"), "{all}");
    }

    #[test]
    fn cells_break_where_nothing_else_helps() {
        let least = sheet().fit(Some(24));
        assert!(least.lines().all(|line| display_width(line) <= 24) && least.contains("3311"), "{least}");
    }
}
