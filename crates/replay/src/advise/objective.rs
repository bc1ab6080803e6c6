//! Chooses a set of folio sizes by its figures alone.

use clap::ValueEnum;
use serde::Serialize;

/// What counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Goal {
    /// The shortest longest fault.
    Latency,
    /// The least time in faults.
    #[default]
    Throughput,
    /// The least memory.
    Memory,
}

/// The figures that decide.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Score {
    /// Folio sizes above 4 KiB.
    pub(super) sizes: usize,
    pub(super) faults: u64,
    /// Predicted nanoseconds of all faults, and of the longest.
    pub(super) time_ns: f64,
    pub(super) longest_ns: f64,
    /// Bytes at the peak, and those among them that were never touched.
    pub(super) memory: u64,
    pub(super) wasted: u64,
    /// The most bytes that the program's control group lets it have (`memory.high`), if it has a limit.
    pub(super) high: Option<u64>,
}

/// Percent of peak memory that may be untouched, unless the user says otherwise.
pub(super) const MAX_WASTE: f64 = 5.0;

/// Times that differ by less than this part of the baseline's are equal: the prediction is no better.
const EQUAL_TIME: f64 = 0.05;
/// Nor are they if they differ by more than this part of the run time: of a program that faults a lot, 5 % would be noticed.
const EQUAL_RUN: f64 = 0.005;
/// The same for memory, as a part of the baseline's.
const EQUAL_MEMORY: f64 = 0.001;
/// A change is worth its while if it saves this part of the run time …
const WORTH_TIME: f64 = 0.01;
/// … or this part of the faults …
const WORTH_FAULTS: f64 = 0.5;
/// … or, where memory counts, this part of it …
const WORTH_MEMORY: f64 = 0.01;
/// … or, where latency counts, this part of the longest fault.
const WORTH_LONGEST: f64 = 0.5;

impl Score {
    /// The share of memory that was never touched.
    pub(super) fn waste(&self) -> f64 {
        self.wasted as f64 / self.memory.max(1) as f64
    }

    /// Bytes at the peak beyond the limit.
    pub(super) fn above(&self) -> u64 {
        self.high.map_or(0, |high| self.memory.saturating_sub(high))
    }

    /// Whether the share that was never touched is at most `most`.
    pub(super) fn is_within(&self, most: f64) -> bool {
        self.waste() <= most
    }
}

/// The rule that chooses a set for a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) goal: Goal,
    /// The share of peak memory that may be untouched.
    pub(super) most_waste: f64,
    /// How long the program ran.
    pub(super) wall_ns: u64,
}

impl Rule {
    /// The number of the set to choose, among those that do not waste too much, and of these among those that exceed the
    /// limit by least; `None` if there is none.
    pub(super) fn choose(&self, baseline: &Score, scores: &[Score]) -> Option<usize> {
        let (first, equal) = match self.goal {
            Goal::Latency => {
                ((|score| score.longest_ns) as fn(&Score) -> f64, baseline.longest_ns * EQUAL_TIME)
            }
            Goal::Throughput => {
                let equal = (baseline.time_ns * EQUAL_TIME).min(self.of_run(EQUAL_RUN));
                ((|score| score.time_ns) as fn(&Score) -> f64, equal)
            }
            Goal::Memory => {
                ((|score| score.memory as f64) as fn(&Score) -> f64, baseline.memory as f64 * EQUAL_MEMORY)
            }
        };
        let within = || scores.iter().enumerate().filter(|(_, score)| score.is_within(self.most_waste));
        // To reclaim memory takes longer than any faults.
        let above = within().map(|(_, score)| score.above()).min()?;
        let within = || within().filter(|(_, score)| score.above() == above);
        let least = within().map(|(_, score)| first(score)).min_by(f64::total_cmp)?;
        // Among equals, time decides unless it was what counts; then the simpler setting and the smaller memory.
        let rest = |score: &Score| match self.goal {
            Goal::Throughput => (0.0, score.sizes, score.memory),
            _ => (score.time_ns, score.sizes, score.memory),
        };
        let equals = within().filter(|(_, score)| first(score) <= least + equal);
        let by_rest = |a: &Score, b: &Score| {
            let (a, b) = (rest(a), rest(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2))
        };
        equals.min_by(|(_, a), (_, b)| by_rest(a, b)).map(|(at, _)| at)
    }

    /// Whether a change from the baseline is worth its while.
    pub(super) fn is_worth(&self, baseline: &Score, score: &Score) -> bool {
        let (before, after) = (baseline.above(), score.above());
        let relief = before.saturating_sub(after) as f64;
        if after > before || relief > 0.0 {
            return after < before && (after == 0 || relief >= baseline.memory as f64 * WORTH_MEMORY);
        }
        match self.goal {
            Goal::Throughput => {
                let saved = baseline.faults.saturating_sub(score.faults) as f64;
                let gain = baseline.time_ns - score.time_ns;
                gain > 0.0
                    && (gain >= self.of_run(WORTH_TIME) || saved >= baseline.faults as f64 * WORTH_FAULTS)
            }
            Goal::Memory => {
                let saved = baseline.memory.saturating_sub(score.memory);
                saved > 0 && saved as f64 >= baseline.memory as f64 * WORTH_MEMORY
            }
            Goal::Latency => {
                let gain = baseline.longest_ns - score.longest_ns;
                gain > 0.0 && gain >= baseline.longest_ns * WORTH_LONGEST
            }
        }
    }

    /// A part of the run time.
    fn of_run(&self, part: f64) -> f64 {
        self.wall_ns as f64 * part
    }
}

#[cfg(test)]
mod tests;
