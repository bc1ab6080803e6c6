//! Magazines: free folios by the hundred that move whole (Bonwick, Adams: "Magazines and Vmem", USENIX 2001).
//!
//! A magazine needs no memory of its own: its array stands in one of its folios. So parking and loading one
//! copies nothing. A list's parked magazines are a chain through those folios behind a small lock, taken once
//! for each magazine, so that other CPUs can empty it without disturbing the list's owner.
//!
//! There is no depot through which magazines travel from CPUs that free to CPUs that allocate: the store's
//! bitmaps are smaller. A magazine is 64 cache lines for 256 folios, a block's record four for 512.
//!
//! # Invariants
//!
//! G1. A magazine's array stands in a free folio that is part of it, so it belongs to the code that holds the
//!     lock of its chain, or that has the list. A list's arrays belong to the code that holds its lease, or
//!     has revoked it.
//! G2. An entry, of any array, names a folio and the place of its state. The state stands in the block's
//!     columns or in its record; a block uses its columns, and a record has its folio, while any of it is on
//!     a list.
//! G4. There are lists and counters for each CPU that the platform can name ([`FramePlatform::cpu_count`]).
//! G5. A record that names columns, or has a folio in use, names an existing zone and mobility group. The
//!     zone and group are written first.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::addr::Frame;
use crate::limits::{FRAME_SIZE, MAGAZINE_FRAMES, PCP_CAPACITY};
use crate::page_alloc::pcp::list::{FrameList, ListEntry, Magazine};
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;
use crate::rank::Rank;
use crate::sync::{SpinGuard, SpinLock};

/// A list's full magazines, the last parked first.
pub(in crate::page_alloc) struct Parked {
    /// Changes under the lock, which an empty chain does not need.
    pub(in crate::page_alloc) count: AtomicU32,
    pub(in crate::page_alloc) chain: SpinLock<Chain>,
}

pub(in crate::page_alloc) struct Chain {
    /// The folio that the first magazine stands in, plus one.
    pub(in crate::page_alloc) top: u64,
    /// Magazines that may be parked. Grows when the list asks the store for what it gave back a moment ago,
    /// and shrinks with time ([`Lists::age_lists`](crate::page_alloc::Lists::age_lists)).
    pub(in crate::page_alloc) high: u32,
    /// Magazines for which the zone has booked room: the most that were parked at a time.
    pub(in crate::page_alloc) booked: u32,
}

impl Parked {
    /// No magazines, and none allowed yet.
    pub(in crate::page_alloc) fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            chain: SpinLock::new(Rank::Parked, Chain { top: 0, high: 0, booked: 0 }),
        }
    }

    /// A hint without the lock.
    #[inline]
    pub(in crate::page_alloc) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(in crate::page_alloc) fn lock<'a, P: FramePlatform>(
        &'a self,
        platform: &'a P,
        wait: bool,
    ) -> Option<SpinGuard<'a, Chain, P>> {
        if wait { Some(self.chain.lock(platform)) } else { self.chain.try_lock(platform) }
    }

    /// Parks a list's full magazine of `frames` frames, if it may park one more; returns whether it did.
    pub(in crate::page_alloc) fn park<P: FramePlatform>(
        &self,
        platform: &P,
        list: &FrameList,
        zone: &Zone,
        frames: u64,
        wait: bool,
    ) -> bool {
        let Some(mut chain) = self.lock(platform, wait) else { return false };
        // An interrupt parks beyond the mark, as it cannot give folios back.
        if self.count() >= chain.high && wait {
            return false;
        }
        if self.count() == chain.booked {
            if !zone.book(frames as i64) {
                return false;
            }
            chain.booked += 1;
        }
        let Some((magazine, _)) = list.unload() else { return false };
        let (first, _) = magazine.own();
        magazine.set_next(Frame(chain.top));
        chain.top = first.0 + 1;
        self.count.store(self.count() + 1, Ordering::Relaxed);
        true
    }

    /// Takes the magazine that was parked last.
    pub(in crate::page_alloc) fn unpark<P: FramePlatform>(
        &self,
        platform: &P,
        wait: bool,
    ) -> Option<Magazine> {
        if self.count() == 0 {
            return None;
        }
        let mut chain = self.lock(platform, wait)?;
        let first = chain.top.checked_sub(1).map(Frame)?;
        let magazine = magazine(platform, first);
        let (next, state) = magazine.own();
        chain.top = next.0;
        magazine.set_own(first, state);
        self.count.store(self.count() - 1, Ordering::Relaxed);
        Some(magazine)
    }

    /// Allows a list that had to ask the store one more magazine, or none when its zone is `short` of memory.
    pub(in crate::page_alloc) fn raise_mark<P: FramePlatform>(
        &self,
        platform: &P,
        wait: bool,
        got: usize,
        short: bool,
    ) {
        if got == 0 && !short {
            return;
        }
        if let Some(mut chain) = self.lock(platform, wait) {
            chain.high = if short { 0 } else { chain.high + u32::from(got > 0) };
        }
    }

    /// Gives back the room beyond what a list has parked and may park. A magazine has `frames` frames.
    pub(in crate::page_alloc) fn unbook<P: FramePlatform>(&self, platform: &P, zone: &Zone, frames: u64) {
        let mut chain = self.chain.lock(platform);
        let keep = chain.booked.min(self.count().max(chain.high));
        zone.unbook(i64::from(chain.booked - keep) * frames as i64);
        chain.booked = keep;
    }

    /// Magazines with booked room; for `validate`, at rest.
    pub(in crate::page_alloc) fn booked<P: FramePlatform>(&self, platform: &P) -> u32 {
        self.chain.lock(platform).booked
    }

    /// Lowers by an eighth what may be parked; returns how many magazines are beyond that.
    pub(in crate::page_alloc) fn age<P: FramePlatform>(&self, platform: &P) -> u32 {
        let mut chain = self.chain.lock(platform);
        chain.high -= chain.high.div_ceil(8);
        self.count().saturating_sub(chain.high)
    }

    /// Shows every folio of the magazines, which have `len` besides their own; for `validate`, at rest.
    pub(in crate::page_alloc) fn each<P: FramePlatform>(
        &self,
        platform: &P,
        len: usize,
        mut show: impl FnMut(Frame),
    ) {
        let mut top = self.chain.lock(platform).top;
        while let Some(first) = top.checked_sub(1).map(Frame) {
            let magazine = magazine(platform, first);
            show(first);
            magazine.frames(len).for_each(&mut show);
            top = magazine.own().0.0;
        }
    }
}

/// The magazine in a free folio that belongs to the caller.
fn magazine<P: FramePlatform>(platform: &P, first: Frame) -> Magazine {
    // SAFETY: G1: the folio is free and belongs to the caller; it has 4 KiB or more, aligned.
    unsafe { Magazine::at(platform.direct_map(first.addr())) }
}

/// A magazine without other folios in a folio that was just freed.
pub(in crate::page_alloc) fn start_magazine<P: FramePlatform>(
    platform: &P,
    own: Frame,
    state: &AtomicU8,
) -> Magazine {
    let magazine = magazine(platform, own);
    magazine.set_own(own, state);
    magazine
}

const _: () = assert!(MAGAZINE_FRAMES == PCP_CAPACITY + 1);
const _: () = assert!(cfg!(loom) || (MAGAZINE_FRAMES * size_of::<ListEntry>()) as u64 <= FRAME_SIZE);
