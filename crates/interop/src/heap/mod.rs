//! A global allocator for kernels: small objects from slabs, large ones from the page allocator.

mod classes;

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use quire::addr::{Frame, Order, PhysAddr};
use quire::error::AllocError;
use quire::limits::{FRAME_SIZE, MAX_ORDER};
use quire::page_alloc::{Gfp, PageAllocator};
use quire::platform::{Context, FramePlatform};

use classes::{Classes, SIZES, class_of};

const FRAME: usize = FRAME_SIZE as usize;
/// No base of a direct map, which is a multiple of a frame.
const NO_BASE: usize = 1;

/// A global allocator ([`GlobalAlloc`]) on a page allocator of Quire.
///
/// Up to 2016 bytes come from slabs, with alignments of up to 64 bytes. A larger request gets a folio: a
/// power of two of frames. Out of memory is a null pointer, and so is every request before
/// [`init`](Self::init).
///
/// ```no_run
/// # use quire::error::AllocError;
/// # use quire::page_alloc::PageAllocator;
/// # use hosted::Hosted as Machine;
/// use quire_interop::Heap;
///
/// #[global_allocator]
/// static HEAP: Heap<Machine> = Heap::new();
///
/// /// Called in the kernel's entry. The page allocator must stay where it is.
/// fn init(pages: &'static PageAllocator<'static, Machine>) -> Result<(), AllocError> {
///     HEAP.init(pages)
/// }
/// ```
///
/// # Contexts
///
/// Memory can be allocated and freed in tasks and in interrupts. Slabs are guarded by spin locks, which interrupts must not
/// wait for. An interrupt therefore gets a whole frame for a small object, and the objects that it frees wait in a list for
/// the next task that uses their class. A task must not allocate or free while it holds a lock of Quire's.
///
/// # Requirements on the platform
///
/// One offset between physical addresses and the direct map, for all memory, as in nearly every kernel. The
/// heap learns it from the first frame. A request fails if the only folio for it has another offset.
///
/// Alignments above a frame depend on the direct map: if physical address 0 is at a multiple of 1 GiB, every
/// alignment up to that is served. Requests that the direct map cannot align fail.
pub struct Heap<P: FramePlatform + 'static> {
    pages: AtomicPtr<PageAllocator<'static, P>>,
    /// The address of physical address 0 in the direct map, which need not be in the map itself; [`NO_BASE`] before
    /// [`init`](Self::init).
    base: AtomicUsize,
    classes: Classes,
    /// Objects that interrupts freed, one list for each class.
    deferred: [AtomicPtr<DeferredFree>; SIZES.len()],
}

/// An object that an interrupt freed: a link of a list.
struct DeferredFree {
    next: *mut DeferredFree,
}

/// The source of memory for a layout.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A slab of this class.
    Class(usize),
    /// The page allocator.
    Pages(Order),
}

impl<P: FramePlatform> Heap<P> {
    /// An allocator that has no memory yet.
    pub const fn new() -> Self {
        Self {
            pages: AtomicPtr::new(ptr::null_mut()),
            base: AtomicUsize::new(NO_BASE),
            classes: Classes::new(),
            deferred: [const { AtomicPtr::new(ptr::null_mut()) }; SIZES.len()],
        }
    }

    /// Gives the allocator its memory. Later calls change nothing.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] when not even one frame is there.
    pub fn init(&self, pages: &'static PageAllocator<'static, P>) -> Result<(), AllocError> {
        if self.base.load(Ordering::Relaxed) != NO_BASE {
            return Ok(());
        }
        let folio = pages.alloc(Gfp::KERNEL, Order::FRAME)?;
        let start = folio.frame().addr();
        let base = pages.platform().direct_map(start).addr().wrapping_sub(start.0 as usize);
        let freed = pages.free(folio);
        debug_assert_eq!(freed, Ok(()), "the frame was just handed out");
        // One caller alone stores both, and a CPU that sees the pointer sees the base too.
        if self.base.compare_exchange(NO_BASE, base, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.pages.store(ptr::from_ref(pages).cast_mut(), Ordering::Release);
        }
        Ok(())
    }

    fn pages(&self) -> Option<&'static PageAllocator<'static, P>> {
        let pages = self.pages.load(Ordering::Acquire);
        // SAFETY: E2: what is not null came from `init`, which takes a reference that is valid for ever.
        unsafe { pages.as_ref() }
    }

    /// A folio whose first byte is at a multiple of `align`; null if there is none.
    fn alloc_pages(
        &self,
        pages: &PageAllocator<'_, P>,
        gfp: Gfp,
        order: Order,
        align: usize,
        zero: bool,
    ) -> *mut u8 {
        let allocated = if zero { pages.requests().alloc_zero_page(gfp) } else { pages.alloc(gfp, order) };
        let Ok(folio) = allocated else { return ptr::null_mut() };
        let start = folio.frame().addr();
        let memory = pages.platform().direct_map(start);
        let expected = self.base.load(Ordering::Relaxed).wrapping_add(start.0 as usize);
        if memory.addr() != expected || !expected.is_multiple_of(align) {
            let freed = pages.free(folio);
            debug_assert_eq!(freed, Ok(()), "the folio was just handed out");
            return ptr::null_mut();
        }
        // The caller of the heap owns it now, by its address.
        let _ = folio.into_raw();
        memory
    }

    /// Frees a folio by its address.
    ///
    /// # Safety
    /// This heap handed the memory out as a folio of this order, and no code uses it any more.
    unsafe fn free_pages(&self, pages: &PageAllocator<'_, P>, memory: *mut u8, order: Order) {
        let base = self.base.load(Ordering::Relaxed);
        let frame: Frame = PhysAddr(memory.addr().wrapping_sub(base) as u64).frame();
        // SAFETY: invariant 1, E1: the folio came from `alloc_pages`, whose caller owned it and gives it back.
        let freed = pages.free(unsafe { pages.frames().folio_from_raw(frame, order) });
        assert_eq!(
            freed,
            Ok(()),
            "{memory:?} was freed twice, or with another layout than it was allocated with"
        );
    }

    /// Frees an object of a class, in a task.
    ///
    /// # Safety
    /// The object is one of this class, and no code uses it any more.
    unsafe fn free_object(&self, pages: &PageAllocator<'_, P>, class: usize, object: NonNull<u8>) {
        // SAFETY: E1: the object is of this class, by the contract.
        unsafe { self.classes.free(class, pages, object) };
        self.free_deferred(pages, class);
    }

    /// Frees the objects that interrupts have left, in a task.
    fn free_deferred(&self, pages: &PageAllocator<'_, P>, class: usize) {
        if self.deferred[class].load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut next = self.deferred[class].swap(ptr::null_mut(), Ordering::Acquire);
        while let Some(object) = NonNull::new(next) {
            // SAFETY: E3: the list was taken as a whole, so its objects are this task's alone, and each holds a link.
            next = unsafe { object.as_ref() }.next;
            // SAFETY: E1, E3: the objects of this list were freed by interrupts, and are of this class.
            unsafe { self.classes.free(class, pages, object.cast()) };
        }
    }

    /// Leaves an object of a class to the next task, in an interrupt.
    ///
    /// # Safety
    /// The object is one of this class, and no code uses it any more.
    unsafe fn defer_free(&self, class: usize, object: NonNull<u8>) {
        let (list, link) = (&self.deferred[class], object.cast::<DeferredFree>().as_ptr());
        let mut first = list.load(Ordering::Relaxed);
        loop {
            // SAFETY: E3: the object is the caller's, and objects of every class have room for a link and its alignment.
            unsafe { link.write(DeferredFree { next: first }) };
            match list.compare_exchange_weak(first, link, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

impl<P: FramePlatform> Default for Heap<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// The source of memory for a layout in a task; `None` if it is too large.
fn source_of(layout: Layout) -> Option<Source> {
    match class_of(layout.size(), layout.align()) {
        Some(class) => Some(Source::Class(class)),
        None => order_of(layout).map(Source::Pages),
    }
}

/// The smallest folio for a layout.
fn order_of(layout: Layout) -> Option<Order> {
    let frames = layout.size().max(layout.align()).div_ceil(FRAME);
    let order = frames.checked_next_power_of_two()?.ilog2() as u8;
    Order::new(order.min(MAX_ORDER + 1))
}

/// Whether memory of a layout is a folio. Objects in slabs follow a header, so none is at the start of a
/// frame (S4).
fn is_folio(memory: *mut u8) -> bool {
    memory.addr().is_multiple_of(FRAME)
}

// SAFETY: E1: memory is an object of a class that has the layout's size and alignment, or a folio that does, and no other
// caller has it until it is freed. It panics only when memory is freed twice or with a wrong layout.
unsafe impl<P: FramePlatform> GlobalAlloc for Heap<P> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(pages) = self.pages() else { return ptr::null_mut() };
        let task = pages.platform().context() == Context::Task;
        match source_of(layout) {
            Some(Source::Class(class)) if task => {
                self.free_deferred(pages, class);
                self.classes.alloc(class, pages).map_or(ptr::null_mut(), NonNull::as_ptr)
            }
            Some(Source::Class(_)) => {
                self.alloc_pages(pages, Gfp::ATOMIC, Order::FRAME, layout.align(), false)
            }
            Some(Source::Pages(order)) => {
                let gfp = if task { Gfp::KERNEL } else { Gfp::ATOMIC };
                self.alloc_pages(pages, gfp, order, layout.align(), false)
            }
            None => ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // The page allocator remembers which frames are zero.
        if let (Some(pages), Some(Source::Pages(Order::FRAME))) = (self.pages(), source_of(layout))
            && pages.platform().context() == Context::Task
        {
            return self.alloc_pages(pages, Gfp::KERNEL, Order::FRAME, layout.align(), true);
        }
        // SAFETY: E1: the layout is the caller's, and the memory has its size.
        unsafe {
            let memory = self.alloc(layout);
            if !memory.is_null() {
                memory.write_bytes(0, layout.size());
            }
            memory
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let (Some(pages), Some(object)) = (self.pages(), NonNull::new(memory)) else { return };
        match source_of(layout) {
            // SAFETY: E1: memory of a layout that has a class, which is no folio, is an object of that class.
            Some(Source::Class(class)) if !is_folio(memory) => unsafe {
                if pages.platform().context() == Context::Task {
                    self.free_object(pages, class, object);
                } else {
                    self.defer_free(class, object);
                }
            },
            // SAFETY: E1: an interrupt was given a frame for an object.
            Some(Source::Class(_)) => unsafe { self.free_pages(pages, memory, Order::FRAME) },
            // SAFETY: E1: memory of a layout that has no class is the smallest folio for it.
            Some(Source::Pages(order)) => unsafe { self.free_pages(pages, memory, order) },
            None => {}
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(new_size, layout.align()) else { return ptr::null_mut() };
        let frame_for_object =
            is_folio(memory) && class_of(layout.size(), layout.align()).is_some() && new_size <= FRAME;
        let same = source_of(layout) == source_of(wanted) && !frame_for_object;
        if same || frame_for_object && class_of(new_size, layout.align()).is_some() {
            return memory;
        }
        // SAFETY: E1: the old memory has the old size, the new memory the new one, and they are apart.
        unsafe {
            let fresh = self.alloc(wanted);
            if !fresh.is_null() {
                fresh.copy_from_nonoverlapping(memory, layout.size().min(new_size));
                self.dealloc(memory, layout);
            }
            fresh
        }
    }
}
