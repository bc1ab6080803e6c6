//! Memory accesses of the software MMU, to page-table entries and data: always atomic (H4), because the
//! library and other CPUs may use the same bytes at any time, as on hardware.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use quire::addr::PhysAddr;

use super::layout::ENTRIES;
use crate::arena::Arena;

const WORD: usize = size_of::<u64>();

impl Arena {
    /// Entry `index` of the page table at `frame`, if that frame is memory.
    pub(super) fn table_entry(&self, frame: u64, index: u64) -> Option<&AtomicU64> {
        assert!(index < ENTRIES);
        let addr = PhysAddr((frame << 12) + index * WORD as u64);
        if !self.contains(addr) {
            return None;
        }
        // SAFETY: the entry lies in a range, which is mapped for as long as `self` lives (H1); it is aligned to 8 bytes
        // as frames are to 4096. The library's accesses to page tables that a walker may reach are atomic too.
        Some(unsafe { AtomicU64::from_ptr(self.direct_map(addr).cast()) })
    }

    /// Whether all `count` frames from `frame` are memory of one range.
    pub(crate) fn contains_frames(&self, frame: u64, count: u64) -> bool {
        let start = PhysAddr(frame << 12);
        let after = self.ranges().partition_point(|range| range.start <= start);
        after > 0 && (frame + count) << 12 <= self.ranges()[after - 1].end().0
    }

    /// Byte `at` bytes behind `addr`, as an atomic.
    fn byte(&self, addr: PhysAddr) -> &AtomicU8 {
        assert!(self.contains(addr));
        // SAFETY: the byte lies in a range, which is mapped for as long as `self` lives (H1).
        unsafe { AtomicU8::from_ptr(self.direct_map(addr)) }
    }

    /// The aligned word at `addr`, as an atomic.
    pub(crate) fn word(&self, addr: PhysAddr) -> &AtomicU64 {
        assert!(addr.0.is_multiple_of(WORD as u64) && self.contains(addr));
        // SAFETY: H1: the word's first byte lies in a range, and ranges consist of whole frames, so the rest of the aligned
        // word is memory too.
        unsafe { AtomicU64::from_ptr(self.direct_map(addr).cast()) }
    }

    /// Reads bytes within one frame.
    pub(crate) fn load(&self, addr: PhysAddr, bytes: &mut [u8]) {
        let (head, body, tail) = split(addr, bytes.len());
        let mut at = addr.0;
        for byte in &mut bytes[..head] {
            *byte = self.byte(PhysAddr(at)).load(Ordering::Relaxed);
            at += 1;
        }
        for word in bytes[head..head + body].chunks_exact_mut(WORD) {
            word.copy_from_slice(&self.word(PhysAddr(at)).load(Ordering::Relaxed).to_ne_bytes());
            at += WORD as u64;
        }
        for byte in bytes.iter_mut().rev().take(tail).rev() {
            *byte = self.byte(PhysAddr(at)).load(Ordering::Relaxed);
            at += 1;
        }
    }

    /// Writes bytes within one frame.
    pub(crate) fn store(&self, addr: PhysAddr, bytes: &[u8]) {
        let (head, body, tail) = split(addr, bytes.len());
        let mut at = addr.0;
        for &byte in &bytes[..head] {
            self.byte(PhysAddr(at)).store(byte, Ordering::Relaxed);
            at += 1;
        }
        for word in bytes[head..head + body].as_chunks::<WORD>().0 {
            self.word(PhysAddr(at)).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            at += WORD as u64;
        }
        for &byte in &bytes[bytes.len() - tail..] {
            self.byte(PhysAddr(at)).store(byte, Ordering::Relaxed);
            at += 1;
        }
    }
}

/// How many of `len` bytes come before the first aligned word, in whole words, and after the last.
fn split(addr: PhysAddr, len: usize) -> (usize, usize, usize) {
    let head = (addr.0 as usize).wrapping_neg() % WORD;
    let head = head.min(len);
    let body = (len - head) / WORD * WORD;
    (head, body, len - head - body)
}
