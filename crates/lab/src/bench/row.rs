//! The JSON lines: one per experiment, case, arm and metric.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::experiment::{Better, Counters};

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
    /// Which way the metric is to go.
    pub better: Better,
    /// Every measured repetition, in the order they ran; empty when skipped.
    pub samples: Vec<f64>,
    /// Their median; `null` when skipped.
    pub median: Option<f64>,
    /// Exact counts of the last repetition.
    pub counters: Counters,
    /// The parameters of the case and of the run.
    pub params: Map<String, Value>,
    /// The machine and the compiler.
    pub machine: Value,
    /// The commit that was measured, `-dirty` when the sources differed from it.
    pub commit: String,
    /// Why there are no samples; `null` when there are.
    pub skipped: Option<String>,
}

/// Writes `rows` to `output`, one JSON object a line.
///
/// # Errors
/// Those of `output`.
pub fn write_lines(rows: &[Row], output: &mut dyn Write) -> Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *output, row)?;
        output.write_all(b"\n")?;
    }
    output.flush()?;
    Ok(())
}

/// Writes `rows` to the file `path`, whole or not at all.
///
/// # Errors
/// When the directory of `path` cannot be written.
pub fn write_file(rows: &[Row], path: &Path) -> Result<()> {
    let mut bytes = Vec::new();
    write_lines(rows, &mut bytes)?;
    write_atomically(path, &bytes)
}

/// Fails now, before anything is measured, if `path` could not be written afterwards.
///
/// # Errors
/// When the directory of `path` does not exist or cannot be written.
pub fn check_writable(path: &Path) -> Result<()> {
    beside(path).map(drop)
}

/// Replaces the file `path` by `bytes` in one step: a reader sees the old content or the new, never a part.
///
/// # Errors
/// When the directory of `path` cannot be written.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = beside(path)?;
    file.write_all(bytes).with_context(|| format!("cannot write {}", path.display()))?;
    file.persist(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// A temporary file in the directory of `path`, so that renaming it there is one step.
fn beside(path: &Path) -> Result<tempfile::NamedTempFile> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // The permissions are those of any new file: the process's mask still applies.
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(directory).with_context(
        || format!("cannot write {}: give a file in a directory that exists and is writable", path.display()),
    )
}
