//! What a request for frames asks for ("get free pages" flags).

use crate::nodes::NodePolicy;

/// Zones differ by the addresses that their users can reach, and by whether their contents can move.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ZoneKind {
    /// Below 4 GiB: devices with 32-bit addresses.
    Dma32 = 0,
    /// Everything else that is not set aside.
    Normal = 1,
    /// Set aside for contents that can be moved or dropped.
    Movable = 2,
}

impl ZoneKind {
    /// Every kind.
    pub const ALL: [Self; KINDS] = [Self::Dma32, Self::Normal, Self::Movable];
}

/// Each node has a zone of each kind, in a row; most are empty.
pub(in crate::page_alloc) const KINDS: usize = 3;

/// How long-lived and how movable the contents will be. Frames of one group share blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Mobility {
    /// Can neither be moved nor dropped: page tables, small objects.
    Unmovable = 0,
    /// Can be moved: user memory.
    Movable = 1,
    /// Can be dropped and made again: page cache nodes and the like.
    Reclaimable = 2,
}

impl Mobility {
    /// Every group.
    pub const ALL: [Self; 3] = [Self::Unmovable, Self::Movable, Self::Reclaimable];

    /// The groups to take blocks from when this group's are used up, the better one first. Unmovable frames
    /// do least harm among reclaimable ones, and the other way round.
    pub const fn fallbacks(self) -> [Self; 2] {
        match self {
            Self::Unmovable => [Self::Reclaimable, Self::Movable],
            Self::Movable => [Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => [Self::Unmovable, Self::Movable],
        }
    }
}

/// How far below its marks a zone may be emptied for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// Not below `min`.
    Ordinary,
    /// Down to half of `min`: the caller can wait neither for memory to be freed nor for other CPUs. It gets
    /// none of what their lists hold.
    Atomic,
    /// Down to half of `min`: tables that the manager needs for memory in use. The caller can wait for other
    /// CPUs.
    Tables,
    /// Everything: the caller is about to free memory, or is being killed.
    Reserve,
}

/// A request, apart from its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gfp {
    /// The highest zone that will do; lower ones are used when it is short.
    pub zone: ZoneKind,
    /// The mobility group.
    pub mobility: Mobility,
    /// How far the zone may be emptied.
    pub urgency: Urgency,
    /// The nodes, and in what order.
    pub nodes: NodePolicy,
    /// The contents that the caller prefers; no promise.
    pub contents: Contents,
}

/// What is known of the memory of a folio that is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Contents {
    /// Nothing.
    #[default]
    Unknown,
    /// All of it is zero.
    Zeroed,
}

impl Gfp {
    /// The manager's own memory: unmovable, not from the Movable zone (Linux: `GFP_KERNEL`).
    pub const KERNEL: Self = Self {
        zone: ZoneKind::Normal,
        mobility: Mobility::Unmovable,
        urgency: Urgency::Ordinary,
        nodes: NodePolicy::Local,
        contents: Contents::Unknown,
    };
    /// User memory (Linux: `GFP_HIGHUSER_MOVABLE`).
    pub const USER: Self = Self { zone: ZoneKind::Movable, mobility: Mobility::Movable, ..Self::KERNEL };
    /// From a context that cannot wait (Linux: `GFP_ATOMIC`): an interrupt, or a task that has turned
    /// interrupts off or holds a lock that is taken with interrupts off.
    pub const ATOMIC: Self = Self { urgency: Urgency::Atomic, ..Self::KERNEL };
    /// Below 4 GiB (Linux: `GFP_DMA32`).
    pub const DMA32: Self = Self { zone: ZoneKind::Dma32, ..Self::KERNEL };
    /// Page-cache nodes and other memory that can be dropped (Linux: `__GFP_RECLAIMABLE`).
    pub const RECLAIMABLE: Self = Self { mobility: Mobility::Reclaimable, ..Self::KERNEL };

    /// The same request, starting at a node.
    #[must_use]
    pub const fn on_node(self, node: u8) -> Self {
        self.from_nodes(NodePolicy::Preferred(node))
    }

    /// The same request with a preference for memory that is known to be zero; others take that last.
    /// [`alloc_maybe_zeroed`](crate::page_alloc::PageAllocator::alloc_maybe_zeroed) says which it got.
    #[must_use]
    pub const fn for_zeroes(self) -> Self {
        Self { contents: Contents::Zeroed, ..self }
    }

    /// The same request under another policy.
    #[must_use]
    pub const fn from_nodes(self, nodes: NodePolicy) -> Self {
        Self { nodes, ..self }
    }
}
