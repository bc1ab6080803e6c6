//! The JSON lines: one per experiment, case, arm and metric.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::metric::{Better, Counters};

/// One line of the result file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the case.
    pub case: String,
    /// Name of the arm.
    pub arm: String,
    /// Name of the metric.
    pub metric: String,
    /// Unit of `samples` and `median`.
    pub unit: String,
    /// Whether smaller or larger values are better.
    pub better: Better,
    /// Every measured repetition, in the order they ran; empty when skipped.
    pub samples: Vec<f64>,
    /// Their median, or the largest where that counts ([`is_worst`](super::metric::is_worst)); `null` when
    /// skipped.
    pub median: Option<f64>,
    /// Exact counts: of each the largest of a repetition.
    pub counters: Counters,
    /// The parameters of the case and of the run.
    pub params: Map<String, Value>,
    /// The machine and the compiler.
    pub machine: Value,
    /// The commit that was measured, `-dirty` when the sources differed from it.
    pub commit: String,
    /// The hash of the code that the experiment measures ([`super::code`]); empty if the build had no
    /// sources.
    #[serde(default)]
    pub code: String,
    /// The hash of the code that measures: what runs the arms, the other side, and the experiment's own file; empty
    /// as above.
    #[serde(default)]
    pub runner: String,
    /// Why there are no samples; `null` when there are.
    pub skipped: Option<String>,
}

/// `rows` as bytes, one JSON object a line.
///
/// # Errors
/// A figure that JSON cannot express.
pub fn lines(rows: &[Row]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut bytes, row)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}
