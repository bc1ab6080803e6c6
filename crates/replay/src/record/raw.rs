//! The kernel's records, parsed and not yet ordered.

use nix::time::{ClockId, clock_gettime};

use crate::trace::{Accesses, Call};

/// The clock of all times in a trace.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux always has a monotonic clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// One record of the kernel, in the context of a thread.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) time_ns: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) kind: RawKind,
}

/// The kind of a record.
#[derive(Clone, Debug)]
pub(super) enum RawKind {
    /// The thread's name changed; `exec` if it started another program.
    Comm { exec: bool, name: String },
    /// The thread made another, in another process if `pid` differs.
    Fork { child_pid: u32, child_tid: u32 },
    /// The flags of `clone`, right after [`RawKind::Fork`].
    NewTask { flags: u64 },
    /// The thread ends.
    Exit,
    /// A mapping was made or changed.
    Mapping(Mapping),
    /// A memory call was entered: its number in the program's architecture, and the call.
    Enter { number: u64, call: Call, args: [u64; 6] },
    /// A memory call returned.
    Leave { number: u64, result: i64 },
    /// A fault was taken.
    Fault { addr: u64, error_code: u64, kernel_mode: bool },
    /// A fault was resolved.
    Resolved { addr: u64, major: bool },
    /// Pages of the page cache, by index, were mapped around a fault.
    MapPages { device: u64, inode: u64, first: u64, last: u64 },
    /// A page has left a file.
    Dropped { device: u64, inode: u64 },
    /// The thread has taken an address space's lock for reading, or downgraded it to that.
    Locked { mm: u64 },
    /// It is about to release a lock for writing.
    Unlocked { mm: u64 },
    /// What DAMON saw the process access.
    Accesses(Box<Accesses>),
    /// So many records were lost.
    Lost { records: u64 },
    /// The process was there before the recording attached to it.
    Existing(Box<Existing>),
}

/// A process as it was when the recording attached to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Existing {
    /// Its name.
    pub(super) name: String,
    /// Its threads; the first one is not among them if it has ended.
    pub(super) threads: Vec<u32>,
    /// Where its heap starts and ends.
    pub(super) heap: Option<(u64, u64)>,
    /// Its mappings by address.
    pub(super) mappings: Vec<Present>,
}

/// A mapping with its present pages.
#[derive(Clone, Debug)]
pub(super) struct Present {
    pub(super) mapping: Mapping,
    /// The advice of `madvise` that it has.
    pub(super) advice: Vec<u64>,
    /// Ranges by address: start, length in bytes, and whether the process had written these pages.
    pub(super) pages: Vec<(u64, u64, bool)>,
}

/// A mapping as the kernel describes it.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) len: u64,
    /// Offset into the file, in bytes.
    pub(super) offset: u64,
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) prot: u32,
    pub(super) flags: u32,
    /// A path, or one of the kernel's names: `//anon`, `[stack]`, `[heap]`, `[vdso]`.
    pub(super) name: String,
}

impl Mapping {
    /// Anonymous memory and the kernel's own mappings (the vdso) have no inode.
    pub(super) fn is_file(&self) -> bool {
        self.inode != 0
    }
}
