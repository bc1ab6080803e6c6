//! A cache of objects of one type.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::addr::{Frame, Order};
use crate::error::AllocError;
use crate::limits::FRAME_SIZE;
use crate::memmap::DescriptorFlags;
use crate::page_alloc::{Gfp, PageAllocator};
use crate::platform::FramePlatform;
use crate::rank::Rank;
use crate::stats::Stat;
use crate::sync::SpinLock;

#[repr(C, align(64))]
struct Header {
    /// The free objects: bit 0 is the first.
    free: u64,
    frame: Frame,
    /// Neighbours on the cache's list.
    next: Option<NonNull<Header>>,
    previous: Option<NonNull<Header>>,
}

const HEADER: usize = size_of::<Header>();

/// The usage of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheUsage {
    /// Objects in use.
    pub objects: u64,
    /// Frames of the cache's slabs.
    pub frames: u64,
}

/// The list of slabs with free objects, and the counts.
struct Slabs {
    first: Option<NonNull<Header>>,
    usage: CacheUsage,
}

// SAFETY: S1: the pointers name memory of the cache's own, reached under its lock, wherever the holder runs.
unsafe impl Send for Slabs {}

/// Allocates objects of type `T`. Const-constructible, so that any structure can contain a cache. Each call
/// names the allocator of the frames, which must always be the same.
pub struct Cache<T> {
    slabs: SpinLock<Slabs>,
    of: PhantomData<fn() -> T>,
}

impl<T> Cache<T> {
    /// Objects in a slab: as many as fit, and at most as many as a word has bits.
    pub const OBJECTS: usize = {
        let fitting = (FRAME_SIZE as usize - HEADER) / size_of::<T>();
        if fitting < 64 { fitting } else { 64 }
    };
    const ALL_FREE: u64 = u64::MAX >> (64 - Self::OBJECTS);

    /// An empty cache.
    pub const fn new() -> Self {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= HEADER && Self::OBJECTS > 0) };
        let slabs = Slabs { first: None, usage: CacheUsage { objects: 0, frames: 0 } };
        Self { slabs: SpinLock::new(Rank::Slab, slabs), of: PhantomData }
    }

    /// The current usage.
    pub fn usage<P: FramePlatform>(&self, platform: &P) -> CacheUsage {
        self.slabs.lock(platform).usage
    }

    /// Allocates uninitialised memory for one object.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub fn alloc<P: FramePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
    ) -> Result<NonNull<MaybeUninit<T>>, AllocError> {
        let mut slabs = self.slabs.lock(pages.platform());
        if slabs.first.is_none() {
            drop(slabs);
            let fresh = Self::make_slab(pages)?;
            slabs = self.slabs.lock(pages.platform());
            slabs.push(fresh);
            slabs.usage.frames += 1;
        }
        let slab = slabs.first.ok_or(AllocError::OutOfMemory)?;
        let index = slabs.take_object(slab);
        slabs.usage.objects += 1;
        // SAFETY: S2, S3: `take_object` names an object inside the slab, behind its header.
        Ok(unsafe { slab.cast::<u8>().add(HEADER + index * size_of::<T>()) }.cast())
    }

    /// Frees an object's memory.
    ///
    /// # Safety
    /// `object` came from [`Self::alloc`] of this cache with the same allocator, its contents were moved out
    /// or need no drop, and it is not used any more.
    ///
    /// # Panics
    /// When the object is free already.
    pub unsafe fn free<P: FramePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        object: NonNull<MaybeUninit<T>>,
    ) {
        let at = object.cast::<u8>();
        let offset = at.addr().get() % FRAME_SIZE as usize;
        // SAFETY: S4 and this function's contract: the object lies in a slab, whose header starts its frame.
        let slab = unsafe { at.sub(offset) }.cast::<Header>();
        let index = (offset - HEADER) / size_of::<T>();
        debug_assert_eq!((offset - HEADER) % size_of::<T>(), 0, "not where an object starts");
        let mut slabs = self.slabs.lock(pages.platform());
        let free = slabs.put_object(slab, index);
        slabs.usage.objects -= 1;
        if free == Self::ALL_FREE {
            slabs.unlist(slab);
            slabs.usage.frames -= 1;
            drop(slabs);
            Self::free_slab(pages, slab);
        }
    }

    /// Allocates a slab of free objects that nothing else names yet.
    fn make_slab<P: FramePlatform>(pages: &PageAllocator<'_, P>) -> Result<NonNull<Header>, AllocError> {
        let frame = pages.requests().alloc_described(Gfp::KERNEL)?.0.into_raw();
        pages.change(Stat::NrSlab, 1);
        pages.frames().descriptor(frame).set_flags(DescriptorFlags::SLAB);
        let memory = pages.platform().direct_map(frame.addr()).cast::<Header>();
        debug_assert_eq!(memory.addr() % FRAME_SIZE as usize, 0, "the direct map keeps alignment (S4)");
        let header = Header { free: Self::ALL_FREE, frame, next: None, previous: None };
        // SAFETY: invariant 1: the frame was just allocated for this slab; its address is never null.
        unsafe {
            memory.write(header);
            Ok(NonNull::new_unchecked(memory))
        }
    }

    fn free_slab<P: FramePlatform>(pages: &PageAllocator<'_, P>, slab: NonNull<Header>) {
        // SAFETY: S1: the slab has left the list and has no object in use, so nothing else reaches it.
        let frame = unsafe { slab.as_ref() }.frame;
        pages.change(Stat::NrSlab, -1);
        pages.frames().descriptor(frame).clear_flags();
        // SAFETY: invariant 1, S1: the slab has left its cache, so nothing names its frame any more.
        let freed = pages.free(unsafe { pages.frames().folio_from_raw(frame, Order::FRAME) });
        debug_assert_eq!(freed, Ok(()), "the frame of a slab");
    }
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl Slabs {
    /// Removes the lowest free object of a slab on the list.
    fn take_object(&mut self, mut slab: NonNull<Header>) -> usize {
        // SAFETY: S1: a slab of this cache, whose lock is held (`&mut self`).
        let header = unsafe { slab.as_mut() };
        let index = header.free.trailing_zeros() as usize;
        header.free &= header.free - 1;
        if header.free == 0 {
            self.unlist(slab);
        }
        index
    }

    /// Marks an object free, and returns which objects of its slab are free now.
    fn put_object(&mut self, mut slab: NonNull<Header>, index: usize) -> u64 {
        // SAFETY: S1: a slab of this cache, whose lock is held (`&mut self`).
        let header = unsafe { slab.as_mut() };
        let before = header.free;
        assert!(before >> index & 1 == 0, "an object of a slab was freed twice");
        header.free = before | 1 << index;
        let now = header.free;
        if before == 0 {
            self.push(slab);
        }
        now
    }

    fn push(&mut self, mut slab: NonNull<Header>) {
        // SAFETY: S1: a slab of this cache, whose lock is held (`&mut self`).
        let header = unsafe { slab.as_mut() };
        (header.next, header.previous) = (self.first, None);
        if let Some(mut next) = self.first {
            // SAFETY: S3: a slab on the list, another than `slab`.
            unsafe { next.as_mut() }.previous = Some(slab);
        }
        self.first = Some(slab);
    }

    fn unlist(&mut self, mut slab: NonNull<Header>) {
        // SAFETY: S1: a slab of this cache, whose lock is held (`&mut self`).
        let header = unsafe { slab.as_mut() };
        let (next, previous) = (header.next.take(), header.previous.take());
        if let Some(mut next) = next {
            // SAFETY: S3: a slab on the list, another than `slab`.
            unsafe { next.as_mut() }.previous = previous;
        }
        match previous {
            // SAFETY: S3: the slab before it on the list, another than `slab`.
            Some(mut previous) => unsafe { previous.as_mut() }.next = next,
            None => self.first = next,
        }
    }
}
