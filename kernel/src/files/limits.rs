//! Limits of the running process that files obey (`getrlimit(2)`).

/// The largest file that it may write (`RLIMIT_FSIZE`).
pub fn file_size() -> u64 {
    i64::MAX as u64
}

/// One more than the largest descriptor that it may have (`RLIMIT_NOFILE`).
pub fn descriptors() -> usize {
    1024
}

/// The most descriptors that any process may have, as in Linux (`fs.nr_open`).
pub const MOST_DESCRIPTORS: usize = 1 << 20;
