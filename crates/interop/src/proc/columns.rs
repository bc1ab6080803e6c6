//! Columns of text.

use core::fmt::{Result, Write};

/// A row of `meminfo` or `smaps`: the name and a colon in at least 16 columns, the number up to column 24.
pub(super) fn row(out: &mut dyn Write, name: &str, number: u64, unit: &str) -> Result {
    let width = 24_usize.saturating_sub((name.len() + 1).max(16));
    let pad = 16_usize.saturating_sub(name.len() + 1);
    writeln!(out, "{name}:{:pad$}{number:>width$}{unit}", "")
}

/// A row in KiB.
pub(super) fn row_kib(out: &mut dyn Write, name: &str, kib: u64) -> Result {
    row(out, name, kib, " kB")
}

/// Passes text on, and counts it. Text after [`Self::begin_at`] begins at a column.
pub(super) struct Columns<'a> {
    out: &'a mut dyn Write,
    written: usize,
    begin: usize,
}

impl<'a> Columns<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, written: 0, begin: 0 }
    }

    /// The next text, if there is any, begins at this column or behind what is there.
    pub(super) fn begin_at(&mut self, column: usize) {
        self.begin = column;
    }
}

impl Write for Columns<'_> {
    fn write_str(&mut self, text: &str) -> Result {
        if text.is_empty() {
            return Ok(());
        }
        if self.begin > 0 {
            let pad = self.begin.saturating_sub(self.written).max(1);
            write!(self.out, "{:pad$}", "")?;
            self.written += pad;
            self.begin = 0;
        }
        self.written += text.len();
        self.out.write_str(text)
    }
}
