//! Where the command writes: files, devices, pipes, and the terminal.
//!
//! ```text
//! target    what a name given by the user stands for, and one write of all bytes to it
//! draft     a file to be filled bit by bit, which becomes the target when it is whole
//! quote     names and lines that come from elsewhere, so that they cannot steer the terminal
//! width     how many columns there are, and prose that fits them
//! ```

mod draft;
mod quote;
mod target;
mod width;

pub use draft::Draft;
pub use quote::{line, quoted};
pub use target::Target;
pub use width::Width;

use std::fmt::Display;
use std::io::{self, Write};

/// Tells the user something: `text` as one line on standard error. That nothing reads it is no reason to fail.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", line(&text.to_string()));
}
