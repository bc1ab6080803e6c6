//! What a machine is told when the allocator takes over its memory.
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
    /// A promise that the memory reads as zero; the tables taken from it need not be cleared then.
    pub zeroed: bool,
}

/// Choices made once, at start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocatorConfig {
    /// How much of each node is set aside as Movable zone, in percent, from its end (Linux: `movablecore`).
    pub movable_percent: u8,
    /// What guards the per-CPU lists, unless the platform says it ([`FramePlatform::LIST_GUARD`](crate::platform::FramePlatform::LIST_GUARD)).
    #[cfg(feature = "published")]
    pub lists: ListGuard,
    /// Whether frames of one mobility group share blocks, so that whole blocks stay whole.
    pub group_by_mobility: bool,
    /// Which kernel clears and copies what; `None` for what the processor suggests.
    pub clear: Option<ClearPolicy>,
    /// What is known to be zero, and what becomes so in idle time.
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
    /// How leaves of folios of whole blocks are counted.
    pub(in crate::page_alloc) fn scheme(&self) -> CountScheme {
        #[cfg(feature = "published")]
        return self.counts;
        #[cfg(not(feature = "published"))]
        CountScheme::Dense
    }
}

/// What is remembered of memory that is zero, and what is made so in idle time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroes {
    /// Whether it is remembered that free memory is zero. Without, everything is cleared when it is handed out, as in Linux.
    pub remember: bool,
    /// Frames of whole blocks, for folios of order 9 and more, that [`Store::zero_ahead`](crate::page_alloc::Store::zero_ahead) keeps ready; in all zones
    /// together, each of which has its share by its memory.
    pub blocks_ahead: u64,
    /// Frames of blocks in small pieces, for folios below order 9, that it keeps ready in each zone.
    pub pieces_ahead: u64,
    /// Whether every folio that is handed out as known to be zero is read, and the machine stopped if it is not. For debugging:
    /// it costs as much as clearing.
    pub verify: bool,
}

impl Default for Zeroes {
    /// Remembers, clears nothing ahead, and verifies in debug builds.
    fn default() -> Self {
        Self { remember: true, blocks_ahead: 0, pieces_ahead: 0, verify: cfg!(debug_assertions) }
    }
}
