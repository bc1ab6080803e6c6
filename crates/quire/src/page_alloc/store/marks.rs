//! How many frames a zone keeps free, and from which requests. Both follow from the memory that is there, and
//! from what was asked for: when memory comes or goes, all zones' marks are computed anew.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::page_alloc::request::gfp::{KINDS, ZoneKind};

/// How many free frames a zone keeps (Linux: `WMARK_MIN`, `WMARK_LOW`, `WMARK_HIGH`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// Ordinary requests fail below.
    pub min: u64,
    /// Below, memory is freed in the background.
    pub low: u64,
    /// Above, freeing in the background may stop.
    pub high: u64,
}

impl Watermarks {
    /// The marks of a zone of `present` frames in a machine of `total`, by Linux's rule: min = 4 * sqrt(KiB)
    /// KiB for the machine, shared in proportion, `low` 1/4 and `high` 1/2 above it; at most 1/16 of a zone.
    pub fn for_zone(present: u64, total: u64) -> Self {
        Self::with_min((machine_min(total) * present / total.max(1)).min(present / 16))
    }

    /// The marks of a zone of `present` frames in a machine of `total`, of which `min_free` are to stay free: its
    /// share, at most 1/4 of the zone.
    pub(in crate::page_alloc) fn share(min_free: u64, present: u64, total: u64) -> Self {
        let share = u128::from(min_free) * u128::from(present) / u128::from(total.max(1));
        Self::with_min(u64::try_from(share).unwrap_or(u64::MAX).min(present / 4))
    }

    fn with_min(min: u64) -> Self {
        Self { min, low: min + min / 4, high: min + min / 2 }
    }
}

/// No sum of the `min` marks was asked for: they follow from the memory that is there.
pub(in crate::page_alloc) const BY_RULE: u64 = u64::MAX;

/// How many frames a machine of `total` keeps free.
pub(in crate::page_alloc) fn machine_min(total: u64) -> u64 {
    (total * 4).saturating_mul(16).isqrt() / 4
}

/// The frames that a zone keeps from requests that may take a zone of a higher kind, for each such kind
/// (Linux: `lowmem_reserve`): what can live elsewhere must not fill the only memory that others can use. A
/// share of the higher kinds' memory (as in Linux, 1/256 for DMA32, 1/32 for Normal), at most 1/4 of its own.
///
/// `present`: the frames of each kind on the zone's node.
pub(in crate::page_alloc) fn low_reserve(own: ZoneKind, present: [u64; KINDS]) -> [u64; KINDS] {
    let (own, share) = (own as usize, if own == ZoneKind::Dma32 { 256 } else { 32 });
    core::array::from_fn(|wanted| {
        let above: u64 = present.iter().take(wanted + 1).skip(own + 1).sum();
        (above / share).min(present[own] / 4)
    })
}

/// A zone's marks. Requests read one of them with a plain load.
#[derive(Default)]
pub(in crate::page_alloc) struct ZoneMarks {
    min: AtomicU64,
    low: AtomicU64,
    high: AtomicU64,
    low_reserve: [AtomicU64; KINDS],
}

impl ZoneMarks {
    #[inline]
    pub(in crate::page_alloc) fn min(&self) -> u64 {
        self.min.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::page_alloc) fn high(&self) -> u64 {
        self.high.load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::page_alloc) fn low_reserve(&self, wanted: ZoneKind) -> u64 {
        self.low_reserve[wanted as usize].load(Ordering::Relaxed)
    }

    /// All watermarks; some may be new and some old while another CPU changes them.
    pub(in crate::page_alloc) fn watermarks(&self) -> Watermarks {
        Watermarks { min: self.min(), low: self.low.load(Ordering::Relaxed), high: self.high() }
    }

    /// Sets the marks to what `compute` returns for amounts that other CPUs may change meanwhile.
    ///
    /// A CPU changes the amounts before it calls this. It computes again after its stores, which are in one
    /// order with the changes (`SeqCst`). So the CPU that stores last has seen every change before.
    pub(in crate::page_alloc) fn update(&self, compute: impl Fn() -> (Watermarks, [u64; KINDS])) {
        let mut new = compute();
        loop {
            let (marks, reserves) = new;
            let pairs = [(&self.min, marks.min), (&self.low, marks.low), (&self.high, marks.high)];
            let pairs = pairs.into_iter().chain(self.low_reserve.iter().zip(reserves));
            pairs.for_each(|(mark, value)| mark.store(value, Ordering::SeqCst));
            new = compute();
            if new == (marks, reserves) {
                return;
            }
        }
    }
}
