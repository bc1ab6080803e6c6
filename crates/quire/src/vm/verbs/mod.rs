//! The calls that change an address space, one file for each, and the steps that they share.

mod advise;
pub(super) mod brk;
pub(super) mod change;
pub(super) mod exit;
pub(super) mod fork;
pub(super) mod madvise;
pub(super) mod mlock;
pub(super) mod mmap;
pub(super) mod mprotect;
pub(super) mod mremap;
pub(super) mod msync;
pub(super) mod munmap;
pub(super) mod place;
pub(super) mod populate;
pub(super) mod request;
