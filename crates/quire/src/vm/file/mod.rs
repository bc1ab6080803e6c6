//! Files as callers of `mmap` hold them, and what is done to a file wherever it is mapped: truncation and
//! write-back.

pub(super) mod handle;
pub(super) mod truncate;
pub(super) mod write_back;
