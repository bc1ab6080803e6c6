//! `/proc/PID/pagemap`, `/proc/kpagecount` and `/proc/kpageflags`: files of words of 64 bits, one for each page.

use core::fmt;

use quire::addr::{Frame, FrameRange, VirtAddr, VirtRange};
use quire::manager::MemoryManager;
use quire::platform::Platform;
use quire::vm::Mm;

const WORD: u64 = 8;

/// The offset or the number of bytes is no multiple of 8 (`EINVAL`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unaligned;

impl fmt::Display for Unaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the offset or the number of bytes is no multiple of 8")
    }
}

impl core::error::Error for Unaligned {}

/// Reads `/proc/PID/pagemap` from a byte offset; returns how many bytes it read: fewer than there is room for only
/// at the end of the file, which is that of the addresses that programs can use.
///
/// # Errors
/// [`Unaligned`].
pub fn read_pagemap<P: Platform>(mm: &Mm<'_, P>, offset: u64, bytes: &mut [u8]) -> Result<usize, Unaligned> {
    let end = mm.layout().user.end.page();
    read(offset, bytes, end, |from, words| {
        let range = VirtRange::new(VirtAddr(from << 12), VirtAddr((from + words.len() as u64) << 12));
        mm.pagemap(range, |addr, word| put(words, addr.page() - from, word.0));
    })
}

/// Reads `/proc/kpagecount`: how many leaves map each frame.
///
/// # Errors
/// [`Unaligned`].
pub fn read_kpagecount<P: Platform>(
    manager: &MemoryManager<'_, P>,
    offset: u64,
    bytes: &mut [u8],
) -> Result<usize, Unaligned> {
    read(offset, bytes, end_of_memory(manager), |from, words| {
        manager.kpagecount(FrameRange::new(Frame(from), words.len() as u64), |run, count| {
            (run.start.0..run.end().0).for_each(|frame| put(words, frame - from, count));
        });
    })
}

/// Reads `/proc/kpageflags`: the use of each frame.
///
/// # Errors
/// [`Unaligned`].
pub fn read_kpageflags<P: Platform>(
    manager: &MemoryManager<'_, P>,
    offset: u64,
    bytes: &mut [u8],
) -> Result<usize, Unaligned> {
    read(offset, bytes, end_of_memory(manager), |from, words| {
        manager.kpageflags(FrameRange::new(Frame(from), words.len() as u64), |run, flags| {
            (run.start.0..run.end().0).for_each(|frame| put(words, frame - from, flags.0));
        });
    })
}

/// The frame behind the last one of the machine.
fn end_of_memory<P: Platform>(manager: &MemoryManager<'_, P>) -> u64 {
    manager.pages().zone_info().map(|zone| zone.span.end().0).max().unwrap_or(0)
}

/// Fills `bytes` with zeroes as far as there are words, then lets `fill` put words; it gets the first word's number.
fn read(
    offset: u64,
    bytes: &mut [u8],
    end: u64,
    fill: impl FnOnce(u64, &mut [[u8; WORD as usize]]),
) -> Result<usize, Unaligned> {
    if !offset.is_multiple_of(WORD) || !(bytes.len() as u64).is_multiple_of(WORD) {
        return Err(Unaligned);
    }
    let (words, _) = bytes.as_chunks_mut();
    let from = offset / WORD;
    let count = end.saturating_sub(from).min(words.len() as u64) as usize;
    let words = &mut words[..count];
    words.fill([0; WORD as usize]);
    if count > 0 {
        fill(from, words);
    }
    Ok(count * WORD as usize)
}

fn put(words: &mut [[u8; WORD as usize]], at: u64, word: u64) {
    if let Some(slot) = words.get_mut(at as usize) {
        *slot = word.to_ne_bytes();
    }
}
