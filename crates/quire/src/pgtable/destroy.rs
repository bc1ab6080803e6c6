//! Takes an address space apart at its end.

use super::{PageTables, Zap};
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::tlb::{MmContext, MmuGather, RssChange, Unmapped};

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// Frees all tables of an address space and lowers the counts of all leaves: the root is one detached
    /// subtree. No CPU runs it any more, so none is flushed; a secondary MMU that is still registered drops
    /// all its copies. Returns by how much resident memory changed.
    ///
    /// # Panics
    /// When a CPU still runs it: the CPU would use tables that are freed.
    pub fn destroy(allocator: &PageAllocator<'p, P>, context: MmContext) -> RssChange {
        assert!(context.running().is_empty(), "a CPU still runs the address space");
        let mut gather = MmuGather::new(allocator, &context);
        if !context.zap().is_by_table() {
            let all = context.mode().user_range();
            let unmapped =
                PageTables { allocator, context: &context }.unmap(&Zap::tables(all, all), &mut gather);
            debug_assert_eq!(unmapped, Ok(()), "no leaf reaches out of the user half");
        }
        gather.reserve(&context);
        if context.has_secondary() {
            gather.owe_tables(context.mode().user_range());
        }
        gather.add(Unmapped::root(context.root(), context.mode().top()));
        let change = gather.finish();
        debug_assert_eq!(context.tables(), 0, "tables were lost");
        change
    }
}
