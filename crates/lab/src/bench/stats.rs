//! The statistics that a table shows (median, smallest, largest), and those that results keep.

use serde::{Deserialize, Serialize};

use super::metric::is_worst;

/// Median and range of a set of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle sample, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
}

impl Summary {
    /// Sums up `samples`; `None` when there are none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max })
    }

    /// The figure of a metric with these samples.
    pub fn figure(self, metric: &str) -> f64 {
        if is_worst(metric) { self.max } else { self.median }
    }
}

/// The summary of one launch's samples that results keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "[f64; 6]", from = "[f64; 6]")]
pub struct Spread {
    /// How many samples there are.
    pub count: usize,
    /// The smallest sample.
    pub min: f64,
    /// A quarter of the samples are below it.
    pub lower: f64,
    /// The middle sample, or the mean of the two middle ones.
    pub median: f64,
    /// A quarter of the samples are above it.
    pub upper: f64,
    /// The largest sample.
    pub max: f64,
}

impl Spread {
    /// Sums up `samples`; `None` when there are none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        // Between two samples a quantile is interpolated.
        let quantile = |share: f64| {
            let place = share * last as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        let [min, lower, median, upper, max] = [0.0, 0.25, 0.5, 0.75, 1.0].map(quantile);
        Some(Self { count: sorted.len(), min, lower, median, upper, max })
    }

    /// The figure of a metric with these samples.
    pub fn figure(self, metric: &str) -> f64 {
        if is_worst(metric) { self.max } else { self.median }
    }

    /// The same with four digits for each figure.
    #[must_use]
    pub fn rounded(self) -> Self {
        let [_, min, lower, median, upper, max] = <[f64; 6]>::from(self).map(four_digits);
        Self { count: self.count, min, lower, median, upper, max }
    }
}

impl From<Spread> for [f64; 6] {
    fn from(all: Spread) -> Self {
        [all.count as f64, all.min, all.lower, all.median, all.upper, all.max]
    }
}

impl From<[f64; 6]> for Spread {
    fn from([count, min, lower, median, upper, max]: [f64; 6]) -> Self {
        Self { count: count as usize, min, lower, median, upper, max }
    }
}

fn four_digits(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// The mean, and the standard deviation of single samples around it; `None` for fewer than two samples.
pub fn mean_and_deviation(samples: &[f64]) -> Option<(f64, f64)> {
    let count = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (samples.len() > 1).then(|| (mean, (squares / (count - 1.0)).sqrt()))
}

#[cfg(test)]
mod tests;
