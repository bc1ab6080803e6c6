//! A run from the command line's options to the exit code.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    let folder = tempfile::tempdir().map_err(BootError::system("making a temporary directory"))?;
    let archive = options.keep.clone().unwrap_or_else(|| folder.path().join("initramfs"));
    write(&image, &archive)?;

    // A kernel that takes the program's words from its command line follows no links.
    let mut words = options.command.clone();
    words[0] = image.program.into_os_string();
    let settings = Settings { kernel: &kernel, verbose: options.verbose, timeout: options.timeout };
    let ran = run::run(settings, |log| {
        let has_keys = rustix::termios::isatty(rustix::stdio::stdin());
        options.machine.arguments(&Channels { kernel: &kernel, archive: &archive, log, has_keys }, &words)
    })?;
    // A signal may end this process, and would leave the archive behind.
    drop(folder);
    Ok(tell(&ran, &kernel, options))
}

/// Says what is missing before a kernel is built in vain.
fn need_qemu() -> Result<(), BootError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let exists = env::split_paths(&path).any(|directory| directory.join(QEMU).is_file());
    exists.then_some(()).ok_or(BootError::NoQemu { program: QEMU })
}

fn write(image: &Image, path: &Path) -> Result<(), BootError> {
    let not_written = |source| BootError::NotWritten { path: quoted(path).to_string(), source };
    let mut out = BufWriter::new(File::create(path).map_err(not_written)?);
    image.write(&mut out)?;
    out.flush().map_err(not_written)
}

/// Says what went wrong, if anything did, and returns the exit code.
fn tell(ran: &Ran, kernel: &Path, options: &Options) -> u8 {
    match ran.stopped {
        Some(Stopped::TimeOut) => {
            say("quire: the time ran out");
            return TIMED_OUT;
        }
        Some(Stopped::Signal(signal)) => {
            // Returns only if the signal is ignored.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            return 128 + signal as u8;
        }
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
    end.exit_code()
}
