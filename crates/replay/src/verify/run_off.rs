//! A run-off: further turns of what is advised and of all other sets of folio sizes, until they tell whether any of these is
//! faster than it may be.
//!
//! A few turns of nine sets do not tell which is the fastest: on a machine whose clock changes it is the luckiest. So only the
//! turns of the run-off count, and a set leaves it as soon as its turns show that it is not faster.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use super::turns::{TAIL, between, longer, median};

/// Turns before the first look at whether they tell. Before each further look their number doubles. Fewer tell little: ten values
/// are all on one side of their median in one of 1024 cases.
const FIRST: usize = 10;

/// How long a run-off may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// At least [`FIRST`], or none.
    pub(super) turns: usize,
    /// Ends the run-off after [`FIRST`] turns.
    pub(super) time: Duration,
    /// By how many percent a run under the advice may take longer than one under any other set.
    pub(super) percent: f64,
}

/// What the turns say of each other set, the one that may be the fastest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RunOff {
    pub(super) against: Vec<Against>,
}

/// The runs under the advice beside those under another set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Against {
    pub(super) folio: String,
    pub(super) turns: usize,
    /// By how much a run under the advice takes longer: the median of the turns.
    pub(super) longer_percent: f64,
    /// The interval that contains the median of all such turns. All looks together are deceived with a chance of one in twenty
    /// about its upper end; about the lower ends all sets together are.
    pub(super) between_percent: (f64, f64),
}

/// A set in the run-off: its run times, each behind that of the advised set in the same turn.
struct Rival {
    folio: String,
    times: Vec<(u64, u64)>,
}

impl RunOff {
    /// Calls `turn` until its run times tell of each of the `others`: first the one of the advised set, then those of the named
    /// others. It is given the number of the turn, which says what runs first. `None` without a turn.
    ///
    /// # Errors
    /// Those of `turn`.
    pub(super) fn of(
        limits: Limits,
        others: Vec<String>,
        mut turn: impl FnMut(usize, &[usize]) -> Result<Vec<u64>>,
    ) -> Result<Option<Self>> {
        let began = Instant::now();
        let most = if limits.turns == 0 { 0 } else { limits.turns.max(FIRST) };
        let looks: Vec<usize> = std::iter::successors(Some(FIRST), |turns| Some(turns * 2))
            .take_while(|&turns| turns < most)
            .collect();
        let tails = Tails::of(looks.len() + 1, others.len());
        let mut rivals: Vec<Rival> =
            others.into_iter().map(|folio| Rival { folio, times: Vec::new() }).collect();
        let mut running: Vec<usize> = (0..rivals.len()).collect();
        let mut turns = 0;
        while !running.is_empty() && turns < most && (turns < FIRST || began.elapsed() < limits.time) {
            let times = turn(turns, &running)?;
            for (&rival, &time) in running.iter().zip(&times[1..]) {
                rivals[rival].times.push((times[0], time));
            }
            turns += 1;
            if looks.contains(&turns) {
                running.retain(|&rival| rivals[rival].judged(tails).between_percent.1 > limits.percent);
                if running.iter().any(|&rival| rivals[rival].judged(tails).between_percent.0 > limits.percent)
                {
                    break;
                }
            }
        }
        let mut against: Vec<Against> = rivals.iter().map(|rival| rival.judged(tails)).collect();
        // What is known to be faster comes first, then what may be.
        let order = |one: &Against| {
            let (least, most) = one.between_percent;
            (least > limits.percent, if least > limits.percent { least } else { most })
        };
        against.sort_by(|one, other| {
            let (one, other) = (order(one), order(other));
            other.0.cmp(&one.0).then(other.1.total_cmp(&one.1))
        });
        Ok((turns > 0 && !against.is_empty()).then_some(Self { against }))
    }
}

/// The chances that the ends of an interval are wrong.
#[derive(Clone, Copy)]
struct Tails {
    below: f64,
    above: f64,
}

impl Tails {
    /// Each look may be deceived by chance, so each has its share of what all may be together. The advice fails if a single set
    /// is shown to be faster, so these share it too; it holds only if each one is shown not to be.
    fn of(looks: usize, others: usize) -> Self {
        let above = TAIL / looks as f64;
        Self { below: above / others.max(1) as f64, above }
    }
}

impl Rival {
    fn judged(&self, tails: Tails) -> Against {
        let longer = longer(self.times.iter().copied());
        let (turns, longer_percent) = (self.times.len(), median(&longer));
        // Where the least value may be above the median by a greater chance, nothing is known but that no run takes less than no
        // time. For the upper end the first turns are enough.
        let is_known = 0.5_f64.powi(turns as i32) <= tails.below;
        let least = if is_known { between(&longer, tails.below).0 } else { -100.0 };
        let between_percent = (least, between(&longer, tails.above).1);
        Against { folio: self.folio.clone(), turns, longer_percent, between_percent }
    }
}

#[cfg(test)]
mod tests;
