//! Reads the ring that the kernel fills with records of one CPU.
//!
//! The only shared memory of the recorder: one page of control words, then the data, a power of two of bytes.
//! The kernel moves `data_head`, the recorder `data_tail`; the kernel never writes between tail and head.

use std::os::fd::AsRawFd;
use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use perf_event_open_sys::bindings::perf_event_mmap_page;

const PAGE: usize = 4096;

/// Every record starts with its type (4 bytes), misc bits (2) and its whole size (2).
pub(super) const RECORD_HEADER: usize = 8;

/// The reader frees ring space for the kernel after at most this many bytes.
const GIVE_BACK: u64 = 256 * 1024;

/// A ring of records.
pub(super) struct Ring {
    map: MmapRaw,
    size: u64,
    /// Buffer for a record that wraps around the end.
    scratch: Vec<u8>,
}

impl Ring {
    /// Maps the ring of a perf event; `bytes` is a power of two of at least a page.
    pub(super) fn map(event: &impl AsRawFd, bytes: usize) -> std::io::Result<Ring> {
        assert!(bytes.is_power_of_two() && bytes >= PAGE);
        let map = MmapOptions::new().len(PAGE + bytes).map_raw(event.as_raw_fd())?;
        Ok(Ring { map, size: bytes as u64, scratch: Vec::new() })
    }

    /// Calls `each` with every waiting record, oldest first. Returns their bytes.
    pub(super) fn drain(&mut self, mut each: impl FnMut(&[u8])) -> u64 {
        let control = self.map.as_mut_ptr().cast::<perf_event_mmap_page>();
        // SAFETY: C4: the mapping starts with this page, is page-aligned and lives as long as `self`; the kernel
        // writes the head and reads the tail as whole words at any time, so both are accessed as atomics only.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(addr_of_mut!((*control).data_head)),
                AtomicU64::from_ptr(addr_of_mut!((*control).data_tail)),
            )
        };
        // Acquire: the records up to the head are written before it.
        let end = head.load(Ordering::Acquire);
        let mut position = tail.load(Ordering::Relaxed);
        let (start, mut given_back) = (position, position);
        while position < end {
            let available = end - position;
            let header: [u8; RECORD_HEADER] =
                Self::bytes(&self.map, self.size, position, RECORD_HEADER as u64)
                    .and_then(|bytes| bytes.try_into().ok())
                    .expect("records are aligned to eight bytes, so that no header wraps");
            let length = u64::from(u16::from_le_bytes([header[6], header[7]]));
            if length < RECORD_HEADER as u64 || length > available {
                // Not a record of the kernel; skipping to the head is all that can be done.
                position = end;
                break;
            }
            match Self::bytes(&self.map, self.size, position, length) {
                Some(record) => each(record),
                None => {
                    let first = self.size - position % self.size;
                    self.scratch.clear();
                    for (from, count) in [(position, first), (position + first, length - first)] {
                        self.scratch.extend_from_slice(
                            Self::bytes(&self.map, self.size, from, count).unwrap_or_default(),
                        );
                    }
                    each(&self.scratch);
                }
            }
            position += length;
            if position - given_back >= GIVE_BACK {
                tail.store(position, Ordering::Release);
                given_back = position;
            }
        }
        // Release: the records are read before the kernel may overwrite them.
        tail.store(position, Ordering::Release);
        position - start
    }

    /// The bytes at a position between tail and head, unless they wrap around the end.
    fn bytes(map: &MmapRaw, size: u64, position: u64, count: u64) -> Option<&[u8]> {
        let offset = position % size;
        if offset + count > size {
            return None;
        }
        // SAFETY: C4: data starts at the second page and has `size` bytes, and `offset + count` is within them;
        // the kernel does not write between tail and head, and the tail is moved only after the slice is gone.
        Some(unsafe { std::slice::from_raw_parts(map.as_ptr().add(PAGE + offset as usize), count as usize) })
    }
}
