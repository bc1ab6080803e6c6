//! `quire boot`: runs a program of this machine on the example kernel, in QEMU.
//!
//! ```text
//! kernel      the kernel: found, or built
//! image       the guest's files: the program, what it needs, and what the user gives
//! machine     QEMU's arguments
//! run         QEMU itself, its channels and its end       terminal  the user's terminal meanwhile
//! log         the kernel's own lines                      backtrace names for addresses in them
//! end         what the last line and the status say       start        all of it, in order
//! ```

mod args;
mod backtrace;
mod end;
mod error;
mod image;
mod kernel;
mod log;
mod machine;
mod run;
mod start;
mod terminal;

pub use args::{Args, run};
pub use error::BootError;
