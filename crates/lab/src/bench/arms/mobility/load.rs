//! The load: its requests and their lifetimes.

use hosted::raw::{IsolatedMemory, RawPages};
use quire::addr::{Frame, Order};
use quire::page_alloc::{Gfp, PageAllocator};
use quire::platform::Platform;

use super::{Load, Mobilities};
use crate::host::cycles::{Moment, Span};

/// The load frees movable folios once they fill this share of memory, in percent.
const FULL: u64 = 75;

/// One short-lived unmovable or reclaimable frame exists for this many frames of memory.
const KERNEL_SHARE: usize = 64;

/// A folio in use.
pub(super) type Held = (Frame, Order);

#[derive(Clone, Copy, Default)]
pub(super) struct Done {
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// Frames of kernel memory that stay to the end.
    pub(super) pinned: u64,
    /// Whole blocks of aged memory.
    pub(super) whole_before_storm: u64,
}

/// The folios in use.
pub(super) struct Requests<'a, 'p, P: Platform + IsolatedMemory> {
    pub(super) pages: &'a PageAllocator<'p, P>,
    pub(super) rng: fastrand::Rng,
    pub(super) frames: u64,
    pub(super) used: u64,
    /// User memory: folios of orders 0 to 3, freed in random order once memory is full.
    pub(super) movable: Vec<Held>,
    /// Page tables, small objects, cache nodes; each is freed after a while.
    kernel: Vec<Held>,
    /// The same, never freed.
    pub(super) forever: Vec<Held>,
    pub(super) done: Done,
}

/// Makes all requests of `case`, then frees every folio that is movable or short-lived. Returns those that
/// pin blocks, and the time: of a storm that of its requests alone.
pub(super) fn run<P: Platform + IsolatedMemory>(
    pages: &PageAllocator<'_, P>,
    case: &Mobilities,
) -> (Done, Vec<Held>, Span) {
    let frames = case.bytes / 4096;
    let mut load = Requests {
        pages,
        rng: fastrand::Rng::with_seed(case.seed),
        frames,
        used: 0,
        movable: Vec::with_capacity(frames as usize),
        kernel: Vec::new(),
        forever: Vec::new(),
        done: Done::default(),
    };
    let mut start = Moment::now();
    let mut end = None;
    match case.load {
        Load::Rounds(rounds) => {
            for _ in 0..rounds {
                for _ in 0..frames / 8 {
                    load.request();
                }
            }
        }
        Load::Storm => {
            load.age();
            start = Moment::now();
            load.storm();
            end = Some(Moment::now());
        }
    }
    for held in std::mem::take(&mut load.movable).into_iter().chain(std::mem::take(&mut load.kernel)) {
        load.give(held);
    }
    load.done.pinned = load.forever.len() as u64;
    (load.done, load.forever, start.until(end.unwrap_or_else(Moment::now)))
}

impl<P: Platform + IsolatedMemory> Requests<'_, '_, P> {
    fn request(&mut self) {
        self.done.requests += 1;
        match self.rng.u16(..1000) {
            0..880 => {
                self.request_movable();
                while self.used * 100 > self.frames * FULL {
                    self.free_movable();
                }
            }
            880..998 => {
                let gfp = if self.rng.bool() { Gfp::KERNEL } else { Gfp::RECLAIMABLE };
                if let Some(held) = self.take(gfp, 0) {
                    self.kernel.push(held);
                }
                if self.kernel.len() > self.frames as usize / KERNEL_SHARE {
                    let at = self.rng.usize(..self.kernel.len());
                    let held = self.kernel.swap_remove(at);
                    self.give(held);
                }
            }
            _ => {
                if let Some(held) = self.take(Gfp::KERNEL, 0) {
                    self.forever.push(held);
                }
            }
        }
    }

    /// Allocates a folio of user memory; returns whether it got one.
    pub(super) fn request_movable(&mut self) -> bool {
        let order = match self.rng.u8(..16) {
            0..11 => 0,
            11..13 => 1,
            13..15 => 2,
            _ => 3,
        };
        let taken = self.take(Gfp::USER, order);
        self.movable.extend(taken);
        taken.is_some()
    }

    /// Frees one of them, if there is any.
    pub(super) fn free_movable(&mut self) {
        if !self.movable.is_empty() {
            let at = self.rng.usize(..self.movable.len());
            let held = self.movable.swap_remove(at);
            self.give(held);
        }
    }

    pub(super) fn take(&mut self, gfp: Gfp, order: u8) -> Option<Held> {
        let order = Order::new(order)?;
        match self.pages.alloc_raw(gfp, order) {
            Ok(frame) => {
                self.used += order.frames();
                Some((frame, order))
            }
            Err(_) => {
                self.done.refused += 1;
                None
            }
        }
    }

    pub(super) fn give(&mut self, (frame, order): Held) {
        self.used -= order.frames();
        let freed = self.pages.free_raw(frame, order);
        assert_eq!(freed, Ok(()), "a folio of the load was refused");
    }
}
