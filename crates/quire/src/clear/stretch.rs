//! How much is cleared or copied between two reschedule points.
#![forbid(unsafe_code)]

use core::fmt;

use super::calibrate::{Calibration, Cost, Measured};
use super::policy::{Bytes, ClearPolicy, THREADS, Table, bytes_of};
use crate::error::KernelError;
use crate::limits::{CLEAR_POINT_NS, CLEAR_POINT_SHARE, CLEAR_STRETCH_BYTES, CLEAR_STRETCH_MOST, FRAME_SIZE};

/// Bytes cleared or copied between two reschedule points, at most: a multiple of a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stretch(u64);

/// The stretches that a calibration tries, each as [`Calibration::stretches`] counts them.
pub const STRETCHES: [Stretch; 5] = {
    const MIB: u64 = 1 << 20;
    [Stretch::SUGGESTED, Stretch(MIB), Stretch(2 * MIB), Stretch(4 * MIB), Stretch(8 * MIB)]
};

/// Nanoseconds of a thread for each MiB of a large extent, by class of CPUs and stretch. Zero: not measured.
pub type MeasuredStretches = [[u32; STRETCHES.len()]; THREADS];

impl Stretch {
    /// The stretch without a calibration: [`CLEAR_STRETCH_BYTES`].
    pub const SUGGESTED: Self = Self(CLEAR_STRETCH_BYTES);
    /// No reschedule point and no chance to cancel: for measurements.
    pub const ENDLESS: Self = Self(u64::MAX / FRAME_SIZE * FRAME_SIZE);

    /// A stretch of `bytes` bytes.
    ///
    /// # Errors
    /// [`KernelError::BadStretch`] if zero, no multiple of a frame, or above [`CLEAR_STRETCH_MOST`].
    pub const fn of(bytes: u64) -> Result<Self, KernelError> {
        if bytes == 0 || !bytes.is_multiple_of(FRAME_SIZE) || bytes > CLEAR_STRETCH_MOST {
            return Err(KernelError::BadStretch { bytes });
        }
        Ok(Self(bytes))
    }

    /// Its bytes; more than any memory when it is [endless](Self::ENDLESS).
    pub const fn bytes(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) const fn frames(self) -> u64 {
        self.0 / FRAME_SIZE
    }

    #[inline]
    pub(super) const fn of_frames(frames: u64) -> Self {
        Self(frames * FRAME_SIZE)
    }

    /// Nanoseconds for one stretch.
    const fn takes(self, ns_per_mib: u32) -> u64 {
        (ns_per_mib as u64).saturating_mul(self.0 >> 10) >> 10
    }
}

/// `512KiB`, or `none` for the endless stretch.
impl fmt::Display for Stretch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ENDLESS { f.write_str("none") } else { Bytes(self.0).fmt(f) }
    }
}

/// The shortest measured stretch that clears large extents within 1 % as fast as the best. A stretch counts
/// only if it takes so little time, on any measured number of CPUs and by any kernel of the policy, that no
/// task waits long for a reschedule point. If none does, the [suggested](Stretch::SUGGESTED) one.
pub(super) fn best_stretch(calibration: &Calibration, policy: &ClearPolicy) -> Stretch {
    let measured = || calibration.stretches.iter().filter(|costs| costs.iter().any(|&cost| cost > 0));
    let slowest = slowest(&calibration.clear, &policy.clear, |kernel| kernel as usize).max(slowest(
        &calibration.copy,
        &policy.copy,
        |kernel| kernel as usize,
    ));
    let may = |at: &usize| {
        let stretch = STRETCHES[*at];
        let short = |cost: u32| cost > 0 && stretch.takes(cost) <= CLEAR_POINT_NS / CLEAR_POINT_SHARE;
        measured().all(|costs| short(costs[*at])) && stretch.takes(slowest) <= CLEAR_POINT_NS
    };
    let together = |at: usize| measured().map(|costs| u64::from(costs[at])).sum::<u64>();
    let candidates = || (0..STRETCHES.len()).filter(may);
    let least = candidates().map(together).min().unwrap_or(0);
    let chosen = candidates().find(|&at| together(at) <= least + least / 100);
    chosen.filter(|_| least > 0).map_or(Stretch::SUGGESTED, |at| STRETCHES[at])
}

/// The time of the slowest of the chosen kernels for each MiB, among extents of more than one stretch.
fn slowest<K: Copy, const N: usize>(
    measured: &Measured<N>,
    table: &Table<K>,
    number: impl Fn(K) -> usize,
) -> u32 {
    let mut slowest = 0;
    for rows in table {
        for (costs, row) in measured.iter().zip(rows) {
            let cells = row.iter().enumerate().filter(|(class, _)| bytes_of(*class) > CLEAR_STRETCH_BYTES);
            let costs = cells.map(|(class, &kernel)| costs[number(kernel)][class]);
            slowest = costs.map(|cost: Cost| cost.fill).fold(slowest, u32::max);
        }
    }
    slowest
}
