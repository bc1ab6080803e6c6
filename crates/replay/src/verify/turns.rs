//! Runs under two sets of folio sizes by turns: by how much the one takes longer, and how far chance may have made it so.

use std::f64::consts::LN_2;

/// The chance that an interval ends below the true value, or above it: nine in ten contain it.
pub(super) const TAIL: f64 = 0.05;

/// By how many percent runs take longer than others of the same turns, sorted.
pub(super) fn longer(turns: impl Iterator<Item = (u64, u64)>) -> Vec<f64> {
    let mut longer: Vec<f64> = turns.map(|(run, other)| percent(run as f64 - other as f64, other)).collect();
    longer.sort_by(f64::total_cmp);
    longer
}

/// The interval between two of these sorted values that contains the median of all such turns: each end is wrong with a chance
/// of `tail` at most, as far as there are turns enough. It supposes nothing of how the times are distributed.
pub(super) fn between(longer: &[f64], tail: f64) -> (f64, f64) {
    match longer.len().checked_sub(1) {
        Some(last) => {
            let left_out = left_out(longer.len(), tail);
            (longer[left_out], longer[last - left_out])
        }
        None => (0.0, 0.0),
    }
}

/// The middle of sorted values, 0 without any.
pub(super) fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        values => sorted[(values - 1) / 2].midpoint(sorted[values / 2]),
    }
}

/// How many of so many sorted values the interval leaves out at each end: the chance that no more than these lie below the
/// median of all turns is `tail` at most.
fn left_out(values: usize, tail: f64) -> usize {
    // Logarithms: of more than a thousand turns, the ways to choose some are beyond what a number holds.
    let (mut ways, mut chance) = (0.0, 0.0);
    for at in 0..values / 2 {
        chance += (ways - values as f64 * LN_2).exp();
        if chance > tail {
            return at.saturating_sub(1);
        }
        ways += ((values - at) as f64 / (at + 1) as f64).ln();
    }
    (values / 2).saturating_sub(1)
}

/// A part of the whole in percent; all of nothing is 0 %.
pub(super) fn percent(part: f64, whole: u64) -> f64 {
    if part == 0.0 { 0.0 } else { part * 100.0 / (whole as f64).max(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the binomial distribution: 1/32, 9/256, 67/2048 and 1/16 of all samples, the next value would be too many.
    #[test]
    fn the_interval_of_turns_leaves_out_what_chance_allows() {
        assert_eq!(
            [1, 2, 4, 5, 7, 8, 11, 1000].map(|values| left_out(values, TAIL)),
            [0, 0, 0, 0, 0, 1, 2, 473]
        );
        // The normal distribution has 0.0495 below 4917.5 and 0.0516 below 4918.5, 1.65 and 1.63 standard deviations of 50
        // from the middle.
        assert_eq!(left_out(10_000, TAIL), 4917);
        // 11/1024 is more than a hundredth, 6196/2^20 is less, and 21700/2^20 more.
        assert_eq!([10, 20].map(|values| left_out(values, 0.01)), [0, 4]);
        let runs = [90, 130, 101, 102, 103, 104, 105, 400];
        let longer = longer(runs.into_iter().map(|run| (run, 100)));
        assert_eq!((between(&longer, TAIL), median(&longer)), ((1.0, 30.0), 3.5));
        assert_eq!((between(&[], TAIL), median(&[])), ((0.0, 0.0), 0.0));
    }
}
