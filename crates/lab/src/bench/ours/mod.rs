//! What Quire's arms share: hosted machines that many cases use, and address spaces populated by folios of
//! one size.

pub mod cleared;
pub mod counted;
pub mod counting;
pub mod guarding;
pub mod guards;
pub mod instructions;
mod looked_up;
mod passed_on;
pub mod scheduled;
pub mod stretches;
pub mod verbs;

use std::time::Instant;

use hosted::raw::IsolatedMemory;
use hosted::{Bare, Hosted, HostedConfig};
use quire::addr::{FrameRange, Order, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::page_alloc::{NodeSet, Zeroes};
use quire::platform::Platform;
use quire::vm::{Access, FolioPolicy, MapRequest, Mm};
use rustix::mm::{Advice, madvise};

use crate::bench::experiment::Skip;
use crate::bench::folio::{Folio, PAGE};

/// Where the measured range starts: a multiple of 1 GiB, so that every folio and table size fits.
pub const START: VirtAddr = VirtAddr(64 << 30);

/// Memory beside the populated bytes: page tables, counts, marks.
const SLACK: u64 = 64 << 20;

/// A hosted machine for measurements. All its memory is populated before anything is timed, remote flushes
/// interrupt real processors, nothing is checked. It has twice the populated memory, since the first 8 frames
/// of a block in small pieces hold its descriptors and only one folio of 1 MiB fits beside them.
pub fn machine(bytes: u64, cpus: usize, clearing: bool) -> Result<Hosted, Skip> {
    HostedConfig { clearing, ..HostedConfig::bench(2 * bytes + SLACK) }
        .with_cpus(cpus)
        .build()
        .map_err(|error| Skip(error.to_string()))
}

/// The machine that `slot` keeps for case after case; [`machine`] builds it the first time.
pub fn kept(slot: &mut Option<Hosted>, bytes: u64, clearing: bool) -> Result<&Hosted, Skip> {
    let built = match slot.take() {
        Some(built) => built,
        None => machine(bytes, 1, clearing)?,
    };
    Ok(slot.insert(built))
}

/// The memory ranges of a machine. `zeroed` when nothing has ever been written to the memory.
pub fn ranges(machine: &Hosted, zeroed: bool) -> Vec<MemoryRange> {
    let range = |range: &hosted::MemoryRange| MemoryRange {
        frames: FrameRange::new(range.start.frame(), range.bytes / PAGE as u64),
        node: range.node,
        zeroed,
    };
    machine.ranges().iter().map(range).collect()
}

/// Runs `work` as CPU 0 of a machine, with a memory manager whose anonymous memory comes in folios like `folio`.
pub fn with_manager<R>(
    machine: &Hosted,
    folio: Folio,
    work: impl FnOnce(&MemoryManager<'_, Hosted>) -> Result<R, Skip>,
) -> Result<R, Skip> {
    with_manager_of(machine, machine, &with_folios(Config::default(), folio)?, work)
}

/// The same on the bare machine, the platform that a kernel would have, without checks.
///
/// # Safety
/// `work` runs no other machine, and threads to which it hands the manager are CPUs of this machine while they have it.
pub unsafe fn with_bare_manager<R>(
    machine: &Hosted,
    folio: Folio,
    work: impl FnOnce(&MemoryManager<'_, Bare>) -> Result<R, Skip>,
) -> Result<R, Skip> {
    // SAFETY: H3: by this function's contract.
    unsafe { with_bare_manager_as(machine, with_folios(Config::default(), folio)?, work) }
}

/// The same with the caller's configuration.
///
/// # Safety
/// As [`with_bare_manager`].
pub unsafe fn with_bare_manager_as<R>(
    machine: &Hosted,
    config: Config,
    work: impl FnOnce(&MemoryManager<'_, Bare>) -> Result<R, Skip>,
) -> Result<R, Skip> {
    // SAFETY: H3: `with_manager_of` makes, uses and drops the manager inside `run_on`; the rest is this function's
    // contract.
    with_manager_of(machine, unsafe { machine.bare() }, &config, work)
}

/// `config` with anonymous memory in folios like `folio`.
pub fn with_folios(config: Config, folio: Folio) -> Result<Config, Skip> {
    let order = Order::new(folio.order)
        .ok_or_else(|| Skip(format!("the allocator has no folio of order {}", folio.order)))?;
    Ok(Config { folios: FolioPolicy::only(order).with_pmd_mapped(folio.pmd), ..config })
}

/// The same through this platform.
fn with_manager_of<P: Platform + IsolatedMemory, R>(
    machine: &Hosted,
    platform: &P,
    config: &Config,
    work: impl FnOnce(&MemoryManager<'_, P>) -> Result<R, Skip>,
) -> Result<R, Skip> {
    machine.run_on(CpuId(0), || {
        let manager = hosted::raw::memory_manager(platform, &ranges(machine, false), config)
            .map_err(|error| Skip(error.to_string()))?;
        work(&manager)
    })
}

/// Maps `bytes` of private anonymous memory that can be read and written at [`START`].
pub fn map<P: Platform>(mm: &Mm<'_, P>, bytes: usize) -> Result<(), Skip> {
    map_from(mm, bytes, None)
}

/// As [`map`], of pages from a pool where `pool` names one.
pub fn map_from<P: Platform>(mm: &Mm<'_, P>, bytes: usize, pool: Option<HugeSize>) -> Result<(), Skip> {
    let request = MapRequest {
        huge: pool,
        addr: START,
        len: bytes as u64,
        prot: Protection::READ | Protection::WRITE,
        placement: quire::vm::Placement::Fixed,
        ..MapRequest::default()
    };
    mm.mmap(&request).map(|_| ()).map_err(|error| Skip(format!("mmap: {error}")))
}

/// The size of pools whose pages have so many bytes.
pub fn pool_of(page: usize) -> Option<HugeSize> {
    HugeSize::ALL.into_iter().find(|size| size.bytes() == page as u64)
}

/// What a manager remembers of zeroes, for arms with a pool or without. A quick build looks at each page of a
/// pool that is handed out as zero: the library's tests do so, and here it would take seconds.
pub fn zeroes_for(pool: Option<HugeSize>) -> Zeroes {
    let usual = Zeroes::default();
    Zeroes { verify: usual.verify && pool.is_none(), ..usual }
}

/// Gives a pool so many pages.
pub fn fill_pool<P: Platform>(
    manager: &MemoryManager<'_, P>,
    size: HugeSize,
    pages: u64,
) -> Result<(), Skip> {
    match manager.huge_pools().resize(manager.pages(), size, NodeSet::ALL, pages).after {
        after if after == pages => Ok(()),
        after => Err(Skip(format!("the pool has {after} pages of {pages}"))),
    }
}

/// Takes one write fault for each folio, in address order; returns the nanoseconds and the pages mapped.
pub fn populate<P: Platform>(mm: &Mm<'_, P>, bytes: usize, folio: Folio) -> Result<(f64, u64), Skip> {
    let mut pages = 0;
    let start = Instant::now();
    for at in (0..bytes).step_by(folio.bytes()) {
        let outcome = mm
            .fault(START.add(at as u64), Access::Write)
            .map_err(|error| Skip(format!("fault at {at:#x}: {error}")))?;
        pages += outcome.order.frames();
    }
    Ok((start.elapsed().as_nanos() as f64, pages))
}

/// Populates the mapping of [`map`] by one call; returns the nanoseconds and the resident pages.
pub fn populate_by_call<P: Platform>(mm: &Mm<'_, P>, bytes: usize) -> Result<(f64, u64), Skip> {
    let start = Instant::now();
    mm.madvise(START, bytes as u64, quire::vm::Advice::PopulateWrite)
        .map_err(|error| Skip(format!("madvise: {error}")))?;
    Ok((start.elapsed().as_nanos() as f64, mm.rss().anon))
}

/// Unmaps the mapping of [`map`]; returns the nanoseconds.
pub fn unmap<P: Platform>(mm: &Mm<'_, P>, bytes: usize) -> Result<f64, Skip> {
    let start = Instant::now();
    mm.munmap(START, bytes as u64).map_err(|error| Skip(format!("munmap: {error}")))?;
    Ok(start.elapsed().as_nanos() as f64)
}

/// Keeps the machine's memory out of forked children, since a timed `fork` must not copy its page tables.
///
/// # Errors
/// [`Skip`] when the host refuses.
pub fn keep_from_children(machine: &Hosted) -> Result<(), Skip> {
    for range in machine.ranges() {
        let start = machine.arena().direct_map(range.start).cast();
        // SAFETY: H1: the range is the arena's own mapping for as long as the machine lives, and the advice leaves
        // contents alone: children lack it, and those that are forked here never reach for it.
        unsafe { madvise(start, range.bytes as usize, Advice::LinuxDontFork) }
            .map_err(|error| Skip::because("cannot keep the machine's memory out of children", error))?;
    }
    Ok(())
}
