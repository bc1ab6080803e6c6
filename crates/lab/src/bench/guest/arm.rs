//! The kernels that are compared, and how each is started.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::archive::{self, Entry};
use super::debian;
use super::qemu::{self, Boot};
use super::rows::{self, Machine};
use super::tools::{self, BUSYBOX, CARGO, GCC};

/// A kernel in one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Debian's kernel of a series.
    Linux {
        /// The name of the arm.
        name: &'static str,
        /// As apt's packages name it.
        series: &'static str,
        /// Whether a memory cgroup is charged for the program.
        charged: bool,
    },
    /// The kernel of this repository.
    Quire,
}

/// Every arm, the baseline first.
pub const ARMS: [Arm; 5] = [
    Arm::Linux { name: "linux-6.1", series: "6.1", charged: false },
    Arm::Linux { name: "linux-6.1-memcg", series: "6.1", charged: true },
    Arm::Linux { name: "linux-6.12", series: "6.12", charged: false },
    Arm::Linux { name: "linux-6.12-memcg", series: "6.12", charged: true },
    Arm::Quire,
];

impl Arm {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux { name, .. } => name,
            Self::Quire => "quire",
        }
    }

    /// What is particular to it.
    pub fn about(self) -> &'static str {
        match self {
            Self::Linux { charged: false, .. } => {
                "Debian's cloud kernel with init_on_alloc=0 and cgroup_disable=memory, 30 seconds after its start."
            }
            Self::Linux { charged: true, .. } => {
                "the same with memory cgroups, the program in a cgroup below the root."
            }
            Self::Quire => "the kernel of this repository, built with --release.",
        }
    }

    /// Whether it is measured on `machine`: a memory cgroup is of interest for counts.
    pub fn runs_on(self, machine: Machine) -> bool {
        !matches!(self, Self::Linux { charged: true, .. }) || machine == Machine::Counts
    }

    /// The kernel's image, and its version in words.
    ///
    /// # Errors
    /// A kernel that cannot be fetched or built.
    pub fn kernel(self) -> Result<(PathBuf, String)> {
        match self {
            Self::Linux { series, .. } => {
                let kernel = debian::fetch(series)?;
                Ok((kernel.image, kernel.version))
            }
            Self::Quire => build_quire(),
        }
    }

    /// The kernel's command line, with the program's arguments in it.
    fn command_line(self, machine: Machine, groups: &[&str]) -> String {
        let mode = machine.mode();
        let mut arguments = match machine {
            // Memory that was never written might be known to be zero.
            Machine::Counts => format!("mode={mode} dirty=3000 groups=,{},", groups.join(",")),
            Machine::Wall => format!("mode={mode} groups=,{},", groups.join(",")),
            Machine::Boot | Machine::BootWall | Machine::BootLibc => {
                format!("mode={mode} memory={}", qemu::BOOT_MIB)
            }
        };
        let Self::Linux { charged, .. } = self else { return format!("/{PROGRAM} {arguments}") };
        arguments += match machine {
            Machine::Counts => " settle=30",
            Machine::Wall => " settle=5",
            Machine::Boot | Machine::BootWall | Machine::BootLibc => "",
        };
        let mut options = "console=ttyS0 quiet panic=-1 nokaslr init_on_alloc=0".to_owned();
        if charged {
            arguments += " group=memory";
        } else {
            options += " cgroup_disable=memory";
        }
        format!("{options} rdinit=/{PROGRAM} -- {arguments}")
    }
}

/// The program's path in the archive.
const PROGRAM: &str = "bin/guest";

/// The source of the program.
pub const SOURCE: &str = include_str!("program.c");

/// The source of the program of a machine that is only started.
pub const FIRST: &str = include_str!("first.c");

/// How the program is built.
const STATIC: [&str; 2] = ["-static", "-pthread"];

/// How the one without a library is built: what it does not need is not in its file.
const ALONE: [&str; 8] = [
    "-static",
    "-nostdlib",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fcf-protection=none",
    "-s",
    "-Wl,--build-id=none,-z,noseparate-code",
];

/// What all arms share: the programs and the archives.
pub struct GuestFiles {
    folder: tempfile::TempDir,
}

impl GuestFiles {
    /// Builds the programs and packs the archives.
    ///
    /// # Errors
    /// A missing tool, in one line.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let busybox = fs::read(BUSYBOX.path()?)?;
        let program = build(folder.path(), SOURCE, &STATIC)?;
        let first = build(folder.path(), FIRST, &ALONE)?;
        let bin = Entry { path: "bin", bytes: None };
        let file = |path, bytes| Entry { path, bytes: Some(bytes) };
        let only = |program| archive::pack(&[bin.clone(), file(PROGRAM, program)]);
        // A copy, not a link: every kernel that reads archives has files.
        let whole = archive::pack(&[
            bin.clone(),
            file("bin/busybox", &busybox),
            file(PROGRAM, &program),
            file("bin/true", &busybox),
        ]);
        for (name, archive) in [("first", only(&first)), ("libc", only(&program)), ("whole", whole)] {
            fs::write(folder.path().join(name), archive)?;
        }
        Ok(Self { folder })
    }

    /// The archive for `machine`. The first program's memory is to be measured without a shell beside it.
    fn initramfs(&self, machine: Machine) -> PathBuf {
        self.folder.path().join(match machine {
            Machine::Boot | Machine::BootWall => "first",
            Machine::BootLibc => "libc",
            Machine::Wall | Machine::Counts => "whole",
        })
    }

    /// Measures `groups` of `machine` on `arm`. When the machine dies in a group, that group has the reason, and another
    /// machine goes on after it. `show` is told what runs.
    ///
    /// # Errors
    /// QEMU cannot be started.
    pub fn measure(
        &self,
        arm: Arm,
        kernel: &Path,
        machine: Machine,
        groups: &[&str],
        show: &mut dyn FnMut(&str),
    ) -> Result<Figures> {
        let mut figures = Figures::new();
        let mut left = groups;
        while let [first, ..] = *left {
            show("starting");
            let boot = Boot {
                kernel: kernel.to_owned(),
                initramfs: self.initramfs(machine),
                command_line: arm.command_line(machine, left),
            };
            let ended = qemu::run(machine, &boot, show)?;
            figures.extend(ended.report.rows);
            if let (Machine::BootWall, Some(time)) = (machine, ended.first_line) {
                figures.insert("boot/time".to_owned(), Ok(time.as_nanos() as f64));
            }
            let Some(broken) = ended.broken else { break };
            let begun = ended.report.group;
            let died = begun.as_deref().unwrap_or(first);
            let after = left.iter().position(|group| *group == died).map_or(left.len(), |at| at + 1);
            // A machine that does not come to the program will not come to it the next time.
            let lost = if begun.is_some() { after } else { left.len() };
            let lost_rows =
                rows::of(machine).filter(|row| row.group == died || left[after..lost].contains(&row.group));
            figures.extend(lost_rows.map(|row| (row.name.to_owned(), Err(broken.clone()))));
            left = &left[lost..];
        }
        Ok(figures)
    }
}

/// The file of the program `source`.
fn build(folder: &Path, source: &str, flags: &[&str]) -> Result<Vec<u8>> {
    let (text, program) = (folder.join("program.c"), folder.join("program"));
    fs::write(&text, source)?;
    let mut gcc = GCC.command()?;
    gcc.args(["-std=gnu11", "-O2"]).args(flags).arg("-o").arg(&program).arg(&text);
    tools::output(&mut gcc)?;
    Ok(fs::read(program)?)
}

/// The figure of each row, or why there is none.
pub type Figures = BTreeMap<String, Result<f64, String>>;

/// Builds the kernel of this repository as it is measured.
fn build_quire() -> Result<(PathBuf, String)> {
    let here = std::env::current_dir()?;
    let folder = here
        .ancestors()
        .map(|folder| folder.join("kernel"))
        .find(|folder| folder.join("kernel.ld").is_file());
    let folder = folder.context("no folder `kernel` here or above: run this in Quire's repository")?;
    let mut cargo = CARGO.command()?;
    // Its own target folder, whatever this command was built with.
    let target = folder.join("target");
    cargo.current_dir(&folder).env("CARGO_TARGET_DIR", &target);
    tools::output(cargo.args(["build", "--quiet", "--release"])).context("cannot build the kernel")?;
    Ok((target.join("x86_64-unknown-none/release/quire-kernel"), crate::host::machine::commit().to_owned()))
}
