//! The kernel's own log: shown as it comes, or kept for the case that the kernel fails.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::backtrace::Symbols;
use super::end::End;
use crate::output::say;

/// As many lines as are kept.
const KEPT: usize = 200;
/// Longer lines are cut in parts, so that a kernel that prints without end needs no memory without end.
const LONGEST: u64 = 4096;

/// What is left of the log when the run has ended.
#[derive(Debug, Default)]
pub(super) struct Log {
    kept: VecDeque<String>,
    /// The line that says how the run ended.
    pub(super) end: Option<String>,
}

impl Log {
    /// Reads the log to its end, and calls `started` at its first line. With `shown`, each line goes to
    /// standard error at once.
    pub(super) fn read(input: impl Read, kernel: &Path, shown: bool, started: impl FnOnce()) -> Log {
        let (symbols, mut started) = (Symbols::new(kernel), Some(started));
        let mut log = Log::default();
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        loop {
            line.clear();
            // An error is the end of the log too.
            let read = (&mut input).take(LONGEST).read_until(b'\n', &mut line).unwrap_or(0);
            if read == 0 {
                return log;
            }
            started.take().into_iter().for_each(|started| started());
            let text = String::from_utf8_lossy(&line);
            log.add(text.trim_end_matches(['\r', '\n']), &symbols, shown);
        }
    }

    fn add(&mut self, line: &str, symbols: &Symbols, shown: bool) {
        if End::is_said_by(line) {
            self.end = Some(line.to_owned());
        }
        if shown {
            symbols.explain(line).iter().for_each(say);
            return;
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(line.to_owned());
    }

    /// Shows the lines that were kept.
    pub(super) fn show(&self, kernel: &Path) {
        let symbols = Symbols::new(kernel);
        self.kept.iter().flat_map(|line| symbols.explain(line)).for_each(say);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Log, u32) {
        let mut started = 0;
        let log = Log::read(text.as_bytes(), "/no/such/kernel".as_ref(), false, || started += 1);
        (log, started)
    }

    #[test]
    fn the_last_lines_are_kept() {
        let text: String = (0..300).map(|line| format!("[quire] {line}\r\n")).collect();
        let (log, started) = read(&(text + "[quire] end: exited 3\nno end"));
        assert_eq!((log.kept.len(), started), (KEPT, 1));
        assert_eq!(log.kept.front().map(String::as_str), Some("[quire] 102"));
        assert_eq!(log.kept.back().map(String::as_str), Some("no end"));
        assert_eq!(log.end.as_deref(), Some("[quire] end: exited 3"));
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let (log, _) = read(&"x".repeat(10_000));
        assert_eq!(log.kept.iter().map(String::len).collect::<Vec<_>>(), [4096, 4096, 1808]);
        let (log, started) = read("");
        assert_eq!((log.kept.len(), started, log.end), (0, 0, None));
    }
}
