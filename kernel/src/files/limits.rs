//! Limits of the running process that files obey (`getrlimit(2)`).

use linux_raw_sys::general as abi;

use crate::task::sched;

/// The largest file that it may write (`RLIMIT_FSIZE`).
pub fn file_size() -> u64 {
    limit(abi::RLIMIT_FSIZE).min(i64::MAX as u64)
}

/// One more than the largest descriptor that it may have (`RLIMIT_NOFILE`).
pub fn descriptors() -> usize {
    (limit(abi::RLIMIT_NOFILE) as usize).min(MOST_DESCRIPTORS)
}

fn limit(resource: u32) -> u64 {
    sched::current_ref().process.limits.get(resource).map_or(u64::MAX, |limit| limit.soft)
}

/// The most descriptors that any process may have, as in Linux (`fs.nr_open`).
pub const MOST_DESCRIPTORS: usize = 1 << 20;
