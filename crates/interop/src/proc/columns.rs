//! Columns of text.

use core::fmt::{Error, Result, Write};

/// A row of `meminfo` or `smaps`: the name and a colon in at least 16 columns, the number up to column 24.
///
/// A format with a width writes its spaces one at a time, and `smaps` has 23 rows for each mapping. So what follows the
/// name is made here, and written at once.
pub(super) fn row(out: &mut dyn Write, name: &str, number: u64, unit: &str) -> Result {
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut rest = number;
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let digits = &digits[first..];
    // Both columns, without the name: the number stands behind the first, and ends the second if it fits.
    let begin = 16_usize.saturating_sub(name.len()).max(1);
    let end = 24_usize.saturating_sub(name.len()).max(begin + digits.len());
    let mut line = [b' '; 48];
    line[0] = b':';
    line[end - digits.len()..end].copy_from_slice(digits);
    line[end..end + unit.len()].copy_from_slice(unit.as_bytes());
    line[end + unit.len()] = b'\n';
    out.write_str(name)?;
    out.write_str(str::from_utf8(&line[..=end + unit.len()]).map_err(|_| Error)?)
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

#[cfg(test)]
mod tests {
    use std::{format, string::String};

    use super::row;

    #[test]
    fn a_row_is_what_a_format_with_widths_writes() {
        for length in 0..40 {
            let name = "n".repeat(length);
            for number in [0, 9, 10, 99_999_999, 100_000_000, 1_234_567_890, u64::MAX] {
                for unit in ["", " kB"] {
                    let (pad, width) =
                        (16_usize.saturating_sub(length + 1), 24_usize.saturating_sub((length + 1).max(16)));
                    let mut written = String::new();
                    row(&mut written, &name, number, unit).unwrap();
                    assert_eq!(written, format!("{name}:{:pad$}{number:>width$}{unit}\n", ""));
                }
            }
        }
    }
}
