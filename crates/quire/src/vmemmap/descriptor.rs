//! A frame's descriptor in the window: eight words, of which the first three are ours.
//!
//! | word | head of a huge page | tail |
//! |---|---|---|
//! | 0 | flags, order, node, zone | node, zone |
//! | 1 | zero | twice the head's frame number, plus one; with `mask-tail` 2^63, twice the order, plus one |
//! | 2 | references | zero |
//!
//! For a frame that belongs to no huge page these are zero. The other words are never written.
#![forbid(unsafe_code)]

use crate::addr::{Frame, Order, VirtAddr};
use crate::arch::WINDOW_BASE;
use crate::limits::{DESCRIPTOR_SIZE, WINDOW_DESCRIPTORS};

/// Words in a descriptor.
pub(super) const WORDS: usize = DESCRIPTOR_SIZE / size_of::<u64>();
/// The word with flags, order, node and zone.
pub(super) const FLAGS: usize = 0;
/// The word by which a tail names its head.
pub(super) const COMPOUND: usize = 1;
/// The word that counts references.
pub(super) const COUNT: usize = 2;

const HEAD: u64 = 1;
const OPTIMISED: u64 = 2;
const TAIL: u64 = 1;
/// The tail holds the order of its page, not the head.
const MASK: u64 = 1 << 63;

/// The address of a frame's descriptor in the window.
#[inline]
pub const fn descriptor_addr(frame: Frame) -> VirtAddr {
    VirtAddr(WINDOW_BASE + frame.0 * DESCRIPTOR_SIZE as u64)
}

/// The address of one word of a frame's descriptor.
#[inline]
pub(super) const fn word_addr(frame: Frame, word: usize) -> VirtAddr {
    descriptor_addr(frame).add((word * size_of::<u64>()) as u64)
}

/// A huge page as its head describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The page's order, 9 or 18.
    pub order: Order,
    /// Its node.
    pub node: u8,
    /// The number of its zone.
    pub zone: u8,
    /// Whether one frame of the window stands for all of its descriptors.
    pub optimised: bool,
}

impl Head {
    /// The word for the head's descriptor.
    pub(super) const fn word(self) -> u64 {
        let optimised = if self.optimised { OPTIMISED } else { 0 };
        HEAD | optimised | (self.order.get() as u64) << 8 | self.tail_word()
    }

    /// The same word of every tail.
    pub(super) const fn tail_word(self) -> u64 {
        (self.node as u64) << 16 | (self.zone as u64) << 24
    }

    /// Reads the flags word of a descriptor, if it is a head's.
    pub(super) fn of(word: u64) -> Option<Self> {
        let order = Order::new((word >> 8) as u8).filter(|_| word & HEAD != 0)?;
        let (node, zone) = ((word >> 16) as u8, (word >> 24) as u8);
        Some(Self { order, node, zone, optimised: word & OPTIMISED != 0 })
    }
}

/// The word by which a tail names its head.
pub(super) const fn tail_of(head: Frame) -> u64 {
    head.0 << 1 | TAIL
}

/// The word of a tail of a page of this order, the same for all such pages.
pub(super) const fn mask_of(order: Order) -> u64 {
    MASK | (order.get() as u64) << 1 | TAIL
}

/// The head that the descriptor of `frame` names, if the word is a tail's.
pub(super) const fn head_named(word: u64, frame: Frame) -> Option<Frame> {
    if word & TAIL == 0 {
        return None;
    }
    let named = (word & !MASK) >> 1;
    Some(if word & MASK != 0 { Frame(frame.0 >> named << named) } else { Frame(named) })
}

/// Whether a descriptor is the first of a frame of the window: only there can a copy of a head stand.
pub(super) const fn is_first(frame: Frame) -> bool {
    frame.0.is_multiple_of(WINDOW_DESCRIPTORS)
}
