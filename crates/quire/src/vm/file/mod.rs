//! The handles on files for callers of `mmap`; truncation and write-back of files wherever they are mapped.

pub(super) mod handle;
pub(super) mod truncate;
pub(super) mod write_back;
