//! Memory for the manager's own tables, taken from the machine's ranges at start-up and never freed.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::addr::{FrameRange, PhysAddr};
use crate::error::InitError;
use crate::limits::{FRAME_SIZE, MAX_RANGES};
use crate::platform::FramePlatform;

/// A range from which tables are taken, front to back.
#[derive(Clone, Copy, Default)]
struct Source {
    frames: FrameRange,
    node: u8,
    zeroed: bool,
    /// Bytes taken from the front.
    taken: u64,
}

/// Takes tables from the front of physical ranges, of the requested node's largest range first.
pub(crate) struct BootMemory<'p, P: FramePlatform> {
    platform: &'p P,
    sources: [Source; MAX_RANGES],
    count: usize,
}

impl<'p, P: FramePlatform> BootMemory<'p, P> {
    /// Creates a source without memory. Not inlined: the caller would need the stack of two.
    #[inline(never)]
    pub(crate) fn new(platform: &'p P) -> Self {
        Self { platform, sources: [Source::default(); MAX_RANGES], count: 0 }
    }

    /// Adds a range. `zeroed` promises that it reads as zero.
    ///
    /// # Errors
    /// [`InitError::TooManyRanges`].
    pub(crate) fn add(&mut self, frames: FrameRange, node: u8, zeroed: bool) -> Result<(), InitError> {
        let slot = self.sources.get_mut(self.count).ok_or(InitError::TooManyRanges)?;
        *slot = Source { frames, node, zeroed, taken: 0 };
        self.count += 1;
        Ok(())
    }

    /// The frames taken from range `index`, rounded up to whole frames.
    pub(crate) fn taken(&self, index: usize) -> FrameRange {
        let source = &self.sources[index];
        FrameRange::new(source.frames.start, source.taken.div_ceil(FRAME_SIZE))
    }

    /// Takes a table of `len` values, each made by `init` from its index; `init` may take more tables.
    ///
    /// # Errors
    /// [`InitError::TooSmall`] when no range has room.
    pub(crate) fn table<T>(
        &mut self,
        node: u8,
        len: usize,
        mut init: impl FnMut(&mut Self, usize) -> Result<T, InitError>,
    ) -> Result<BootSlice<T>, InitError> {
        let (base, _) = self.take(node, size_of::<T>() * len, align_of::<T>())?;
        for index in 0..len {
            let value = init(self, index)?;
            // SAFETY: M1: `take` gave aligned room for `len` values of `T`, once.
            unsafe { base.cast::<T>().add(index).write(value) };
        }
        Ok(BootSlice { base: base.cast(), len })
    }

    /// Takes a table of `len` values of zero bytes. Does not touch memory known to be zero.
    ///
    /// # Errors
    /// [`InitError::TooSmall`] when no range has room.
    ///
    /// # Safety
    /// Zero bytes are a valid `T`.
    pub(crate) unsafe fn zeroed_table<T>(&mut self, node: u8, len: usize) -> Result<BootSlice<T>, InitError> {
        // SAFETY: M1: by this function's contract zero bytes are a valid `T`.
        unsafe { self.zeroed_table_at(node, len, align_of::<T>()) }
    }

    /// As [`Self::zeroed_table`], at a multiple of `align` bytes, a power of two.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there, and `align` is not less than `T`'s.
    pub(crate) unsafe fn zeroed_table_at<T>(
        &mut self,
        node: u8,
        len: usize,
        align: usize,
    ) -> Result<BootSlice<T>, InitError> {
        let bytes = size_of::<T>() * len;
        let (base, zeroed) = self.take(node, bytes, align)?;
        if !zeroed {
            // SAFETY: M1: `take` gave these bytes to this table alone.
            unsafe { base.write_bytes(0, bytes) };
        }
        Ok(BootSlice { base: base.cast(), len })
    }

    fn take(&mut self, node: u8, bytes: usize, align: usize) -> Result<(NonNull<u8>, bool), InitError> {
        let room =
            |source: &Source| (source.frames.count * FRAME_SIZE).saturating_sub(source.taken + align as u64);
        let best = self.sources[..self.count]
            .iter_mut()
            .filter(|source| room(source) >= bytes as u64)
            .max_by_key(|source| (source.node == node, source.frames.count))
            .ok_or(InitError::TooSmall)?;
        let start = (best.frames.start.addr().0 + best.taken).next_multiple_of(align as u64);
        best.taken = start + bytes as u64 - best.frames.start.addr().0;
        let pointer = NonNull::new(self.platform.direct_map(PhysAddr(start))).ok_or(InitError::TooSmall)?;
        Ok((pointer, best.zeroed))
    }
}

/// A table in boot memory. It lives as long as the platform, so handles are copied freely.
pub struct BootSlice<T> {
    base: NonNull<T>,
    len: usize,
}

impl<T> BootSlice<T> {
    /// A table without entries.
    pub const fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0 }
    }

    /// The table formed by this one and `next`, if `next` follows directly in memory.
    pub fn joined(self, next: Self) -> Option<Self> {
        let adjacent = self.base.as_ptr().wrapping_add(self.len) == next.base.as_ptr();
        (adjacent && self.len > 0).then_some(Self { base: self.base, len: self.len + next.len })
    }

    /// The table's address, which no other table has.
    #[inline(always)]
    pub fn address(self) -> usize {
        self.base.as_ptr().addr()
    }

    /// The table's entries.
    #[inline]
    pub fn as_slice<'a>(self) -> &'a [T] {
        // SAFETY: M1: boot memory is never freed, is initialised, and handles give shared references.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// A handle of one entry, if it exists.
    pub fn entry(self, at: usize) -> Option<BootRef<T>> {
        self.as_slice().get(at).map(|entry| BootRef(NonNull::from(entry)))
    }
}

/// One entry of a table in boot memory.
pub struct BootRef<T>(NonNull<T>);

impl<T> Deref for BootRef<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: M1: boot memory is never freed, is initialised, and handles give shared references.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for BootRef<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for BootRef<T> {}

// SAFETY: M1: a handle gives shared references only, so sending or sharing it is sharing `T`.
unsafe impl<T: Sync> Send for BootRef<T> {}
// SAFETY: M1: a handle gives shared references only, so sending or sharing it is sharing `T`.
unsafe impl<T: Sync> Sync for BootRef<T> {}

/// A handle that may change to that of another entry.
pub struct BootCell<T>(AtomicPtr<T>);

impl<T> BootCell<T> {
    /// A handle of `entry`.
    pub fn new(entry: BootRef<T>) -> Self {
        Self(AtomicPtr::new(entry.0.as_ptr()))
    }

    /// Changes it to a handle of `entry`.
    pub fn set(&self, entry: BootRef<T>) {
        self.0.store(entry.0.as_ptr(), Ordering::Relaxed);
    }
}

impl<T> Deref for BootCell<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: M1: only the addresses of handles are stored. Boot memory is never freed, is initialised, and
        // handles give shared references.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }
}

impl<T> Clone for BootSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for BootSlice<T> {}

impl<T> Deref for BootSlice<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

// SAFETY: M1: a handle gives shared references only, so sending or sharing it is sharing `T`.
unsafe impl<T: Sync> Send for BootSlice<T> {}
// SAFETY: M1: a handle gives shared references only, so sending or sharing it is sharing `T`.
unsafe impl<T: Sync> Sync for BootSlice<T> {}

/// A table in boot memory with one owner, which alone may change it. It lives as long as the platform.
pub(crate) struct BootTable<T> {
    base: NonNull<T>,
    len: usize,
}

impl<T> BootTable<T> {
    /// A table without entries.
    #[cfg(any(test, feature = "published"))]
    pub(crate) const fn empty() -> Self {
        Self { base: NonNull::dangling(), len: 0 }
    }

    /// The table of `len` values at `base`.
    ///
    /// # Safety
    /// M1: the values are initialised, belong to this table alone, and live as long as the platform.
    pub(crate) const unsafe fn from_raw(base: NonNull<T>, len: usize) -> Self {
        Self { base, len }
    }
}

impl<T> Deref for BootTable<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: M1: boot memory is never freed, and the values at `base` are initialised.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for BootTable<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: M1: as for `deref`; this handle is the only one, and is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

/// A table that is made later, once: without entries until then, and read without a lock.
pub(crate) struct DeferredTable<T> {
    base: AtomicPtr<T>,
    len: usize,
    values: PhantomData<BootTable<T>>,
}

impl<T> DeferredTable<T> {
    /// A table of `len` values that are not there yet.
    pub(crate) const fn new(len: usize) -> Self {
        Self { base: AtomicPtr::new(core::ptr::null_mut()), len, values: PhantomData }
    }

    /// How many entries it has, or will have.
    pub(crate) const fn capacity(&self) -> usize {
        self.len
    }

    /// Gives it its values. The caller alone does, once.
    pub(crate) fn set(&self, table: BootTable<T>) {
        debug_assert!(table.len == self.len && self.is_empty());
        self.base.store(table.base.as_ptr(), Ordering::Release);
    }
}

impl<T> Deref for DeferredTable<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        match NonNull::new(self.base.load(Ordering::Acquire)) {
            // SAFETY: M1: only bases of tables of `len` values are stored; boot memory is never freed, and the
            // values are initialised and belong to this table, which gives shared references.
            Some(base) => unsafe { core::slice::from_raw_parts(base.as_ptr(), self.len) },
            None => &[],
        }
    }
}

// SAFETY: M1: the handle owns its values: sending it is sending them.
unsafe impl<T: Send> Send for BootTable<T> {}
// SAFETY: M1: the handle owns its values: sharing it is sharing them.
unsafe impl<T: Sync> Sync for BootTable<T> {}
