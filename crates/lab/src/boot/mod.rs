//! `quire boot`: runs a program of this machine on the example kernel, in QEMU.
//!
//! ```text
//! kernel      the kernel: found, or built
//! image       the guest's files: the program, what it needs, and what the user gives
//! machine     QEMU's arguments
//! run         QEMU itself, its channels and its end       terminal  the user's terminal meanwhile
//! log         the kernel's own lines                      backtrace names for addresses in them
//! end         what the last line and the status say
//! ```

mod args;
mod backtrace;
mod end;
mod error;
mod image;
mod kernel;
mod log;
mod machine;
mod run;
mod terminal;

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use args::{Args, run};
pub use error::BootError;

use crate::output::{quoted, say};
use end::End;
use image::{Given, Image, Request};
use machine::{Channels, Machine};
use run::{QEMU, Ran, Settings, Stopped};

/// The exit code when the kernel failed or could not be run.
const FAILED: u8 = 125;
/// The exit code when the time ran out, as of `timeout`.
const TIMED_OUT: u8 = 124;

/// What to run, and where.
struct Options {
    machine: Machine,
    command: Vec<OsString>,
    environment: Vec<OsString>,
    directory: PathBuf,
    root: Option<PathBuf>,
    files: Vec<Given>,
    kernel: Option<PathBuf>,
    checks: bool,
    keep: Option<PathBuf>,
    verbose: bool,
    timeout: Option<Duration>,
}

/// Runs the program to its end, and returns the exit code.
fn boot(options: &Options) -> Result<u8, BootError> {
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
