//! Notices memory that is cleared although it is still zero from an earlier clear ([`HostedConfig::watch_clears`]).
//!
//! Each frame has a bit: known to be zero, and not stored to since. A clear sets it. A copy to the frame takes it away, and
//! so does a program's store, from all frames of its leaf: hardware sets one dirty bit for all of them. What the library
//! itself stores in free frames and tables is seen by their contents when they are cleared next. So memory whose words the
//! library has all put back to zero counts as still zero.
//!
//! [`HostedConfig::watch_clears`]: crate::HostedConfig::watch_clears

use std::backtrace::Backtrace;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use quire::addr::{FrameRange, PhysAddr};
use quire::limits::FRAME_SIZE;

use crate::arena::Arena;

/// Clears that are kept with their path; later ones are only counted.
const KEPT: usize = 256;

/// The library's functions that a path names, from the clear outwards.
const PATH: usize = 12;

/// Memory that was cleared although it was still zero from an earlier clear.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClearedAgain {
    /// Neighbours that one clear met.
    pub frames: FrameRange,
    /// The library's functions that led to the clear, the innermost first, as far as they were not inlined.
    pub path: String,
}

/// What is known of each frame, and what was cleared again.
pub(crate) struct Ledger {
    zero: Box<[AtomicU64]>,
    first: u64,
    again: AtomicU64,
    found: Mutex<Vec<ClearedAgain>>,
}

impl Ledger {
    /// Of frames up to the end of memory, none of which is known to be zero.
    pub(crate) fn new(first: u64, end: u64) -> Self {
        let words = (end - first).div_ceil(64);
        Self {
            zero: (0..words).map(|_| AtomicU64::new(0)).collect(),
            first,
            again: AtomicU64::new(0),
            found: Mutex::default(),
        }
    }

    fn bit(&self, frame: u64) -> (&AtomicU64, u64) {
        let index = frame - self.first;
        (&self.zero[(index / 64) as usize], 1 << (index % 64))
    }

    /// How many frames were cleared again since the last call of [`Self::take`].
    pub(crate) fn again(&self) -> u64 {
        self.again.load(Ordering::Relaxed)
    }

    /// Takes the list of them, and puts their count to zero.
    pub(crate) fn take(&self) -> Vec<ClearedAgain> {
        self.again.store(0, Ordering::Relaxed);
        std::mem::take(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// These frames are zero from now on.
    pub(crate) fn set(&self, frames: FrameRange) {
        for frame in frames.start.0..frames.end().0 {
            let (word, bit) = self.bit(frame);
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// These frames were stored to.
    pub(crate) fn written(&self, frames: FrameRange) {
        for frame in frames.start.0..frames.end().0 {
            let (word, bit) = self.bit(frame);
            if word.load(Ordering::Relaxed) & bit != 0 {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn is_set(&self, frame: u64) -> bool {
        let (word, bit) = self.bit(frame);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// These frames are about to be cleared.
    pub(crate) fn cleared(&self, arena: &Arena, frames: FrameRange) {
        let still = |frame: u64| self.is_set(frame) && is_zero(arena, frame);
        let (mut at, end) = (frames.start.0, frames.end().0);
        let mut path = None;
        while let Some(start) = (at..end).find(|&frame| still(frame)) {
            let stop = (start..end).find(|&frame| !still(frame)).unwrap_or(end);
            self.note(FrameRange::new(quire::addr::Frame(start), stop - start), &mut path);
            at = stop;
        }
        self.set(frames);
    }

    fn note(&self, frames: FrameRange, path: &mut Option<String>) {
        self.again.fetch_add(frames.count, Ordering::Relaxed);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() < KEPT {
            let path = path.get_or_insert_with(path_here).clone();
            found.push(ClearedAgain { frames, path });
        }
    }
}

/// Whether all of a frame is zero. Memory that the host has not populated is.
pub(crate) fn is_zero(arena: &Arena, frame: u64) -> bool {
    let start = PhysAddr(frame * FRAME_SIZE);
    let word = |at: u64| arena.word(PhysAddr(start.0 + at)).load(Ordering::Relaxed);
    !arena.is_populated(start, FRAME_SIZE) || (0..FRAME_SIZE).step_by(8).all(|at| word(at) == 0)
}

/// The library's functions on the stack, the innermost first.
fn path_here() -> String {
    let all = Backtrace::force_capture().to_string();
    let names = all.lines().filter_map(|line| line.trim().split_once(": ")).map(|(_, name)| name);
    let own = names.filter(|name| name.contains("quire::") && !name.contains("hosted::"));
    Vec::from_iter(own.take(PATH)).join(" < ")
}
