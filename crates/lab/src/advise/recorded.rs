//! Records the command to give advice on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::output::say;
use crate::record::{self, Options, Wait};
use crate::trace::Program;

/// A trace that was just recorded; a temporary one goes with the value.
pub(super) struct Recorded {
    pub(super) path: PathBuf,
    pub(super) exit_code: u8,
    _temporary: Option<tempfile::TempDir>,
}

/// Records the command to `output`, or to a temporary file.
///
/// # Errors
/// As `quire record`.
pub(super) fn record(command: &[OsString], output: Option<&Path>) -> Result<Recorded> {
    let temporary = match output {
        Some(_) => None,
        None => Some(tempfile::tempdir().context("cannot make a directory for the trace; give -o FILE")?),
    };
    let program = Path::new(command.first().map_or("".as_ref(), OsString::as_os_str));
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let path = match (output, &temporary) {
        (Some(path), _) => path.to_owned(),
        (None, Some(directory)) => directory.path().join(format!("{}.qtrace", name.replace('/', "_"))),
        (None, None) => PathBuf::new(),
    };
    let recorded = record::record(&Options {
        output: path.clone(),
        command: command.to_vec(),
        tier: None,
        ring_bytes: None,
        program: Program { name, version: String::new() },
        no_arguments: false,
        wait: Wait::All,
    })?;
    if let Some(cause) = &recorded.written.cut {
        say(format_args!("quire: the trace has only the first {} events ({cause})", recorded.written.events));
    }
    Ok(Recorded { path, exit_code: recorded.exit_code, _temporary: temporary })
}
