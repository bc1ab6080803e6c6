//! How far the private pages of a mapping are from where they were first mapped.
#![forbid(unsafe_code)]

use crate::addr::VirtAddr;
use crate::limits::FRAME_SHIFT;
use crate::page_alloc::Origin;

/// By how many pages upwards `mremap` has moved a mapping's private pages; modulo 2^64, so that downwards is
/// upwards. Or not by one number: mappings that were moved by different distances have merged. No property of
/// its own: mappings that differ in nothing else merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved(u64);

impl Moved {
    /// Not at all.
    pub const NONE: Self = Self(0);
    /// Each by another distance. No two pages are that far apart.
    pub const UNLIKE: Self = Self(1 << 63);

    /// After one more move.
    #[must_use]
    pub fn further(self, from: VirtAddr, to: VirtAddr) -> Self {
        if self == Self::UNLIKE {
            return self;
        }
        Self(self.0.wrapping_add(to.page()).wrapping_sub(from.page()))
    }

    /// Of two mappings that become one.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        if self == other { self } else { Self::UNLIKE }
    }

    /// Where a page that is first mapped now, at this address, says that it comes from.
    #[inline]
    #[must_use]
    pub fn origin_of(self, addr: VirtAddr) -> VirtAddr {
        // Of unlike ones nothing is left when it is made bytes.
        VirtAddr(addr.0.wrapping_sub(self.0 << FRAME_SHIFT))
    }

    /// Where a page is that comes from this address; `None` when that is not known.
    #[must_use]
    pub fn place_of(self, origin: VirtAddr) -> Option<VirtAddr> {
        let at = origin.0.wrapping_add(self.0 << FRAME_SHIFT);
        (self != Self::UNLIKE).then_some(VirtAddr(at & ((1 << Origin::ADDR_BITS) - 1)))
    }
}
