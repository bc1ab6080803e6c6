//! One secondary MMU: its tables, its brackets, and the accesses under way.
//!
//! # Protocol
//!
//! A virtual CPU walks and accesses *inside* its slot, without a lock. Entries change under the lock of
//! `brackets`. The start of a bracket counts itself and drops copies under that lock, releases it, and then
//! waits once for every slot: accesses under way end, and later ones walk again ([`super::slot`]; H5 is the
//! same for the modelled TLBs). It waits even if it dropped nothing: an access may be under way through a
//! copy that another bracket has just dropped. A fault reads the number of brackets, walks the page table
//! without locks, and keeps its result under the lock of `brackets` only if the number is still the same. The
//! library changed the page table before it called the start, so a fault that reads the new number walks the
//! new entries.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quire::addr::{Frame, FrameRange, VirtAddr, VirtRange};
use quire::vm::Translated;

use super::brackets::{BracketStats, Brackets};
use super::radix::{Leaf, Radix, TOP, maps_one_of};
use super::slot::Slot;
use crate::mmu::shift;
use crate::task::{Held, hold};
use crate::tlb::Reach;
use crate::violation::Violation;

/// A lock of the machine's own, under which its interrupts wait.
pub(super) struct Locked<'a, T> {
    pub(super) value: MutexGuard<'a, T>,
    // Dropped after the lock.
    _held: Held,
}

/// A CPU tries to take a lock so often before it sleeps: the lock is held for a short time, and a hypervisor's
/// lock of its tables spins (KVM's `mmu_lock`). The host takes longer to wake a thread than most CPUs hold the
/// lock.
const TURNS: u32 = 4096;
/// After so many attempts the CPU lets other threads of the host run, among which the holder may be.
const TURNS_BEFORE_YIELD: u32 = 256;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> Locked<'_, T> {
    let held = hold();
    for turn in 1..=TURNS {
        if let Ok(value) = mutex.try_lock() {
            return Locked { value, _held: held };
        }
        if turn % TURNS_BEFORE_YIELD == 0 {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
    Locked { value: mutex.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
}

/// The statistics of a secondary MMU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NestedStats {
    /// Brackets by verb, as named by [`during`](super::during); those outside any under the empty name.
    pub brackets: BTreeMap<&'static str, BracketStats>,
    /// Accesses that found no copy, or one that did not allow them.
    pub faults: u64,
    /// Copies that were not made because a bracket came between, and waits for one that was open.
    pub retries: u64,
    /// Copies made of 4 KiB, 2 MiB and 1 GiB.
    pub installs: [u64; 3],
    /// Large copies that replaced smaller ones after a notified collapse.
    pub collapses: u64,
    /// The longest access that found no copy, or waited for a bracket that dropped some.
    pub longest_stall: Duration,
    /// The sum of these times.
    pub stalled: Duration,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) faults: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) installs: [AtomicU64; 3],
    pub(super) collapses: AtomicU64,
    pub(super) longest_stall: AtomicU64,
    pub(super) stalled: AtomicU64,
}

impl Counts {
    /// Counts an access that has waited since `since`.
    pub(super) fn note_stall(&self, since: Instant) {
        let took = since.elapsed().as_nanos() as u64;
        self.longest_stall.fetch_max(took, Ordering::Relaxed);
        self.stalled.fetch_add(took, Ordering::Relaxed);
    }
}

pub(crate) struct Tables {
    pub(super) root: Frame,
    /// The address of guest-physical address 0 in the address space.
    pub(super) base: u64,
    pub(super) radix: Radix,
    pub(super) brackets: Mutex<Brackets>,
    pub(super) cpus: Box<[Slot]>,
    pub(super) counts: Counts,
}

/// The result of an attempt to keep a copy.
pub(super) enum Put {
    Kept,
    /// A bracket came between.
    Again,
}

impl Tables {
    pub(super) fn new(root: Frame, base: VirtAddr, bytes: u64, cpus: usize, reach: Arc<Reach>) -> Self {
        Self {
            root,
            base: base.0,
            radix: Radix::new(bytes, reach),
            brackets: Mutex::new(Brackets::default()),
            cpus: (0..cpus).map(|_| Slot::default()).collect(),
            counts: Counts::default(),
        }
    }

    pub(crate) fn root(&self) -> Frame {
        self.root
    }

    pub(super) fn bytes(&self) -> u64 {
        self.radix.bytes
    }

    /// The frame of an address, if there is a copy that allows the access.
    pub(super) fn frame_for(&self, at: u64, stores: bool) -> Option<u64> {
        let leaf = self.radix.walk(at).filter(|leaf| leaf.write || !stores)?;
        Some(leaf.frame_of(at))
    }

    /// The part of a range that is guest memory.
    fn guest(&self, range: VirtRange) -> Range<u64> {
        let at = |addr: VirtAddr| addr.0.saturating_sub(self.base).min(self.radix.bytes);
        at(range.start)..at(range.end)
    }

    /// Starts a bracket, of which the tables are notified unless it is `lost`.
    pub(super) fn start(&self, range: VirtRange, lost: bool) {
        let (began, guest) = (Instant::now(), self.guest(range));
        let mut dropped = 0;
        let mut brackets = lock(&self.brackets);
        brackets.value.open(range, guest.clone(), began, lost);
        if lost {
            return;
        }
        self.radix.drop_range(guest, &mut |_| dropped += 1);
        drop(brackets);
        super::slot::wait_for_all(&self.cpus);
        lock(&self.brackets).value.note_dropped(range, dropped);
    }

    /// Ends a bracket; false if there was none.
    pub(super) fn end(&self, range: VirtRange) -> bool {
        lock(&self.brackets).value.close(range)
    }

    /// The number of brackets so far, if no open one covers the page at an address.
    pub(super) fn begun(&self, at: u64) -> Option<u64> {
        let brackets = lock(&self.brackets);
        (!brackets.value.covers(&(at..at + 1))).then_some(brackets.value.begun)
    }

    /// Keeps a copy of a leaf around an address, as large as the leaf, guest memory and alignment allow,
    /// unless a bracket began since the number was `begun`, or an open one covers some of it.
    pub(super) fn install(&self, at: u64, leaf: &Translated, begun: u64) -> (Put, Option<Violation>) {
        let leaf = self.copy_of(at, leaf, TOP);
        let (put, stale) = self.put(leaf, begun);
        let kept = u64::from(matches!(put, Put::Kept));
        self.counts.installs[leaf.level as usize - 1].fetch_add(kept, Ordering::Relaxed);
        (put, stale)
    }

    fn put(&self, leaf: Leaf, begun: u64) -> (Put, Option<Violation>) {
        let brackets = lock(&self.brackets);
        if brackets.value.begun != begun || brackets.value.covers(&(leaf.at..leaf.at + leaf.bytes())) {
            return (Put::Again, None);
        }
        let mut stale = None;
        self.radix.put(leaf, &mut |old| {
            // Both name the frame of the same address.
            let at = old.at.max(leaf.at);
            if old.frame_of(at) != leaf.frame_of(at) {
                stale = Some(self.stale(&old, Some(Frame(leaf.frame_of(at)))));
            }
        });
        drop(brackets);
        (Put::Kept, stale)
    }

    /// The copy of a leaf around an address, of this level or below.
    fn copy_of(&self, at: u64, leaf: &Translated, largest: u32) -> Leaf {
        let addr = self.base + at;
        for level in (2..=largest).rev().filter(|&level| 1 << shift(level) <= leaf.size.bytes()) {
            let bytes = 1u64 << shift(level);
            let start = at & !(bytes - 1);
            let inside = self.base + start >= leaf.addr.0
                && self.base + start + bytes <= leaf.addr.0 + leaf.size.bytes()
                && start + bytes <= self.radix.bytes;
            let frame = leaf.frame.0 + ((self.base + start).wrapping_sub(leaf.addr.0) >> 12);
            // As in hardware, a large page starts at a multiple of its size on both sides.
            if inside && frame.is_multiple_of(bytes >> 12) {
                return Leaf { at: start, level, frame, write: leaf.writable };
            }
        }
        let frame = leaf.frame.0 + ((addr - leaf.addr.0) >> 12);
        Leaf { at: at & !0xfff, level: 1, frame, write: leaf.writable }
    }

    /// Larger leaves may map a range: puts copies of them in place of smaller copies, by the protocol of a
    /// fault. A copy of 1 GiB takes the place of copies of 2 MiB, so that each hold of the lock is short.
    /// `walk` reads the page table.
    pub(super) fn collapse(
        &self,
        range: VirtRange,
        walk: &impl Fn(VirtAddr) -> Option<Translated>,
    ) -> Option<Violation> {
        let (guest, mut stale) = (self.guest(range), None);
        for level in 2..=TOP {
            let bytes = 1u64 << shift(level);
            let mut at = guest.start.next_multiple_of(bytes);
            while at + bytes <= guest.end {
                stale = stale.or(self.collapse_one(at, level, walk));
                at += bytes;
            }
        }
        stale
    }

    fn collapse_one(
        &self,
        at: u64,
        level: u32,
        walk: impl Fn(VirtAddr) -> Option<Translated>,
    ) -> Option<Violation> {
        if !self.radix.has_smaller(level, at) {
            return None;
        }
        let begun = self.begun(at)?;
        let leaf = walk(VirtAddr(self.base + at))?;
        let copy = self.copy_of(at, &leaf, level);
        if copy.level < level {
            return None;
        }
        let (put, stale) = self.put(copy, begun);
        self.counts.collapses.fetch_add(u64::from(matches!(put, Put::Kept)), Ordering::Relaxed);
        stale
    }

    /// Every copy that leads to one of these frames.
    pub(super) fn reaching(&self, frames: FrameRange, found: &mut Vec<Violation>) {
        let brackets = lock(&self.brackets);
        self.radix.each(0..self.radix.bytes, &mut |leaf| {
            if maps_one_of(&leaf, frames.start.0, frames.count) {
                found.push(Violation::FreedNested {
                    root: self.root,
                    addr: self.base + leaf.at,
                    size: leaf.bytes(),
                    first: Frame(leaf.frame),
                    freed: frames,
                });
            }
        });
        drop(brackets);
    }

    /// The violation of a copy that differs from the page table, which maps `there` at its start, if
    /// anything.
    pub(super) fn stale(&self, leaf: &Leaf, there: Option<Frame>) -> Violation {
        Violation::StaleNested {
            root: self.root,
            addr: self.base + leaf.at,
            size: leaf.bytes(),
            first: Frame(leaf.frame),
            write: leaf.write,
            there,
        }
    }

    pub(super) fn stats(&self) -> NestedStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        NestedStats {
            brackets: lock(&self.brackets).value.by_verb(),
            faults: load(&counts.faults),
            retries: load(&counts.retries),
            installs: std::array::from_fn(|at| load(&counts.installs[at])),
            collapses: load(&counts.collapses),
            longest_stall: Duration::from_nanos(load(&counts.longest_stall)),
            stalled: Duration::from_nanos(load(&counts.stalled)),
        }
    }

    pub(super) fn forget_stats(&self) {
        lock(&self.brackets).value.forget();
        let counts = &self.counts;
        let all =
            [&counts.faults, &counts.retries, &counts.collapses, &counts.longest_stall, &counts.stalled];
        all.into_iter().chain(&counts.installs).for_each(|count| count.store(0, Ordering::Relaxed));
    }
}
