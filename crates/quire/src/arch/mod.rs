//! What differs between processors. Everything above speaks of levels, entries and protections only.

pub mod x86_64;

pub use x86_64::{Entry, EntryFlags, Level, PagingMode, Protection, expect_changes};
