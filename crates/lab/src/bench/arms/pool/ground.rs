//! A hosted machine whose memory is mostly untouched address space, since nothing touches a pool's pages.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hosted::{Backing, Bare, Hosted, HostedConfig};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::hugetlb::DescriptorPolicy;
use quire::manager::{Config, MemoryManager};

use super::case::PAGE_BYTES;
use super::counts::{Counted, Counts};
use crate::bench::experiment::Skip;
use crate::bench::folio::Folio;
use crate::bench::ours;
use crate::host::memory;

/// Bytes of the machine beside the pool and the window: the manager's tables, and blocks in pieces.
pub(super) const SLACK: u64 = 256 << 20;
/// The machine has one byte more in this many for the page allocator's marks.
const MARKS_SHARE: u64 = 256;
/// Bytes of the host that stay free.
pub(super) const LEFT_FREE: u64 = 3 << 30;
/// From so many pages on, the host may have memory for one machine at a time: each repetition builds one then, and does
/// its work once before, so that the host's memory is there.
const LARGE: u64 = 100_000;
/// Frames that one leaf of the window describes.
const LEAF_FRAMES: u64 = Order::BLOCK.bytes() / 64;

/// Bytes of the host that the arms set up so far for a case will touch; none has touched any yet.
pub(super) type Promised = Rc<Cell<u64>>;

/// The machine of one arm, for one case.
pub(super) struct Ground {
    config: HostedConfig,
    /// None: each repetition builds one.
    kept: Option<Hosted>,
    policy: DescriptorPolicy,
    /// Leaves of the window that stand on huge pages of the host.
    gathered: Cell<u64>,
    touched: u64,
    promised: Promised,
}

impl Ground {
    /// A machine with room for a pool of `bytes` bytes and, where the policy has one, a window of
    /// descriptors. `moved`: frames in use that move for each page of the pool, at most. `broadcast`: what a
    /// flush of the window takes at least.
    ///
    /// # Errors
    /// [`Skip`] when the host has too little memory for the bytes that will be touched.
    pub(super) fn new(
        policy: DescriptorPolicy,
        bytes: u64,
        moved: u64,
        broadcast: Duration,
        promised: &Promised,
    ) -> Result<Self, Skip> {
        let pages = bytes / PAGE_BYTES;
        let touched = touched(policy, pages, moved, promised.get())?;
        let keeps = pages < LARGE || is_kept(pages, moved, touched + promised.get());
        let window = if policy == DescriptorPolicy::InBlock { 0 } else { bytes / 24 };
        // Pages in use, pages that have moved, and as much again with an 8th: blocks with page tables cannot be
        // emptied, and the lowest zone keeps a reserve.
        let moved = if moved > 0 { 3 * moved * pages * 4096 + bytes / 8 + SLACK } else { 0 };
        let bytes = bytes + window + moved + bytes / MARKS_SHARE + SLACK;
        let config = HostedConfig {
            prefault: false,
            huge_pages: false,
            backing: Backing::Memfd,
            kernel_flush: broadcast,
            ..HostedConfig::bench(bytes.next_multiple_of(PAGE_BYTES)).with_cpus(2)
        };
        let (gathered, promised) = (Cell::new(0), promised.clone());
        let mut ground = Self { config, kept: None, policy, gathered, touched: 0, promised };
        if keeps {
            ground.kept = Some(ground.build()?);
            ground.touched = touched;
            ground.promised.set(ground.promised.get() + touched);
        }
        Ok(ground)
    }

    fn build(&self) -> Result<Hosted, Skip> {
        self.config.clone().build().map_err(|error| Skip(error.to_string()))
    }

    /// Makes a new manager with empty pools on the machine and runs `work` as its first CPU.
    pub(super) fn with_manager<R>(
        &self,
        work: impl Fn(&MemoryManager<'_, Bare>) -> Result<R, Skip>,
    ) -> Result<R, Skip> {
        match &self.kept {
            Some(machine) => self.once(machine, &work),
            None => {
                let machine = self.build()?;
                self.once(&machine, &work)?;
                self.once(&machine, &work)
            }
        }
    }

    fn once<R>(
        &self,
        machine: &Hosted,
        work: &impl Fn(&MemoryManager<'_, Bare>) -> Result<R, Skip>,
    ) -> Result<R, Skip> {
        let config = Config { descriptors: self.policy, ..Config::default() };
        let config = ours::with_folios(config, Folio { order: 0, pmd: false })?;
        machine.run_on(CpuId(0), || {
            // SAFETY: H3: the manager lives inside `run_on` of this machine, and no other machine runs in
            // between.
            let bare = unsafe { machine.bare() };
            let manager = hosted::raw::memory_manager(bare, &ours::ranges(machine, false), &config);
            let manager = manager.map_err(|error| Skip(error.to_string()))?;
            self.gathered.set(gather_window(machine, &manager));
            work(&manager)
        })
    }

    /// Calls the verb; returns its result, the nanoseconds and the counters.
    pub(super) fn timed<R>(
        &self,
        manager: &MemoryManager<'_, Bare>,
        verb: impl FnOnce() -> R,
    ) -> (R, f64, Counted) {
        let (stat, machine) = (|stat| manager.stat(stat), manager.pages().platform().hosted());
        let counts = Counts::start(stat, machine, manager.huge_pools());
        let start = Instant::now();
        let result = verb();
        let nanoseconds = start.elapsed().as_nanos() as f64;
        let counted = counts.end(stat, machine, manager.huge_pools());
        (result, nanoseconds, counted.and("leaves_on_host_huge_pages", self.gathered.get()))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.promised.set(self.promised.get() - self.touched);
    }
}

/// Puts huge pages of the host behind the window, one behind each leaf of 2 MiB, as a kernel's window has.
/// Returns how many the host had (`MADV_COLLAPSE`, from Linux 6.1 on).
fn gather_window(machine: &Hosted, manager: &MemoryManager<'_, Bare>) -> u64 {
    let Some(window) = manager.huge_pools().window() else { return 0 };
    let platform = manager.pages().platform();
    let described = (0..machine.ranges()[0].bytes / 4096).step_by(LEAF_FRAMES as usize).map(Frame);
    let behind = described.map(|frame| window.frame_behind_descriptor(platform, frame));
    let gathered = behind.filter(|leaf| machine.arena().gather(leaf.addr(), Order::BLOCK.bytes()).is_ok());
    gathered.count() as u64
}

/// Whether the host can keep this arm's machine, with which it has promised so many bytes, and still has memory for the
/// arm that touches most, if it has that at all. To touch 16 GiB in each repetition takes minutes.
fn is_kept(pages: u64, moved: u64, promised: u64) -> bool {
    let most = needed(DescriptorPolicy::PerPage, pages, moved) + LEFT_FREE;
    let available = memory::available().unwrap_or(0);
    let beside = if most <= available { most } else { LEFT_FREE };
    promised + beside <= available
}

/// Bytes of the host that will be touched: the window and frames that stand for several of its own, records, descriptors
/// of split blocks, frames in use and those that they move to.
fn needed(policy: DescriptorPolicy, pages: u64, moved: u64) -> u64 {
    let window = pages * PAGE_BYTES / 64;
    let window = match policy {
        DescriptorPolicy::InBlock => 0,
        DescriptorPolicy::Full => window,
        DescriptorPolicy::PerPage | DescriptorPolicy::Batched | DescriptorPolicy::MaskTail => 2 * window,
    };
    let pieces = if moved > 0 { pages * (2 + moved) * 4096 } else { 0 };
    window + pieces + pages * 2048
}

/// Bytes of the host that will be touched beyond `promised`.
///
/// # Errors
/// [`Skip`] when the host has not so many.
fn touched(policy: DescriptorPolicy, pages: u64, moved: u64, promised: u64) -> Result<u64, Skip> {
    let touched = needed(policy, pages, moved);
    let available = memory::available().unwrap_or(0);
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
