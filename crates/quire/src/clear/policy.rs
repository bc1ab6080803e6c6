//! The policy: which kernel for which extent.
#![forbid(unsafe_code)]

use core::fmt;

use super::stretch::Stretch;
use crate::arch::{Caches, ClearKernel, CopyKernel, CpuFeatures};
use crate::error::KernelError;
use crate::limits::{CLEAR_CACHED_BYTES, CLEAR_CACHED_SHARE, FRAME_SHIFT, FRAME_SIZE, MAX_ORDER};
use crate::platform::TouchHint;

/// Classes of extents: powers of two from 4 KiB to 1 GiB; the last includes larger ones.
pub const CLASSES: usize = MAX_ORDER as usize + 1;
/// Classes of numbers of CPUs that clear at once: 1, 2 to 3, and 4 or more.
pub const THREADS: usize = 3;

/// A kernel for each hint, number of CPUs and extent: `table[hint as
/// usize][threads_class(cpus)][class_of(bytes)]`.
pub type Table<K> = [[[K; CLASSES]; THREADS]; TouchHint::ALL.len()];

/// The assumed size of a last cache that the processor does not report.
const UNKNOWN_CACHE: u64 = 1 << 20;

/// Bytes of the last cache, by what the processor reports.
pub(super) const fn cache_bytes(said: u64) -> u64 {
    if said == 0 { UNKNOWN_CACHE } else { said }
}

/// The class of an extent of `bytes` bytes.
#[inline]
pub const fn class_of(bytes: u64) -> usize {
    let order = if bytes < FRAME_SIZE { 0 } else { (bytes >> FRAME_SHIFT).ilog2() };
    if order > MAX_ORDER as u32 { MAX_ORDER as usize } else { order as usize }
}

/// The class of a number of CPUs.
#[inline]
pub const fn threads_class(cpus: u32) -> usize {
    match cpus {
        0 | 1 => 0,
        2 | 3 => 1,
        _ => 2,
    }
}

/// Bytes of the smallest extent of a class.
pub const fn bytes_of(class: usize) -> u64 {
    FRAME_SIZE << class
}

/// The smallest number of CPUs of a class.
pub const fn cpus_of(threads: usize) -> u64 {
    1 << threads
}

/// Whether an extent should stay in the caches, by its class, the CPUs that clear at once, and the hint.
pub(super) const fn stays_cached(hint: TouchHint, threads: usize, class: usize, last_cache: u64) -> bool {
    let cache = cache_bytes(last_cache) / cpus_of(threads);
    let limit = match hint {
        TouchHint::Soon | TouchHint::Unknown => cache / CLEAR_CACHED_SHARE,
        TouchHint::Later => 0,
    };
    let bytes = bytes_of(class);
    bytes <= limit || bytes <= CLEAR_CACHED_BYTES
}

/// Which kernel clears or copies which extent, and in which stretches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClearPolicy {
    /// Kernels that clear.
    pub clear: Table<ClearKernel>,
    /// Kernels that copy.
    pub copy: Table<CopyKernel>,
    /// Bytes cleared or copied between two reschedule points, at most.
    pub stretch: Stretch,
}

/// A table filled by a function of hint, class of CPUs and class of extent.
pub(super) fn table<K: Copy>(kernel: impl Fn(TouchHint, usize, usize) -> K) -> Table<K> {
    TouchHint::ALL.map(|hint| {
        core::array::from_fn(|threads| core::array::from_fn(|class| kernel(hint, threads, class)))
    })
}

impl ClearPolicy {
    /// The policy without a calibration: string stores where they are fast, the widest stores past the
    /// caches, and the shares of the last cache in [`crate::limits`].
    pub fn suggested(features: CpuFeatures, caches: Caches) -> Self {
        let cached = (ClearKernel::cached(features), CopyKernel::cached(features));
        let past = (ClearKernel::streaming(features), CopyKernel::streaming(features));
        let choose = |hint, threads, class| stays_cached(hint, threads, class, caches.last);
        Self {
            clear: table(|hint, threads, class| if choose(hint, threads, class) { cached.0 } else { past.0 }),
            copy: table(|hint, threads, class| if choose(hint, threads, class) { cached.1 } else { past.1 }),
            stretch: Stretch::SUGGESTED,
        }
    }

    /// One kernel for all clears and one for all copies, to compare with.
    pub const fn only(clear: ClearKernel, copy: CopyKernel) -> Self {
        Self {
            clear: [[[clear; CLASSES]; THREADS]; TouchHint::ALL.len()],
            copy: [[[copy; CLASSES]; THREADS]; TouchHint::ALL.len()],
            stretch: Stretch::SUGGESTED,
        }
    }

    /// The same policy with other stretches.
    #[must_use]
    pub const fn with_stretch(self, stretch: Stretch) -> Self {
        Self { stretch, ..self }
    }

    /// The kernel that clears an extent of `bytes` bytes while `cpus` CPUs clear.
    #[inline]
    pub const fn clear_kernel(&self, hint: TouchHint, cpus: u32, bytes: u64) -> ClearKernel {
        self.clear[hint as usize][threads_class(cpus)][class_of(bytes)]
    }

    /// The kernel that copies an extent of `bytes` bytes while `cpus` CPUs copy.
    #[inline]
    pub const fn copy_kernel(&self, hint: TouchHint, cpus: u32, bytes: u64) -> CopyKernel {
        self.copy[hint as usize][threads_class(cpus)][class_of(bytes)]
    }

    /// Checks that a processor with these features can run every kernel of the policy.
    ///
    /// # Errors
    /// [`KernelError::Missing`] for the first that it cannot.
    pub fn check(&self, features: CpuFeatures) -> Result<(), KernelError> {
        let clear = self.clear.as_flattened().as_flattened();
        let copy = self.copy.as_flattened().as_flattened();
        clear.iter().try_for_each(|kernel| kernel.on(features).map(|_| ()))?;
        copy.iter().try_for_each(|kernel| kernel.on(features).map(|_| ()))
    }
}

/// Shows a size: `4KiB`.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >> 30 > 0 => write!(f, "{}GiB", bytes >> 30),
            bytes if bytes >> 20 > 0 => write!(f, "{}MiB", bytes >> 20),
            bytes => write!(f, "{}KiB", bytes >> 10),
        }
    }
}

/// The stretch, and one line for each verb, hint and class of CPUs with the extent from which each kernel is
/// used, as `clear soon 1: string from 4KiB, nt64 from 32MiB`.
impl fmt::Display for ClearPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "stretch: {}", self.stretch)?;
        rows(f, "clear", &self.clear, |kernel| kernel.name())?;
        rows(f, "copy", &self.copy, |kernel| kernel.name())
    }
}

fn rows<K: Copy + PartialEq>(
    f: &mut fmt::Formatter<'_>,
    verb: &str,
    table: &Table<K>,
    name: impl Fn(K) -> &'static str,
) -> fmt::Result {
    for (hint, by_threads) in TouchHint::ALL.into_iter().zip(table) {
        for (threads, row) in by_threads.iter().enumerate() {
            write!(f, "{verb} {} {}", hint.name(), cpus_of(threads))?;
            let mut mark = ": ";
            for (class, &kernel) in row.iter().enumerate() {
                if class == 0 || row[class - 1] != kernel {
                    write!(f, "{mark}{} from {}", name(kernel), Bytes(bytes_of(class)))?;
                    mark = ", ";
                }
            }
            writeln!(f)?;
        }
    }
    Ok(())
}

impl fmt::Debug for ClearPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
