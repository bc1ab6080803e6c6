//! Placeholder until the real one lands.
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::addr::{Frame, Order};
use crate::error::AllocError;
use crate::page_alloc::{Gfp, PageAllocator};
use crate::platform::Platform;
use crate::rank::Rank;
use crate::sync::SpinLock;

struct Head {
    frame: Frame,
    free: u64,
    next: Option<NonNull<Head>>,
    prev: Option<NonNull<Head>>,
}

/// Objects of one type.
pub struct Cache<T> {
    partial: SpinLock<Partial>,
    of: PhantomData<fn() -> T>,
}
struct Partial(Option<NonNull<Head>>);
// SAFETY: placeholder
unsafe impl Send for Partial {}

const HEAD: usize = 64;

impl<T> Cache<T> {
    const COUNT: usize = (4096 - HEAD) / size_of::<T>();
    /// New.
    pub const fn new() -> Self {
        assert!(align_of::<T>() <= 64 && Self::COUNT <= 64 && size_of::<T>() % align_of::<T>() == 0);
        Self { partial: SpinLock::new(Rank::Slab, Partial(None)), of: PhantomData }
    }
    /// Alloc.
    pub fn alloc<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
    ) -> Result<NonNull<MaybeUninit<T>>, AllocError> {
        let mut list = self.partial.lock(pages.platform());
        let mut head = match list.0 {
            Some(head) => head,
            None => {
                let frame = pages.alloc(Gfp::KERNEL, Order::FRAME)?;
                let head = NonNull::new(pages.platform().direct_map(frame.addr()).cast::<Head>()).unwrap();
                // SAFETY: placeholder
                unsafe {
                    head.write(Head { frame, free: u64::MAX >> (64 - Self::COUNT), next: None, prev: None })
                };
                list.0 = Some(head);
                head
            }
        };
        // SAFETY: placeholder
        unsafe {
            let bit = head.as_ref().free.trailing_zeros();
            head.as_mut().free &= !(1 << bit);
            if head.as_ref().free == 0 {
                list.0 = head.as_ref().next;
                if let Some(mut next) = list.0 {
                    next.as_mut().prev = None;
                }
                head.as_mut().next = None;
            }
            Ok(head.cast::<u8>().add(HEAD + bit as usize * size_of::<T>()).cast())
        }
    }
    /// Free.
    /// # Safety
    /// From alloc.
    pub unsafe fn free<P: Platform>(&self, pages: &PageAllocator<'_, P>, at: NonNull<MaybeUninit<T>>) {
        let mut list = self.partial.lock(pages.platform());
        let page = at.as_ptr().map_addr(|a| a & !4095).cast::<Head>();
        let bit = (at.addr().get() % 4096 - HEAD) / size_of::<T>();
        // SAFETY: placeholder
        unsafe {
            let mut head = NonNull::new(page).unwrap();
            let before = head.as_ref().free;
            assert!(before >> bit & 1 == 0);
            head.as_mut().free |= 1 << bit;
            if before == 0 {
                head.as_mut().next = list.0;
                head.as_mut().prev = None;
                if let Some(mut next) = list.0 {
                    next.as_mut().prev = Some(head);
                }
                list.0 = Some(head);
            }
            if head.as_ref().free.count_ones() as usize == Self::COUNT {
                let (prev, next) = (head.as_ref().prev, head.as_ref().next);
                match prev {
                    Some(mut p) => p.as_mut().next = next,
                    None => list.0 = next,
                }
                if let Some(mut n) = next {
                    n.as_mut().prev = prev;
                }
                let frame = head.as_ref().frame;
                drop(list);
                pages.free(frame, Order::FRAME).unwrap();
            }
        }
    }
}
