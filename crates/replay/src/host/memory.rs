//! The memory that the host has left.

use procfs::Current as _;

/// Bytes that the machine can give without swapping (`MemAvailable`), whatever control groups allow.
pub fn available() -> Option<u64> {
    procfs::Meminfo::current().ok()?.mem_available
}
