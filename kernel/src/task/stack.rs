//! Kernel stacks.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;

use crate::errno::Errno;

/// Enough for the deepest verb of Quire without optimisation, and an interrupt on top of it.
pub const STACK_BYTES: usize = 32 << 10;

const LAYOUT: Layout = match Layout::from_size_align(STACK_BYTES, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// The stack of one task in the kernel.
pub struct KernelStack(NonNull<u8>);

// SAFETY: the memory is the value's own.
unsafe impl Send for KernelStack {}
// SAFETY: a shared reference gives nothing but the address.
unsafe impl Sync for KernelStack {}

impl KernelStack {
    /// Allocates one.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: the layout has a size.
        NonNull::new(unsafe { alloc(LAYOUT) }).map(Self).ok_or(Errno::ENOMEM)
    }

    /// Its end, from which it grows down.
    pub fn end(&self) -> *mut u64 {
        self.0.as_ptr().wrapping_add(STACK_BYTES).cast()
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, and the task that ran here is gone.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) }
    }
}
