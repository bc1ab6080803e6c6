//! Programs of the system that the comparison starts.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// A program, and the Debian packages that bring it.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// The name of the program.
    pub name: &'static str,
    /// The packages.
    pub packages: &'static str,
}

/// The emulator.
pub const QEMU: Tool = Tool { name: "qemu-system-x86_64", packages: "qemu-system-x86" };
/// Builds the program.
pub const GCC: Tool = Tool { name: "gcc", packages: "gcc libc6-dev" };
/// The shell and `true`, as one static program.
pub const BUSYBOX: Tool = Tool { name: "busybox", packages: "busybox-static" };
/// Fetches Debian's kernels.
pub const APT: Tool = Tool { name: "apt-get", packages: "apt" };
/// Knows which kernels there are.
pub const APT_CACHE: Tool = Tool { name: "apt-cache", packages: "apt" };
/// Unpacks them.
pub const DPKG: Tool = Tool { name: "dpkg-deb", packages: "dpkg" };
/// Builds Quire's kernel.
pub const CARGO: Tool = Tool { name: "cargo", packages: "rustup" };

impl Tool {
    /// The file of the program.
    ///
    /// # Errors
    /// One line that names the packages, if it is not installed.
    pub fn path(self) -> Result<PathBuf> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&folders).map(|folder| folder.join(self.name));
        let found = found.into_iter().find(|path| path.is_file());
        found.with_context(|| {
            let Self { name, packages } = self;
            format!("{name} is missing: apt-get install --no-install-recommends {packages}")
        })
    }

    /// A command that starts it.
    ///
    /// # Errors
    /// As [`Tool::path`].
    pub fn command(self) -> Result<Command> {
        Ok(Command::new(self.path()?))
    }
}

/// Runs `command` to its end and returns what it wrote to standard output.
///
/// # Errors
/// A program that cannot be started, or that fails: with the last line of what it said.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("cannot start {name}"))?;
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr);
        bail!("{name} failed ({status}): {}", said.trim().lines().last().unwrap_or("it did not say why"));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}
