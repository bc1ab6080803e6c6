//! The machine that QEMU plays: its options, and QEMU's arguments for them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::error::BootError;
use crate::output::quoted;

/// The most CPUs and nodes that the kernel has.
pub(super) const MOST_CPUS: u32 = 8;
const MIB: u64 = 1 << 20;
/// The distances of nodes, as firmware tells them: to itself is 10.
const FAR: u32 = 20;

/// A machine of QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Model {
    /// A PC of the year 1996, with PCI.
    #[default]
    Pc,
    /// A PC of the year 2009, with PCI Express.
    Q35,
    /// A machine without PCI, which starts fastest.
    Microvm,
}

/// What the user chose.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) model: Model,
    pub(super) cpus: u32,
    pub(super) memory: u64,
    pub(super) nodes: Option<u32>,
    pub(super) icount: bool,
    pub(super) kvm: bool,
    pub(super) disks: Vec<PathBuf>,
    pub(super) kernel_options: Vec<String>,
    pub(super) more: Vec<OsString>,
}

/// The files and channels that QEMU gets.
#[derive(Clone, Debug)]
pub(super) struct Channels<'a> {
    pub(super) kernel: &'a Path,
    pub(super) archive: &'a Path,
    /// The path of the file that gets the kernel's log.
    pub(super) log: &'a str,
    /// Whether keys of QEMU's own are looked for in the input.
    pub(super) has_keys: bool,
}

impl Machine {
    /// Refuses what QEMU or the kernel cannot do.
    pub(super) fn check(&self) -> Result<(), BootError> {
        let wrong = |text: &str| Err(BootError::Options(text.to_owned()));
        if self.icount && self.cpus > 1 {
            return wrong("`--icount` runs one CPU; leave out `--cpus`");
        }
        if self.memory < MIB || !self.memory.is_multiple_of(MIB) {
            return wrong("the size of memory is a multiple of 1M");
        }
        if let Some(nodes) = self.nodes {
            if self.model == Model::Microvm {
                return wrong("the machine microvm has no nodes; use `--machine pc`");
            }
            if self.memory / MIB < u64::from(nodes) {
                return wrong("each node has at least 1M of memory");
            }
        }
        Ok(())
    }

    /// The arguments of QEMU. `words` are those of the program, for a kernel that reads them from its command
    /// line.
    pub(super) fn arguments(&self, channels: &Channels<'_>, words: &[OsString]) -> Vec<OsString> {
        let mut all = Arguments::default();
        let model = match self.model {
            Model::Pc => "pc",
            Model::Q35 => "q35",
            Model::Microvm => "microvm",
        };
        all.option("-machine", model);
        // Deterministic runs have no random numbers of the processor, and a string store counts as one
        // instruction for each of its steps.
        all.option("-cpu", if self.icount { "max,-rdrand,-rdseed,-erms" } else { "max" });
        all.option("-m", format!("{}M", self.memory / MIB));
        all.option("-smp", self.cpus.to_string());
        for flag in ["-no-reboot", "-nodefaults", "-no-user-config"] {
            all.0.push(flag.into());
        }
        all.option("-display", "none");
        all.option("-monitor", "none");
        let keys = if channels.has_keys { ",mux=on" } else { "" };
        all.option("-chardev", format!("stdio,id=terminal,signal=off{keys}"));
        all.option("-serial", "chardev:terminal");
        all.option("-chardev", format!("file,id=log,path={}", channels.log));
        all.option("-device", "isa-debugcon,iobase=0xe9,chardev=log");
        all.option("-device", "isa-debug-exit,iobase=0xf4,iosize=4");
        if self.kvm {
            all.option("-accel", "kvm");
        }
        if self.icount {
            all.option("-icount", "shift=0,sleep=off");
            all.option("-seed", "1");
            all.option("-rtc", "base=2000-01-01,clock=vm");
        }
        self.add_nodes(&mut all);
        self.add_disks(&mut all);
        all.option("-kernel", channels.kernel);
        all.option("-initrd", channels.archive);
        all.option("-append", self.command_line(words));
        all.0.extend(self.more.iter().cloned());
        all.0
    }

    /// Nodes of equal memory, with the CPUs spread over them in order.
    fn add_nodes(&self, all: &mut Arguments) {
        let Some(nodes) = self.nodes else { return };
        let (count, memory) = (u64::from(nodes), self.memory / MIB);
        for node in 0..nodes {
            let at = u64::from(node);
            let size = (at + 1) * memory / count - at * memory / count;
            all.option("-object", format!("memory-backend-ram,id=memory{node},size={size}M"));
            let mut option = format!("node,nodeid={node},memdev=memory{node}");
            let (first, end) = (node * self.cpus / nodes, (node + 1) * self.cpus / nodes);
            if first < end {
                option += &format!(",cpus={first}-{}", end - 1);
            }
            all.option("-numa", option);
        }
        for (from, to) in (0..nodes).flat_map(|from| (from + 1..nodes).map(move |to| (from, to))) {
            all.option("-numa", format!("dist,src={from},dst={to},val={FAR}"));
        }
    }

    fn add_disks(&self, all: &mut Arguments) {
        let device = if self.model == Model::Microvm { "virtio-blk-device" } else { "virtio-blk-pci" };
        for (number, disk) in self.disks.iter().enumerate() {
            let mut drive = OsString::from(format!("if=none,format=raw,id=disk{number},file="));
            // QEMU takes what precedes a colon for a protocol, but not behind a slash.
            let path = std::path::absolute(disk).unwrap_or_else(|_| disk.clone());
            drive.push(escaped(&path));
            all.option("-drive", drive);
            all.option("-device", format!("{device},drive=disk{number}"));
        }
    }

    /// The kernel's options, and then the words of the program. Words that white space would split are for
    /// kernels that read the archive.
    fn command_line(&self, words: &[OsString]) -> OsString {
        const LONGEST: usize = 1024;
        let mut line = OsString::from(self.kernel_options.join(" "));
        let words = words.join(OsStr::new(" "));
        if words.len() <= LONGEST {
            line.push(if line.is_empty() { "-- " } else { " -- " });
            line.push(words);
        }
        line
    }
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn option(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.extend([name.into(), value.into()]);
    }
}

/// A path within an option: QEMU takes two commas for one.
fn escaped(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = path.as_os_str().as_bytes().iter();
    OsString::from_vec(
        bytes.flat_map(|&byte| std::iter::repeat_n(byte, 1 + usize::from(byte == b','))).collect(),
    )
}

/// An option of the kernel: NAME=VALUE without white space.
pub(super) fn parse_kernel_option(text: &str) -> Result<String, String> {
    let named = text.split_once('=').is_some_and(|(name, _)| !name.is_empty());
    match named && !text.contains(char::is_whitespace) {
        true => Ok(text.to_owned()),
        false => Err(format!("{} is not of the form NAME=VALUE without spaces", quoted(text))),
    }
}

#[cfg(test)]
mod tests;
