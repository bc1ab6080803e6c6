//! The frame traits of the crate `x86_64` on Quire's page allocator.

use quire::addr::{Frame, FrameRange, Order};
use quire::limits::FRAME_SIZE;
use quire::page_alloc::{Gfp, PageAllocator};
use quire::platform::FramePlatform;
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PageSize, PhysFrame};

/// A page allocator as `x86_64` knows one: a source of frames of 4 KiB, 2 MiB and 1 GiB for its mappers.
///
/// It is a reference and a request, so a kernel makes one where it needs it: for example one with
/// [`Gfp::KERNEL`] for page tables, and one with [`Gfp::USER`] for mapped memory. Contents of frames are
/// unknown; the mappers of `x86_64` clear the page tables that they allocate.
pub struct Frames<'a, 'p, P: FramePlatform> {
    pages: &'a PageAllocator<'p, P>,
    gfp: Gfp,
}

impl<'a, 'p, P: FramePlatform> Frames<'a, 'p, P> {
    /// Frames of this allocator, requested like this.
    pub const fn new(pages: &'a PageAllocator<'p, P>, gfp: Gfp) -> Self {
        Self { pages, gfp }
    }
}

// SAFETY: invariant 1: a frame that is handed out has no other owner until it is freed.
unsafe impl<S: PageSize, P: FramePlatform> FrameAllocator<S> for Frames<'_, '_, P> {
    fn allocate_frame(&mut self) -> Option<PhysFrame<S>> {
        let folio = self.pages.alloc(self.gfp, order_of::<S>()).ok()?;
        // The frame of `x86_64` represents the folio from now on.
        phys_frame(folio.into_raw())
    }
}

impl<S: PageSize, P: FramePlatform> FrameDeallocator<S> for Frames<'_, '_, P> {
    /// Frees a frame.
    ///
    /// # Panics
    /// When this allocator did not allocate it with this size, or it is free already.
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<S>) {
        let start = frame_range(frame).start;
        // SAFETY: invariant 1: by the trait's contract the frame is unused, and it came from this allocator with this size.
        let folio = unsafe { self.pages.frames().folio_from_raw(start, order_of::<S>()) };
        if let Err(error) = self.pages.free(folio) {
            panic!("{frame:?} cannot be freed: {error}");
        }
    }
}

/// The frames of 4 KiB that a frame of `x86_64` has.
pub fn frame_range<S: PageSize>(frame: PhysFrame<S>) -> FrameRange {
    FrameRange::folio(Frame(frame.start_address().as_u64() / FRAME_SIZE), order_of::<S>())
}

/// The frame of `x86_64` that starts at a frame of Quire's; `None` where none of this size does.
pub fn phys_frame<S: PageSize>(frame: Frame) -> Option<PhysFrame<S>> {
    PhysFrame::from_start_address(PhysAddr::try_new(frame.addr().0).ok()?).ok()
}

/// The order of a page size.
fn order_of<S: PageSize>() -> Order {
    let order = (S::SIZE / FRAME_SIZE).ilog2() as u8;
    Order::new(order).expect("no page size of the processor is larger than 1 GiB")
}
