//! Size classes: one slab cache for each.

use core::ptr::NonNull;

use quire::page_alloc::PageAllocator;
use quire::platform::FramePlatform;
use quire::slab::Cache;

/// The objects of the caches. The alignment keeps a slab's header apart from its objects; only their size
/// matters besides.
#[repr(align(16))]
pub(super) struct Object<const BYTES: usize>(
    #[allow(dead_code, reason = "only its size counts")] [u8; BYTES],
);

macro_rules! classes {
    ($($number:literal $cache:ident $bytes:literal),* $(,)?) => {
        /// Bytes of an object of each class.
        pub(super) const SIZES: [usize; 14] = [$($bytes),*];

        /// The caches.
        pub(super) struct Classes {
            $($cache: Cache<Object<$bytes>>,)*
        }

        impl Classes {
            pub(super) const fn new() -> Self {
                Self { $($cache: Cache::new(),)* }
            }

            /// Memory for an object of this class.
            pub(super) fn alloc<P: FramePlatform>(
                &self,
                class: usize,
                pages: &PageAllocator<'_, P>,
            ) -> Option<NonNull<u8>> {
                match class {
                    $($number => self.$cache.alloc(pages).ok().map(NonNull::cast),)*
                    _ => None,
                }
            }

            /// Frees an object.
            ///
            /// # Safety
            /// As for [`Cache::free`], of the cache of this class.
            pub(super) unsafe fn free<P: FramePlatform>(
                &self,
                class: usize,
                pages: &PageAllocator<'_, P>,
                object: NonNull<u8>,
            ) {
                match class {
                    // SAFETY: E1: by the contract the object is one of this class, so its memory is this cache's.
                    $($number => unsafe { self.$cache.free(pages, object.cast()) },)*
                    _ => {}
                }
            }
        }
    };
}

// The larger ones fill a frame after its header of 64 bytes: six, four, three and two objects.
classes! {
    0 of_16 16, 1 of_32 32, 2 of_48 48, 3 of_64 64, 4 of_96 96, 5 of_128 128, 6 of_192 192, 7 of_256 256, 8 of_384 384,
    9 of_512 512, 10 of_672 672, 11 of_1008 1008, 12 of_1344 1344, 13 of_2016 2016,
}

/// The smallest class whose objects have at least `size` bytes at multiples of `align`. The first object of a
/// slab is at a multiple of 64.
pub(super) fn class_of(size: usize, align: usize) -> Option<usize> {
    let fits = |&bytes: &usize| size <= bytes && align <= 64 && bytes.is_multiple_of(align);
    SIZES.iter().position(fits)
}
