//! The handles on files for callers of `mmap`; bytes, holes, truncation and write-back of files wherever they
//! are mapped.

pub(super) mod handle;
mod holes;
mod read;
pub(super) mod truncate;
mod write;
pub(super) mod write_back;
