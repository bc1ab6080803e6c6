//! Addresses, frame numbers, orders and ranges. Types keep bytes, frames and blocks apart.

use core::fmt;

use crate::limits::{BLOCK_FRAMES, BLOCK_ORDER, FRAME_SHIFT, FRAME_SIZE, MAX_ORDER};

/// A byte address in physical memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PhysAddr(pub u64);

/// A byte address in some address space. Whether it is canonical is checked where a range enters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct VirtAddr(pub u64);

/// The number of a 4 KiB page frame (a PFN): physical address divided by 4096.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Frame(pub u64);

/// The number of a 2 MiB block: frame number divided by 512.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct BlockNumber(pub u32);

/// The base-two logarithm of a folio's size in frames: 0 is 4 KiB, 9 is 2 MiB, 18 is 1 GiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Order(u8);

/// The sizes of memory that a leaf entry can map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PageSize {
    /// A leaf in a lowest-level table.
    Size4K,
    /// A leaf in a page-middle directory.
    Size2M,
    /// A leaf in a page-upper directory.
    Size1G,
}

/// Consecutive frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FrameRange {
    /// The first frame.
    pub start: Frame,
    /// How many frames; may be zero.
    pub count: u64,
}

/// A half-open range of virtual addresses, `start..end`, both multiples of 4096.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VirtRange {
    /// The first address.
    pub start: VirtAddr,
    /// The address after the last.
    pub end: VirtAddr,
}

impl PhysAddr {
    /// The frame that contains this byte.
    #[inline]
    pub const fn frame(self) -> Frame {
        Frame(self.0 >> FRAME_SHIFT)
    }
}

impl VirtAddr {
    /// The address rounded down to a multiple of `align`, a power of two.
    #[inline]
    pub const fn align_down(self, align: u64) -> Self {
        Self(self.0 & !(align - 1))
    }

    /// The address rounded up to a multiple of `align`, a power of two; `None` past the end of 64 bits.
    #[inline]
    pub const fn align_up(self, align: u64) -> Option<Self> {
        match self.0.checked_add(align - 1) {
            Some(sum) => Some(Self(sum & !(align - 1))),
            None => None,
        }
    }

    /// Whether the address is a multiple of `align`, a power of two.
    #[inline]
    pub const fn is_aligned(self, align: u64) -> bool {
        self.0 & (align - 1) == 0
    }

    /// `self + bytes`. The caller knows that the sum does not overflow.
    #[inline]
    #[must_use]
    pub const fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// The number of the 4 KiB page that contains this byte.
    #[inline]
    pub const fn page(self) -> u64 {
        self.0 >> FRAME_SHIFT
    }
}

impl Frame {
    /// The address of the frame's first byte.
    #[inline]
    pub const fn addr(self) -> PhysAddr {
        PhysAddr(self.0 << FRAME_SHIFT)
    }

    /// The block that contains this frame, which is memory or next to it: the number of any other may be too large.
    #[inline]
    pub const fn block(self) -> BlockNumber {
        BlockNumber((self.0 / BLOCK_FRAMES as u64) as u32)
    }

    /// The frame's index within its block, 0 to 511.
    #[inline]
    pub const fn index_in_block(self) -> usize {
        (self.0 % BLOCK_FRAMES as u64) as usize
    }

    /// The frame `count` after this one.
    #[inline]
    #[must_use]
    pub const fn add(self, count: u64) -> Self {
        Self(self.0 + count)
    }

    /// Whether a folio of `order` may start here.
    #[inline]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.frames() - 1) == 0
    }
}

impl BlockNumber {
    /// The block's first frame.
    #[inline]
    pub const fn first_frame(self) -> Frame {
        Frame(self.0 as u64 * BLOCK_FRAMES as u64)
    }

    /// The block `count` after this one.
    #[inline]
    #[must_use]
    pub const fn add(self, count: u32) -> Self {
        Self(self.0 + count)
    }
}

impl Order {
    /// One frame, 4 KiB.
    pub const FRAME: Self = Self(0);
    /// One block, 2 MiB.
    pub const BLOCK: Self = Self(BLOCK_ORDER);
    /// One gigantic page, 1 GiB.
    pub const GIGANTIC: Self = Self(18);

    /// An order, or `None` above [`MAX_ORDER`].
    #[inline]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= MAX_ORDER { Some(Self(order)) } else { None }
    }

    /// The order as a number.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// How many frames a folio of this order has.
    #[inline]
    pub const fn frames(self) -> u64 {
        1 << self.0
    }

    /// How many bytes a folio of this order has.
    #[inline]
    pub const fn bytes(self) -> u64 {
        FRAME_SIZE << self.0
    }
}

impl PageSize {
    /// The extent in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.order().bytes()
    }

    /// The extent in frames.
    #[inline]
    pub const fn frames(self) -> u64 {
        self.order().frames()
    }

    /// The extent as an order: 0, 9 or 18.
    #[inline]
    pub const fn order(self) -> Order {
        match self {
            Self::Size4K => Order::FRAME,
            Self::Size2M => Order::BLOCK,
            Self::Size1G => Order::GIGANTIC,
        }
    }

    /// The size of a leaf that maps a whole folio of this order, if there is one.
    #[inline]
    pub(crate) const fn of_order(order: Order) -> Option<Self> {
        match order {
            Order::FRAME => Some(Self::Size4K),
            Order::BLOCK => Some(Self::Size2M),
            Order::GIGANTIC => Some(Self::Size1G),
            _ => None,
        }
    }
}

impl FrameRange {
    /// The run of `count` frames from `start`.
    #[inline]
    pub const fn new(start: Frame, count: u64) -> Self {
        Self { start, count }
    }

    /// The frames of a folio.
    #[inline]
    pub const fn folio(start: Frame, order: Order) -> Self {
        Self { start, count: order.frames() }
    }

    /// The frame after the last.
    #[inline]
    pub const fn end(self) -> Frame {
        Frame(self.start.0 + self.count)
    }

    /// Whether `frame` is in the range.
    #[inline]
    pub const fn contains(self, frame: Frame) -> bool {
        frame.0 >= self.start.0 && frame.0 < self.start.0 + self.count
    }

    /// The parts of the range by block, in ascending order.
    #[inline]
    pub fn by_block(self) -> impl Iterator<Item = FrameRange> {
        let (mut at, end) = (self.start, self.end());
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let count = (end.0 - at.0).min((BLOCK_FRAMES - at.index_in_block()) as u64);
            let piece = FrameRange::new(at, count);
            at = piece.end();
            Some(piece)
        })
    }
}

impl VirtRange {
    /// `start..end`. Both are page aligned and `start <= end`; the verbs check ranges from outside.
    #[inline]
    pub const fn new(start: VirtAddr, end: VirtAddr) -> Self {
        debug_assert!(start.0 <= end.0 && start.is_aligned(FRAME_SIZE) && end.is_aligned(FRAME_SIZE));
        Self { start, end }
    }

    /// `len` bytes from `start`.
    #[inline]
    pub const fn from_len(start: VirtAddr, len: u64) -> Self {
        Self::new(start, VirtAddr(start.0 + len))
    }

    /// The extent in bytes.
    #[inline]
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// The extent in 4 KiB pages.
    #[inline]
    pub const fn pages(self) -> u64 {
        self.len() >> FRAME_SHIFT
    }

    /// Whether the range is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Whether `addr` lies in the range.
    #[inline]
    pub const fn contains(self, addr: VirtAddr) -> bool {
        addr.0 >= self.start.0 && addr.0 < self.end.0
    }

    /// Whether all of `other` lies in the range.
    #[inline]
    pub const fn covers(self, other: Self) -> bool {
        other.start.0 >= self.start.0 && other.end.0 <= self.end.0
    }

    /// Whether the two ranges share a byte.
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start.0 < other.end.0 && other.start.0 < self.end.0
    }

    /// The addresses in both ranges; an empty range at no particular place when they do not overlap.
    #[inline]
    #[must_use]
    pub(crate) fn intersect(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }
}

macro_rules! show_hex {
    ($($type:ident),*) => {$(
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($type), "({:#x})"), self.0)
            }
        }
    )*};
}
show_hex!(PhysAddr, VirtAddr, Frame, BlockNumber);

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Order({})", self.0)
    }
}

impl fmt::Debug for FrameRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frames {:#x}+{}", self.start.0, self.count)
    }
}

impl fmt::Debug for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start.0, self.end.0)
    }
}
