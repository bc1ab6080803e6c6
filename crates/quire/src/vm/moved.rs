//! How far the private pages of a mapping are from where they were first mapped.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;
use crate::limits::FRAME_SHIFT;
use crate::page_alloc::Origin;

/// By how much `mremap` has moved a mapping's private pages. No property of its own: mappings that differ in nothing else
/// merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// All of them by so many pages upwards; modulo 2^64, so that downwards is upwards.
    By(u64),
    /// Mappings that were moved by different distances have merged: not all are where it says.
    Unlike,
}

impl Moved {
    /// Not at all.
    pub const NONE: Self = Self::By(0);

    /// After one more move.
    #[must_use]
    pub const fn further(self, from: VirtAddr, to: VirtAddr) -> Self {
        match self {
            Self::By(pages) => Self::By(pages.wrapping_add(to.page()).wrapping_sub(from.page())),
            Self::Unlike => Self::Unlike,
        }
    }

    /// Of two mappings that become one.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        if self == other { self } else { Self::Unlike }
    }

    /// Where a page that is first mapped now, at this address, says that it comes from.
    #[inline]
    #[must_use]
    pub const fn origin_of(self, addr: VirtAddr) -> VirtAddr {
        match self {
            Self::By(pages) => VirtAddr(addr.0.wrapping_sub(pages << FRAME_SHIFT)),
            Self::Unlike => addr,
        }
    }

    /// Where a page is that comes from this address; `None` when that is not known.
    #[must_use]
    pub const fn place_of(self, origin: VirtAddr) -> Option<VirtAddr> {
        match self {
            Self::By(pages) => {
                let at = origin.0.wrapping_add(pages << FRAME_SHIFT);
                Some(VirtAddr(at & ((1 << Origin::ADDR_BITS) - 1)))
            }
            Self::Unlike => None,
        }
    }
}
