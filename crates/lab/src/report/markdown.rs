//! Tables and wrapped prose in Markdown.

use std::fmt::Write;

/// Columns at which documents wrap.
const COLUMNS: usize = 100;

/// A table in Markdown.
pub(super) struct Table(pub(super) String);

impl Table {
    pub(super) fn new(header: &[&str]) -> Self {
        let mut table = Self(String::new());
        table.row(header);
        let _ = writeln!(table.0, "|{}", "---|".repeat(header.len()));
        table
    }

    pub(super) fn row<S: AsRef<str>>(&mut self, cells: &[S]) {
        let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
        let _ = writeln!(self.0, "| {} |", cells.join(" | "));
    }
}

/// Wraps `text`; lines after the first are indented by the length of `before`, which starts the first.
pub(super) fn wrapped(text: &str, before: &str) -> String {
    let indent = " ".repeat(before.len());
    let options =
        textwrap::Options::new(COLUMNS).initial_indent(before).subsequent_indent(&indent).break_words(false);
    let words: Vec<&str> = text.split_whitespace().collect();
    textwrap::fill(&words.join(" "), options.word_splitter(textwrap::WordSplitter::NoHyphenation))
}
