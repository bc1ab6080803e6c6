//! Times between reschedule points: the longest, and the longest that repeats when the same work is done
//! again.

use std::collections::BTreeMap;

use quire::addr::Frame;

use crate::bench::stats::Summary;
use crate::host::cycles;

/// A stretch between two points of one CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between<T = f64> {
    /// The first frame that was cleared in it, if one was.
    pub cleared: Option<Frame>,
    /// Its length: nanoseconds, or TSC counts.
    pub length: T,
}

impl Between<u64> {
    /// The same in nanoseconds.
    pub fn timed(&self) -> Between {
        Between { cleared: self.cleared, length: cycles::to_nanoseconds(self.length as f64) }
    }
}

/// The longest of all, with disturbances.
pub fn longest(stretches: &[Between]) -> Option<f64> {
    stretches.iter().map(|one| one.length).reduce(f64::max)
}

/// The longest stretch that repeats over several passes of the same work. Stretches that clear the same
/// memory count with their median over the passes. Stretches that clear nothing count with the longest of
/// each pass, and these with their median. A machine that takes the processor away does so at different
/// places in different passes.
pub fn longest_again(passes: &[Vec<Between>]) -> Option<f64> {
    let mut places: BTreeMap<Option<Frame>, Vec<f64>> = BTreeMap::new();
    for pass in passes {
        let mut longest: BTreeMap<Option<Frame>, f64> = BTreeMap::new();
        for one in pass {
            let place = longest.entry(one.cleared).or_default();
            *place = place.max(one.length);
        }
        longest.into_iter().for_each(|(place, length)| places.entry(place).or_default().push(length));
    }
    let middle = |lengths: &Vec<f64>| Summary::of(lengths).map(|summary| summary.median);
    places.values().filter_map(middle).reduce(f64::max)
}

#[cfg(test)]
mod tests;
