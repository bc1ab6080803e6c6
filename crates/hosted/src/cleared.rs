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
use crate::machine::Hosted;

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

    /// These frames are zero from now on.
    fn set(&self, frames: FrameRange) {
        for frame in frames.start.0..frames.end().0 {
            let (word, bit) = self.bit(frame);
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// These frames were stored to.
    fn written(&self, frames: FrameRange) {
        for frame in frames.start.0..frames.end().0 {
            let (word, bit) = self.bit(frame);
            if word.load(Ordering::Relaxed) & bit != 0 {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    fn is_set(&self, frame: u64) -> bool {
        let (word, bit) = self.bit(frame);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// These frames are about to be cleared.
    fn cleared(&self, arena: &Arena, frames: FrameRange) {
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
fn is_zero(arena: &Arena, frame: u64) -> bool {
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

impl Hosted {
    /// Counts a clear that comes next; returns its bytes.
    pub(crate) fn count_clear(&self, frames: FrameRange) -> u64 {
        let bytes = frames.count * FRAME_SIZE;
        self.own_counters().bytes_cleared.add(bytes);
        if let Some(ledger) = &self.ledger {
            ledger.cleared(&self.arena, frames);
        }
        bytes
    }

    /// The same for a copy to these frames.
    pub(crate) fn count_copy(&self, to: FrameRange) -> u64 {
        let bytes = to.count * FRAME_SIZE;
        self.own_counters().bytes_copied.add(bytes);
        self.count_store(to);
        bytes
    }

    /// Frames are stored to.
    pub(crate) fn count_store(&self, to: FrameRange) {
        if let Some(ledger) = &self.ledger {
            ledger.written(to);
        }
    }

    /// Memory is known to be zero, as firmware may promise it.
    ///
    /// # Panics
    /// When the frames are no memory of this machine.
    pub fn promise_zeroes(&self, frames: FrameRange) {
        assert!(self.arena.holds(frames), "{frames:?} is no memory of this machine");
        if let Some(ledger) = &self.ledger {
            ledger.set(frames);
        }
    }

    /// Frames that were cleared although they were still zero from an earlier clear, on a machine that
    /// [watches](crate::HostedConfig::watch_clears) them.
    pub fn frames_cleared_again(&self) -> u64 {
        self.ledger.as_ref().map_or(0, |ledger| ledger.again.load(Ordering::Relaxed))
    }

    /// How many of these frames were cleared, or promised to be zero, and still are.
    pub fn frames_still_zero(&self, frames: FrameRange) -> u64 {
        let Some(ledger) = &self.ledger else { return 0 };
        // Whole blocks that the host has not populated are asked for once.
        let still = |run: FrameRange| {
            let populated = self.arena.is_populated(run.start.addr(), run.count * FRAME_SIZE);
            let zero = |frame| !populated || is_zero(&self.arena, frame);
            (run.start.0..run.end().0).filter(|&frame| ledger.is_set(frame) && zero(frame)).count() as u64
        };
        frames.by_block().map(still).sum()
    }

    /// Takes the list of frames that were cleared again, the first 256 runs of them, and puts their count to zero.
    pub fn take_cleared_again(&self) -> Vec<ClearedAgain> {
        let Some(ledger) = &self.ledger else { return Vec::new() };
        ledger.again.store(0, Ordering::Relaxed);
        std::mem::take(&mut ledger.found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
