//! Telling the processor what is about to be read or written.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for the lines of `bytes` bytes from `start` on, which are about to be read. A hint: nothing is read,
/// whatever is there.
#[inline]
pub fn expect_reads(start: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        let line = start.wrapping_add(line);
        #[cfg(miri)]
        let _ = line;
        #[cfg(not(miri))]
        // SAFETY: K1: the instruction (AMD64 manual, volume 3, PREFETCHlevel) changes nothing but caches, at
        // any address.
        unsafe {
            core::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
    }
}

/// Asks for the lines of `bytes` bytes from `start` on, which are about to be changed. A hint: nothing is
/// read or written, whatever is there.
#[inline]
pub fn expect_changes(start: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        let line = start.wrapping_add(line);
        #[cfg(miri)]
        let _ = line;
        #[cfg(not(miri))]
        // SAFETY: K1: the instruction (AMD64 manual, volume 3, PREFETCHW) changes nothing but caches, at any
        // address.
        unsafe {
            core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
    }
}
