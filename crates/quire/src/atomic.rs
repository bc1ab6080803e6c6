//! The atomics of locks, leases, per-CPU lists, sets of CPUs and shares in page tables, under one name, so
//! that a checker of interleavings (`tests/loom`) can compile the same files with its own.

pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
};
