//! Reads the ring that the programs of one CPU fill.
//!
//! The kernel maps it as three parts: a page with the place up to which the reader has read, a page with the
//! place up to which programs have written, and the data twice in a row, so that no record is in two pieces.
//! Each record has a word with its length, another, and its bytes, a multiple of eight.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::sys;

const PAGE: usize = 4096;
const HEADER: u64 = 8;

/// Bits of a record's length.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// A ring.
pub(super) struct Ring {
    pub(super) descriptor: OwnedFd,
    read: MmapRaw,
    written: MmapRaw,
    bytes: usize,
}

impl Ring {
    /// Makes one; `bytes` is a power of two of at least a page.
    pub(super) fn make(bytes: usize) -> io::Result<Ring> {
        let entries = u32::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let map =
            sys::Map { name: "quire_ring", kind: sys::RING, key_bytes: 0, value_bytes: 0, entries, flags: 0 };
        let descriptor = map.make(None)?;
        let event = descriptor.as_raw_fd();
        let read = MmapOptions::new().len(PAGE).map_raw(event)?;
        let written =
            MmapOptions::new().offset(PAGE as u64).len(PAGE + 2 * bytes).map_raw_read_only(event)?;
        Ok(Ring { descriptor, read, written, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Calls `each` with every waiting record, oldest first. Returns their bytes.
    pub(super) fn drain(&mut self, mut each: impl FnMut(&[u8])) -> u64 {
        let (read, written) = (self.read.as_mut_ptr().cast(), self.written.as_mut_ptr().cast());
        // SAFETY: C4: each part begins with its place, is aligned to a page and lives as long as `self`; both
        // sides access the places as whole words.
        let (read, written) = unsafe { (AtomicU64::from_ptr(read), AtomicU64::from_ptr(written)) };
        let start = read.load(Ordering::Relaxed);
        let mut place = start;
        // Acquire: the lengths up to there are written before it.
        while place < written.load(Ordering::Acquire) {
            let offset = PAGE + place as usize % self.bytes;
            // SAFETY: C4: the data is mapped twice behind the page, so that a record that starts inside of
            // its first copy is inside of both. The kernel changes the length of a record as a whole word.
            let length = unsafe { AtomicU32::from_ptr(self.written.as_mut_ptr().add(offset).cast()) };
            // Acquire: the bytes are written before the record ceases to be busy.
            let length = length.load(Ordering::Acquire);
            if length & BUSY != 0 {
                break;
            }
            let bytes = (length & !DISCARDED) as usize;
            if bytes > self.bytes {
                // Not a record of the kernel.
                break;
            }
            if length & DISCARDED == 0 {
                // SAFETY: C4: a record is no longer than the ring, so it ends inside of the second copy. The
                // kernel writes no byte behind the place that was read and before the one that was written,
                // and the place moves on only when the slice is gone.
                each(unsafe {
                    std::slice::from_raw_parts(self.written.as_ptr().add(offset + HEADER as usize), bytes)
                });
            }
            place += (HEADER + bytes as u64).next_multiple_of(8);
            // Release: the record is read before programs may overwrite it.
            read.store(place, Ordering::Release);
        }
        place - start
    }
}
