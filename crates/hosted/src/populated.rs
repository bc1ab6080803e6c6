//! Which memory the host has populated. Elsewhere no page stands yet, or only the host's page of zeroes.

#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// `struct pm_scan_arg` of Linux 6.7: `ioctl_pagemap_scan` in the kernel's documentation of `pagemap`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    found: u64,
    found_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO_PAGE: u64 = 1 << 5;

const SCAN: Opcode = opcode::read_write::<Scan>(b'f', 16);

/// What is known of a range of anonymous memory.
pub(crate) struct Populated {
    pagemap: File,
    /// Blocks of 2 MiB that have memory of the host. They keep it, so the host is not asked again.
    known: Box<[AtomicBool]>,
}

impl Populated {
    /// For this many bytes; `None` when the host tells nothing.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let pagemap = File::open("/proc/self/pagemap").ok()?;
        let blocks = bytes.div_ceil(2 << 20);
        Some(Self { pagemap, known: (0..blocks).map(|_| AtomicBool::new(false)).collect() })
    }

    /// Whether the host has populated any of this memory, which begins in this block. `true` if it does not tell.
    pub(crate) fn any(&self, block: u64, memory: Range<u64>) -> bool {
        let known = &self.known[block as usize];
        let any = known.load(Ordering::Relaxed) || self.ask(memory).unwrap_or(true);
        if any {
            known.store(true, Ordering::Relaxed);
        }
        any
    }

    /// Whether there is any page other than the page of zeroes.
    fn ask(&self, memory: Range<u64>) -> rustix::io::Result<bool> {
        let mut region = Region::default();
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: memory.start,
            end: memory.end,
            found: (&raw mut region).expose_provenance() as u64,
            found_len: 1,
            max_pages: 1,
            category_inverted: ZERO_PAGE,
            category_mask: ZERO_PAGE,
            category_anyof_mask: PRESENT | SWAPPED,
            return_mask: PRESENT | SWAPPED,
            ..Scan::default()
        };
        // SAFETY: H8: the call reads and writes the two structures, which live until it returns, and nothing else.
        unsafe { ioctl(&self.pagemap, Updater::<SCAN, Scan>::new(&mut scan)) }?;
        Ok(region.end != 0)
    }
}
