//! The modelled TLBs of all CPUs, and the memory that they reach.

mod cpu;
mod reach;

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quire::addr::{Frame, FrameRange, VirtRange};
use quire::cpu::CpuId;
use quire::limits::FRAME_SIZE;
use quire::platform::{FlushExtent, FlushRequest};

use crate::config::HostedConfig;
use crate::failures::Failures;
use crate::task::{Held, hold};
use crate::violation::Violation;

pub(crate) use cpu::{CpuTlb, Leaf, Table};
pub(crate) use reach::Reach;

/// No frame has this number.
const NO_FRAME: u64 = u64::MAX;

#[repr(align(128))]
struct Slot(Mutex<CpuTlb>);

/// The modelled TLBs of a machine: for each CPU the cached entries of the loaded address space, and of the
/// kernel, which no load of another root drops.
pub(crate) struct Tlbs {
    cpus: Box<[Slot]>,
    kernel: Box<[Slot]>,
    /// The number of the kernel's root, or [`NO_FRAME`]: asked for without a lock.
    kernel_root: AtomicU64,
    pub(crate) reach: Reach,
    /// Which flushes are lost, so that tests can show that they would notice.
    pub(crate) losses: Failures,
    /// Which roots are loaded with stale entries that the CPU kept of them, likewise.
    pub(crate) stale_loads: Failures,
}

/// A modelled TLB under its lock. Interrupts wait until it is unlocked, since they may need it themselves.
pub(crate) struct Locked<'a> {
    tlb: MutexGuard<'a, CpuTlb>,
    // Dropped after the lock.
    _held: Held,
}

impl Deref for Locked<'_> {
    type Target = CpuTlb;

    fn deref(&self) -> &CpuTlb {
        &self.tlb
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut CpuTlb {
        &mut self.tlb
    }
}

impl Tlbs {
    pub(crate) fn new(config: &HostedConfig) -> Self {
        let last = config.ranges.last().map_or(0, |range| range.end().0);
        let slots = |keeps| (0..config.cpus).map(|_| Slot(Mutex::new(CpuTlb::new(keeps)))).collect();
        Self {
            cpus: slots(config.keeps_translations),
            kernel: slots(false),
            kernel_root: AtomicU64::new(NO_FRAME),
            reach: Reach::new(if config.tlb_model { last >> 12 } else { 0 }),
            losses: Failures::default(),
            stale_loads: Failures::default(),
        }
    }

    /// The entries that `cpu` has cached of its address space, locked. A thread that panicked meanwhile (a
    /// violation) left them consistent.
    pub(crate) fn cpu(&self, cpu: CpuId) -> Locked<'_> {
        lock(&self.cpus[cpu.index()])
    }

    /// The entries that `cpu` has cached of the kernel, locked in the same way.
    pub(crate) fn kernel(&self, cpu: CpuId) -> Locked<'_> {
        lock(&self.kernel[cpu.index()])
    }

    /// Makes `root` the page table of the kernel, on all CPUs.
    pub(crate) fn load_kernel(&self, root: Option<Frame>) {
        self.kernel_root.store(root.map_or(NO_FRAME, |root| root.0), Ordering::Relaxed);
        self.kernel.iter().for_each(|slot| lock(slot).load_root(&self.reach, root));
    }

    /// The page table of the kernel.
    pub(crate) fn kernel_root(&self) -> Option<Frame> {
        Some(self.kernel_root.load(Ordering::Relaxed)).filter(|&root| root != NO_FRAME).map(Frame)
    }

    /// Carries out a flush of the kernel's translations on all CPUs.
    pub(crate) fn flush_kernel(&self, range: VirtRange) {
        for slot in &self.kernel {
            let mut tlb = lock(slot);
            let Some(root) = tlb.root() else { continue };
            let extent = FlushExtent::Range { range, stride: FRAME_SIZE };
            tlb.flush(&self.reach, &FlushRequest { root, extent, tables: true });
        }
    }

    /// Makes `root` the page table of `cpu`. Returns the violation that this is.
    pub(crate) fn load_root(&self, cpu: CpuId, root: Option<Frame>) -> Option<Violation> {
        match root {
            Some(root) if self.stale_loads.fail() => self.cpu(cpu).load_kept_root(&self.reach, root),
            root => {
                self.cpu(cpu).load_root(&self.reach, root);
                None
            }
        }
    }

    /// Makes `root` the page table of `cpu`, with what it kept of it if that is good, and tells `count`
    /// whether it was. Returns the violation that the load is. No flush of this CPU comes between question
    /// and load.
    pub(crate) fn load_kept_root(
        &self,
        cpu: CpuId,
        root: Frame,
        is_good: impl FnOnce() -> bool,
        count: impl FnOnce(bool),
    ) -> Option<Violation> {
        let mut tlb = self.cpu(cpu);
        let is_kept = is_good() || self.stale_loads.fail();
        count(is_kept);
        if is_kept {
            return tlb.load_kept_root(&self.reach, root);
        }
        tlb.load_root(&self.reach, Some(root));
        None
    }

    /// Carries out a flush on one CPU, as that CPU would when the interrupt arrives.
    pub(crate) fn flush(&self, cpu: CpuId, request: &FlushRequest) {
        self.cpu(cpu).flush(&self.reach, request);
    }

    /// Calls `look` with the cached entries of each CPU, of its address space and of the kernel, one at a
    /// time and locked.
    pub(crate) fn each(&self, mut look: impl FnMut(CpuId, &CpuTlb)) {
        for index in 0..self.cpus.len() {
            let cpu = CpuId(index as u32);
            look(cpu, &self.cpu(cpu));
            look(cpu, &self.kernel(cpu));
        }
    }

    /// Every cached entry that still leads to one of `frames`; cheap when there is none.
    pub(crate) fn reaching(&self, frames: FrameRange) -> Vec<Violation> {
        if !self.reach.may_reach(frames) {
            return Vec::new();
        }
        let mut found = Vec::new();
        for index in 0..self.cpus.len() {
            let cpu = CpuId(index as u32);
            self.cpu(cpu).reaching(&self.reach, cpu, frames, &mut found);
            self.kernel(cpu).reaching(&self.reach, cpu, frames, &mut found);
        }
        found
    }
}

fn lock(slot: &Slot) -> Locked<'_> {
    let held = hold();
    Locked { tlb: slot.0.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
}
