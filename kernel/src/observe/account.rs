//! What a process has for those that look at it.

use core::ops::Range;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use quire::addr::VirtAddr;
use quire_interop::proc::Sizes;
use spin::Mutex;

use crate::time;

/// Where the parts of a program are in its memory, as they were when it started.
#[derive(Clone, Debug)]
pub struct ProgramLayout {
    /// The program's own code, without that of libraries.
    pub code: Range<VirtAddr>,
    /// Its data.
    pub data: Range<VirtAddr>,
    /// The stack pointer with which it started.
    pub stack: VirtAddr,
    /// The strings of its arguments, each with a zero byte at its end.
    pub arguments: Range<VirtAddr>,
    /// Those of its environment.
    pub environment: Range<VirtAddr>,
    /// The auxiliary vector.
    pub auxiliary: Range<VirtAddr>,
}

impl Default for ProgramLayout {
    fn default() -> Self {
        let none = || VirtAddr(0)..VirtAddr(0);
        Self {
            code: none(),
            data: none(),
            stack: VirtAddr(0),
            arguments: none(),
            environment: none(),
            auxiliary: none(),
        }
    }
}

/// See the module.
pub struct Account {
    /// How much rather (1000) or never (-1000) the process is killed when memory is out.
    pub oom_score_adj: AtomicI32,
    /// Where its program is.
    pub program: Mutex<ProgramLayout>,
    /// When it was made, in nanoseconds since the machine started.
    pub started: u64,
    largest: AtomicU64,
    most_resident: AtomicU64,
}

impl Account {
    /// That of a new child of a process with this one, or of the first process.
    pub fn for_child(parent: Option<&Self>) -> Self {
        let adj = parent.map_or(0, |parent| parent.oom_score_adj.load(Ordering::Relaxed));
        Self {
            oom_score_adj: AtomicI32::new(adj),
            program: Mutex::new(parent.map(|parent| parent.program.lock().clone()).unwrap_or_default()),
            started: time::now_ns(),
            largest: AtomicU64::new(0),
            most_resident: AtomicU64::new(0),
        }
    }

    /// The largest sizes so far, these included, in pages: of all mappings, and of what is in memory.
    ///
    /// The peaks are exact where this is called before each call that unmaps, as Linux does too.
    pub fn peak(&self, now: &Sizes) -> (u64, u64) {
        let most = |cell: &AtomicU64, now: u64| cell.fetch_max(now, Ordering::Relaxed).max(now);
        (most(&self.largest, now.total), most(&self.most_resident, now.rss()))
    }

    /// Forgets the peak of what is in memory (`clear_refs`).
    pub fn reset_peak(&self) {
        self.most_resident.store(0, Ordering::Relaxed);
    }
}
