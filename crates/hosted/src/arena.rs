//! The machine's memory: one reservation of address space, with the ranges mapped into it and holes left inaccessible.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::iter::successors;
use std::ptr::{self, NonNull};

use quire::addr::{FrameRange, PhysAddr};
use quire::limits::FRAME_SIZE;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::config::{Backing, HostedConfig, MemoryRange};
use crate::error::HostedError;
use crate::populated::Populated;

/// The reservation starts at a multiple of this (plus the first address's own remainder), so that the host can put
/// huge pages behind it and block alignment of physical and virtual addresses agree.
const ALIGN: u64 = 2 << 20;

/// Clears of smaller machines cost less than to ask the host.
const LAZY_SPAN: u64 = 256 << 20;

/// The memory of one machine.
pub struct Arena {
    /// Where physical address 0 would be; inside the reservation only for addresses of a range.
    zero: *mut u8,
    /// The reservation.
    reservation: NonNull<u8>,
    reserved: usize,
    backing: Backing,
    ranges: Box<[MemoryRange]>,
    huge_pages: Result<bool, rustix::io::Errno>,
    populated: Option<Populated>,
}

// SAFETY: H1: the pointers name memory that the arena owns until it is dropped; only the memory manager
// accesses it, by its own rules.
unsafe impl Send for Arena {}
// SAFETY: H1: as for `Send`, the memory is owned; the arena's own fields never change after construction.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves and maps the ranges of `config`.
    pub(crate) fn new(config: &HostedConfig) -> Result<Self, HostedError> {
        let span = config.checked_span()?;
        let first = config.ranges[0].start.0;
        let lead = first % ALIGN;
        let backing = if cfg!(miri) { Backing::Heap } else { config.backing };
        let bytes = lead + span + ALIGN;
        let reserved = usize::try_from(bytes).map_err(|_| refused(span, "size")(rustix::io::Errno::NOMEM))?;
        let reservation = match backing {
            Backing::Heap => reserve_heap(reserved),
            Backing::Memfd | Backing::Anonymous => reserve_host(reserved),
        }
        .map_err(refused(span, "reserve"))?;
        let to_first = reservation.as_ptr().align_offset(ALIGN as usize) + lead as usize;
        let zero = reservation.as_ptr().wrapping_add(to_first).wrapping_sub(first as usize);
        // From here on `drop` unmaps the reservation on every failure.
        let mut arena = Self {
            zero,
            reservation,
            reserved,
            backing,
            ranges: config.ranges.clone().into(),
            huge_pages: Ok(false),
            populated: None,
        };
        arena.map_ranges(first, span)?;
        let lazy = config.lazy_clears && span >= LAZY_SPAN && backing == Backing::Anonymous;
        if config.huge_pages && !lazy {
            arena.huge_pages = arena.advise(Advice::LinuxHugepage).map(|()| true);
        }
        if config.prefault {
            arena.prefault()?;
        }
        if lazy {
            arena.populated = Populated::new(span);
        }
        Ok(arena)
    }

    fn map_ranges(&self, first: u64, span: u64) -> Result<(), HostedError> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::FIXED | MapFlags::NORESERVE;
        let file = match self.backing {
            Backing::Memfd => {
                let file =
                    memfd_create("quire-arena", MemfdFlags::CLOEXEC).map_err(refused(span, "memfd"))?;
                ftruncate(&file, span).map_err(refused(span, "ftruncate"))?;
                Some(file)
            }
            Backing::Anonymous => None,
            Backing::Heap => return Ok(()),
        };
        for range in &self.ranges {
            let (at, len) =
                (self.zero.wrapping_add(range.start.0 as usize).cast::<c_void>(), range.bytes as usize);
            // SAFETY: H1: the range lies in the reservation that `new` has just made and no other code has seen, so that
            // replacing its pages takes no memory in use away.
            unsafe {
                match &file {
                    Some(file) => mmap(at, len, prot, flags | MapFlags::SHARED, file, range.start.0 - first),
                    None => mmap_anonymous(at, len, prot, flags | MapFlags::PRIVATE),
                }
            }
            .map_err(refused(span, "mmap"))?;
        }
        // Kept out of core dumps, which would contain the whole arena; a failure does no harm.
        let _ = self.advise(Advice::LinuxDontDump);
        Ok(())
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        if self.backing == Backing::Heap {
            return Ok(());
        }
        for range in &self.ranges {
            let at = self.direct_map(range.start).cast::<c_void>();
            // SAFETY: H1: the range is this arena's own mapping, and none of the advices used here drops contents.
            unsafe { madvise(at, range.bytes as usize, advice) }?;
        }
        Ok(())
    }

    /// Touches every page of the arena for writing, so that no later access pays a fault of the host.
    ///
    /// # Errors
    /// [`HostedError::Prefault`] when the host has too little memory or cannot populate.
    pub fn prefault(&self) -> Result<(), HostedError> {
        let bytes = self.ranges.iter().map(|range| range.bytes).sum();
        self.advise(Advice::LinuxPopulateWrite).map_err(|errno| HostedError::Prefault { bytes, errno })
    }

    /// Puts a huge page of the host behind these bytes, which are one of its size, whatever is behind them now.
    /// Their contents stay.
    ///
    /// # Errors
    /// What the host says: it has no such page free, or no such call (Linux 6.1 has it first).
    pub fn gather(&self, at: PhysAddr, bytes: u64) -> std::io::Result<()> {
        assert!(self.contains(at) && self.contains(PhysAddr(at.0 + bytes - 1)));
        let start = self.direct_map(at).cast::<c_void>();
        // SAFETY: H1: the bytes are this arena's own mapping, and keep their contents.
        let done = unsafe { libc::madvise(start, bytes as usize, libc::MADV_COLLAPSE) };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Whether the host accepted the request for huge pages; `Ok(false)` if there was none. A host whose
    /// `shmem_enabled` is `never` accepts it for a memfd and then ignores it.
    pub fn huge_pages(&self) -> Result<bool, rustix::io::Errno> {
        self.huge_pages
    }

    /// The machine's memory ranges.
    pub fn ranges(&self) -> &[MemoryRange] {
        &self.ranges
    }

    /// Whether the byte at `addr` belongs to a range.
    pub fn contains(&self, addr: PhysAddr) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= addr);
        after > 0 && addr < self.ranges[after - 1].end()
    }

    /// Whether every byte of these frames belongs to a range.
    pub(crate) fn holds(&self, frames: FrameRange) -> bool {
        let bytes = |frames: u64| frames.checked_mul(FRAME_SIZE);
        let ends = bytes(frames.start.0).zip(bytes(frames.count));
        ends.is_some_and(|(start, bytes)| {
            let left = self.ranges.iter().fold((start, bytes), |(at, left), range| {
                let here = range.start.0 <= at && at < range.end().0;
                let part = if here { left.min(range.end().0 - at) } else { 0 };
                (at + part, left - part)
            });
            left.1 == 0
        })
    }

    /// Offset and length of the parts of these bytes, at least one, that are cleared or left alone by themselves. None
    /// has bytes of two blocks of 2 MiB.
    pub(crate) fn parts(&self, at: PhysAddr, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let block = if self.populated.is_some() { ALIGN } else { u64::MAX };
        let part = move |offset: u64| (block - (at.0 + offset) % block).min(bytes - offset);
        successors(Some((0, part(0))), move |&(offset, len)| {
            (offset + len < bytes).then(|| (offset + len, part(offset + len)))
        })
    }

    /// Whether the host has populated any of these bytes, at least one, as far as is known. If not they read as zeroes,
    /// and clearing them would take memory of the host for nothing.
    pub(crate) fn is_populated(&self, at: PhysAddr, bytes: u64) -> bool {
        let Some(populated) = &self.populated else { return true };
        self.parts(at, bytes).any(|(offset, bytes)| {
            let part = PhysAddr(at.0 + offset);
            let start = self.direct_map(part).addr() as u64;
            populated.any((part.0 - self.ranges[0].start.0) / ALIGN, start..start + bytes)
        })
    }

    /// The address of the byte at `addr`. It may be dereferenced only if `addr` lies in a range (H1).
    #[inline]
    pub fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        debug_assert!(self.contains(addr), "{addr:?} is no memory of this machine");
        self.zero.wrapping_add(addr.0 as usize)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: H1 ends here: allocated by `reserve_heap` with the same layout, and all code that uses pointers into
            // it borrows the machine.
            Backing::Heap => unsafe { dealloc(self.reservation.as_ptr(), heap_layout(self.reserved)) },
            // SAFETY: H1 ends here: `reserve_host` made the whole reservation, and all code that uses pointers into it
            // borrows the machine.
            Backing::Memfd | Backing::Anonymous => unsafe {
                // It cannot fail for an existing mapping, and a failure would only leak memory.
                let _ = munmap(self.reservation.as_ptr().cast(), self.reserved);
            },
        }
    }
}

fn refused(bytes: u64, step: &'static str) -> impl Fn(rustix::io::Errno) -> HostedError {
    move |errno| HostedError::Arena { bytes, step, errno }
}

fn reserve_host(bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: H2: a new inaccessible mapping at an address of the host's choice replaces no mapping.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) }?;
    NonNull::new(at.cast()).ok_or(rustix::io::Errno::NOMEM)
}

fn heap_layout(bytes: usize) -> Layout {
    // The size is little more than 2^52 (`checked_span`) and the alignment a power of two, so this cannot fail.
    Layout::from_size_align(bytes, FRAME_SIZE as usize).expect("an arena's size is a valid layout")
}

fn reserve_heap(bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    // SAFETY: H1: an arena has at least one frame (`checked_span`), so the layout is not empty.
    let at = unsafe { alloc_zeroed(heap_layout(bytes)) };
    NonNull::new(at).ok_or(rustix::io::Errno::NOMEM)
}
