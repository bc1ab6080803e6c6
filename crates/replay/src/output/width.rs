//! The number of columns for output.

use std::borrow::Cow;
use std::io::{IsTerminal, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::tcgetwinsize;

/// The default number of columns.
const DEFAULT: usize = 100;

/// The least number of columns; narrower text cannot be read.
const LEAST: usize = 20;

/// Whether the user wants all columns of tables.
static WIDE: AtomicBool = AtomicBool::new(false);

/// How tables are shown, as a part of the command line.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Show {
    /// All columns of tables. Default: those that fit the terminal, or, where the output is no terminal, $COLUMNS or 100.
    #[arg(long)]
    wide: bool,
}

impl Show {
    /// Applies to all later output of this process.
    pub fn apply(self) {
        WIDE.store(self.wide, Ordering::Relaxed);
    }
}

/// The width of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    /// Columns of a table; `None` for all that it has.
    pub columns: Option<usize>,
    /// Columns of prose; `None` keeps each paragraph on one line for a program that reads it.
    pub prose: Option<usize>,
}

impl Width {
    /// The terminal's width where standard output is one, else that of the variable `COLUMNS`, else 100.
    pub fn of_output() -> Self {
        let out = stdout();
        let terminal = out.is_terminal().then(|| {
            let columns = tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
            columns.filter(|columns| *columns > 0).or_else(from_environment).unwrap_or(DEFAULT).max(LEAST)
        });
        let columns = terminal.unwrap_or_else(|| from_environment().unwrap_or(DEFAULT).max(LEAST));
        Self { columns: (!WIDE.load(Ordering::Relaxed)).then_some(columns), prose: terminal }
    }

    /// The text with each of its lines wrapped between words, except for those of a table, and for commands: one that is
    /// broken cannot be copied into a shell.
    pub fn wrap(self, text: &str) -> Cow<'_, str> {
        let Some(columns) = self.prose else { return text.into() };
        let wrapped = |line: &str| match line.starts_with(is_border) || line.starts_with(COMMAND) {
            true => line.to_owned(),
            false => textwrap::fill(line, textwrap::Options::new(columns).subsequent_indent("  ")),
        };
        text.split('\n').map(wrapped).collect::<Vec<_>>().join("\n").into()
    }
}

/// What the lines of commands begin with: all of them write to settings.
const COMMAND: &str = "  echo ";

/// The characters that the lines of a table begin with.
fn is_border(letter: char) -> bool {
    ('\u{2500}'..='\u{257f}').contains(&letter)
}

fn from_environment() -> Option<usize> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_and_commands_and_tables_are_not() {
        let width = Width { columns: Some(20), prose: Some(20) };
        let command = "  echo always > /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
        let table = "│ a table that is wider │";
        assert_eq!(width.wrap(command), command);
        assert_eq!(width.wrap(table), table);
        assert_eq!(width.wrap("words that go on and on"), "words that go on and\n  on");
    }
}
