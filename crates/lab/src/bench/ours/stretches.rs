//! Times between reschedule points: the longest, and the longest that comes again whenever the same work is done.

use std::collections::BTreeMap;

use quire::addr::Frame;

use crate::bench::stats::Summary;
use crate::host::cycles;

/// What lay between two points of one CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between<T = f64> {
    /// The first frame that was cleared in it, if one was.
    pub cleared: Option<Frame>,
    /// How long it was: nanoseconds, or counts of the time-stamp counter.
    pub length: T,
}

impl Between<u64> {
    /// The same in nanoseconds.
    pub fn timed(&self) -> Between {
        Between { cleared: self.cleared, length: cycles::to_nanoseconds(self.length as f64) }
    }
}

/// The longest of all, whatever disturbed it.
pub fn longest(stretches: &[Between]) -> Option<f64> {
    stretches.iter().map(|one| one.length).reduce(f64::max)
}

/// The longest that comes again in several passes of the same work: of the stretches that clear the same memory the middle one
/// counts, and of those that clear nothing the longest of each pass does, and the middle one of these. A machine
/// that takes the processor away does so in different places of different passes.
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
