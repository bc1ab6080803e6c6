//! A secondary MMU of an address space: once registered, it is told which of its copies become invalid.
#![forbid(unsafe_code)]

use core::mem::ManuallyDrop;

use crate::platform::Platform;
use crate::vm::mm::facade::Mm;

/// The registration of a secondary MMU, until dropped. Before the drop, the secondary MMU must discard its
/// copies and make no new ones, since it is not told any more when they become invalid.
#[must_use = "a secondary MMU is registered as long as this lives"]
pub struct Secondary<'a, 'm, P: Platform> {
    pub(super) mm: &'a Mm<'m, P>,
}

impl<'a, 'm, P: Platform> Secondary<'a, 'm, P> {
    /// The address space.
    pub fn mm(&self) -> &'a Mm<'m, P> {
        self.mm
    }

    /// Keeps the secondary MMU registered until the address space ends, which one last bracket around the
    /// whole user half announces.
    pub fn keep(self) {
        let _kept = ManuallyDrop::new(self);
    }
}

impl<P: Platform> Drop for Secondary<'_, '_, P> {
    fn drop(&mut self) {
        let space = self.mm.space.lock();
        self.mm.space.context().remove_secondary();
        drop(space);
    }
}
