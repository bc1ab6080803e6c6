//! Prefetches: hints of what the CPU is about to read or write.

const LINE: usize = 64;

/// Prefetches the lines of `bytes` bytes from `start` on, to be read soon. A hint, valid for any address.
#[inline]
pub fn expect_reads(start: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        let line = start.wrapping_add(line);
        #[cfg(miri)]
        let _ = line;
        #[cfg(not(miri))]
        // SAFETY: K1: PREFETCHlevel (AMD64 manual, volume 3) changes only caches, at any address.
        unsafe {
            core::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
    }
}

/// Prefetches the lines of `bytes` bytes from `start` on, to be changed soon. A hint, valid for any address.
#[inline]
pub fn expect_changes(start: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(LINE) {
        let line = start.wrapping_add(line);
        #[cfg(miri)]
        let _ = line;
        #[cfg(not(miri))]
        // SAFETY: K1: PREFETCHW (AMD64 manual, volume 3) changes only caches, at any address.
        unsafe {
            core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
    }
}
