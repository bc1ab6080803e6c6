//! A shard's index of partly used blocks: a list for each mobility group and largest free order.
//!
//! Every CPU has a shard in each zone, so that CPUs refill their lists from different blocks under different
//! locks. A free goes to the block, in any shard. A block may have less than its list says, never more.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::addr::{BlockNumber, Order};
use crate::limits::{BLOCK_ORDER, FREE_BLOCKS_LOOKED_AT};
use crate::memmap::{Block, MemMap};
use crate::page_alloc::request::gfp::Mobility;
use crate::page_alloc::store::capacity::could_be_whole;
use crate::rank::Rank;
use crate::sync::SpinLock;

const ORDERS: usize = BLOCK_ORDER as usize;
/// The number of a list has the mobility group in the bits above, and the order plus one below.
const GROUP_SHIFT: u32 = 4;
const _: () = assert!(ORDERS < 1 << GROUP_SHIFT);

/// A shard's lock and index, on a cache line pair of its own.
#[repr(align(128))]
pub(in crate::page_alloc) struct Shard(
    pub(in crate::page_alloc) SpinLock<ShardIndex>,
    /// The spare block, plus one: it stays in pieces while entirely free, so that its frames come and go
    /// without the index. Used again, it stays the spare until another block replaces it. Set under the lock.
    AtomicU32,
);

impl Shard {
    pub(in crate::page_alloc) fn new() -> Self {
        Self(
            SpinLock::new(
                Rank::Shard,
                ShardIndex { heads: [[0; ORDERS]; 3], occupied: [0; 3], isolated: 0..0 },
            ),
            AtomicU32::new(0),
        )
    }

    #[inline]
    pub(in crate::page_alloc) fn spare(&self) -> Option<BlockNumber> {
        self.1.load(Ordering::Relaxed).checked_sub(1).map(BlockNumber)
    }

    /// Under the shard's lock.
    pub(in crate::page_alloc) fn set_spare(&self, block: Option<BlockNumber>) {
        self.1.store(block.map_or(0, |block| block.0 + 1), Ordering::Relaxed);
    }

    /// Keeps searches from finding an isolated block. Under its lock and the shard's, whose `index` this is.
    pub(in crate::page_alloc) fn hide(
        &self,
        index: &mut ShardIndex,
        memmap: &MemMap,
        number: BlockNumber,
        block: &Block,
    ) {
        index.unlist(memmap, number, block);
        if self.spare() == Some(number) {
            self.set_spare(None);
        }
    }
}

/// The first block of each list, as its number plus one.
pub(in crate::page_alloc) struct ShardIndex {
    heads: [[u32; ORDERS]; 3],
    /// The lists that are not empty, a bit for each order.
    occupied: [u16; 3],
    /// Blocks that stay on no list.
    pub(in crate::page_alloc) isolated: Range<u32>,
}

impl ShardIndex {
    /// A block of the group with the smallest sufficient free order, so that large groups stay whole.
    #[inline]
    pub(in crate::page_alloc) fn smallest(
        &self,
        mobility: Mobility,
        order: Order,
    ) -> Option<(u8, BlockNumber)> {
        let fitting = self.occupied[mobility as usize] >> order.get();
        (fitting != 0).then(|| self.head(mobility, order.get() + fitting.trailing_zeros() as u8))
    }

    /// A block of the group with the largest free order.
    pub(in crate::page_alloc) fn largest(&self, mobility: Mobility) -> Option<(u8, BlockNumber)> {
        let order = self.occupied[mobility as usize].checked_ilog2()?;
        Some(self.head(mobility, order as u8))
    }

    fn head(&self, mobility: Mobility, order: u8) -> (u8, BlockNumber) {
        (order, BlockNumber(self.heads[mobility as usize][usize::from(order)] - 1))
    }

    /// An entirely free block, among the first few that could be one.
    pub(in crate::page_alloc) fn entirely_free(&self, memmap: &MemMap) -> Option<BlockNumber> {
        self.heads.iter().find_map(|lists| find_on(lists[ORDERS - 1], memmap, could_be_whole))
    }

    /// A block that will do, with a free group of `least` or more, among the first of each list, top first.
    pub(in crate::page_alloc) fn find_large(
        &self,
        memmap: &MemMap,
        least: Order,
        will_do: impl Fn(&Block) -> bool,
    ) -> Option<BlockNumber> {
        let orders = (usize::from(least.get())..ORDERS).rev();
        orders
            .flat_map(|order| self.heads.iter().map(move |lists| lists[order]))
            .find_map(|head| find_on(head, memmap, &will_do))
    }

    /// Puts the block on the list of its free order and mobility. Under the block's lock as well.
    pub(in crate::page_alloc) fn relist(&mut self, memmap: &MemMap, number: BlockNumber, block: &Block) {
        let wanted = if self.isolated.contains(&number.0) { 0 } else { Self::wanted_list(block) };
        if block.listed.load(Ordering::Relaxed) != wanted {
            self.unlist(memmap, number, block);
            if wanted != 0 {
                self.push(memmap, number, block, wanted);
            }
        }
    }

    /// The list that the block should be on; 0 for none.
    pub(in crate::page_alloc) fn wanted_list(block: &Block) -> u8 {
        match block.free_order.load(Ordering::Relaxed) {
            0 => 0,
            order => block.mobility() << GROUP_SHIFT | order,
        }
    }

    /// Whether a search would not find all of the block: it is on no list, or on that of another group or a
    /// smaller order. It may stay on that of a *larger* order, so that a group which comes and goes does not
    /// move it each time: a search that finds no such group relists it.
    #[inline]
    pub(in crate::page_alloc) fn hides(block: &Block) -> bool {
        let (wanted, listed) = (Self::wanted_list(block), block.listed.load(Ordering::Relaxed));
        wanted > listed || wanted != 0 && (wanted ^ listed) >> GROUP_SHIFT != 0
    }

    /// Takes the block off its list, if it is on one.
    pub(in crate::page_alloc) fn unlist(&mut self, memmap: &MemMap, number: BlockNumber, block: &Block) {
        let listed = block.listed.load(Ordering::Relaxed);
        if listed == 0 {
            return;
        }
        let (mobility, order) = list_numbers(listed);
        let (next, previous) = (block.next.load(Ordering::Relaxed), block.previous.load(Ordering::Relaxed));
        debug_assert!(previous != 0 || self.heads[mobility][order] == number.0 + 1);
        if previous == 0 {
            self.heads[mobility][order] = next;
            if next == 0 {
                self.occupied[mobility] &= !(1 << order);
            }
        } else {
            memmap.block(BlockNumber(previous - 1)).next.store(next, Ordering::Relaxed);
        }
        if next != 0 {
            memmap.block(BlockNumber(next - 1)).previous.store(previous, Ordering::Relaxed);
        }
        block.listed.store(0, Ordering::Relaxed);
    }

    fn push(&mut self, memmap: &MemMap, number: BlockNumber, block: &Block, list: u8) {
        let (mobility, order) = list_numbers(list);
        let head = self.heads[mobility][order];
        block.previous.store(0, Ordering::Relaxed);
        block.next.store(head, Ordering::Relaxed);
        if head != 0 {
            memmap.block(BlockNumber(head - 1)).previous.store(number.0 + 1, Ordering::Relaxed);
        }
        self.heads[mobility][order] = number.0 + 1;
        self.occupied[mobility] |= 1 << order;
        block.listed.store(list, Ordering::Relaxed);
    }
}

/// The first block that will do, among the first few of a list.
fn find_on(head: u32, memmap: &MemMap, will_do: impl Fn(&Block) -> bool) -> Option<BlockNumber> {
    let mut next = head;
    let walk = core::iter::from_fn(|| {
        let number = next.checked_sub(1).map(BlockNumber)?;
        next = memmap.block(number).next.load(Ordering::Relaxed);
        Some(number)
    });
    walk.take(FREE_BLOCKS_LOOKED_AT).find(|&number| will_do(memmap.block(number)))
}

/// The mobility group and the order of a list.
fn list_numbers(list: u8) -> (usize, usize) {
    (usize::from(list >> GROUP_SHIFT), usize::from(list & ((1 << GROUP_SHIFT) - 1)) - 1)
}
