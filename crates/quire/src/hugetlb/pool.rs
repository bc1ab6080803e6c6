//! The pool of one size: its numbers, and the lists of its free pages.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};

use super::size::HugeSize;
use crate::addr::{BlockNumber, Frame, Order};
use crate::error::InitError;
use crate::limits::MAX_NODES;
use crate::memmap::{Block, BootTable, DescriptorFlags, MemMap};
use crate::page_alloc::{Frames, NodeSet, TableFrames, has_marks};
use crate::platform::FramePlatform;

/// The numbers of a pool, or of one node's part of it, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolInfo {
    /// All, free and in use, surplus included (`nr_hugepages`).
    pub total: u64,
    /// Free ones (`free_hugepages`).
    pub free: u64,
    /// Ones beyond what the administrator asked for (`surplus_hugepages`).
    pub surplus: u64,
    /// Free ones that are reserved (`resv_hugepages`). Zero for one node: reserved pages have none yet.
    pub reserved: u64,
}

impl PoolInfo {
    /// Pages that the administrator asked for.
    pub fn persistent(&self) -> u64 {
        self.total - self.surplus
    }

    /// Free pages that can leave without pages in use becoming surplus.
    pub(super) fn spare(&self) -> u64 {
        self.free.min(self.persistent())
    }
}

/// The back link of a list's first page.
const FIRST: u64 = u64::MAX;
/// The list of pages that are known to be zero, and of the others.
const ZERO: usize = 0;
const OTHER: usize = 1;

#[derive(Clone, Copy)]
struct Node {
    counts: PoolInfo,
    /// Of each list the page that was freed last, as block number plus one; the others follow through their
    /// records.
    tops: [u32; 2],
}

pub(super) struct Pool {
    nodes: BootTable<Node>,
    all: PoolInfo,
    size: HugeSize,
    /// Pages on the lists of those that are known to be zero.
    zeroed: u64,
    /// The limit of surplus pages (`nr_overcommit_hugepages`).
    pub(super) overcommit: u64,
    /// Persistent pages that CPUs are about to add, and surplus ones.
    pub(super) claimed: u64,
    pub(super) claimed_surplus: u64,
    /// Free pages with bad frames: they are never handed out, and leave once they can be spared.
    pub(super) bad: u64,
    /// Faults that clear a page and would be glad of idle CPUs' help.
    pub(super) clearing: u64,
}

impl Pool {
    /// An empty pool.
    pub(super) fn new<P: FramePlatform>(
        tables: &mut TableFrames<'_, '_, P>,
        size: HugeSize,
    ) -> Result<Self, InitError> {
        let counts = PoolInfo::default();
        let nodes = tables.table(MAX_NODES, |_, _| Ok(Node { counts, tops: [0; 2] }))?;
        Ok(Self {
            nodes,
            all: counts,
            size,
            zeroed: 0,
            overcommit: 0,
            claimed: 0,
            claimed_surplus: 0,
            bad: 0,
            clearing: 0,
        })
    }

    #[inline]
    pub(super) fn all(&self) -> PoolInfo {
        self.all
    }

    #[inline]
    pub(super) fn node(&self, node: u8) -> PoolInfo {
        self.nodes[usize::from(node) % MAX_NODES].counts
    }

    pub(super) fn sum(&self, nodes: NodeSet) -> PoolInfo {
        let of = (0..MAX_NODES as u8).filter(|&node| nodes.contains(node)).map(|node| self.node(node));
        of.fold(PoolInfo::default(), |sum, node| PoolInfo {
            total: sum.total + node.total,
            free: sum.free + node.free,
            surplus: sum.surplus + node.surplus,
            reserved: 0,
        })
    }

    /// Free pages without a reservation.
    pub(super) fn unreserved(&self) -> u64 {
        self.all.free - self.all.reserved
    }

    pub(super) fn add_reserved(&mut self, pages: i64) {
        self.all.reserved = self.all.reserved.wrapping_add_signed(pages);
        debug_assert!(self.all.reserved <= self.all.free);
    }

    /// Adds a page to the pool, free.
    pub(super) fn add_free<P: FramePlatform>(&mut self, frames: &Frames<'_, P>, node: u8, frame: Frame) {
        self.list_free(frames, node, frame);
        self.count(node, |counts| (counts.total, counts.free) = (counts.total + 1, counts.free + 1));
    }

    /// Removes a free page of a node from the pool, one that is not known to be zero if there is one.
    pub(super) fn remove_free<P: FramePlatform>(
        &mut self,
        frames: &Frames<'_, P>,
        node: u8,
    ) -> Option<Frame> {
        let frame = self.pop(frames, node, [OTHER, ZERO])?;
        self.count(node, |counts| counts.total -= 1);
        Some(frame)
    }

    /// Adds a page to the pool that is in use.
    pub(super) fn add_used(&mut self, node: u8) {
        self.count(node, |counts| counts.total += 1);
    }

    /// Removes a page in use from the pool.
    pub(super) fn forget(&mut self, node: u8) {
        self.count(node, |counts| counts.total -= 1);
    }

    pub(super) fn change_surplus(&mut self, node: u8, pages: i64) {
        self.count(node, |counts| counts.surplus = counts.surplus.wrapping_add_signed(pages));
    }

    /// Frees a page of the pool.
    pub(super) fn push<P: FramePlatform>(&mut self, frames: &Frames<'_, P>, node: u8, frame: Frame) {
        self.list_free(frames, node, frame);
        self.count(node, |counts| counts.free += 1);
    }

    fn list_free<P: FramePlatform>(&mut self, frames: &Frames<'_, P>, node: u8, frame: Frame) {
        let order = self.size.order();
        let is_zero = frames.is_huge_zero(frame, order)
            || order > Order::BLOCK && frames.merge_huge_zeroes(frame, order, 0);
        let list = if is_zero { ZERO } else { OTHER };
        self.link(frames.memmap(), node, frame.block(), list);
    }

    /// Takes a free page of a node for a use that needs zeroes.
    pub(super) fn take<P: FramePlatform>(&mut self, frames: &Frames<'_, P>, node: u8) -> Option<Frame> {
        self.pop(frames, node, [ZERO, OTHER])
    }

    /// Takes the page that was freed last, of those without a bad frame, from the first list that has one.
    fn pop<P: FramePlatform>(
        &mut self,
        frames: &Frames<'_, P>,
        node: u8,
        lists: [usize; 2],
    ) -> Option<Frame> {
        let frame = lists.into_iter().find_map(|list| self.good(frames.memmap(), node, list).next())?;
        self.unlink(frames, node, frame);
        Some(frame)
    }

    /// A list's pages without a bad frame.
    fn good<'m>(&self, memmap: &'m MemMap, node: u8, list: usize) -> impl Iterator<Item = Frame> + use<'m> {
        let may_be_bad = self.bad > 0;
        self.list(memmap, node, list).filter(move |&frame| !may_be_bad || !has_marks(memmap, frame))
    }

    /// Whether the page that [`Self::take`] would take is not known to be zero; `None` without a page.
    pub(super) fn is_next_stale(&self, memmap: &MemMap, node: u8) -> Option<bool> {
        let has = |list| self.good(memmap, node, list).next().is_some();
        if has(ZERO) { Some(false) } else { has(OTHER).then_some(true) }
    }

    /// Removes this free page from the pool.
    pub(super) fn leave_from<P: FramePlatform>(&mut self, frames: &Frames<'_, P>, node: u8, frame: Frame) {
        self.unlink(frames, node, frame);
        self.forget(node);
    }

    /// Moves a free page to the list where it belongs, after the last of its blocks was cleared.
    pub(super) fn sort_in<P: FramePlatform>(&mut self, frames: &Frames<'_, P>, node: u8, frame: Frame) {
        self.unlink(frames, node, frame);
        self.push(frames, node, frame);
    }

    /// Pages that are known to be zero.
    pub(super) fn zeroed(&self) -> u64 {
        self.zeroed
    }

    /// Free pages of a node that are not known to be zero, the next to be taken first.
    pub(super) fn stale_pages<'m>(
        &self,
        memmap: &'m MemMap,
        node: u8,
    ) -> impl Iterator<Item = Frame> + use<'m> {
        self.good(memmap, node, OTHER)
    }

    /// Whether one of the pool's free pages starts at a frame. It stays so while the caller holds the pool's lock.
    ///
    /// A page that has left the list is freed without the pool's lock, and its record may be that of small pieces at
    /// once. So the record is read under the block's lock, without which no CPU frees a page of a pool: a page with a
    /// back link is on the list of its size, which changes under the pool's lock alone.
    pub(super) fn is_free<P: FramePlatform>(&self, frames: &Frames<'_, P>, frame: Frame) -> bool {
        frames.is_huge_with(frame, self.size.order(), |folio| &folio.previous)
    }

    fn link(&mut self, memmap: &MemMap, node: u8, number: BlockNumber, list: usize) {
        let top = &mut self.nodes[usize::from(node)].tops[list];
        let block = memmap.block(number);
        block.next.store(*top, Ordering::Relaxed);
        back_link(block).store(FIRST, Ordering::Relaxed);
        if let Some(next) = top.checked_sub(1) {
            back_link(memmap.block(BlockNumber(next))).store(u64::from(number.0) + 1, Ordering::Relaxed);
        }
        *top = number.0 + 1;
        if list == ZERO {
            block.folio().add_flags(DescriptorFlags::ZEROED);
            self.zeroed += 1;
        }
    }

    /// Takes a free page off its list. Once the caller has released the lock, it waits for CPUs that clear
    /// some of the page ([`HugePools::settle`](super::HugePools::settle)).
    fn unlink<P: FramePlatform>(&mut self, frames: &Frames<'_, P>, node: u8, frame: Frame) {
        let memmap = frames.memmap();
        let block = memmap.block(frame.block());
        let (next, previous) = (block.next.load(Ordering::Relaxed), back_link(block).load(Ordering::Relaxed));
        if let Some(next) = next.checked_sub(1) {
            back_link(memmap.block(BlockNumber(next))).store(previous, Ordering::Relaxed);
        }
        let is_zero = block.folio().has(DescriptorFlags::ZEROED);
        if is_zero {
            block.folio().take_flags(DescriptorFlags::ZEROED);
            self.zeroed -= 1;
        }
        match previous {
            FIRST => self.nodes[usize::from(node)].tops[if is_zero { ZERO } else { OTHER }] = next,
            _ => memmap.block(BlockNumber(previous as u32 - 1)).next.store(next, Ordering::Relaxed),
        }
        block.next.store(0, Ordering::Relaxed);
        back_link(block).store(0, Ordering::Relaxed);
        self.count(node, |counts| counts.free -= 1);
    }

    fn count(&mut self, node: u8, change: impl Fn(&mut PoolInfo)) {
        change(&mut self.nodes[usize::from(node)].counts);
        change(&mut self.all);
    }

    /// The node of the set with the largest measure, unless all are zero.
    pub(super) fn node_by(&self, nodes: NodeSet, measure: impl Fn(PoolInfo) -> u64) -> Option<u8> {
        let measured = (0..MAX_NODES as u8).filter(|&node| nodes.contains(node));
        let measured = measured.map(|node| (measure(self.node(node)), core::cmp::Reverse(node)));
        measured.filter(|&(amount, _)| amount > 0).max().map(|(_, node)| node.0)
    }

    pub(super) fn free_pages<'m>(&self, memmap: &'m MemMap, node: u8) -> impl Iterator<Item = Frame> + 'm {
        self.list(memmap, node, ZERO).chain(self.list(memmap, node, OTHER))
    }

    fn list<'m>(&self, memmap: &'m MemMap, node: u8, list: usize) -> impl Iterator<Item = Frame> + use<'m> {
        let mut top = self.nodes[usize::from(node)].tops[list];
        core::iter::from_fn(move || {
            let number = BlockNumber(top.checked_sub(1)?);
            top = memmap.block(number).next.load(Ordering::Relaxed);
            Some(number.first_frame())
        })
    }
}

/// The block number, plus one, of the page before a free page in its list, or [`FIRST`]; zero for other
/// pages. In the folio's descriptor: the record's link word counts the tables that map a page in use.
fn back_link(block: &Block) -> &AtomicU64 {
    &block.folio().previous
}
