//! Measures the costs of kernels on this machine.

use super::Clearer;
use super::calibrate::Cost;
use super::policy::bytes_of;
use crate::addr::{Frame, FrameRange};
use crate::arch::{ClearKernel, CopyKernel};
use crate::error::KernelError;
use crate::limits::FRAME_SIZE;
use crate::platform::FramePlatform;

/// Bytes between two readings of the clock, at least: smaller extents are measured several at a time.
const BATCH_BYTES: u64 = 64 << 10;
/// The largest number of rounds.
const ROUNDS: usize = 101;
/// The number of rounds in any case.
const FEWEST_ROUNDS: usize = 3;
const LINE: usize = 64;

/// Measures clearing extents of a class by one kernel, in the stretches of the clearer's policy, and reading
/// them once. Places rotate through `scratch`, whose contents are lost, so that the extents are in no cache
/// if `scratch` is several times as large as the caches. Runs for about `budget_ns`, and for three rounds at
/// least. Several CPUs may measure at once, each with frames of its own.
///
/// Precondition: as for [`FramePlatform::reschedule_point`].
///
/// # Errors
/// [`KernelError::Missing`].
///
/// # Safety
/// The caller owns the frames of `scratch` (invariant 1), which lie in one range of memory.
pub unsafe fn measure_clear<P: FramePlatform>(
    platform: &P,
    clearer: &Clearer,
    kernel: ClearKernel,
    class: usize,
    scratch: FrameRange,
    budget_ns: u64,
) -> Result<Cost, KernelError> {
    kernel.on(clearer.features())?;
    // SAFETY: invariant 1, by this function's contract: the frames are a part of `scratch`.
    let clear = |frames| unsafe { clearer.clear_all_by(platform, frames, kernel) };
    Ok(measure(platform, class, scratch, budget_ns, clear))
}

/// Measures copying from one half of `scratch` to the other, as [`measure_clear`] does clearing.
///
/// # Errors
/// [`KernelError::Missing`].
///
/// # Safety
/// As for [`measure_clear`].
pub unsafe fn measure_copy<P: FramePlatform>(
    platform: &P,
    clearer: &Clearer,
    kernel: CopyKernel,
    class: usize,
    scratch: FrameRange,
    budget_ns: u64,
) -> Result<Cost, KernelError> {
    kernel.on(clearer.features())?;
    let half = FrameRange::new(scratch.start, scratch.count / 2);
    let source = |frames: FrameRange| FrameRange::new(frames.start.add(half.count), frames.count);
    Ok(measure(platform, class, half, budget_ns, |frames| {
        // SAFETY: invariant 1, by this function's contract: the frames are part of `scratch`'s first half.
        unsafe { clearer.copy_all_by(platform, source(frames), frames.start, kernel) };
    }))
}

/// The lower quartiles of rounds of filling and reading.
fn measure<P: FramePlatform>(
    platform: &P,
    class: usize,
    scratch: FrameRange,
    budget_ns: u64,
    fill: impl Fn(FrameRange),
) -> Cost {
    let frames = (bytes_of(class) / FRAME_SIZE).min(scratch.count);
    if frames == 0 {
        return Cost::default();
    }
    let together = (BATCH_BYTES / FRAME_SIZE).div_ceil(frames).min(scratch.count / frames);
    let (mut fills, mut reads) = ([0; ROUNDS], [0; ROUNDS]);
    let begun = platform.now_ns();
    // The number of places of this size, the distance between two rounds, and the first round's place.
    let places = scratch.count / (frames * together);
    let apart = places.div_ceil(ROUNDS as u64);
    let (mut at, mut round) = (begun % places, 0);
    // The access that evicts a line pays for its write to memory. So the caches are filled with such lines
    // first: only then does each extent pay for an earlier one.
    let bytes = frames * together * FRAME_SIZE;
    for _ in 0..platform.caches().last.div_ceil(bytes).min(places) {
        (0..together).map(|step| scratch.start.add((at * together + step) * frames)).for_each(|first| {
            fill(FrameRange::new(first, frames));
        });
        at = (at + 1) % places;
    }
    while round < ROUNDS && (round < FEWEST_ROUNDS || platform.now_ns() - begun < budget_ns) {
        let first = scratch.start.add(at * frames * together);
        let each = || (0..together).map(|step| FrameRange::new(first.add(step * frames), frames));
        let start = platform.now_ns();
        each().for_each(&fill);
        let filled = platform.now_ns();
        each().for_each(|extent| read_once(platform, extent));
        fills[round] = filled - start;
        reads[round] = platform.now_ns() - filled;
        at = (at + apart.max(1)) % places;
        round += 1;
    }
    Cost { fill: per_mib(&mut fills[..round], bytes).max(1), read: per_mib(&mut reads[..round], bytes) }
}

/// The lower quartile, in nanoseconds for each MiB: disturbances only make a round longer.
fn per_mib(times: &mut [u64], bytes: u64) -> u32 {
    times.sort_unstable();
    let per_mib = (times[times.len() / 4] << 20) / bytes;
    u32::try_from(per_mib).unwrap_or(u32::MAX)
}

/// Loads a word of each line.
fn read_once<P: FramePlatform>(platform: &P, frames: FrameRange) {
    let start: Frame = frames.start;
    let base = platform.direct_map(start.addr());
    for line in (0..(frames.count * FRAME_SIZE) as usize).step_by(LINE) {
        // SAFETY: invariant 1: the frames are the caller's `scratch`, to whose end the direct map reaches.
        unsafe { base.add(line).cast::<u64>().read_volatile() };
    }
}
