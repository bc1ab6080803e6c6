//! The lock-rank checker: each task may take locks in ascending order only, one of each rank.

use std::sync::atomic::{AtomicU32, Ordering};

use quire::rank::Rank;

/// The ranks that a task holds: at most one lock of each, so a bit for each is enough, and one comparison
/// finds a wrong order.
pub(crate) struct HeldRanks(AtomicU32);

const ALL: &[Rank] = &[
    Rank::AddressSpace,
    Rank::Families,
    Rank::FileTable,
    Rank::File,
    Rank::FileViews,
    Rank::GiganticClears,
    Rank::Underused,
    Rank::Hook,
    Rank::Userfault,
    Rank::PageTable,
    Rank::PageTableSecond,
    Rank::HugeFs,
    Rank::HugePool,
    #[cfg(feature = "published")]
    Rank::Sections,
    Rank::Slab,
    Rank::ListDrain,
    Rank::Block,
    Rank::CountRoom,
    Rank::DeferredSplits,
    Rank::Shard,
    Rank::Pool,
    Rank::Parked,
];

#[cfg(feature = "published")]
const _: () = assert!(ALL.len() == Rank::Parked as usize, "a rank has no name");

impl HeldRanks {
    pub(crate) const fn none() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Replaces the held ranks and returns the old ones, for a context that starts on top of this one.
    pub(crate) fn replace(&self, held: u32) -> u32 {
        let was = self.0.load(Ordering::Relaxed);
        self.0.store(held, Ordering::Relaxed);
        was
    }

    #[inline]
    pub(crate) fn take(&self, rank: Rank) {
        let held = self.0.load(Ordering::Relaxed);
        if held >> rank as u32 != 0 {
            refuse(rank, held);
        }
        self.0.store(held | 1 << rank as u32, Ordering::Relaxed);
    }

    /// Whether nothing is held.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Panics if any other rank is held.
    #[inline]
    pub(crate) fn at_most(&self, rank: Rank) {
        let held = self.0.load(Ordering::Relaxed);
        assert!(held & !(1 << rank as u32) == 0, "more than {rank:?} is held: {:?}", names(held));
    }

    #[inline]
    pub(crate) fn give_back(&self, rank: Rank) {
        let held = self.0.load(Ordering::Relaxed);
        assert!(
            held >> rank as u32 & 1 == 1,
            "a lock of rank {rank:?} was given back that this task does not hold"
        );
        self.0.store(held & !(1 << rank as u32), Ordering::Relaxed);
    }
}

/// The ranks in a set, lowest first.
pub(crate) fn names(held: u32) -> Vec<Rank> {
    ALL.iter().copied().filter(|&rank| held >> rank as u32 & 1 == 1).collect()
}

#[cold]
fn refuse(rank: Rank, held: u32) -> ! {
    let highest = names(held).pop().expect("a wrong order needs a lock that is held");
    panic!("lock order: {rank:?} was asked for while {highest:?} is held (all held: {:?})", names(held));
}

#[cfg(test)]
mod tests;
