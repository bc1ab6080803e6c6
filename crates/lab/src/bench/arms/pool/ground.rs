//! A hosted machine whose memory is mostly untouched address space, since nothing touches a pool's pages.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hosted::{Backing, Bare, Hosted, HostedConfig};
use procfs::Current;
use quire::cpu::CpuId;
use quire::hugetlb::{DescriptorPolicy, HugePools};
use quire::page_alloc::{AllocatorConfig, PageAllocator};

use super::case::PAGE_BYTES;
use super::counts::{Counted, Counts};
use crate::bench::experiment::Skip;
use crate::bench::ours;

/// Bytes of the machine beside the pool and the window: the manager's tables, and blocks in pieces.
pub(super) const SLACK: u64 = 256 << 20;
/// The machine has one byte more in this many for the page allocator's marks.
const MARKS_SHARE: u64 = 256;
/// Bytes of the host that stay free.
pub(super) const LEFT_FREE: u64 = 3 << 30;

/// Bytes of the host that the arms set up so far for a case will touch; none has touched any yet.
pub(super) type Promised = Rc<Cell<u64>>;

/// The machine of one arm, for one case.
pub(super) struct Ground {
    machine: Hosted,
    policy: DescriptorPolicy,
    touched: u64,
    promised: Promised,
}

impl Ground {
    /// A machine with room for a pool of `bytes` bytes and, where the policy has one, a window of
    /// descriptors. `pieces`: every block will have been in small pieces. `broadcast`: what a flush of the
    /// window takes at least.
    ///
    /// # Errors
    /// [`Skip`] when the host has too little memory for the bytes that will be touched.
    pub(super) fn new(
        policy: DescriptorPolicy,
        bytes: u64,
        pieces: bool,
        broadcast: Duration,
        promised: &Promised,
    ) -> Result<Self, Skip> {
        let touched = touched(policy, bytes / PAGE_BYTES, pieces, promised.get())?;
        let window = if policy == DescriptorPolicy::InBlock { 0 } else { bytes / 24 };
        let config = HostedConfig {
            prefault: false,
            huge_pages: false,
            backing: Backing::Memfd,
            kernel_flush: broadcast,
            ..HostedConfig::bench((bytes + window + bytes / MARKS_SHARE + SLACK).next_multiple_of(PAGE_BYTES))
        };
        let machine = config.with_cpus(2).build().map_err(|error| Skip(error.to_string()))?;
        promised.set(promised.get() + touched);
        Ok(Self { machine, policy, touched, promised: promised.clone() })
    }

    /// Makes a new manager with empty pools on the machine and runs `work` as its first CPU.
    pub(super) fn with_pools<R>(
        &self,
        work: impl FnOnce(&PageAllocator<'_, Bare>, &HugePools) -> Result<R, Skip>,
    ) -> Result<R, Skip> {
        let said = |error: &dyn std::fmt::Display| Skip(error.to_string());
        self.machine.run_on(CpuId(0), || {
            // SAFETY: H3: the allocator and the pools live inside `run_on` of this machine, and no other machine
            // runs in between.
            let bare = unsafe { self.machine.bare() };
            let ranges = ours::ranges(&self.machine, false);
            let pages = hosted::raw::page_allocator(bare, &ranges, AllocatorConfig::default());
            let pages = pages.map_err(|error| said(&error))?;
            let pools = HugePools::with_policy(&pages, self.policy).map_err(|error| said(&error))?;
            work(&pages, &pools)
        })
    }

    /// Calls the verb; returns its result, the nanoseconds and the counters.
    pub(super) fn timed<R>(
        &self,
        pages: &PageAllocator<'_, Bare>,
        pools: &HugePools,
        verb: impl FnOnce() -> R,
    ) -> (R, f64, Counted) {
        let stat = |stat| pages.lists().stat(stat);
        let counts = Counts::start(stat, &self.machine, pools);
        let start = Instant::now();
        let result = verb();
        let nanoseconds = start.elapsed().as_nanos() as f64;
        (result, nanoseconds, counts.end(stat, &self.machine, pools))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.promised.set(self.promised.get() - self.touched);
    }
}

/// Bytes that the host has available.
pub(super) fn available() -> u64 {
    procfs::Meminfo::current().ok().and_then(|info| info.mem_available).unwrap_or(0)
}

/// Bytes of the host that will be touched beyond `promised`, if it has them: the window and frames that come
/// back to it, records, descriptors of split blocks.
fn touched(policy: DescriptorPolicy, pages: u64, pieces: bool, promised: u64) -> Result<u64, Skip> {
    let window = pages * PAGE_BYTES / 64;
    let window = match policy {
        DescriptorPolicy::InBlock => 0,
        DescriptorPolicy::Full => window,
        DescriptorPolicy::PerPage | DescriptorPolicy::Batched => 2 * window,
    };
    let pieces = if pieces { pages * 2 * 4096 } else { 0 };
    let touched = window + pieces + pages * 256;
    let available = available();
    if touched + promised + LEFT_FREE > available {
        let gib = |bytes: u64| bytes.div_ceil(1 << 30);
        return Err(Skip(format!(
            "this arm would touch {} GiB of this host beside {} of other arms, and {} are available: free \
             memory",
            gib(touched),
            gib(promised),
            gib(available)
        )));
    }
    Ok(touched)
}
