//! Where the command writes: files, devices, pipes, and the terminal.
//!
//! ```text
//! target    what a name given by the user stands for, and one write of all bytes to it
//! draft     a file to be filled bit by bit, which becomes the target when it is whole
//! quote     names and lines that come from elsewhere, so that they cannot steer the terminal
//! number    figures in the unit that suits them, and sizes that were typed
//! sheet     tables with as many columns as fit            width     how many there are, and prose that fits them
//! ```

mod draft;
mod number;
mod quote;
mod sheet;
mod target;
mod width;

pub use draft::Draft;
pub use number::{duration, parse_bytes};
pub use quote::{line, quoted};
pub use sheet::Sheet;
pub use target::Target;
pub use width::{Show, Width};

use std::fmt::Display;
use std::io::{self, Write};

/// Shows text of several lines, tables among them, on standard output.
///
/// # Errors
/// Those of standard output: a pipe that is read no more, a full disk.
pub fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(Width::of_output().wrap(text).as_bytes())?;
    out.flush()
}

/// Tells the user something: `text` as one line on standard error. That nothing reads it is no reason to fail.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", line(&text.to_string()));
}
