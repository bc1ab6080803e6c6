//! CPUs that own blocks: the shape proposed for Linux's per-CPU lists by Weiner, "mm: page_alloc: pcp buddy
//! allocator", RFC of April 2026, with remote frees as in van Riel's series of May 2026.
//!
//! A CPU takes a whole block from the store, and splits it without the store's lock. From then on it owns the
//! block: each frame goes back to that CPU, whichever frees it. Another CPU pushes it on a list without a
//! lock, which the owner empties when its own lists are empty, and when it frees. Lists that hold too much
//! put buddies together, the smallest first, and give the largest pieces back to the store. Linux's further
//! work is left out: statistics, mobility groups, zones, and the size of the lists, which it tunes; here it
//! is fixed.

mod lists;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32};

use spin::mutex::SpinMutex;
use spin::relax::RelaxStrategy;

use super::case::{Frames, PageAlloc};
use super::peer::prepare;
use crate::bench::experiment::{Arm, Prepared, Skip};
use lists::{Kind, Links, Lists, TOP};

pub(super) const NAME: &str = "owned-blocks";

const BLOCK: u32 = 1 << TOP;
/// A CPU's lists hold at most so many frames: four blocks.
const HIGH: u32 = 4 * BLOCK;
/// They give so many back at once, beyond what is too much.
const BATCH: u32 = BLOCK / 2;

pub(super) struct OwnedBlocks;

impl Arm<PageAlloc> for OwnedBlocks {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "written for this comparison in the shape of Weiner's RFC of April 2026 for Linux: a CPU takes whole blocks of 2 MiB \
         and owns them; frames return to the owner, whichever CPU frees them: its own to its lists without a lock, others' by \
         a list without a lock (van Riel, May 2026). At most 2048 frames on a CPU's lists. It checks nothing: no double \
         free, no watermark, no zone."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let (frames, threads) = (case.frames, case.threads);
        let blocks = u32::try_from(frames).unwrap_or(u32::MAX) / BLOCK;
        prepare(case, move || Ok(Cpu::all(blocks, threads)))
    }
}

/// Waits as Quire's locks do: where threads are more than CPUs, the lock's holder may need this one.
struct Relax;

impl RelaxStrategy for Relax {
    fn relax() {
        const TURNS_PER_YIELD: u32 = 16;
        thread_local!(static TURNS: Cell<u32> = const { Cell::new(0) });
        let turn = TURNS.get().wrapping_add(1);
        TURNS.set(turn);
        if turn.is_multiple_of(TURNS_PER_YIELD) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// The lists of one CPU, which it alone uses.
struct Own {
    lists: Lists,
    /// Blocks of which pieces went to the store, each once.
    given: Vec<u32>,
    is_given: Box<[bool]>,
}

struct Shared {
    links: Links,
    /// For each block the CPU that owns it plus one, or zero.
    owners: Box<[AtomicU8]>,
    store: SpinMutex<Lists, Relax>,
    /// For each CPU the newest of the pieces that others have freed, plus one, or zero.
    remote: Box<[AtomicU32]>,
}

impl Shared {
    fn new(blocks: u32, cpus: usize) -> Self {
        let shared = Self {
            links: Links::new((blocks * BLOCK) as usize),
            owners: (0..blocks).map(|_| AtomicU8::new(0)).collect(),
            store: SpinMutex::new(Lists::default()),
            remote: (0..cpus).map(|_| AtomicU32::new(0)).collect(),
        };
        let mut store = shared.store.lock();
        (0..blocks).rev().for_each(|block| store.push(&shared.links, block * BLOCK, TOP, Kind::Stored));
        drop(store);
        shared
    }

    fn owner(&self, frame: u32) -> &AtomicU8 {
        &self.owners[(frame / BLOCK) as usize]
    }

    fn take(&self, own: &mut Own, cpu: usize, order: u8) -> Option<u32> {
        loop {
            if let Some(found) = own.lists.pop(&self.links, order..=TOP) {
                return Some(self.split(own, found, order));
            }
            if !self.absorb(own, cpu) {
                self.refill(own, cpu, order)?;
            }
        }
    }

    /// Puts what others have freed on the lists; returns whether there was any.
    #[inline]
    fn absorb(&self, own: &mut Own, cpu: usize) -> bool {
        // No write where there is none: the line stays with this CPU.
        if self.remote[cpu].load(Relaxed) == 0 {
            return false;
        }
        let mut next = self.remote[cpu].swap(0, Acquire);
        while let Some(frame) = next.checked_sub(1) {
            let (order, behind) = self.links.sent(frame);
            own.lists.push(&self.links, frame, order, Kind::Owned);
            next = behind;
        }
        true
    }

    /// Keeps what is beyond a folio of this order on the lists.
    fn split(&self, own: &mut Own, (frame, found, kind): (u32, u8, Kind), order: u8) -> u32 {
        (order..found).rev().for_each(|half| own.lists.push(&self.links, frame + (1 << half), half, kind));
        frame
    }

    /// Gets pieces from the store: those of own blocks, else a block to own, else a piece of another's block.
    fn refill(&self, own: &mut Own, cpu: usize, order: u8) -> Option<()> {
        let (mut store, owner) = (self.store.lock(), cpu as u8 + 1);
        let mut recovered = false;
        while let Some(block) = own.given.pop() {
            own.is_given[block as usize] = false;
            if self.owners[block as usize].load(Relaxed) != owner {
                continue;
            }
            let (mut frame, end) = (block * BLOCK, (block + 1) * BLOCK);
            while frame < end {
                let piece = self.links.order_of(frame, Kind::Stored);
                if let Some(piece) = piece {
                    store.remove(&self.links, frame, piece);
                    own.lists.push(&self.links, frame, piece, Kind::Owned);
                    recovered |= piece >= order;
                }
                frame += piece.map_or(1, |piece| 1 << piece);
            }
        }
        if recovered {
            return Some(());
        }
        let (frame, found, _) = store.pop(&self.links, TOP..=TOP).or_else(|| {
            // The largest first, so that the store is asked rarely.
            (order..TOP).rev().find_map(|piece| store.pop(&self.links, piece..=piece))
        })?;
        let kind = if found == TOP { Kind::Owned } else { Kind::Cached };
        if found == TOP {
            self.owner(frame).store(owner, Relaxed);
        }
        own.lists.push(&self.links, frame, found, kind);
        Some(())
    }

    fn give(&self, own: &mut Own, cpu: usize, frame: u32, order: u8) {
        let owner = self.owner(frame).load(Relaxed);
        if owner != 0 && usize::from(owner) != cpu + 1 {
            return self.send(&self.remote[usize::from(owner) - 1], frame, order);
        }
        let kind = if owner == 0 { Kind::Cached } else { Kind::Owned };
        own.lists.push(&self.links, frame, order, kind);
        self.absorb(own, cpu);
        if own.lists.frames() > HIGH {
            self.drain(own);
        }
    }

    /// Pushes a piece on the list of what others free of an owner's blocks. It keeps its owner until that one
    /// has it back.
    fn send(&self, remote: &AtomicU32, frame: u32, order: u8) {
        let mut newest = remote.load(Relaxed);
        loop {
            self.links.send(frame, order, newest);
            match remote.compare_exchange_weak(newest, frame + 1, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => newest = now,
            }
        }
    }

    /// Puts buddies together and gives the largest pieces back.
    fn drain(&self, own: &mut Own) {
        (0..TOP).for_each(|order| own.lists.merge(&self.links, order));
        let mut store = self.store.lock();
        while own.lists.frames() > HIGH - BATCH {
            let Some((frame, order, kind)) =
                (0..=TOP).rev().find_map(|order| own.lists.pop(&self.links, order..=order))
            else {
                return;
            };
            let block = frame / BLOCK;
            if order < TOP
                && kind == Kind::Owned
                && !std::mem::replace(&mut own.is_given[block as usize], true)
            {
                own.given.push(block);
            }
            let (frame, order) = store.join(&self.links, frame, order);
            if order == TOP {
                self.owner(frame).store(0, Relaxed);
            }
            store.push(&self.links, frame, order, Kind::Stored);
        }
    }
}

/// One thread as a CPU.
struct Cpu {
    shared: Arc<Shared>,
    own: Own,
    cpu: usize,
}

impl Cpu {
    fn all(blocks: u32, cpus: usize) -> Vec<Self> {
        let shared = Arc::new(Shared::new(blocks, cpus));
        let own = || Own {
            lists: Lists::default(),
            given: Vec::with_capacity(blocks as usize),
            is_given: (0..blocks).map(|_| false).collect(),
        };
        (0..cpus).map(|cpu| Self { shared: Arc::clone(&shared), own: own(), cpu }).collect()
    }
}

impl Frames for Cpu {
    type Frame = u32;

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<u32> {
        self.shared.take(&mut self.own, self.cpu, ORDER)
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: u32) {
        self.shared.give(&mut self.own, self.cpu, frame, ORDER);
    }

    /// Those that this CPU can have: what others hold is theirs.
    fn free_frames(&self) -> Option<u64> {
        Some(u64::from(self.own.lists.frames()) + u64::from(self.shared.store.lock().frames()))
    }
}

#[cfg(test)]
mod tests;
