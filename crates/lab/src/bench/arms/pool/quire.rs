//! Our own pools, under each descriptor policy.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use hosted::{Backing, Bare, Hosted, HostedConfig};
use procfs::Current;
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::hugetlb::{DescriptorPolicy, HugePools, HugeSize};
use quire::page_alloc::{AllocatorConfig, Gfp, NodeSet, PageAllocator};
use quire::stats::Stat;
use quire::vmemmap::Window;

use super::busy::Busy;
use super::{PAGE_BYTES, Pools, REQUEST};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::ours;

/// Bytes of the machine beside the pool and the window: the manager's tables, and blocks in pieces.
const SLACK: u64 = 256 << 20;
/// One in so many bytes is there for the page allocator's marks besides.
const MARKS_SHARE: u64 = 256;
/// Bytes of the host that stay free.
const LEFT_FREE: u64 = 3 << 30;
/// The largest order of which every block has room for one beside its descriptors: half a block.
const HALF: u8 = 8;

/// What is counted of a request.
const COUNTED: [(&str, Stat); 7] = [
    ("grace_periods", Stat::VmemmapGrace),
    ("window_entries", Stat::VmemmapEntry),
    ("leaves_split", Stat::VmemmapSplit),
    ("frames_freed", Stat::VmemmapFree),
    ("frames_needed", Stat::VmemmapAlloc),
    ("descriptors_written", Stat::VmemmapWrite),
    ("pool_locks", Stat::HugetlbLock),
];

pub(super) fn all() -> Vec<Box<dyn Arm<Pools>>> {
    let promised = Rc::new(Cell::new(0));
    DescriptorPolicy::ALL
        .map(|policy| -> Box<dyn Arm<Pools>> { Box::new(Quire { policy, promised: promised.clone() }) })
        .into()
}

struct Quire {
    policy: DescriptorPolicy,
    /// Bytes that the arms of a case will touch, of those that are set up already: none has touched any yet.
    promised: Rc<Cell<u64>>,
}

impl Arm<Pools> for Quire {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn about(&self) -> &'static str {
        match self.policy {
            DescriptorPolicy::InBlock => {
                "HugePools::resize on a bare hosted machine of two CPUs, taken over anew for each repetition: pages from and to the page allocator, all accounting; a huge page has no descriptors. No system call, no cgroup."
            }
            DescriptorPolicy::Full => {
                "the same over a window of descriptors, all of which are written when a page joins and when it leaves: the saving is off."
            }
            DescriptorPolicy::PerPage => {
                "the same; seven of eight frames of a page's descriptors are freed when it joins and brought back when it leaves, with flushes for each page (membarrier for the interrupts)."
            }
            DescriptorPolicy::Batched => "the same for all pages of the request together, with two flushes.",
        }
    }

    fn setup(&mut self, case: &Pools) -> Result<Box<dyn Prepared + '_>, Skip> {
        let touched = self.touched(case)?;
        let bytes = case.pages * PAGE_BYTES;
        let window = if self.policy == DescriptorPolicy::InBlock { 0 } else { bytes / 24 };
        let config = HostedConfig {
            prefault: false,
            huge_pages: false,
            backing: Backing::Memfd,
            ..HostedConfig::bench((bytes + window + bytes / MARKS_SHARE + SLACK).next_multiple_of(PAGE_BYTES))
        };
        let machine = config.with_cpus(2).build().map_err(|error| Skip(error.to_string()))?;
        self.promised.set(self.promised.get() + touched);
        Ok(Box::new(Ready { case: *case, policy: self.policy, machine, touched, promised: &self.promised }))
    }
}

impl Quire {
    /// Bytes of the host that will be touched, if it has them: the window and what comes back to it, records, descriptors of
    /// blocks that are broken up.
    fn touched(&self, case: &Pools) -> Result<u64, Skip> {
        let window = case.pages * PAGE_BYTES / 64;
        let window = match self.policy {
            DescriptorPolicy::InBlock => 0,
            DescriptorPolicy::Full => window,
            DescriptorPolicy::PerPage | DescriptorPolicy::Batched => 2 * window,
        };
        let pieces = if case.churned { case.pages * 2 * 4096 } else { 0 };
        let touched = window + pieces + case.pages * 256;
        let available = procfs::Meminfo::current().ok().and_then(|info| info.mem_available).unwrap_or(0);
        if touched + self.promised.get() + LEFT_FREE > available {
            let gib = |bytes: u64| bytes.div_ceil(1 << 30);
            return Err(Skip(format!(
                "{} GiB of this machine's memory would be touched beside {} of other arms, and {} are available",
                gib(touched),
                gib(self.promised.get()),
                gib(available)
            )));
        }
        Ok(touched)
    }
}

struct Ready<'a> {
    case: Pools,
    policy: DescriptorPolicy,
    machine: Hosted,
    touched: u64,
    promised: &'a Cell<u64>,
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.promised.set(self.promised.get() - self.touched);
    }
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let busy = self.case.busy.then(|| self.case.processors.1.map(Busy::on));
        let sample = self.machine.run_on(CpuId(0), || self.resize());
        drop(busy);
        sample
    }
}

impl Ready<'_> {
    fn resize(&self) -> Result<Sample, Skip> {
        let (case, said) = (self.case, |error: &dyn std::fmt::Display| Skip(error.to_string()));
        // SAFETY: the allocator and the pools live inside `run_on` of this machine, and no other machine runs in between.
        let bare = unsafe { self.machine.bare() };
        let ranges = ours::ranges(&self.machine, false);
        let pages = PageAllocator::new(bare, &ranges, AllocatorConfig::default());
        let pages = pages.map_err(|error| said(&error))?;
        let pools = HugePools::with_policy(&pages, self.policy).map_err(|error| said(&error))?;
        if case.churned {
            break_up(&pages);
        }
        let resize = |wanted: u64| {
            let done = pools.resize(&pages, HugeSize::Size2M, NodeSet::ALL, wanted);
            let short = || Skip(format!("{} of {wanted} pages: {:?}", done.after, done.stopped));
            if done.stopped.is_some() { Err(short()) } else { Ok(()) }
        };
        let (from, to) = if case.grow { (0, case.pages) } else { (case.pages, 0) };
        resize(from)?;
        pools.window().inspect(|window| window.reset_peak());
        let stats = || COUNTED.map(|(_, stat)| pages.stat(stat));
        let (before, interrupts) = (stats(), self.machine.counters());
        let start = Instant::now();
        resize(to)?;
        let nanoseconds = start.elapsed().as_nanos() as f64;
        let (after, interrupted) = (stats(), self.machine.counters());
        let mut sample =
            Sample::new(nanoseconds / case.pages as f64, case.pages).metric(REQUEST, nanoseconds);
        for (at, (name, _)) in COUNTED.iter().enumerate() {
            sample = sample.count(name, after[at] - before[at]);
        }
        Ok(sample
            .count("frames_held_at_most", pools.window().map_or(0, Window::peak_held))
            .count("broadcasts", interrupted.flushes_kernel - interrupts.flushes_kernel)
            .count("ipis", interrupted.ipis - interrupts.ipis))
    }
}

/// Breaks every free block up once, and gives everything back.
fn break_up(pages: &PageAllocator<'_, Bare>) {
    let Some(half) = Order::new(HALF) else { return };
    let taken: Vec<Frame> = std::iter::from_fn(|| pages.alloc(Gfp::USER, half).ok()).collect();
    for frame in taken {
        if let Err(error) = pages.free(frame, half) {
            eprintln!("quire: a folio was not taken back: {error}");
        }
    }
    pages.drain_all();
}
