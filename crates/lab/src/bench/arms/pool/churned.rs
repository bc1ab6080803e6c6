//! Memory in which every second block holds movable pages in use.

use hosted::Bare;
use hosted::raw::RawPages;
use quire::addr::{Frame, Order};
use quire::manager::MemoryManager;
use quire::page_alloc::{Gfp, Urgency};
use quire::vm::{Access, Mm};

use crate::bench::experiment::Skip;
use crate::bench::folio::PAGE;
use crate::bench::ours;
use crate::output::say;

/// The pages in use of a block.
pub(super) const IN_USE: Order = Order::new(3).expect("an order");
/// Blocks that stay whole until the pages are in use: so many, and one for so many pages. Page tables go there,
/// and the allocator has memory above its marks.
const RESERVE: u64 = 16;
const RESERVE_SHARE: u64 = 32;
/// Takes all that is free.
const LAST: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };

/// The memory, and what is in use of it.
pub(super) struct Churned<'m> {
    mm: Mm<'m, Bare>,
    /// Whole blocks that a pool must not have, so that half of what it gets had pages in use.
    withheld: Vec<Frame>,
}

impl<'m> Churned<'m> {
    /// Fills every second block's first pages, and leaves as many blocks free as half a pool of `pages` needs.
    ///
    /// # Errors
    /// [`Skip`] when that many blocks are not there.
    pub(super) fn new(manager: &'m MemoryManager<'m, Bare>, pages: u64) -> Result<Self, Skip> {
        let allocator = manager.pages();
        let take = |order| std::iter::from_fn(move || allocator.alloc_raw(LAST, order).ok());
        let mut blocks: Vec<Frame> = take(Order::BLOCK).collect();
        // The last ones, of the lowest zone: requests try the others first.
        let reserve =
            blocks.split_off(blocks.len().saturating_sub((RESERVE + pages / RESERVE_SHARE) as usize));
        // A request for a page looks into even blocks first if it comes from CPU 0, and takes the smallest hole.
        let is_even = |block: &Frame| block.block().0.is_multiple_of(2);
        let (used, unused): (Vec<Frame>, Vec<Frame>) = blocks.into_iter().partition(is_even);
        for &block in &used {
            let split = allocator.split_raw(block, IN_USE);
            split.map_err(|error| Skip(format!("a block in pieces: {error:?}")))?;
        }
        free(manager, IN_USE, used.iter().copied());
        free(manager, Order::BLOCK, reserve);
        allocator.lists().drain_all();
        let bytes = used.len() * IN_USE.frames() as usize * PAGE;
        let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
        mm.switch_in();
        ours::map(&mm, bytes)?;
        for offset in (0..bytes).step_by(PAGE) {
            let done = mm.fault(ours::START.add(offset as u64), Access::Write);
            done.map_err(|error| Skip(format!("a page in use: {error}")))?;
        }
        let step = IN_USE.frames();
        let others = || (step..Order::BLOCK.frames()).step_by(step as usize);
        used.iter().for_each(|&block| free(manager, IN_USE, others().map(|at| block.add(at))));
        free(manager, Order::BLOCK, unused);
        allocator.lists().drain_all();
        let whole: Vec<Frame> = take(Order::BLOCK).collect();
        let needed = (pages / 2) as usize;
        if used.len() < needed || whole.len() < needed {
            return Err(Skip(format!("{} blocks have pages in use and {} none", used.len(), whole.len())));
        }
        let (given, withheld) = whole.split_at(needed);
        free(manager, Order::BLOCK, given.iter().copied());
        allocator.lists().drain_all();
        Ok(Self { mm, withheld: withheld.to_vec() })
    }

    /// Frees all of it.
    pub(super) fn end(self, manager: &MemoryManager<'_, Bare>) {
        self.mm.switch_out();
        self.mm.exit();
        free(manager, Order::BLOCK, self.withheld);
    }
}

fn free(manager: &MemoryManager<'_, Bare>, order: Order, frames: impl IntoIterator<Item = Frame>) {
    for frame in frames {
        if let Err(error) = manager.pages().free_raw(frame, order) {
            say(format_args!("quire: freeing a folio failed: {error}"));
        }
    }
}
