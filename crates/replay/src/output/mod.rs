//! The command's output: files, devices, pipes, and the terminal.
//!
//! ```text
//! target    what a name given by the user stands for, and one write of all bytes to it
//! draft     a file that is written piece by piece and becomes the target when it is whole
//! quote     names and lines from elsewhere, escaped so that they cannot steer the terminal
//! number    figures in the unit that suits them, and sizes that were typed
//! sheet     tables with as many columns as fit            width     how many there are, and prose that fits them
//! sparkline values over time in one line        progress how far long work is
//! cure      what to do about an error of the system
//! format    whether the output is for readers or for programs
//! ```

mod cure;
mod draft;
mod format;
mod number;
mod progress;
mod quote;
mod sheet;
mod sparkline;
mod target;
mod width;

pub use cure::cure;
pub use draft::Draft;
pub use format::Format;
pub use number::{duration, parse_bytes};
pub use progress::Progress;
pub use quote::{line, quoted};
pub use sheet::Sheet;
pub use sparkline::sparkline;
pub use target::{Target, cannot_write, output_name};
pub use width::{Show, Width};

use std::fmt::Display;
use std::io::{self, Write};

/// Shows text of several lines, tables among them, on standard output.
///
/// # Errors
/// Those of standard output: a closed pipe, a full disk. They keep their kind.
pub fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(Width::of_output().wrap(text).as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| {
        let told = format!("cannot write standard output; {}: {error}", cure(&error));
        io::Error::new(error.kind(), told)
    })
}

/// Writes `text` as one line to standard error. A closed standard error is not a failure.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", line(&text.to_string()));
}
