//! Errors of `quire boot`; each is one line that names the cure.

use std::io;

use super::end::FAILED;
use crate::output::cure;

/// Why a program can't be run in the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootError {
    /// No file has the program's name.
    #[error("cannot find {program}; check its name and PATH, or give it with `--file`")]
    NotFound {
        /// The name as typed.
        program: String,
    },
    /// The file with that name may not be executed.
    #[error("cannot execute {program}; check its permissions")]
    NotExecutable {
        /// The name as typed.
        program: String,
    },
    /// A file can't be put into the archive.
    #[error("cannot pack {path}: {source}{}", cure_of(source))]
    NotPacked {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The archive can't be written.
    #[error("cannot write the archive {path}: {source}; make room for it")]
    NotWritten {
        /// Where to.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// No kernel is given, and there is no source to build one from.
    #[error("no kernel here; give one with `--kernel FILE` or QUIRE_KERNEL")]
    NoKernel,
    /// The given kernel can't be read.
    #[error("cannot read the kernel {path}: {source}{}", cure_of(source))]
    BadKernel {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The compiler can't compile for the kernel's target.
    #[error("building the kernel needs a target: rustup target add {target}")]
    NoTarget {
        /// Its name.
        target: &'static str,
    },
    /// The kernel does not build.
    #[error("`cargo build` failed in {folder}: {cause}")]
    NotBuilt {
        /// Where.
        folder: String,
        /// How.
        cause: String,
    },
    /// There is no emulator.
    #[error("{program} is missing: apt-get install --no-install-recommends qemu-system-x86")]
    NoQemu {
        /// Its name.
        program: &'static str,
    },
    /// The emulator can't be started.
    #[error("{what} failed: {source}")]
    System {
        /// What.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The options contradict each other, or a value can't be had.
    #[error("{0}")]
    Options(String),
}

/// The cure for an error of the system, after a semicolon; the other errors name their own.
fn cure_of(source: &io::Error) -> String {
    source.raw_os_error().map(|_| format!("; {}", cure(source))).unwrap_or_default()
}

impl BootError {
    /// The exit code of `quire boot`, as of `env`.
    pub fn exit_code(&self) -> u8 {
        match self {
            BootError::NotFound { .. } => 127,
            BootError::NotExecutable { .. } => 126,
            BootError::Options(_) => 2,
            _ => FAILED,
        }
    }

    /// A closure for `map_err` on a call that should not fail.
    pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> BootError {
        move |error| BootError::System { what, source: error.into() }
    }
}
