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
    /// What it was measured on.
    pub machine: String,
    /// What was done.
    pub case: String,
    /// Which of the compared ways.
    pub variant: String,
    /// What was measured.
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
/// When the bundled file is not well formed, which a test rules out.
pub fn figures(system: &str) -> anyhow::Result<Vec<Published>> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(CSV.as_bytes());
    let all: Result<Vec<Published>, csv::Error> = reader.deserialize().collect();
    Ok(all?.into_iter().filter(|figure| figure.system == system).collect())
}

#[cfg(test)]
mod tests;
