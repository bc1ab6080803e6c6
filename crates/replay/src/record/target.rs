//! Where a trace goes.

use std::path::Path;

use super::RecordError;
use crate::output::{Target, output_name};
use crate::trace::TraceError;

/// Opens the target, which must not be a terminal.
pub(super) fn open(output: &Path) -> Result<Target, RecordError> {
    let target = Target::open(output).map_err(|error| cannot_write(output, error.into()))?;
    if target.is_terminal() { Err(RecordError::Terminal) } else { Ok(target) }
}

pub(super) fn cannot_write(output: &Path, source: TraceError) -> RecordError {
    RecordError::Output { path: output_name(output), source }
}
