//! The atomics of mailboxes under one name, so that a checker of interleavings can compile the same files with
//! its own (`crates/quire/tests/loom`).

pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
