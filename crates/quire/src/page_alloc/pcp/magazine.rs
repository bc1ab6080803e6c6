//! Magazines: free folios gathered by the hundred, that change hands whole (Bonwick, Adams: "Magazines and Vmem",
//! USENIX 2001).
//!
//! A magazine needs no memory of its own: its array stands in one of its folios. So nothing is copied when one is parked,
//! and nothing when it is loaded again. A list's parked magazines are a chain through those folios behind a small lock,
//! taken once for each magazine, so that other CPUs can empty it without disturbing the list's owner.
//!
//! There is no depot through which magazines travel from CPUs that free to CPUs that allocate: the store's bitmaps are the
//! shorter message. A magazine is 64 cache lines for 256 folios, a block's record four for 512.
//!
//! # Invariants
//!
//! G1. A magazine's array stands in a free folio that is part of it, so it belongs to the code that holds the lock of
//! the chain that it is on, or that has the list. The arrays of a list belong to the code that holds its lease, or
//! has revoked it. G2. A slot, of whatever array, names a folio and the place of its state. The state stands in the
//! block's descriptors or
//!     in its record; a block keeps its descriptors, and a record its folio, while any of it is on a list.
//! G4. There are lists for each CPU that the platform can name ([`FramePlatform::cpu_count`]).
//! G5. A record that names descriptors, or has a folio in use, names a zone and a mobility group that exist, as it did
//!     before it did so.

use crate::page_alloc::pcp::parked::Parked;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::addr::Frame;
use crate::limits::{FRAME_SIZE, MAGAZINE_FRAMES, PCP_CAPACITY};
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::pcp::list::{Magazine, Slot};
use crate::page_alloc::pcp::lists::OwnList;
use crate::page_alloc::store::zone::Zone;
use crate::platform::FramePlatform;

const _: () = assert!(MAGAZINE_FRAMES == PCP_CAPACITY + 1);
const _: () = assert!(cfg!(loom) || (MAGAZINE_FRAMES * size_of::<Slot>()) as u64 <= FRAME_SIZE);

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// The array in a free folio, which the caller has to itself.
    fn magazine(&self, first: Frame) -> Magazine {
        // SAFETY: G1: the folio is free, and belongs to the caller; it is aligned to 4 KiB and no shorter.
        unsafe { Magazine::at(self.platform.direct_map(first.addr())) }
    }

    /// A magazine in a folio that was just freed, without others.
    pub(in crate::page_alloc) fn start_magazine(&self, own: Frame, state: &AtomicU8) -> Magazine {
        let magazine = self.magazine(own);
        magazine.set_own(own, state);
        magazine
    }

    /// Parks the full magazine of a list, if it may park one more; whether it did.
    pub(in crate::page_alloc) fn park_at(&self, own: OwnList<'_>, parked: &Parked) -> bool {
        let Some(mut chain) = parked.lock(self.platform, own.wait) else { return false };
        // What an interrupt frees is parked beyond the mark, as it cannot be given back from there.
        if parked.count() >= chain.high && own.wait {
            return false;
        }
        if parked.count() == chain.booked {
            if !own.zone.book(own.magazine_frames() as i64) {
                return false;
            }
            chain.booked += 1;
        }
        let Some((magazine, _)) = own.list.unload() else { return false };
        let (first, _) = magazine.own();
        magazine.set_next(Frame(chain.top));
        chain.top = first.0 + 1;
        parked.count.store(parked.count() + 1, Ordering::Relaxed);
        true
    }

    /// Takes the magazine that was parked last, as the caller's.
    pub(in crate::page_alloc) fn unpark(&self, parked: &Parked, wait: bool) -> Option<Magazine> {
        if parked.count() == 0 {
            return None;
        }
        let mut chain = parked.lock(self.platform, wait)?;
        let first = chain.top.checked_sub(1).map(Frame)?;
        let magazine = self.magazine(first);
        let (next, state) = magazine.own();
        chain.top = next.0;
        magazine.set_own(first, state);
        parked.count.store(parked.count() - 1, Ordering::Relaxed);
        Some(magazine)
    }

    /// A list that had to ask the store may park one more from now on, or none when its zone is `short` of memory.
    pub(in crate::page_alloc) fn raise_mark(
        &self,
        own: OwnList<'_>,
        parked: &Parked,
        got: usize,
        short: bool,
    ) {
        if let Some(mut chain) = parked.lock(self.platform, own.wait) {
            chain.high = if short { 0 } else { chain.high + u32::from(got > 0) };
        }
    }

    /// Gives back what a list has booked beyond what it has parked and may park. A magazine has `frames` frames.
    pub(in crate::page_alloc) fn unbook(&self, parked: &Parked, zone: &Zone, frames: u64) {
        let mut chain = parked.chain.lock(self.platform);
        let keep = chain.booked.min(parked.count().max(chain.high));
        zone.unbook(i64::from(chain.booked - keep) * frames as i64);
        chain.booked = keep;
    }

    /// Magazines that a list has booked room for; for `validate`, at rest.
    pub(in crate::page_alloc) fn booked(&self, parked: &Parked) -> u32 {
        parked.chain.lock(self.platform).booked
    }

    /// Lowers by an eighth what may be parked; how many there are beyond that.
    pub(in crate::page_alloc) fn age(&self, parked: &Parked) -> u32 {
        let mut chain = parked.chain.lock(self.platform);
        chain.high -= chain.high.div_ceil(8);
        parked.count().saturating_sub(chain.high)
    }

    /// Shows every folio of magazines that have `len` besides their own; for `validate`, at rest.
    pub(in crate::page_alloc) fn each_parked(
        &self,
        parked: &Parked,
        len: usize,
        mut show: impl FnMut(Frame),
    ) {
        let mut top = parked.chain.lock(self.platform).top;
        while let Some(first) = top.checked_sub(1).map(Frame) {
            let magazine = self.magazine(first);
            show(first);
            magazine.frames(len).for_each(&mut show);
            top = magazine.own().0.0;
        }
    }
}
