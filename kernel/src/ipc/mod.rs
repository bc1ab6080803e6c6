//! System V shared memory: segments of memory that programs find by a number.
//!
//! A segment is a file of shared anonymous memory or of huge pages, and attaching it is a shared mapping of the file.
//! So `fork`, `exec`, `munmap` and the end of a process need nothing of their own: Quire knows how often a file is
//! mapped.

mod segment;
mod table;

pub use segment::{Owner, Segment};
pub use table::{
    Attaching, Created, New, all, collect, create, find, get, of_file, pages, remove, remove_all, slot,
    totals, with_file,
};
