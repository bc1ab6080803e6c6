//! Tables that the manager makes once the allocator exists: in frames that are never freed.
//!
//! A value with a large array inside is moved from function to function while it is built, and each of them
//! needs stack for it. So large arrays stand in frames, and are written there one element at a time.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use crate::addr::Order;
use crate::error::InitError;
use crate::limits::FRAME_SIZE;
use crate::memmap::BootTable;
use crate::page_alloc::allocator::PageAllocator;
use crate::page_alloc::request::gfp::Gfp;
use crate::platform::FramePlatform;

/// Makes tables, several in a frame where they fit.
pub(crate) struct TableFrames<'a, 'p, P: FramePlatform> {
    pages: &'a PageAllocator<'p, P>,
    /// What no table uses yet of the frames taken last.
    next: NonNull<u8>,
    left: usize,
}

impl<'a, 'p, P: FramePlatform> TableFrames<'a, 'p, P> {
    /// Takes nothing yet.
    pub(crate) fn new(pages: &'a PageAllocator<'p, P>) -> Self {
        Self { pages, next: NonNull::dangling(), left: 0 }
    }

    /// Makes a table of `len` values, each made by `init` from its index; `init` may make more tables.
    ///
    /// # Errors
    /// [`InitError::TooSmall`]. The frames taken so far are lost then.
    pub(crate) fn table<T>(
        &mut self,
        len: usize,
        mut init: impl FnMut(&mut Self, usize) -> Result<T, InitError>,
    ) -> Result<BootTable<T>, InitError> {
        const { assert!(!core::mem::needs_drop::<T>(), "tables are never dropped") };
        let base = self.take(size_of::<T>() * len, align_of::<T>())?.cast::<T>();
        for index in 0..len {
            let value = init(self, index)?;
            // SAFETY: M1: `take` gave aligned bytes for `len` values of `T`, once.
            unsafe { base.add(index).write(value) };
        }
        // SAFETY: M1: the values were just written, in bytes that `take` gives once and that are never freed.
        Ok(unsafe { BootTable::from_raw(base, len) })
    }

    /// Takes bytes that no table uses, of new frames if too few are left.
    #[inline(never)]
    fn take(&mut self, bytes: usize, align: usize) -> Result<NonNull<u8>, InitError> {
        debug_assert!(align <= FRAME_SIZE as usize);
        if self.next.align_offset(align).saturating_add(bytes) > self.left {
            self.take_frames(bytes)?;
        }
        let skipped = self.next.align_offset(align);
        // SAFETY: M1: `skipped + bytes` bytes are left from `next` on; new frames start at a multiple of
        // `align`.
        let (taken, next) = unsafe { (self.next.add(skipped), self.next.add(skipped + bytes)) };
        (self.next, self.left) = (next, self.left - skipped - bytes);
        Ok(taken)
    }

    fn take_frames(&mut self, bytes: usize) -> Result<(), InitError> {
        let frames = bytes.div_ceil(FRAME_SIZE as usize).next_power_of_two();
        let order = Order::new(frames.trailing_zeros() as u8).ok_or(InitError::TooSmall)?;
        let folio = self.pages.alloc(Gfp::KERNEL, order).map_err(|_| InitError::TooSmall)?;
        self.pages.requests().hold_for_manager(folio.frames()).map_err(|_| InitError::TooSmall)?;
        self.pages.tables.fetch_add(order.frames(), Ordering::Relaxed);
        let frame = folio.into_raw();
        let start = self.pages.platform().direct_map(frame.addr());
        self.next = NonNull::new(start).ok_or(InitError::TooSmall)?;
        self.left = order.bytes() as usize;
        Ok(())
    }
}
