//! Records the command to give advice on, or what runs already.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::output::say;
use crate::record::{self, Attach, Interface, Options, Referenced, Source, Subject, Thp, Wait};
use crate::trace::Program;

/// A trace that was just recorded; a temporary one goes with the value.
pub(super) struct Recorded {
    pub(super) path: PathBuf,
    /// `None` for what ran already.
    pub(super) exit_code: Option<u8>,
    /// What was referenced meanwhile, if that was sampled.
    pub(super) referenced: Option<Referenced>,
    _temporary: Option<tempfile::TempDir>,
}

/// The share of its time that recording may cost what runs already, as `quire record` has it, and that sampling may take.
pub(super) const MOST_OVERHEAD: f64 = 0.05;

/// Records the command to `output`, or to a temporary file.
///
/// # Errors
/// As `quire record`.
pub(super) fn record(command: &[OsString], output: Option<&Path>, accesses: Source) -> Result<Recorded> {
    let program = Path::new(command.first().map_or("".as_ref(), OsString::as_os_str));
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (path, temporary) = place(output, &name)?;
    let recorded = record::record(&Options {
        output: path.clone(),
        command: command.to_vec(),
        tier: None,
        ring_bytes: None,
        program: Program { name, version: String::new() },
        no_arguments: false,
        wait: Wait::All,
        ends_with_recorder: false,
        thp: Thp::Off,
        max_overhead: None,
        accesses,
        interface: Interface::Auto,
    })?;
    tell(&recorded);
    let (exit_code, referenced) = (Some(recorded.exit_code), recorded.referenced);
    Ok(Recorded { path, exit_code, referenced, _temporary: temporary })
}

/// The same of what runs already, for a time or until it ends.
///
/// # Errors
/// As `quire record --pid`.
pub(super) fn attach(
    subject: Subject,
    duration: Option<Duration>,
    output: Option<&Path>,
    accesses: Source,
) -> Result<Recorded> {
    let (path, temporary) = place(output, "running")?;
    let recorded = record::attach(&Attach {
        output: path.clone(),
        subject,
        duration,
        max_overhead: MOST_OVERHEAD,
        ring_bytes: None,
        name: None,
        version: String::new(),
        no_arguments: false,
        accesses,
        interface: Interface::Auto,
    })?;
    tell(&recorded);
    Ok(Recorded { path, exit_code: None, referenced: recorded.referenced, _temporary: temporary })
}

/// The file of the trace, and the directory that holds it if it is a temporary one.
fn place(output: Option<&Path>, name: &str) -> Result<(PathBuf, Option<tempfile::TempDir>)> {
    if let Some(path) = output {
        return Ok((path.to_owned(), None));
    }
    let directory = tempfile::tempdir().context("cannot make a directory for the trace; give -o FILE")?;
    Ok((directory.path().join(format!("{}.qtrace", name.replace('/', "_"))), Some(directory)))
}

fn tell(recorded: &record::Recorded) {
    if let Some(cause) = &recorded.written.cut {
        say(format_args!("quire: the trace has only the first {} events ({cause})", recorded.written.events));
    }
}
