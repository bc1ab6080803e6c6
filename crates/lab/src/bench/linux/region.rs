//! A piece of anonymous memory of this process, aligned to 2 MiB and standing apart from every other mapping.

use std::ffi::c_void;
use std::io;
use std::ptr::null_mut;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::bench::folio::PAGE;

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
        let bytes = bytes.next_multiple_of(PAGE);
        let reserved_bytes = bytes + 3 * ALIGN;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that exists.
        let reserved =
            unsafe { mmap_anonymous(null_mut(), reserved_bytes, ProtFlags::empty(), MapFlags::PRIVATE)? }
                as usize;
        let start = (reserved + 1).next_multiple_of(ALIGN);
        let region = Self { reserved, reserved_bytes, start, bytes, mapped: true };
        // SAFETY: the fixed range lies inside the reservation just made, which nothing else knows of.
        unsafe {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            mmap_anonymous(start as *mut c_void, bytes, rights, flags)?;
        }
        Ok(region)
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

    /// Gives the kernel `advice` about the whole region.
    ///
    /// # Errors
    /// Those of `madvise`.
    pub fn advise(&self, advice: Advice) -> io::Result<()> {
        self.advise_pages(0, self.pages(), advice)
    }

    /// Gives the kernel `advice` about `count` pages from page `first` on.
    ///
    /// # Errors
    /// Those of `madvise`.
    pub fn advise_pages(&self, first: usize, count: usize, advice: Advice) -> io::Result<()> {
        assert!(self.mapped && first + count <= self.pages(), "advice beyond the region");
        let start = (self.start + first * PAGE) as *mut c_void;
        // SAFETY: the range lies in memory that this value owns, and no reference into it exists: contents are
        // reached through the volatile accesses below alone, so that losing them (DONTNEED) breaks no promise.
        unsafe { madvise(start, count * PAGE, advice)? };
        Ok(())
    }

    /// Writes one byte to page `page`: a fault if it is not there yet.
    #[inline]
    pub fn touch(&self, page: usize) {
        assert!(self.mapped && page < self.pages(), "touch beyond the region");
        let byte = (self.start + page * PAGE) as *mut u8;
        // SAFETY: inside the region (asserted), which is mapped writable and owned by this value; one byte written
        // by concurrent callers would be the same byte, and callers keep to pages of their own.
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
        assert!(self.mapped, "the region is gone");
        let is_marked = |page: &usize| {
            let byte = (self.start + page * PAGE) as *const u8;
            // SAFETY: inside the region, which is mapped readable and owned by this value.
            unsafe { byte.read_volatile() == mark(*page) }
        };
        (0..self.pages()).filter(is_marked).count() as u64
    }

    /// Clears the whole region folio by folio, each of `folio` bytes (a divisor of the region) from its last page to
    /// its first, with the string instruction: the order in which Linux, up to 6.18, clears a folio that is
    /// faulted in at its start. The order matters: machines are known where going up takes less than half the time.
    pub fn clear_as_linux(&mut self, folio: usize) {
        let fits = folio > 0 && folio.is_multiple_of(PAGE) && self.bytes.is_multiple_of(folio);
        assert!(self.mapped && fits, "folios that do not fill the region");
        for start in (self.start..self.start + self.bytes).step_by(folio) {
            for page in (start..start + folio).step_by(PAGE).rev() {
                // SAFETY: writes one page inside the region (asserted: whole folios fill it, whole pages fill a
                // folio), which is mapped writable and exclusively borrowed; the direction flag is clear by the ABI.
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
        // SAFETY: mapped readable and writable for `bytes` bytes, initialised (zero on demand), and the exclusive
        // borrow of `self` lasts as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.bytes) }
    }

    /// Unmaps the region in one call; afterwards it can only be dropped.
    ///
    /// # Errors
    /// Those of `munmap`; the region is then still mapped.
    pub fn unmap(&mut self) -> io::Result<()> {
        assert!(self.mapped, "unmapped twice");
        // SAFETY: the range is owned by this value, no reference into it is alive (exclusive borrow), and no other
        // method accepts it any more once `mapped` is false.
        unsafe { munmap(self.start as *mut c_void, self.bytes)? };
        self.mapped = false;
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
            // SAFETY: these ranges were reserved by `map` and belong to this value alone; what `unmap` gave back is
            // left out, since another mapping may stand there by now.
            if let Err(error) = unsafe { munmap(start as *mut c_void, bytes) } {
                eprintln!("quire: cannot unmap {bytes} bytes: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
