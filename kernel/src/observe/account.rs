//! What a process has for those that look at it.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use quire::addr::VirtAddr;
use quire_interop::proc::Sizes;

use super::usage::{self, FaultCounts, USAGE_WORDS, Usage};
use crate::memory::manager::Space;
use crate::sync::Mutex;
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

/// What a core dump contains unless a process chooses: private memory, shared memory without a name, first pages of
/// programs, private huge pages.
const DUMP_FILTER: u32 = 0x33;

/// See the module.
pub struct Account {
    /// How much rather (1000) or never (-1000) the process is killed when memory is out.
    pub oom_score_adj: AtomicI32,
    /// The least that a process without rights may set it to: what one with rights has set.
    pub least_adj: AtomicI32,
    /// `PR_SET_NO_NEW_PRIVS`: no program that it executes gives it more rights.
    pub no_new_privs: AtomicBool,
    /// Other processes of its user may look at its memory (`PR_SET_DUMPABLE`).
    pub is_dumpable: AtomicBool,
    /// What of its memory a core dump contains (`coredump_filter`).
    pub dump_filter: AtomicU32,
    /// The signal that it gets when its parent ends (`PR_SET_PDEATHSIG`); 0 for none.
    pub death_signal: AtomicU32,
    /// Where its program is.
    pub program: Mutex<ProgramLayout>,
    /// What its tasks have used.
    pub usage: Usage,
    /// The faults of the programs that it ran before this one, while they are logged.
    pub faults_before: Mutex<FaultCounts>,
    /// What its children had used that ended and were waited for.
    pub children: Usage,
    /// When it was made, in nanoseconds since the machine started.
    pub started: u64,
    largest: AtomicU64,
    most_resident: AtomicU64,
    /// The most pages of one of the `children`, or of their own, that were in memory.
    largest_child: AtomicU64,
}

impl Account {
    /// That of a new child of a process with this one, or of the first process.
    pub fn for_child(parent: Option<&Self>) -> Self {
        let adj = parent.map_or(0, |parent| parent.oom_score_adj.load(Ordering::Relaxed));
        let least_adj = parent.map_or(0, |parent| parent.least_adj.load(Ordering::Relaxed));
        let no_new_privs = parent.is_some_and(|parent| parent.no_new_privs.load(Ordering::Relaxed));
        let dump_filter = parent.map_or(DUMP_FILTER, |parent| parent.dump_filter.load(Ordering::Relaxed));
        let is_dumpable = parent.is_none_or(|parent| parent.is_dumpable.load(Ordering::Relaxed));
        Self {
            oom_score_adj: AtomicI32::new(adj),
            least_adj: AtomicI32::new(least_adj),
            no_new_privs: AtomicBool::new(no_new_privs),
            is_dumpable: AtomicBool::new(is_dumpable),
            dump_filter: AtomicU32::new(dump_filter),
            death_signal: AtomicU32::new(0),
            program: Mutex::new(parent.map(|parent| parent.program.lock().clone()).unwrap_or_default()),
            usage: Usage::default(),
            faults_before: Mutex::default(),
            children: Usage::default(),
            started: time::now_ns(),
            largest: AtomicU64::new(0),
            most_resident: AtomicU64::new(0),
            largest_child: AtomicU64::new(0),
        }
    }

    /// The largest sizes so far, these included, in pages: of all mappings, and of what is in memory.
    ///
    /// What was there between two calls and is gone is missing: it is called at each look, and at the end.
    pub fn peak(&self, now: &Sizes) -> (u64, u64) {
        let most = |cell: &AtomicU64, now: u64| cell.fetch_max(now, Ordering::Relaxed).max(now);
        (most(&self.largest, now.total), most(&self.most_resident, now.rss()))
    }

    /// The process ends: this is its last size.
    pub fn note_end(&self, space: &Space) {
        self.peak(&Sizes::of(space));
    }

    /// A child with this account has ended and was waited for.
    pub fn note_child(&self, child: &Self) {
        self.children.add(&child.usage);
        self.children.add(&child.children);
        let largest = child.most_resident().max(child.largest_child.load(Ordering::Relaxed));
        self.largest_child.fetch_max(largest, Ordering::Relaxed);
    }

    /// `struct rusage` of a child that was waited for, with its own children.
    pub fn rusage_of_ended(&self) -> [u64; USAGE_WORDS] {
        let all = Usage::default();
        all.add(&self.usage);
        all.add(&self.children);
        usage::rusage(&all, all.ran(), self.most_resident())
    }

    /// `struct rusage` of all children that were waited for.
    pub fn rusage_of_children(&self) -> [u64; USAGE_WORDS] {
        let largest = self.largest_child.load(Ordering::Relaxed);
        usage::rusage(&self.children, self.children.ran(), largest)
    }

    /// The most pages that were in memory, as far as was seen.
    pub fn most_resident(&self) -> u64 {
        self.most_resident.load(Ordering::Relaxed)
    }

    /// Forgets the peak of what is in memory (`clear_refs`).
    pub fn reset_peak(&self) {
        self.most_resident.store(0, Ordering::Relaxed);
    }
}
