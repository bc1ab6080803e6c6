//! What the arms of our own library share: hosted machines that are built once and used by many cases, and address
//! spaces in which memory is populated by folios of one size.

pub mod guards;

use std::time::Instant;

use hosted::{Bare, Hosted, HostedConfig};
use quire::addr::{FrameRange, Order, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::platform::Platform;
use quire::stats::Stat;
use quire::vm::{Access, Advice, FolioPolicy, MapRequest, Mm};

use crate::bench::experiment::Skip;
use crate::bench::folio::{Folio, PAGE};

/// Where the measured range starts: a multiple of 1 GiB, so that every folio and table size fits.
const START: VirtAddr = VirtAddr(64 << 30);

/// Memory beside the populated bytes: page tables, counts, marks.
const SLACK: u64 = 64 << 20;

/// A hosted machine for measurements, or the reason why there is none. All its memory is present before anything is
/// timed, remote flushes interrupt real processors, nothing is checked. There is twice the memory that is populated:
/// the first 8 frames of a block in small pieces hold its descriptors, so only one folio of 1 MiB fits into each.
pub fn machine(bytes: u64, cpus: usize, clearing: bool) -> Result<Hosted, Skip> {
    HostedConfig { clearing, ..HostedConfig::bench(2 * bytes + SLACK) }
        .with_cpus(cpus)
        .build()
        .map_err(|error| Skip(error.to_string()))
}

/// The machine that `slot` keeps for one case after another, as [`machine`] builds it the first time.
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
    with_manager_of(machine, machine, folio, work)
}

/// The same on the bare machine: the platform that a kernel would have, which watches nothing.
///
/// # Safety
/// `work` runs no other machine, and hands the manager to no other thread.
pub unsafe fn with_bare_manager<R>(
    machine: &Hosted,
    folio: Folio,
    work: impl FnOnce(&MemoryManager<'_, Bare>) -> Result<R, Skip>,
) -> Result<R, Skip> {
    // SAFETY: `with_manager_of` makes, uses and drops the manager inside `run_on`; the rest is the caller's promise.
    with_manager_of(machine, unsafe { machine.bare() }, folio, work)
}

/// The same with the machine as this platform sees it.
fn with_manager_of<P: Platform, R>(
    machine: &Hosted,
    platform: &P,
    folio: Folio,
    work: impl FnOnce(&MemoryManager<'_, P>) -> Result<R, Skip>,
) -> Result<R, Skip> {
    let order = Order::new(folio.order).ok_or_else(|| Skip(format!("no such order: {}", folio.order)))?;
    let folios = FolioPolicy::only(order).with_pmd_mapped(folio.pmd);
    machine.run_on(CpuId(0), || {
        let config = Config { folios, ..Config::default() };
        let manager = MemoryManager::new(platform, &ranges(machine, false), &config)
            .map_err(|error| Skip(error.to_string()))?;
        work(&manager)
    })
}

/// Maps `bytes` of private anonymous memory that can be read and written.
pub fn map(mm: &Mm<'_, Hosted>, bytes: usize) -> Result<(), Skip> {
    let request = MapRequest {
        addr: START,
        len: bytes as u64,
        prot: Protection::READ | Protection::WRITE,
        placement: quire::vm::Placement::Fixed,
        ..MapRequest::default()
    };
    mm.mmap(&request).map(|_| ()).map_err(|error| Skip(format!("mmap: {error}")))
}

/// Takes one write fault for each folio, in order of address; the nanoseconds that took and the pages now mapped.
pub fn populate(mm: &Mm<'_, Hosted>, bytes: usize, folio: Folio) -> Result<(f64, u64), Skip> {
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

/// Populates what [`map`] mapped by one call; the nanoseconds that took and the pages now resident.
pub fn populate_by_call(mm: &Mm<'_, Hosted>, bytes: usize) -> Result<(f64, u64), Skip> {
    let start = Instant::now();
    mm.madvise(START, bytes as u64, Advice::PopulateWrite)
        .map_err(|error| Skip(format!("madvise: {error}")))?;
    Ok((start.elapsed().as_nanos() as f64, mm.rss().anon))
}

/// Unmaps what [`map`] mapped; nanoseconds.
pub fn unmap(mm: &Mm<'_, Hosted>, bytes: usize) -> Result<f64, Skip> {
    let start = Instant::now();
    mm.munmap(START, bytes as u64).map_err(|error| Skip(format!("munmap: {error}")))?;
    Ok(start.elapsed().as_nanos() as f64)
}

/// Counters that are exact and the same in every repetition.
pub const COUNTED: &[Stat] = &[
    Stat::ZapTable,
    Stat::ZapEntry,
    Stat::BlockLock,
    Stat::NrTlbLocalFlushAll,
    Stat::NrTlbLocalFlushOne,
    Stat::NrTlbRemoteFlush,
];

/// Remembers counters, to say later how far they went.
pub struct Counted<'a, 'p, P: Platform>(&'a MemoryManager<'p, P>, Vec<u64>);

impl<'a, 'p, P: Platform> Counted<'a, 'p, P> {
    /// From now on.
    pub fn start(manager: &'a MemoryManager<'p, P>) -> Self {
        Self(manager, COUNTED.iter().map(|&stat| manager.stat(stat)).collect())
    }

    /// How often each event happened since.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        COUNTED.iter().zip(&self.1).map(|(&stat, before)| (stat.name(), self.0.stat(stat) - before))
    }
}
