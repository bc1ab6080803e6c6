//! The atomics that locks and sets of CPUs are made of, under one name, so that a checker of interleavings
//! (`tests/loom`) can compile the same files with its own.

pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
