//! Times of the verbs on Quire, beside the recorded times of the same calls and faults.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use quanta::Clock;

/// A clock that is read by one instruction, and the cost of reading it.
pub(super) struct Stopwatch {
    clock: Clock,
    /// The result of an empty measurement in ticks; subtracted from every other.
    empty: u64,
}

impl Stopwatch {
    /// Calibrates: takes up to a fifth of a second, once per process.
    pub(super) fn new() -> Self {
        const ROUNDS: usize = 4096;
        let clock = Clock::new();
        let mut ticks: Vec<u64> = (0..ROUNDS)
            .map(|_| {
                let start = clock.raw();
                clock.raw().saturating_sub(start)
            })
            .collect();
        ticks.sort_unstable();
        Self { clock, empty: ticks[ROUNDS / 2] }
    }

    /// Runs `action`; returns its nanoseconds too.
    #[inline]
    pub(super) fn time<R>(&self, action: impl FnOnce() -> R) -> (R, u64) {
        let start = self.clock.raw();
        let result = action();
        let end = self.clock.raw();
        (result, self.clock.delta_as_nanos(start, end.saturating_sub(self.empty).max(start)))
    }

    /// The nanoseconds that are subtracted from every measurement.
    pub(super) fn empty_ns(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.empty)
    }
}

/// The longest distinguished time: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Durations in nanoseconds: their sum exact, their median to three digits, in bounded memory.
#[derive(Clone)]
pub(super) struct Series {
    histogram: Histogram<u64>,
    sum: u64,
}

impl Series {
    pub(super) fn new() -> Self {
        // It grows to the range of what it has, which is small for most.
        let histogram = Histogram::new(3).expect("three digits are allowed");
        Self { histogram, sum: 0 }
    }

    pub(super) fn add(&mut self, ns: u64) {
        // A histogram of that range has some 300 KiB.
        self.histogram.record(ns.min(LONGEST_NS)).expect("it grows to that range");
        // Recorded times may be any.
        self.sum = self.sum.saturating_add(ns);
    }

    pub(super) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(super) const fn sum(&self) -> u64 {
        self.sum
    }

    /// The mean without what was interrupted: times of more than 16 medians. `None` when nothing was added.
    pub(super) fn usual(&self) -> Option<u64> {
        let longest = 16 * self.median()?;
        let (mut count, mut sum) = (0u64, 0u128);
        for bucket in self.histogram.iter_recorded().filter(|bucket| bucket.value_iterated_to() <= longest) {
            count += bucket.count_at_value();
            sum += u128::from(bucket.count_at_value()) * u128::from(bucket.value_iterated_to());
        }
        sum.checked_div(u128::from(count)).map(|mean| mean as u64)
    }

    /// `None` when nothing was added.
    pub(super) fn median(&self) -> Option<u64> {
        (!self.histogram.is_empty()).then(|| self.histogram.value_at_quantile(0.5))
    }
}

/// The same work on Quire and on the Linux that was recorded.
#[derive(Clone)]
pub(super) struct Pair {
    count: u64,
    pub(super) quire: Series,
    pub(super) linux: Series,
    /// Recorded major faults: they waited for a disk, which a replay has none of, so they are no time of Linux'.
    pub(super) major: Series,
}

impl Pair {
    fn new() -> Self {
        Self { count: 0, quire: Series::new(), linux: Series::new(), major: Series::new() }
    }

    /// Faults of this kind or calls of this verb, whether they have a time on either side or not.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }
}

/// Costs by name.
#[derive(Clone, Default)]
pub(super) struct Costs(BTreeMap<&'static str, Pair>);

impl Costs {
    /// Adds a time; either side may be unknown.
    pub(super) fn add(&mut self, name: &'static str, quire: Option<u64>, linux: Option<u64>) {
        let pair = self.0.entry(name).or_insert_with(Pair::new);
        pair.count += 1;
        quire.into_iter().for_each(|ns| pair.quire.add(ns));
        linux.into_iter().for_each(|ns| pair.linux.add(ns));
    }

    /// The same of a fault that was a major one on Linux.
    pub(super) fn add_major(&mut self, name: &'static str, quire: Option<u64>, major: Option<u64>) {
        let pair = self.0.entry(name).or_insert_with(Pair::new);
        pair.count += 1;
        quire.into_iter().for_each(|ns| pair.quire.add(ns));
        major.into_iter().for_each(|ns| pair.major.add(ns));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &Pair)> {
        self.0.iter().map(|(name, pair)| (*name, pair))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Pair> {
        self.0.get(name)
    }

    /// How many recorded faults were major, and their nanoseconds.
    pub(super) fn major(&self) -> (u64, u64) {
        let major = self.0.values().map(|pair| &pair.major);
        major.fold((0, 0), |(count, ns), major| (count + major.count(), ns.saturating_add(major.sum())))
    }

    /// Everything on Quire together.
    pub(super) fn quire_sum(&self) -> u64 {
        self.0.values().map(|pair| pair.quire.sum()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_interrupted_is_no_usual_time() {
        let mut series = Series::new();
        assert_eq!(series.usual(), None);
        [100, 100, 100, 500].into_iter().for_each(|ns| series.add(ns));
        assert_eq!(series.usual(), Some(200), "a long one counts");
        series.add(5_000_000);
        assert_eq!((series.usual(), series.median()), (Some(200), Some(100)));
    }

    #[test]
    fn medians_of_any_length_have_three_digits() {
        for ns in [2_047, 2_048, 5_000_000, 999_999_999_999, LONGEST_NS, u64::MAX / 2] {
            let mut series = Series::new();
            [ns, 1].into_iter().cycle().take(3).for_each(|ns| series.add(ns.min(LONGEST_NS)));
            let median = series.median().expect("it has times");
            let error = median.abs_diff(ns.min(LONGEST_NS));
            assert!(error <= median / 1000, "{median} of {ns}");
        }
    }
}
