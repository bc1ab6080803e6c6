//! Finds the kernel, or builds it.

use std::env;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::error::BootError;
use crate::output::{quoted, say};

/// The kernel's target.
const TARGET: &str = "x86_64-unknown-none";
/// Names the kernel when no option does.
const VARIABLE: &str = "QUIRE_KERNEL";
/// What the caller's own build may have set, and the kernel's `Cargo.toml` and `config.toml` say otherwise.
const SETTINGS: [&str; 4] =
    ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS", "CARGO_BUILD_TARGET"];

/// A build that takes longer than this has something to compile, which takes a minute or more.
const SOON: Duration = Duration::from_secs(2);

/// The kernel's ELF file: the given one, that of the variable, or the one that is built from the source
/// beside this package. `checks` builds it with the library's debug checks.
pub(super) fn find(given: Option<&Path>, checks: bool) -> Result<PathBuf, BootError> {
    let variable = env::var_os(VARIABLE).map(PathBuf::from);
    if checks && variable.is_some() {
        let text = format!("`--checks` builds a kernel, and {VARIABLE} names another; unset it");
        return Err(BootError::Options(text));
    }
    let named = given.map(Path::to_owned).or(variable);
    if let Some(path) = named {
        readable(&path)?;
        return Ok(path);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel");
    match folder.canonicalize() {
        Ok(folder) if folder.join("Cargo.toml").exists() => build(&folder, checks),
        _ => Err(BootError::NoKernel),
    }
}

fn readable(path: &Path) -> Result<(), BootError> {
    let opened = File::open(path).and_then(|mut file| {
        let mut magic = [0; 4];
        let read = if file.metadata()?.is_file() { file.read_exact(&mut magic) } else { Ok(()) };
        // A file that is too short is as wrong as one of something else.
        read.or_else(|error| if error.kind() == io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(error) })?;
        match magic == *b"\x7fELF" {
            true => Ok(()),
            false => {
                Err(io::Error::other("it is no ELF file; give `--kernel` or QUIRE_KERNEL that of a kernel"))
            }
        }
    });
    opened.map_err(|source| BootError::BadKernel { path: quoted(path).to_string(), source })
}

fn build(folder: &Path, checks: bool) -> Result<PathBuf, BootError> {
    let failed = |cause: String| BootError::NotBuilt { folder: quoted(folder).to_string(), cause };
    if !has_target(folder) {
        return Err(BootError::NoTarget { target: TARGET });
    }
    let target = folder.join("target");
    let kernel = target.join(TARGET).join(if checks { "debug" } else { "release" }).join("quire-kernel");
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg("build").arg("--target-dir").arg(&target).current_dir(folder);
    if !checks {
        command.arg("--release");
    }
    // On a terminal the user sees the progress of the first build. Most later ones have nothing to tell.
    if kernel.exists() || !io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let profile = |name: &String| name.starts_with("CARGO_PROFILE_");
    let profiles = env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(profile);
    profiles.chain(SETTINGS.map(str::to_owned)).for_each(|name| _ = command.env_remove(name));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    match telling(|| command.status()) {
        Ok(status) if status.success() => Ok(kernel),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Builds, and says so if that is not done soon.
fn telling<T>(build: impl FnOnce() -> T) -> T {
    let (done, waits) = channel::<()>();
    let teller = thread::spawn(move || {
        if waits.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
            say("quire: building the kernel, which takes a minute or two");
        }
    });
    let built = build();
    drop(done);
    // It only prints.
    let _ = teller.join();
    built
}

/// Whether the compiler has the target's libraries. A compiler that does not answer is left to cargo's own
/// message.
fn has_target(folder: &Path) -> bool {
    let mut command = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args(["--print", "target-libdir", "--target", TARGET]).current_dir(folder);
    let Ok(output) = command.output() else { return true };
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    !output.status.success() || Path::new(&directory).exists()
}
