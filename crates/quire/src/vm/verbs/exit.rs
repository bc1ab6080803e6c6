//! The end of an address space: unmaps everything and frees the page table.

use core::mem::ManuallyDrop;

use crate::pgtable::PageTables;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::sync::Pinned;
use crate::vm::gigantic::cancel::Cancellation;
use crate::vm::mapping::vma::Vma;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::verbs::munmap::Munmap;

impl<P: Platform> Drop for AddressSpace<'_, P> {
    fn drop(&mut self) {
        let memory = self.memory;
        let cpu = Pinned::new(memory.platform());
        if self.context.running().contains(cpu.cpu()) {
            self.context.switch_out(memory.platform());
        }
        drop(cpu);
        self.unmap_huge();
        self.leave_files();
        Cancellation::of(memory).cancel(self.mapper.number(), self.space.get_mut().layout.user);
        // SAFETY: V2: the address space is being dropped and nothing pins it any more, so no code uses the
        // context after this.
        let context = unsafe { ManuallyDrop::take(&mut self.context) };
        // Leaves first: frames of a file may be freed only once no leaf maps them.
        let change = PageTables::destroy(memory.pages(), context);
        memory.pages().change(Stat::NrAnonPages, change.anon);
        memory.pages().change(Stat::NrMapped, change.file);
        while let Some(node) = self.space.get_mut().tree.pop_first() {
            memory.discard(node);
        }
        // SAFETY: V2: the address space is being dropped, and `leave_files` waited until nothing pins it.
        unsafe { memory.give_back_body(self.body().as_ptr()) };
    }
}

impl<P: Platform> AddressSpace<'_, P> {
    fn unmap_huge(&self) {
        loop {
            let mut space = self.lock();
            if !space.huge {
                return;
            }
            let huge = |vma: &&Vma| vma.attributes.huge_size().is_some();
            let Some(range) = space.tree.iter().find(huge).map(|vma| vma.range) else { return };
            let gone = Munmap::of(self).unmap_range(&mut space, range);
            drop(space);
            match gone {
                Ok(gone) => self.memory.discard_list(gone),
                // Unmapping a whole mapping needs no memory.
                Err(_) => debug_assert!(false, "{range:?} is one mapping"),
            }
        }
    }
}
