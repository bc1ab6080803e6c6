//! The end of an address space.

use core::mem::ManuallyDrop;

use crate::pgtable::PageTables;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::sync::Pinned;
use crate::vm::space::mm::Mm;

impl<P: Platform> Mm<'_, P> {
    /// Unmaps everything and frees the page table. Dropping the value does the same. No CPU but this one may run the
    /// address space.
    pub fn exit(self) {}
}

impl<P: Platform> Drop for Mm<'_, P> {
    fn drop(&mut self) {
        let memory = self.memory;
        let cpu = Pinned::new(memory.platform());
        if self.context.running().contains(cpu.cpu()) {
            self.context.switch_out(memory.platform());
        }
        drop(cpu);
        self.unmap_huge();
        // From here on nobody finds the address space.
        self.leave_files();
        memory.forgo(self.mapper.number(), self.space.get_mut().layout.user);
        // SAFETY: the value is being dropped, so nobody uses the context after this.
        let context = unsafe { ManuallyDrop::take(&mut self.context) };
        // Leaves first: the frames of a file may go only once nobody maps them.
        let change = PageTables::destroy(memory.pages(), context);
        memory.pages().change(Stat::NrAnonPages, change.anon);
        memory.pages().change(Stat::NrMapped, change.file);
        while let Some(node) = self.space.get_mut().tree.pop_first() {
            memory.discard(node);
        }
        // SAFETY: as above; who has found it through a file has let go (`leave_files`).
        unsafe { memory.give_back_body(self.body().as_ptr()) };
    }
}
