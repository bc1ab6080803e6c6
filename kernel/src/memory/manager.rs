//! The manager, of which there is one, and the checks at its end.

use quire::arch::PagingMode;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{AllocatorConfig, Zeroes};
use quire::stats::Stat;
use quire::vm::{File, Mm};
use quire_interop::{HugeOptions, MemoryMap, Shortage};
use spin::Once;

use super::heap::KernelHeap;
use super::platform::{MACHINE, Machine};
use super::{kernel_map, stacks};
use crate::boot::{command, five_levels};
use crate::device::serial::log;
use crate::idle;
use crate::observe::commit;
use crate::task::sched;

/// An address space of this machine.
pub type Space = Mm<'static, Machine>;

/// A file of Quire: memory that several address spaces may map.
pub type KernelFile = File<'static, Machine>;

static MANAGER: Once<MemoryManager<'static, Machine>> = Once::new();

#[global_allocator]
static HEAP: KernelHeap = KernelHeap::new();

/// Hands the memory to Quire.
///
/// # Safety
/// Nothing else uses this memory, now or later (invariant 1).
pub unsafe fn start(memory: &MemoryMap) {
    // SAFETY: invariant 1: the caller hands the memory over.
    let manager = MANAGER.call_once(|| unsafe {
        MemoryManager::new(&MACHINE, memory.ranges(), &config(memory)).expect("memory that can be managed")
    });
    fill_pools(manager);
    HEAP.inner().init(manager.pages()).expect("a frame for the heap");
    assert!(refill_heap(), "too little memory for the kernel's reserve");
}

/// Takes the huge pages that the command line asks for, before anything else is taken.
fn fill_pools(manager: &MemoryManager<'static, Machine>) {
    let nodes = manager.pages().requests().node_count();
    let options = HugeOptions::parse(command::options(command::line()), nodes, |option| {
        log!("the option {option} is ignored");
    });
    options.fill(manager, |Shortage { size, wanted, got }| {
        log!("{got} instead of {wanted} huge pages of {} kB", size.bytes() / 1024);
    });
}

/// Fills the reserve of the kernel's heap. Returns whether it is full.
pub fn refill_heap() -> bool {
    HEAP.refill()
}

/// Whether much of that reserve is used.
pub fn is_heap_short() -> bool {
    HEAP.is_short()
}

/// Idle CPUs keep this share of the memory cleared, in blocks of 2 MiB, so that programs find it zero, and as
/// much of each pool of huge pages.
const CLEARED_SHARE: u64 = 8;
/// And so many frames of blocks in smaller pieces.
const PIECES_AHEAD: u64 = 4096;

fn config(memory: &MemoryMap) -> Config {
    let frames: u64 = memory.ranges().iter().map(|range| range.frames.count).sum();
    let ahead = frames / CLEARED_SHARE;
    let zeroes =
        Zeroes { blocks_ahead: ahead, pieces_ahead: PIECES_AHEAD, pools_ahead: ahead, ..Zeroes::default() };
    Config {
        allocator: AllocatorConfig { zeroes, ..AllocatorConfig::default() },
        paging: paging(),
        ..Config::default()
    }
}

/// How many levels the page tables have.
pub fn paging() -> PagingMode {
    if five_levels::are_on() { PagingMode::FiveLevel } else { PagingMode::FourLevel }
}

/// Shows what memory is used for, in a panic.
pub fn show_memory() {
    let Some(manager) = MANAGER.get() else { return };
    for (name, kib) in manager.meminfo().lines() {
        log!("{name}: {kib} kB");
    }
    for zone in manager.pages().zone_info() {
        log!("{zone:?}");
    }
}

/// The manager, if [`start`] has returned.
pub fn started() -> Option<&'static MemoryManager<'static, Machine>> {
    MANAGER.get()
}

/// The manager, after [`start`].
pub fn manager() -> &'static MemoryManager<'static, Machine> {
    MANAGER.get().expect("started before the first program")
}

/// What is in use, in frames. Compared before and after a program: all that it had must be free again.
///
/// Free frames alone would not balance: frames on per-CPU lists keep the descriptors of their block, which count as
/// metadata. All memory is free, cached, used or metadata, so what is used must balance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Balance {
    used: u64,
    slab: u64,
    /// Frames of counts: how often each page of a block is mapped.
    counts: u64,
    anon: u64,
    mapped: u64,
    page_tables: u64,
    page_cache: u64,
}

impl Balance {
    /// The balance now.
    pub fn now() -> Self {
        sched::wait_until_alone();
        idle::paused(Self::read)
    }

    fn read() -> Self {
        let (info, counts) = (manager().meminfo(), manager().stat(Stat::NrMapCountPages));
        Self {
            // Frames that went bad stay in use for ever, and a pool of huge pages stays as large as it was made.
            used: info.frames.used
                - info.slab
                - counts
                - info.bad
                - commit::pool_pages()
                - kernel_map::table_frames()
                - HEAP.reserved_frames()
                - stacks::kept_frames(),
            slab: info.slab,
            counts,
            anon: info.anon,
            mapped: info.mapped,
            page_tables: info.page_tables,
            page_cache: info.cached,
        }
    }
}

/// How many frames of small objects more there may be at the end: the kernel's queues keep the memory that they grew
/// to.
const SLAB_GROWTH: u64 = 16;
/// The same for counts: a block of which a page was mapped more than 255 times has wide ones as long as anything in
/// it is in use.
const COUNTS_GROWTH: u64 = 16;

/// Where memory was short, such an object may have come from the heap's reserve, which is of whole frames: a map that
/// is empty again keeps its first node.
const USED_GROWTH: u64 = 4;

/// Checks Quire's invariants and the balance. Returns whether both hold.
pub fn check(before: Balance) -> bool {
    sched::wait_until_alone();
    let (valid, after) = idle::paused(|| (manager().validate(), Balance::read()));
    if let Err(violation) = &valid {
        log!("the manager's invariants are broken: {violation:?}");
    }
    let balances = balances(before, after);
    if !balances {
        log!("memory was lost:\n before {before:?}\n after  {after:?}");
    }
    valid.is_ok() && balances
}

fn balances(before: Balance, after: Balance) -> bool {
    let used = after.used.clamp(before.used, before.used + USED_GROWTH.min(HEAP.taken()));
    let slab = after.slab.min(before.slab + SLAB_GROWTH);
    let counts = after.counts.min(before.counts + COUNTS_GROWTH);
    Balance { used, slab, counts, ..before } == after
}
