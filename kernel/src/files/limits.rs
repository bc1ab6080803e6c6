//! Limits of the running process that files obey (`getrlimit(2)`).

use linux_raw_sys::general as abi;

use crate::errno::Errno;
use crate::task::sched;
use crate::task::signal::info::SigInfo;
use crate::task::signal::send;

/// The largest file that it may write (`RLIMIT_FSIZE`).
pub fn file_size() -> u64 {
    limit(abi::RLIMIT_FSIZE).min(i64::MAX as u64)
}

/// Fails with a signal if a file of this size is larger than the running process may write.
///
/// # Errors
/// [`Errno::EFBIG`].
pub fn check_file_size(bytes: u64) -> Result<(), Errno> {
    if bytes <= file_size() {
        return Ok(());
    }
    send::to_task(&sched::current(), SigInfo::kernel(abi::SIGXFSZ));
    Err(Errno::EFBIG)
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
