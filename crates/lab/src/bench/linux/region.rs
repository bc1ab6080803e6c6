//! Anonymous memory of this process, aligned to 2 MiB and apart from every other mapping.

use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};

use crate::bench::folio::PAGE;
use crate::output::say;

const ALIGN: usize = 2 << 20;

/// Private anonymous memory, readable and writable, owned by this value alone.
///
/// It starts at a multiple of 2 MiB, with inaccessible address space before and after it, so that the kernel cannot
/// merge it with a neighbour.
#[derive(Debug)]
pub struct Region {
    reserved: usize,
    reserved_bytes: usize,
    start: usize,
    bytes: usize,
    mapped: bool,
}

impl Region {
    /// Maps `bytes` (rounded up to whole pages); nothing is populated.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn map(bytes: usize) -> io::Result<Self> {
        Self::map_beyond(bytes, ALIGN, 0)
    }

    /// The same, `beyond` bytes (whole pages) after a multiple of `align` (a multiple of 2 MiB).
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn map_beyond(bytes: usize, align: usize, beyond: usize) -> io::Result<Self> {
        assert!(align.is_multiple_of(ALIGN) && beyond.is_multiple_of(PAGE), "no such place");
        let bytes = bytes.next_multiple_of(PAGE);
        let reserved_bytes = bytes + beyond + 2 * align + ALIGN;
        // SAFETY: C1: the kernel chooses an address at which nothing is mapped.
        let reserved =
            unsafe { mmap_anonymous(null_mut(), reserved_bytes, ProtFlags::empty(), MapFlags::PRIVATE)? }
                as usize;
        let start = (reserved + 1).next_multiple_of(align) + beyond;
        let region = Self { reserved, reserved_bytes, start, bytes, mapped: true };
        // SAFETY: C1: the fixed range lies inside the reservation just made, which this function alone knows.
        unsafe {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            mmap_anonymous(start as *mut c_void, bytes, rights, flags)?;
        }
        Ok(region)
    }

    /// Replaces the whole region by fresh shared memory (a memfd).
    ///
    /// # Errors
    /// Those of `memfd_create`, `ftruncate` and `mmap`; the region is as before then.
    pub fn share(&mut self) -> io::Result<()> {
        assert!(self.mapped, "the region is gone");
        let file = memfd_create("quire-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, self.bytes as u64)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: C1: the fixed range is this value's, which is borrowed exclusively, so no reference into it
        // exists.
        unsafe {
            mmap(self.start as *mut c_void, self.bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)?;
        }
        Ok(())
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Base pages of the region.
    pub fn pages(&self) -> usize {
        self.bytes / PAGE
    }

    /// Address of its first byte.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Calls madvise on the whole region.
    ///
    /// # Errors
    /// Those of `madvise`.
    pub fn advise(&self, advice: Advice) -> io::Result<()> {
        self.advise_pages(0, self.pages(), advice)
    }

    /// Calls madvise on `count` pages from page `first` on.
    ///
    /// # Errors
    /// Those of `madvise`.
    pub fn advise_pages(&self, first: usize, count: usize, advice: Advice) -> io::Result<()> {
        assert!(self.mapped && first + count <= self.pages(), "advice beyond the region");
        let start = (self.start + first * PAGE) as *mut c_void;
        // SAFETY: C1: the range is this value's, and no reference into it exists: contents are reached through the
        // volatile accesses below alone, so that losing them (DONTNEED) breaks no promise.
        unsafe { madvise(start, count * PAGE, advice)? };
        Ok(())
    }

    /// Collapses the whole region into folios of 2 MiB now (`MADV_COLLAPSE`, since Linux 6.1).
    ///
    /// # Errors
    /// Those of `madvise`.
    pub fn collapse(&self) -> io::Result<()> {
        assert!(self.mapped, "the region is gone");
        // SAFETY: C1: the range is this value's, and the advice leaves contents as they are.
        let done = unsafe { libc::madvise(self.start as *mut c_void, self.bytes, libc::MADV_COLLAPSE) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Writes one byte to page `page`: a fault if it is not there yet.
    #[inline]
    pub fn touch(&self, page: usize) {
        assert!(self.mapped && page < self.pages(), "touch beyond the region");
        let byte = (self.start + page * PAGE) as *mut u8;
        // SAFETY: C1: the byte is inside the region (asserted), which is mapped writable; concurrent callers would
        // write the same byte, and keep to pages of their own.
        unsafe { byte.write_volatile(mark(page)) };
    }

    /// Writes one byte to each of its pages.
    pub fn touch_all(&self) {
        for page in 0..self.pages() {
            self.touch(page);
        }
    }

    /// How many pages still hold the byte that [`Self::touch`] wrote. Reading populates nothing that was touched.
    pub fn marked(&self) -> u64 {
        (0..self.pages()).filter(|page| self.is_marked(*page)).count() as u64
    }

    /// Whether a page still holds the byte that [`Self::touch`] wrote.
    pub fn is_marked(&self, page: usize) -> bool {
        assert!(self.mapped && page < self.pages(), "a look beyond the region");
        let byte = (self.start + page * PAGE) as *const u8;
        // SAFETY: C1: the byte is inside the region (asserted), which is mapped readable.
        unsafe { byte.read_volatile() == mark(page) }
    }

    /// Clears the whole region folio by folio of `folio` bytes (a divisor of the region), each from its last
    /// page to its first, with the string instruction. Linux, up to 6.18, clears a folio in this order when a
    /// fault hits its start; on some machines the other order takes less than half the time.
    pub fn clear_as_linux(&mut self, folio: usize) {
        let fits = folio > 0 && folio.is_multiple_of(PAGE) && self.bytes.is_multiple_of(folio);
        assert!(self.mapped && fits, "folios that do not fill the region");
        for start in (self.start..self.start + self.bytes).step_by(folio) {
            for page in (start..start + folio).step_by(PAGE).rev() {
                // SAFETY: C1: the page is inside the region (asserted: whole folios fill it, whole pages fill a
                // folio), which is mapped writable and exclusively borrowed; the direction flag is clear by the
                // ABI.
                unsafe {
                    std::arch::asm!(
                        "rep stosb",
                        inout("rcx") PAGE => _,
                        inout("rdi") page => _,
                        in("al") 0_u8,
                        options(nostack, preserves_flags)
                    );
                }
            }
        }
    }

    /// The region as bytes, for an allocator that manages real memory. They read as zero until written.
    pub fn as_bytes(&mut self) -> &mut [u8] {
        assert!(self.mapped, "the region is gone");
        // SAFETY: C1: `bytes` bytes are mapped readable and writable and initialised (zero on demand), and the
        // slice borrows `self` exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.bytes) }
    }

    /// Changes the access rights of the whole region.
    ///
    /// # Errors
    /// Those of `mprotect`.
    pub fn protect(&self, rights: ProtFlags) -> io::Result<()> {
        assert!(self.mapped, "the region is gone");
        let rights = MprotectFlags::from_bits_retain(rights.bits());
        // SAFETY: C1: the range is this value's, and no reference into it exists.
        unsafe { mprotect(self.start as *mut c_void, self.bytes, rights)? };
        Ok(())
    }

    /// Moves the region's memory over that of `target`, which is unmapped; afterwards this region can only be
    /// dropped.
    ///
    /// # Errors
    /// Those of `mremap`; this region is then as before.
    pub fn move_to(&mut self, target: &mut Self) -> io::Result<()> {
        assert!(self.mapped && target.mapped && self.bytes == target.bytes, "no place to move to");
        let (from, to) = (self.start as *mut c_void, target.start as *mut c_void);
        // SAFETY: C1: both ranges belong to these values, which are borrowed exclusively, so no reference into
        // them exists; this one accepts no access once `mapped` is false.
        unsafe { mremap_fixed(from, self.bytes, self.bytes, MremapFlags::MAYMOVE, to)? };
        self.mapped = false;
        Ok(())
    }

    /// Unmaps the region in one call; afterwards it can only be dropped.
    ///
    /// # Errors
    /// As [`Self::unmap_each`].
    pub fn unmap(&mut self) -> io::Result<()> {
        self.unmap_each(self.bytes)
    }

    /// Unmaps the region from its start on, by one call for each `bytes` bytes; afterwards it can only be dropped.
    ///
    /// # Errors
    /// Those of `munmap`; what was not unmapped then stays.
    pub fn unmap_each(&mut self, bytes: usize) -> io::Result<()> {
        assert!(
            self.mapped && self.bytes.is_multiple_of(bytes),
            "unmapped twice, or in pieces that do not fit"
        );
        self.mapped = false;
        for start in (self.start..self.start + self.bytes).step_by(bytes) {
            // SAFETY: C1: the range is this value's, which is borrowed exclusively, and no method accepts an
            // access once `mapped` is false.
            unsafe { munmap(start as *mut c_void, bytes)? };
        }
        Ok(())
    }
}

/// The byte that a touched page holds: never zero, and not the same on neighbours.
fn mark(page: usize) -> u8 {
    page as u8 | 1
}

impl Drop for Region {
    fn drop(&mut self) {
        let end = self.start + self.bytes;
        let before = (self.reserved, self.start - self.reserved);
        let after = (end, self.reserved + self.reserved_bytes - end);
        let own = if self.mapped { self.bytes } else { 0 };
        for (start, bytes) in [before, (self.start, own), after].into_iter().filter(|(_, bytes)| *bytes > 0) {
            // SAFETY: C1: `map` reserved these ranges for this value alone; what `unmap` gave back is left out,
            // since another mapping may be there by now.
            if let Err(error) = unsafe { munmap(start as *mut c_void, bytes) } {
                say(format_args!("quire: cannot unmap {bytes} bytes: {error}"));
            }
        }
    }
}

#[cfg(test)]
mod tests;
