//! Published figures, kept as data beside the code.

use serde::Deserialize;

const CSV: &str = include_str!("../../data/published.csv");

/// One published figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Published {
    /// The system it belongs to (`zap`, `hvo`, `pcp` …).
    pub system: String,
    /// The author, and the date of publication.
    pub source: String,
    /// The machine.
    pub machine: String,
    /// The work.
    pub case: String,
    /// The compared variant.
    pub variant: String,
    /// The metric.
    pub metric: String,
    /// The figure as published: a number, or words such as `about 1` where no exact one was given.
    pub value: String,
    /// Its unit.
    pub unit: String,
}

impl Published {
    /// The figure, where an exact one was published.
    pub fn number(&self) -> Option<f64> {
        self.value.parse().ok()
    }
}

/// Every published figure of `system`.
///
/// # Errors
/// When the bundled file is malformed, which a test rules out.
pub fn figures(system: &str) -> anyhow::Result<Vec<Published>> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(CSV.as_bytes());
    let all: Result<Vec<Published>, csv::Error> = reader.deserialize().collect();
    Ok(all?.into_iter().filter(|figure| figure.system == system).collect())
}

#[cfg(test)]
mod tests;
