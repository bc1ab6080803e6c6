//! Map counts of the 512 frames of a block, side by side: how many 4 KiB leaves map each frame.
//!
//! Counts change a run at a time, eight lanes to a word, under the block's lock. A count is one byte; the
//! rare block with a frame that more than 255 leaves map is *widened* to 32-bit lanes, in a place of their
//! own. Nothing here allocates: a full byte is an error, upon which the caller widens and tries again. The
//! word-wise arithmetic needs no vector registers, so a kernel that does not save them benefits too.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::bitmap::{Bitmap, FrameMask};
use crate::addr::PhysAddr;
use crate::limits::BLOCK_FRAMES;
use crate::platform::FramePlatform;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = LOW << 7;

/// Why a run of counts was not changed. Nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneError {
    /// A count would pass 255: widen the lanes and try again.
    Full,
    /// A count would fall below zero: a leaf was counted twice.
    Underflow,
}

/// How large a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LaneWidth {
    /// A byte.
    Narrow = 0,
    /// Four bytes.
    Wide = 1,
    /// A bit. Only blocks of folios of whole blocks have them.
    Bits = 2,
    /// Four bytes every 64, changed without a lock (`CountScheme::PerFrame`).
    #[cfg(feature = "published")]
    Cells = 3,
}

/// A count that has a cache line to itself.
#[cfg(feature = "published")]
#[repr(align(64))]
pub struct CountCell(pub(super) AtomicU32);

/// The lanes of one block, under its lock.
#[derive(Clone, Copy)]
pub enum Lanes<'a> {
    /// One bit each, so no frame is counted twice.
    Bits(&'a Bitmap),
    /// One cell every 64 bytes, as far apart as page descriptors.
    #[cfg(feature = "published")]
    Cells(&'a [CountCell; BLOCK_FRAMES]),
    /// One byte each, eight to a word, lane 0 in the lowest byte.
    Narrow(&'a [AtomicU64; BLOCK_FRAMES / 8]),
    /// Four bytes each.
    Wide(&'a [AtomicU32; BLOCK_FRAMES]),
}

impl<'a> Lanes<'a> {
    pub(crate) const NARROW_BYTES: usize = BLOCK_FRAMES;
    pub(crate) const WIDE_BYTES: usize = BLOCK_FRAMES * 4;

    /// The lanes at `at`.
    ///
    /// # Safety
    /// `at` holds a block's lanes of that width, aligned to 64 bytes, and does so for `'a`.
    pub unsafe fn at<P: FramePlatform>(platform: &P, at: PhysAddr, width: LaneWidth) -> Self {
        let pointer = platform.direct_map(at);
        // SAFETY: M3: by this function's contract lanes of that width stand there, and all lanes are atomics.
        unsafe {
            match width {
                LaneWidth::Narrow => Self::Narrow(&*pointer.cast()),
                LaneWidth::Wide => Self::Wide(&*pointer.cast()),
                LaneWidth::Bits => Self::Bits(&*pointer.cast()),
                #[cfg(feature = "published")]
                LaneWidth::Cells => Self::Cells(&*pointer.cast()),
            }
        }
    }

    /// How many bytes of lanes of a width must be zero at first. Bits occupy the room of narrow lanes.
    pub const fn bytes(width: LaneWidth) -> usize {
        match width {
            LaneWidth::Narrow => Self::NARROW_BYTES,
            LaneWidth::Wide => Self::WIDE_BYTES,
            LaneWidth::Bits => size_of::<Bitmap>(),
            #[cfg(feature = "published")]
            LaneWidth::Cells => BLOCK_FRAMES * size_of::<CountCell>(),
        }
    }

    /// Sets a count that fits into a lane.
    pub(super) fn set(self, index: usize, count: u32) {
        match self {
            Self::Bits(bits) if count == 0 => bits.remove_run(index, 1),
            Self::Bits(bits) => bits.insert_run(index, 1),
            Self::Narrow(words) => {
                let (word, shift) = (&words[index / 8], index % 8 * 8);
                debug_assert!(count <= 0xff, "a count does not fit");
                let others = load(word) & !(0xff << shift);
                word.store(others | u64::from(count) << shift, Ordering::Relaxed);
            }
            Self::Wide(lanes) => lanes[index].store(count, Ordering::Relaxed),
            #[cfg(feature = "published")]
            Self::Cells(cells) => cells[index].0.store(count, Ordering::Relaxed),
        }
    }

    /// The count of one frame.
    #[inline]
    pub fn get(self, index: usize) -> u32 {
        match self {
            Self::Narrow(words) => {
                (words[index / 8].load(Ordering::Relaxed) >> (index % 8 * 8)) as u32 & 0xff
            }
            Self::Wide(lanes) => lanes[index].load(Ordering::Relaxed),
            Self::Bits(bits) => bits.contains(index).into(),
            #[cfg(feature = "published")]
            Self::Cells(cells) => cells[index].0.load(Ordering::Relaxed),
        }
    }

    /// Adds one to the counts of `start .. start + count`. Returns whether one of them was zero.
    ///
    /// # Errors
    /// [`LaneError::Full`]; only narrow lanes can be full.
    #[inline]
    pub fn increment(self, start: usize, count: usize) -> Result<bool, LaneError> {
        match self {
            Self::Narrow(words) if count == 1 => {
                let (word, shift) = (&words[start / 8], start % 8 * 8);
                let lanes = load(word);
                let before = lanes >> shift & 0xff;
                if before == 0xff {
                    return Err(LaneError::Full);
                }
                word.store(lanes + (1 << shift), Ordering::Relaxed);
                Ok(before == 0)
            }
            Self::Narrow(words) => increment_narrow(words, start, count),
            Self::Wide(lanes) => {
                let mut fresh = false;
                for lane in &lanes[start..start + count] {
                    let before = lane.load(Ordering::Relaxed);
                    fresh |= before == 0;
                    lane.store(before + 1, Ordering::Relaxed);
                }
                Ok(fresh)
            }
            // Code that counts in bits checks first that they are clear.
            Self::Bits(_) => Err(LaneError::Full),
            #[cfg(feature = "published")]
            Self::Cells(_) => Err(LaneError::Full),
        }
    }

    /// Subtracts one from the counts of a run, and adds the frames that reach zero to `zeroed`.
    ///
    /// # Errors
    /// [`LaneError::Underflow`].
    #[inline]
    pub(crate) fn decrement(
        self,
        start: usize,
        count: usize,
        zeroed: &mut FrameMask,
    ) -> Result<(), LaneError> {
        match self {
            Self::Narrow(words) => decrement_narrow(words, start, count, zeroed),
            Self::Wide(lanes) => decrement_wide(lanes, start, count, zeroed),
            Self::Bits(_) => self.decrement_each(FrameMask::run(start, count), zeroed),
            #[cfg(feature = "published")]
            Self::Cells(_) => Err(LaneError::Underflow),
        }
    }

    /// Subtracts one from the count of one frame; returns whether it is zero now.
    ///
    /// # Errors
    /// [`LaneError::Underflow`].
    #[inline]
    pub(crate) fn decrement_one(self, index: usize) -> Result<bool, LaneError> {
        let (before, at, shift) = (self.get(index), index / 8, index % 8 * 8);
        match self {
            _ if before == 0 => return Err(LaneError::Underflow),
            Self::Narrow(words) => words[at].store(load(&words[at]) - (1 << shift), Ordering::Relaxed),
            _ => self.set(index, before - 1),
        }
        Ok(before == 1)
    }

    /// As [`Self::decrement`], for any frames.
    ///
    /// # Errors
    /// [`LaneError::Underflow`].
    pub(crate) fn decrement_each(self, frames: FrameMask, zeroed: &mut FrameMask) -> Result<(), LaneError> {
        match self {
            Self::Bits(bits) => {
                if !frames.without(bits.load()).is_empty() {
                    return Err(LaneError::Underflow);
                }
                bits.store(bits.load().without(frames));
                *zeroed = zeroed.union(frames);
                Ok(())
            }
            #[cfg(feature = "published")]
            Self::Cells(_) => Err(LaneError::Underflow),
            Self::Narrow(words) => decrement_narrow_each(words, frames, zeroed),
            Self::Wide(lanes) => {
                if frames.runs().any(|(start, count)| {
                    lanes[start..start + count].iter().any(|lane| lane.load(Ordering::Relaxed) == 0)
                }) {
                    return Err(LaneError::Underflow);
                }
                frames.runs().try_for_each(|(start, count)| decrement_wide(lanes, start, count, zeroed))
            }
        }
    }

    /// The frames of the group `group` of 64 whose count is one.
    #[inline]
    pub fn ones(self, group: usize) -> u64 {
        match self {
            Self::Narrow(words) => (0..8)
                .fold(0, |ones, word| ones | zero_lanes(load(&words[group * 8 + word]) ^ LOW) << (word * 8)),
            Self::Wide(lanes) => (0..64).fold(0, |ones, at| {
                ones | u64::from(lanes[group * 64 + at].load(Ordering::Relaxed) == 1) << at
            }),
            Self::Bits(bits) => bits.word(group),
            #[cfg(feature = "published")]
            Self::Cells(_) => {
                (0..64).fold(0, |ones, at| ones | u64::from(self.get(group * 64 + at) == 1) << at)
            }
        }
    }

    /// Whether any frame's count is not zero.
    #[inline]
    pub fn any(self) -> bool {
        match self {
            Self::Narrow(words) => words.iter().fold(0, |all, word| all | load(word)) != 0,
            Self::Wide(lanes) => lanes.iter().fold(0, |all, lane| all | lane.load(Ordering::Relaxed)) != 0,
            Self::Bits(bits) => !bits.load().is_empty(),
            #[cfg(feature = "published")]
            Self::Cells(_) => !self.nonzero().is_empty(),
        }
    }

    pub(crate) fn nonzero(self) -> FrameMask {
        let mut mask = FrameMask::EMPTY;
        match self {
            Self::Narrow(words) => {
                for (word, lanes) in words.iter().enumerate() {
                    let zero = zero_lanes(lanes.load(Ordering::Relaxed));
                    mask.0[word / 8] |= (zero ^ 0xff) << (word % 8 * 8);
                }
            }
            Self::Wide(lanes) => {
                for (index, lane) in lanes.iter().enumerate() {
                    mask.0[index / 64] |= u64::from(lane.load(Ordering::Relaxed) != 0) << (index % 64);
                }
            }
            Self::Bits(bits) => mask = bits.load(),
            #[cfg(feature = "published")]
            Self::Cells(cells) => {
                for (index, cell) in cells.iter().enumerate() {
                    mask.0[index / 64] |= u64::from(cell.0.load(Ordering::Relaxed) != 0) << (index % 64);
                }
            }
        }
        mask
    }

    pub(crate) fn copy_to(self, wide: &[AtomicU32; BLOCK_FRAMES]) {
        (0..BLOCK_FRAMES).for_each(|index| wide[index].store(self.get(index), Ordering::Relaxed));
    }
}

#[inline(always)]
fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Only the first and the last word need masks.
#[inline]
fn increment_narrow(
    words: &[AtomicU64; BLOCK_FRAMES / 8],
    start: usize,
    count: usize,
) -> Result<bool, LaneError> {
    let Some(last) = (start + count).checked_sub(1).map(|last| last / 8).filter(|_| count > 0) else {
        return Ok(false);
    };
    let first = start / 8;
    let from = LOW << (start % 8 * 8);
    let upto = LOW >> ((7 - (start + count - 1) % 8) * 8);
    let edges = if first == last { [(first, from & upto), (last, 0)] } else { [(first, from), (last, upto)] };
    let body = &words[(first + 1).min(last)..last];
    let (mut any, mut fresh) = (0, 0);
    for word in body.iter().map(load) {
        any |= word;
        fresh |= word.wrapping_sub(LOW) & !word;
    }
    let mut full = any & HIGH != 0 && body.iter().any(|word| has_zero_lane(!load(word)));
    for (word, ones) in edges {
        let lanes = load(&words[word]);
        full |= has_zero_lane(!lanes | !(ones * 0xff));
        fresh |= u64::from(has_zero_lane(lanes | !(ones * 0xff))) << 63;
    }
    if full {
        return Err(LaneError::Full);
    }
    body.iter().for_each(|word| word.store(load(word) + LOW, Ordering::Relaxed));
    edges.iter().for_each(|&(word, ones)| words[word].store(load(&words[word]) + ones, Ordering::Relaxed));
    Ok(fresh & HIGH != 0)
}

fn decrement_narrow(
    words: &[AtomicU64; BLOCK_FRAMES / 8],
    start: usize,
    count: usize,
    zeroed: &mut FrameMask,
) -> Result<(), LaneError> {
    let zero = |(word, ones): (usize, u64)| has_zero_lane(load(&words[word]) | !(ones * 0xff));
    // In the usual case 64 frames in a row are mapped once, and eight stores set all of their counts to zero.
    let singles =
        |group: usize| words[group * 8..][..8].iter().fold(0, |all, word| all | load(word) ^ LOW) == 0;
    let mut all_single = [false; BLOCK_FRAMES / 64];
    for (first, len) in group_pieces(start, count) {
        all_single[first / 64] = len == 64 && singles(first / 64);
        if !all_single[first / 64] && words_of(first, len).any(zero) {
            return Err(LaneError::Underflow);
        }
    }
    for (first, len) in group_pieces(start, count) {
        let group = first / 64;
        if all_single[group] {
            words[group * 8..][..8].iter().for_each(|word| word.store(0, Ordering::Relaxed));
            zeroed.0[group] = u64::MAX;
            continue;
        }
        for (word, ones) in words_of(first, len) {
            let left = load(&words[word]) - ones;
            words[word].store(left, Ordering::Relaxed);
            zeroed.0[group] |= (zero_lanes(left) & u64::from(gather_lanes(ones))) << (word % 8 * 8);
        }
    }
    Ok(())
}

fn decrement_narrow_each(
    words: &[AtomicU64; BLOCK_FRAMES / 8],
    frames: FrameMask,
    zeroed: &mut FrameMask,
) -> Result<(), LaneError> {
    let byte = |word: usize| frames.0[word / 8] >> (word % 8 * 8) & 0xff;
    // No branch for words without a frame: with scattered frames it would be mispredicted.
    let mut below = false;
    for (word, ones) in (0..words.len()).map(|word| (word, spread_bits(byte(word)))) {
        below |= has_zero_lane(load(&words[word]) | !(ones * 0xff));
    }
    if below {
        return Err(LaneError::Underflow);
    }
    for (word, ones) in (0..words.len()).map(|word| (word, spread_bits(byte(word)))) {
        let left = load(&words[word]) - ones;
        words[word].store(left, Ordering::Relaxed);
        zeroed.0[word / 8] |= (zero_lanes(left) & byte(word)) << (word % 8 * 8);
    }
    Ok(())
}

fn decrement_wide(
    lanes: &[AtomicU32; BLOCK_FRAMES],
    start: usize,
    count: usize,
    zeroed: &mut FrameMask,
) -> Result<(), LaneError> {
    if lanes[start..start + count].iter().any(|lane| lane.load(Ordering::Relaxed) == 0) {
        return Err(LaneError::Underflow);
    }
    for (offset, lane) in lanes[start..start + count].iter().enumerate() {
        let left = lane.load(Ordering::Relaxed) - 1;
        lane.store(left, Ordering::Relaxed);
        let index = start + offset;
        zeroed.0[index / 64] |= u64::from(left == 0) << (index % 64);
    }
    Ok(())
}

/// The run `start .. start + count` cut at multiples of 64, as (first, count).
#[inline(always)]
fn group_pieces(start: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    let (mut at, end) = (start, start + count);
    core::iter::from_fn(move || {
        let first = at;
        (first < end).then(|| {
            at = end.min((first / 64 + 1) * 64);
            (first, at - first)
        })
    })
}

/// The words that hold the lanes `start .. start + count`, each with a 1 in each of these lanes.
#[inline]
fn words_of(start: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = start + count;
    (start / 8..end.div_ceil(8)).map(move |word| {
        let from = start.saturating_sub(word * 8) as u32;
        let to = (end - word * 8).min(8) as u32;
        (word, LOW & (u64::MAX << (from * 8)) & (u64::MAX >> ((8 - to) * 8)))
    })
}

/// Whether a narrow lane of the word is 255.
pub(super) fn has_full_lane(word: u64) -> bool {
    has_zero_lane(!word)
}

#[inline]
fn has_zero_lane(word: u64) -> bool {
    word.wrapping_sub(LOW) & !word & HIGH != 0
}

/// One bit for each lane that is zero, lane 0 lowest.
#[inline]
fn zero_lanes(word: u64) -> u64 {
    let nonzero = ((word & !HIGH) + !HIGH) | word;
    u64::from(gather_lanes(!nonzero >> 7 & LOW))
}

/// A 1 in the lane of every bit of a byte.
#[inline]
fn spread_bits(byte: u64) -> u64 {
    let bits = byte.wrapping_mul(LOW) & 0x8040_2010_0804_0201;
    (bits + !HIGH) >> 7 & LOW
}

/// Bit 0 of every lane, packed into a byte.
#[inline]
fn gather_lanes(ones: u64) -> u8 {
    (ones.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}
