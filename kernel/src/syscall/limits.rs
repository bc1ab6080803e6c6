//! Limits and usage.

use linux_raw_sys::general as abi;

use super::wait::USAGE_WORDS;
use super::{Answer, Call};
use crate::errno::Errno;
use crate::program::stack::{CLOCK_TICKS, LIMIT_BYTES};
use crate::time;

const UNLIMITED: u64 = u64::MAX;
/// How many files may be open (`RLIMIT_NOFILE`).
const OPEN_FILES: u64 = 1024;

impl Call<'_> {
    /// `prlimit64`: the soft and the hard limit.
    pub(super) fn prlimit(&self) -> Answer {
        let [_, resource, new, old, ..] = self.arguments;
        if new != 0 {
            self.load_words::<2>(new)?;
        }
        self.store_words(old, &limit(resource as u32)?)?;
        Ok(0)
    }

    pub(super) fn getrlimit(&self) -> Answer {
        self.store_words(self.arguments[1], &limit(self.arguments[0] as u32)?)?;
        Ok(0)
    }

    pub(super) fn setrlimit(&self) -> Answer {
        limit(self.arguments[0] as u32)?;
        Ok(0)
    }

    /// `getrusage`: the time since the start of the machine, as that of the program.
    pub(super) fn getrusage(&self) -> Answer {
        let mut words = [0; USAGE_WORDS];
        let now = time::now_ns();
        [words[0], words[1]] = [now / 1_000_000_000, now % 1_000_000_000 / 1000];
        self.store_words(self.arguments[1], &words)?;
        Ok(0)
    }

    pub(super) fn times(&self) -> Answer {
        let ticks = time::now_ns() / (1_000_000_000 / CLOCK_TICKS);
        self.store_words(self.arguments[0], &[ticks, 0, 0, 0])?;
        Ok(ticks)
    }
}

fn limit(resource: u32) -> Result<[u64; 2], Errno> {
    match resource {
        abi::RLIMIT_STACK => Ok([LIMIT_BYTES, UNLIMITED]),
        abi::RLIMIT_NOFILE => Ok([OPEN_FILES; 2]),
        0..16 => Ok([UNLIMITED; 2]),
        _ => Err(Errno::EINVAL),
    }
}
