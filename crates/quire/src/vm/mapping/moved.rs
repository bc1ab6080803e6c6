//! How far the private pages of a mapping were moved since they were first mapped.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;
use crate::limits::FRAME_SHIFT;
use crate::page_alloc::Origin;

/// By how many pages upwards, modulo 2^64, `mremap` has moved a mapping's private pages; or [`Self::UNLIKE`]
/// once mappings that were moved by different distances have merged. A difference in this does not prevent a
/// merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved(u64);

impl Moved {
    /// Not at all.
    pub const NONE: Self = Self(0);
    /// By different distances. No two pages are as far apart as this number.
    pub const UNLIKE: Self = Self(1 << 63);

    /// After one more move.
    #[must_use]
    pub fn further(self, from: VirtAddr, to: VirtAddr) -> Self {
        if self == Self::UNLIKE {
            return self;
        }
        Self(self.0.wrapping_add(to.page()).wrapping_sub(from.page()))
    }

    /// For the merger of two mappings.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        if self == other { self } else { Self::UNLIKE }
    }

    /// The origin of a page that is first mapped now, at this address.
    #[inline]
    #[must_use]
    pub fn origin_of(self, addr: VirtAddr) -> VirtAddr {
        // The shift makes zero of `UNLIKE`.
        VirtAddr(addr.0.wrapping_sub(self.0 << FRAME_SHIFT))
    }

    /// Where a page with this origin is; `None` when that is not known.
    #[must_use]
    pub fn place_of(self, origin: VirtAddr) -> Option<VirtAddr> {
        let at = origin.0.wrapping_add(self.0 << FRAME_SHIFT);
        (self != Self::UNLIKE).then_some(VirtAddr(at & ((1 << Origin::ADDR_BITS) - 1)))
    }
}
