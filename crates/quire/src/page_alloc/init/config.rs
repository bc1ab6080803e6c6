//! What the caller chooses when the allocator takes over a machine's memory.
#![forbid(unsafe_code)]

use crate::addr::FrameRange;
use crate::clear::ClearPolicy;
use crate::page_alloc::frames::scheme::CountScheme;
#[cfg(feature = "published")]
use crate::platform::ListGuard;

/// A range of physical memory that the manager may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// The frames.
    pub frames: FrameRange,
    /// The node they belong to.
    pub node: u8,
    /// A promise that the memory reads as zero; tables in it need not be cleared then.
    pub zeroed: bool,
}

/// Choices made once, at start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocatorConfig {
    /// How much of each node is set aside as Movable zone, in percent, from its end (Linux: `movablecore`).
    pub movable_percent: u8,
    /// What guards the per-CPU lists, where the platform does not name it
    /// ([`FramePlatform::LIST_GUARD`](crate::platform::FramePlatform::LIST_GUARD)).
    #[cfg(feature = "published")]
    pub lists: ListGuard,
    /// Whether frames of one mobility group share blocks, so that whole blocks stay whole.
    pub group_by_mobility: bool,
    /// Which kernel clears and copies what; `None` chooses by the processor.
    pub clear: Option<ClearPolicy>,
    /// What is remembered of memory that is zero, and what idle CPUs clear ahead.
    pub zeroes: Zeroes,
    /// How the leaves that map folios of 2 MiB and more are counted.
    #[cfg(feature = "published")]
    pub counts: CountScheme,
}

impl Default for AllocatorConfig {
    fn default() -> Self {
        Self {
            movable_percent: 0,
            #[cfg(feature = "published")]
            lists: ListGuard::default(),
            group_by_mobility: true,
            clear: None,
            zeroes: Zeroes::default(),
            #[cfg(feature = "published")]
            counts: CountScheme::Dense,
        }
    }
}

impl AllocatorConfig {
    pub(in crate::page_alloc) fn scheme(&self) -> CountScheme {
        #[cfg(feature = "published")]
        return self.counts;
        #[cfg(not(feature = "published"))]
        CountScheme::Dense
    }
}

/// What is remembered of memory that is zero, and what idle CPUs clear ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroes {
    /// Whether to remember that free memory is zero. Otherwise all is cleared when handed out, as in Linux.
    pub remember: bool,
    /// Frames of whole blocks, for folios of order 9 and more, that
    /// [`Store::zero_ahead`](crate::page_alloc::Store::zero_ahead) keeps ready in all zones together. Each
    /// zone has a share by its memory.
    pub blocks_ahead: u64,
    /// Frames of blocks in small pieces, for folios below order 9, that it keeps ready in each zone.
    pub pieces_ahead: u64,
    /// Frames of free pages that [`HugePools::clear_ahead`](crate::hugetlb::HugePools::clear_ahead) keeps
    /// ready in the pool of each size.
    pub pools_ahead: u64,
    /// For debugging: panics if a folio handed out as known to be zero is not. This costs as much as
    /// clearing.
    pub verify: bool,
}

impl Default for Zeroes {
    /// Remembers, clears nothing ahead, and verifies in debug builds.
    fn default() -> Self {
        Self {
            remember: true,
            blocks_ahead: 0,
            pieces_ahead: 0,
            pools_ahead: 0,
            verify: cfg!(debug_assertions),
        }
    }
}
