//! A run from the command line's options to the exit code.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};

use super::end::{End, TIMED_OUT};
use super::error::BootError;
use super::image::{Given, Image, Request};
use super::machine::{Channels, Machine};
use super::run::{self, QEMU, Ran, Settings, Stopped};
use super::{kernel, terminal};
use crate::output::{quoted, say};

/// What to run, and where.
pub(super) struct Options {
    pub(super) machine: Machine,
    pub(super) command: Vec<OsString>,
    pub(super) environment: Vec<OsString>,
    pub(super) directory: PathBuf,
    pub(super) root: Option<PathBuf>,
    pub(super) files: Vec<Given>,
    pub(super) kernel: Option<PathBuf>,
    pub(super) checks: bool,
    pub(super) keep: Option<PathBuf>,
    pub(super) verbose: bool,
    pub(super) timeout: Option<Duration>,
}

/// Runs the program to its end, and returns the exit code.
pub(super) fn boot(options: &Options) -> Result<u8, BootError> {
    options.machine.check()?;
    let image = Image::new(&Request {
        command: &options.command,
        environment: &options.environment,
        directory: &options.directory,
        terminal: terminal::size(),
        root: options.root.as_deref(),
        files: &options.files,
    })?;
    need_qemu()?;
    let kernel = kernel::find(options.kernel.as_deref(), options.checks)?;
    let archive = Archive::create(options.keep.as_deref())?;
    archive.fill(&image)?;

    // A kernel that takes the program's words from its command line follows no links.
    let mut words = options.command.clone();
    words[0] = image.program.into_os_string();
    let settings = Settings { kernel: &kernel, verbose: options.verbose, timeout: options.timeout };
    let ran = run::run(settings, |log| {
        let has_keys = rustix::termios::isatty(rustix::stdio::stdin());
        options
            .machine
            .arguments(&Channels { kernel: &kernel, archive: &archive.path, log, has_keys }, &words)
    })?;
    tell(ran, &kernel, options)
}

/// Says what is missing before a kernel is built in vain.
fn need_qemu() -> Result<(), BootError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let exists = env::split_paths(&path).any(|directory| directory.join(QEMU).is_file());
    exists.then_some(()).ok_or(BootError::NoQemu { program: QEMU })
}

/// The file of the guest's files. Without a name of the user's it has none: whatever ends this process, nothing is left.
struct Archive {
    file: File,
    /// Where QEMU, which has the descriptor too, opens it.
    path: PathBuf,
    /// What the user is told.
    name: String,
}

impl Archive {
    fn create(kept: Option<&Path>) -> Result<Archive, BootError> {
        let (name, file) = match kept {
            Some(path) => (quoted(path).to_string(), File::create(path)),
            None => (format!("in {}", quoted(&env::temp_dir())), tempfile::tempfile()),
        };
        let file = file.map_err(|source| BootError::NotWritten { path: name.clone(), source })?;
        fcntl_setfd(&file, FdFlags::empty()).map_err(BootError::system("passing the archive on"))?;
        let of_descriptor = || format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        let path = kept.map_or_else(of_descriptor, Path::to_owned);
        Ok(Archive { file, path, name })
    }

    fn fill(&self, image: &Image) -> Result<(), BootError> {
        let not_written = |source| BootError::NotWritten { path: self.name.clone(), source };
        let mut out = BufWriter::new(&self.file);
        image.write(&mut out, not_written)?;
        out.flush().map_err(not_written)
    }
}

/// Says what went wrong, if anything did, and returns the exit code.
fn tell(ran: Ran, kernel: &Path, options: &Options) -> Result<u8, BootError> {
    match ran.stopped {
        Some(Stopped::TimeOut) => {
            say("quire: the time ran out");
            return Ok(TIMED_OUT);
        }
        Some(Stopped::Signal(signal)) => {
            // Returns only if the signal is ignored.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            return Ok(128 + signal as u8);
        }
        Some(Stopped::Unwritten(error)) => return Err(BootError::system("writing standard output")(error)),
        None => {}
    }
    let end = End::of(ran.log.end.as_deref(), ran.status);
    if matches!(end, End::KernelFailed | End::Unsaid) {
        ran.log.show(kernel);
    }
    let program = quoted(&options.command[0]);
    match &end {
        End::KernelFailed => say("quire: the kernel failed"),
        End::Unsaid => say(format_args!("quire: QEMU ended before the program did ({})", ran.status)),
        End::NotStarted(Some(error)) => say(format_args!("quire: cannot start {program}: {error}")),
        End::NotStarted(None) => say(format_args!("quire: cannot start {program}")),
        End::Exited(_) | End::Killed(_) => {}
    }
    Ok(end.exit_code())
}
