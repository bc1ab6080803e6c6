//! CPUs that own blocks: the shape proposed for Linux' per-CPU lists by Weiner, "mm: page_alloc: pcp buddy allocator", RFC of
//! April 2026.
//!
//! A CPU takes a whole block from the store, and splits it without the store's lock. From then on it owns the block: each
//! frame goes back to the lists of that CPU, whichever frees it. Lists that hold too much put buddies together, the smallest
//! first, and give the largest pieces back to the store. Linux' further work is left out: statistics, mobility groups, zones,
//! and the size of the lists, which it tunes; here it is fixed.

mod lists;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use spin::mutex::SpinMutex;

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
         and owns them; frames return to the lists of the owner, whichever CPU frees them, under a spin lock for each CPU. At \
         most 2048 frames on a CPU's lists."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let (frames, threads) = (case.frames, case.threads);
        let blocks = u32::try_from(frames).unwrap_or(u32::MAX) / BLOCK;
        prepare(case, move || {
            let shared = Arc::new(Shared::new(blocks, threads));
            Ok((0..threads).map(|cpu| Cpu { shared: Arc::clone(&shared), cpu }).collect())
        })
    }
}

/// The lists of one CPU.
#[derive(Default)]
struct Own {
    lists: Lists,
    /// Blocks of which pieces went to the store.
    given: Vec<u32>,
}

struct Shared {
    links: Links,
    /// For each block the CPU that owns it plus one, or zero.
    owners: Box<[AtomicU8]>,
    store: SpinMutex<Lists>,
    cpus: Box<[SpinMutex<Own>]>,
}

impl Shared {
    fn new(blocks: u32, cpus: usize) -> Self {
        let shared = Self {
            links: Links::new((blocks * BLOCK) as usize),
            owners: (0..blocks).map(|_| AtomicU8::new(0)).collect(),
            store: SpinMutex::new(Lists::default()),
            cpus: (0..cpus).map(|_| SpinMutex::new(Own::default())).collect(),
        };
        let mut store = shared.store.lock();
        (0..blocks).rev().for_each(|block| store.push(&shared.links, block * BLOCK, TOP, Kind::Stored));
        drop(store);
        shared
    }

    fn owner(&self, frame: u32) -> &AtomicU8 {
        &self.owners[(frame / BLOCK) as usize]
    }

    fn take(&self, cpu: usize, order: u8) -> Option<u32> {
        let own = &mut *self.cpus[cpu].lock();
        loop {
            if let Some(found) = own.lists.pop(&self.links, order..=TOP) {
                return Some(self.split(own, found, order));
            }
            self.refill(own, cpu, order)?;
        }
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

    fn give(&self, cpu: usize, frame: u32, order: u8) {
        let owner = self.owner(frame).load(Relaxed);
        let (to, kind) = if owner == 0 { (cpu, Kind::Cached) } else { (usize::from(owner) - 1, Kind::Owned) };
        let own = &mut *self.cpus[to].lock();
        own.lists.push(&self.links, frame, order, kind);
        if own.lists.frames() > HIGH {
            self.drain(own);
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
            if order < TOP && kind == Kind::Owned && own.given.last() != Some(&(frame / BLOCK)) {
                own.given.push(frame / BLOCK);
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
    cpu: usize,
}

impl Frames for Cpu {
    type Frame = u32;

    #[inline(always)]
    fn take<const ORDER: u8>(&mut self) -> Option<u32> {
        self.shared.take(self.cpu, ORDER)
    }

    #[inline(always)]
    fn give<const ORDER: u8>(&mut self, frame: u32) {
        self.shared.give(self.cpu, frame, ORDER);
    }

    fn free_frames(&self) -> Option<u64> {
        let lists: u64 = self.shared.cpus.iter().map(|own| u64::from(own.lock().lists.frames())).sum();
        Some(lists + u64::from(self.shared.store.lock().frames()))
    }
}

#[cfg(test)]
mod tests;
