//! The measured costs of kernels on one machine, and the policy that follows from them.

#![forbid(unsafe_code)]

use super::policy::{CLASSES, ClearPolicy, THREADS, Table, bytes_of, cache_bytes, stays_cached};
use super::stretch::{MeasuredStretches, STRETCHES, Stretch, best_stretch};
use crate::arch::{Caches, ClearKernel, CopyKernel, CpuFeatures};
use crate::limits::{CLEAR_CACHED_BYTES, CLEAR_CACHED_GAIN, CLEAR_OWN_BYTES, CLEAR_OWN_GAIN};
use crate::platform::TouchHint;

/// The cost of a kernel for one extent. Zero: not measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Nanoseconds to clear or copy one MiB.
    pub fill: u32,
    /// Nanoseconds to read one MiB of it afterwards, once, in order.
    pub read: u32,
}

impl Cost {
    /// Whether the cost was measured.
    pub const fn is_known(self) -> bool {
        self.fill > 0
    }

    /// The speed of filling, in MiB/s.
    pub const fn mib_per_second(self) -> u64 {
        if self.fill == 0 { 0 } else { 1_000_000_000 / self.fill as u64 }
    }

    /// The cost that counts: filling alone where memory is used later, reading as well where it is used soon,
    /// half of the reading where that is unknown.
    const fn weighed(self, hint: TouchHint) -> u64 {
        let (fill, read) = (self.fill as u64 * 2, self.read as u64);
        match hint {
            TouchHint::Soon => fill + read * 2,
            TouchHint::Later => fill,
            TouchHint::Unknown => fill + read,
        }
    }
}

/// The cost of each of `N` kernels, by class of CPUs and extent: `measured[threads][kernel as usize][class]`.
pub type Measured<const N: usize> = [[[Cost; CLASSES]; N]; THREADS];

/// The measurements of one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calibration {
    /// The stretch with which `clear` and `copy` were measured: string stores depend on the length.
    pub stretch: Stretch,
    /// Bytes of the last cache.
    pub last_cache: u64,
    /// The costs of clearing.
    pub clear: Measured<{ ClearKernel::ALL.len() }>,
    /// The costs of copying.
    pub copy: Measured<{ CopyKernel::ALL.len() }>,
    /// The costs of clearing a large extent by its kernel in other stretches.
    pub stretches: MeasuredStretches,
}

impl Calibration {
    /// No measurement yet.
    pub const fn empty(caches: Caches) -> Self {
        const NONE: Cost = Cost { fill: 0, read: 0 };
        Self {
            stretch: Stretch::SUGGESTED,
            last_cache: caches.last,
            clear: [[[NONE; CLASSES]; ClearKernel::ALL.len()]; THREADS],
            copy: [[[NONE; CLASSES]; CopyKernel::ALL.len()]; THREADS],
            stretches: [[0; STRETCHES.len()]; THREADS],
        }
    }

    /// The costs on a platform whose [`vectors_begin`](crate::platform::FramePlatform::vectors_begin) and
    /// `vectors_end` take so many nanoseconds together, from costs measured where they are free, as in a
    /// process. A platform that measures itself has paid already. The choice of the stretch stays as it is.
    #[must_use]
    pub fn paying_for_vectors(mut self, ns: u32) -> Self {
        let clear = ClearKernel::ALL.map(ClearKernel::uses_vectors);
        let copy = CopyKernel::ALL.map(CopyKernel::uses_vectors);
        self.clear.iter_mut().for_each(|measured| pay(measured, clear, ns));
        self.copy.iter_mut().for_each(|measured| pay(measured, copy, ns));
        self
    }

    /// The policy with the cheapest kernel that the processor can run, for each hint, number of CPUs and
    /// extent. A small extent gets a kernel through the caches. Any other gets one past them, unless it may
    /// stay in the caches ([`crate::limits::CLEAR_CACHED_SHARE`]): then any kernel. All extents that fill the
    /// last cache share one figure. Where an extent was not measured, the next smaller one counts; where a
    /// number of CPUs was not, the next smaller one. Without any measurement, or with stretches of another
    /// length, the [suggestion](ClearPolicy::suggested) stands.
    ///
    /// The stretch is the shortest of the [`STRETCHES`] that is within 1 % of the best and short enough
    /// ([`crate::limits::CLEAR_POINT_NS`]).
    pub fn policy(&self, features: CpuFeatures) -> ClearPolicy {
        let caches = Caches { last: self.last_cache, ..Caches::default() };
        let suggested = ClearPolicy::suggested(features, caches);
        if self.stretch != Stretch::SUGGESTED {
            return suggested;
        }
        let runs =
            ClearKernel::ALL.map(|kernel| (kernel, kernel.on(features).is_ok(), kernel.is_streaming()));
        let clear = best(&self.clear, &runs, &suggested.clear, self.last_cache);
        let runs = CopyKernel::ALL.map(|kernel| (kernel, kernel.on(features).is_ok(), kernel.is_streaming()));
        let copy = best(&self.copy, &runs, &suggested.copy, self.last_cache);
        let kernels = ClearPolicy { clear, copy, ..suggested };
        kernels.with_stretch(best_stretch(self, &kernels))
    }
}

/// Adds a price for each stretch to the costs of kernels that pay it.
fn pay<const N: usize>(measured: &mut [[Cost; CLASSES]; N], pays: [bool; N], ns: u32) {
    for (costs, _) in measured.iter_mut().zip(pays).filter(|(_, pays)| *pays) {
        for (class, cost) in costs.iter_mut().enumerate().filter(|(_, cost)| cost.is_known()) {
            let stretch = bytes_of(class).min(Stretch::SUGGESTED.bytes());
            let per_mib = (u64::from(ns) << 20) / stretch;
            cost.fill = cost.fill.saturating_add(u32::try_from(per_mib).unwrap_or(u32::MAX));
        }
    }
}

/// The measurements with the mean of all extents that fill the last cache in place of each. Stores past the
/// caches cost the same there, and the few rounds of a large extent differ by chance.
fn alike<const N: usize>(measured: &Measured<N>, last_cache: u64) -> Measured<N> {
    let mut alike = *measured;
    for costs in alike.iter_mut().flatten() {
        let large = (0..CLASSES).find(|&class| bytes_of(class) >= cache_bytes(last_cache)).unwrap_or(CLASSES);
        let known = || costs[large..].iter().filter(|cost| cost.is_known());
        let mean = |part: fn(&Cost) -> u32| {
            let sum: u64 = known().map(|cost| u64::from(part(cost))).sum();
            (sum / known().count().max(1) as u64) as u32
        };
        let mean = Cost { fill: mean(|cost| cost.fill), read: mean(|cost| cost.read) };
        costs[large..].fill(mean);
    }
    alike
}

/// The table of the cheapest kernels. `kernels` says of each whether the processor can run it, and whether it
/// stores past the caches. The kernel of the next smaller extent stays while it costs at most 3 % more, so
/// that the table does not follow chance.
fn best<K: Copy, const N: usize>(
    measured: &Measured<N>,
    kernels: &[(K, bool, bool); N],
    otherwise: &Table<K>,
    last_cache: u64,
) -> Table<K> {
    let measured = &alike(measured, last_cache);
    let mut table = *otherwise;
    for (hint, rows) in TouchHint::ALL.into_iter().zip(&mut table) {
        for (threads, row) in rows.iter_mut().enumerate() {
            let mut before = None;
            for (class, cell) in row.iter_mut().enumerate() {
                let cached = stays_cached(hint, threads, class, last_cache);
                let small = bytes_of(class) <= CLEAR_CACHED_BYTES;
                let may = |kernel: usize| {
                    let (_, runs, streams) = kernels[kernel];
                    runs && if small { !streams } else { cached || streams }
                };
                // A kernel through the caches has hidden costs for others. But where a core's own caches hold
                // the extent until it is used, a kernel past them has hidden costs for the user.
                let own = hint == TouchHint::Soon && bytes_of(class) <= CLEAR_OWN_BYTES;
                let costs_more = |kernel: usize| !small && kernels[kernel].2 == own;
                let gain = if own { CLEAR_OWN_GAIN } else { CLEAR_CACHED_GAIN };
                let places =
                    (0..=threads).rev().flat_map(|threads| (0..=class).rev().map(move |at| (threads, at)));
                let costs = places.map(|(threads, at)| {
                    let read = read_past(measured, kernels, threads, at);
                    (0..N).filter_map(move |kernel| {
                        let own = measured[threads][kernel][at];
                        let cost = if kernels[kernel].2 { Cost { read, ..own } } else { own };
                        let own = cost.weighed(hint);
                        let all = if costs_more(kernel) { own + own / gain } else { own };
                        cost.is_known().then_some((kernel, all))
                    })
                });
                before = costs
                    .filter_map(|costs| cheapest(costs.filter(|(kernel, _)| may(*kernel)), before))
                    .next();
                *cell = before.map_or(*cell, |kernel| kernels[kernel].0);
            }
        }
    }
    table
}

/// The median cost of reading memory stored past the caches, which is the same for every such kernel.
fn read_past<K: Copy, const N: usize>(
    measured: &Measured<N>,
    kernels: &[(K, bool, bool); N],
    threads: usize,
    class: usize,
) -> u32 {
    let mut reads = [0; N];
    let past = (0..N).filter(|&kernel| kernels[kernel].2 && measured[threads][kernel][class].is_known());
    let count =
        past.zip(&mut reads).map(|(kernel, read)| *read = measured[threads][kernel][class].read).count();
    reads[..count].sort_unstable();
    reads[..count].get(count / 2).copied().unwrap_or(0)
}

/// The cheapest kernel, or `before` if it costs at most 3 % more.
fn cheapest(costs: impl Iterator<Item = (usize, u64)> + Clone, before: Option<usize>) -> Option<usize> {
    let (kernel, least) = costs.clone().min_by_key(|(_, cost)| *cost)?;
    let mut costs = costs;
    let kept = costs.find(|(kernel, cost)| Some(*kernel) == before && *cost <= least + least / 32);
    Some(kept.map_or(kernel, |(kernel, _)| kernel))
}
