//! The bytes of cached pages, for `read(2)` and `write(2)`.
//!
//! All access is atomic, word by word: programs that map a page may load and store at the same time. A word
//! of which only a part is written is exchanged, so that a program's store to the other part is not lost.
#![forbid(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::FileTable;
use super::file::FileUse;
use crate::addr::Frame;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::tlb::words::words;

const WORD: usize = size_of::<u64>();
const ZEROES: &[u8; FRAME_SIZE as usize] = &[0; FRAME_SIZE as usize];

/// A page of a file, as a reader finds it.
pub(crate) enum PageLookup {
    /// It is in memory, in this frame.
    Present(Frame),
    /// Its contents are lost.
    Lost,
    /// It is not in memory.
    Missing,
}

impl FileTable {
    /// Looks a page up without bringing it in. Waits while it is busy. While `file` lives, the frame stays
    /// the page's. A page that is being cut off is missing.
    pub(crate) fn peek<P: Platform>(&self, platform: &P, file: &FileUse<'_>, index: u64) -> PageLookup {
        loop {
            let found = file.node().pages.lock(platform).get(index);
            match found.filter(|_| !file.node().is_cut_off(index)) {
                None => return PageLookup::Missing,
                Some(page) if page.is_lost() => return PageLookup::Lost,
                Some(page) if !page.is_busy() => return PageLookup::Present(page.frame()),
                Some(_) => platform.relax(),
            }
        }
    }

    /// Copies bytes of a frame that the page cache holds. `at` and the length lie in one frame.
    pub(crate) fn read_frame<P: Platform>(&self, platform: &P, frame: Frame, at: usize, bytes: &mut [u8]) {
        let words = words(platform, frame);
        let inside = at % WORD;
        let (first, rest) = bytes.split_at_mut(((WORD - inside) % WORD).min(bytes.len()));
        if !first.is_empty() {
            first.copy_from_slice(&load(&words[at / WORD])[inside..][..first.len()]);
        }
        let mut words = words[(at + first.len()) / WORD..].iter();
        let (whole, last) = rest.as_chunks_mut();
        whole.iter_mut().zip(words.by_ref()).for_each(|(part, word)| *part = load(word));
        if let Some(word) = words.next() {
            last.copy_from_slice(&load(word)[..last.len()]);
        }
    }

    /// Replaces bytes of a frame that the page cache holds. `at` and the length lie in one frame.
    pub(crate) fn write_frame<P: Platform>(&self, platform: &P, frame: Frame, at: usize, bytes: &[u8]) {
        let words = words(platform, frame);
        let mut rest = bytes;
        let mut at = at;
        while !rest.is_empty() {
            let (word, inside) = (&words[at / WORD], at % WORD);
            let (part, behind) = rest.split_at((WORD - inside).min(rest.len()));
            store(word, inside, part);
            at += part.len();
            rest = behind;
        }
    }

    /// Clears a range of bytes of a frame that the page cache holds.
    pub(crate) fn clear_in_frame<P: Platform>(&self, platform: &P, frame: Frame, bytes: Range<usize>) {
        self.write_frame(platform, frame, bytes.start, &ZEROES[bytes]);
    }
}

fn load(word: &AtomicU64) -> [u8; WORD] {
    word.load(Ordering::Relaxed).to_ne_bytes()
}

/// Replaces the bytes of a word from `inside` on.
fn store(word: &AtomicU64, inside: usize, part: &[u8]) {
    if let Ok(whole) = part.try_into() {
        return word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
    }
    let change = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes[inside..][..part.len()].copy_from_slice(part);
        u64::from_ne_bytes(bytes)
    };
    // A closure that always gives a value cannot fail.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(change(old)));
}
