//! The rows that the program prints, in its order.

/// The machine that a row is measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// One CPU and 4 GiB. Time is the number of instructions.
    Counts,
    /// Four CPUs and 4 GiB, in real time.
    Wall,
    /// One CPU and 1 GiB, only started and ended, with a program of 2 KiB. Time is the number of instructions.
    Boot,
    /// The same in real time.
    BootWall,
    /// The same with the program of the other rows, which has the C library in it.
    BootLibc,
}

impl Machine {
    /// Every machine, the quickest run first.
    pub const ALL: [Self; 5] = [Self::Boot, Self::BootWall, Self::BootLibc, Self::Wall, Self::Counts];

    /// The program's argument `mode`.
    pub fn mode(self) -> &'static str {
        match self {
            Self::Counts => "counts",
            Self::Wall => "wall",
            Self::Boot | Self::BootWall | Self::BootLibc => "boot",
        }
    }

    /// Whether time is the number of instructions.
    pub fn counts(self) -> bool {
        matches!(self, Self::Counts | Self::Boot | Self::BootLibc)
    }

    /// Whether it is started and ended, and no more.
    pub fn only_starts(self) -> bool {
        matches!(self, Self::Boot | Self::BootWall | Self::BootLibc)
    }
}

/// A figure of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSpec {
    /// The name, as the program prints it.
    pub name: &'static str,
    /// The program measures the rows of a group together.
    pub group: &'static str,
    /// Where it is measured.
    pub machine: Machine,
    /// What is counted.
    pub metric: Metric,
    /// What one unit of the work is.
    pub per: &'static str,
    /// The meaning, in a few words.
    pub what: &'static str,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Instructions of the guest.
    Instructions,
    /// Nanoseconds of this machine.
    Time,
    /// Interrupts that flush.
    Interrupts,
    /// Memory.
    KiB,
}

impl Metric {
    /// The name and the unit in JSON lines.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Instructions => ("instructions", "instructions"),
            Self::Time => ("time", "ns"),
            Self::Interrupts => ("interrupts", "IPIs"),
            Self::KiB => ("memory", "KiB"),
        }
    }
}

const fn count(group: &'static str, name: &'static str, per: &'static str, what: &'static str) -> RowSpec {
    RowSpec { name, group, machine: Machine::Counts, metric: Metric::Instructions, per, what }
}

/// Every row. `program.c` and, for the start of a machine, `first.c` have the same names; a test compares them.
pub const ROWS: &[RowSpec] = &[
    count("null", "null-call", "call", "getpid"),
    count("touch", "touch", "page", "first write to each 4 KiB page of 64 MiB"),
    count("touch", "munmap/4KiB", "page", "munmap of these 64 MiB in one call"),
    count("cleared-ahead", "touch/cleared-ahead", "page", "touch after the machine was idle for two seconds"),
    count("64KiB", "touch/64KiB", "page", "touch with folios of 64 KiB, for each 4 KiB"),
    count("64KiB", "munmap/64KiB", "page", "munmap of 64 MiB of them, for each 4 KiB"),
    count("2MiB", "touch/2MiB", "page", "touch with transparent huge pages, for each 4 KiB"),
    count("2MiB", "munmap/2MiB", "page", "munmap of 64 MiB of them, for each 4 KiB"),
    count("single", "single", "page", "mmap, touch and munmap of one page, a call each"),
    count("single", "single/mmap", "call", "its mmap"),
    count("single", "single/touch", "page", "its touch"),
    count("single", "single/munmap", "call", "its munmap"),
    count("mprotect", "mprotect/64MiB", "page", "mprotect of 64 MiB to read-only"),
    count("mprotect", "mprotect/page", "call", "mprotect of one page inside a mapping, there and back"),
    count("mremap", "mremap/aligned", "page", "mremap of 64 MiB to another multiple of 2 MiB"),
    count("mremap", "mremap/unaligned", "page", "mremap of 64 MiB to an address one page behind one"),
    count("dontneed", "dontneed/64MiB", "page", "MADV_DONTNEED of 64 MiB"),
    count("dontneed", "dontneed/page", "call", "MADV_DONTNEED of one touched page"),
    count("collapse", "collapse", "page", "MADV_COLLAPSE of 64 MiB, for each 4 KiB"),
    count("hugetlb", "hugetlb-fault", "fault", "fault of a hugetlb page of 2 MiB, clearing in it"),
    count("fork", "fork", "page", "fork with 1 GiB touched, until the parent goes on"),
    count("fork", "fork/write-all", "page", "the child writes every page of it"),
    count("fork", "fork/exit", "page", "that child exits, until the parent has waited for it"),
    count("fork", "fork/write-1%", "page", "the child writes every hundredth page"),
    count("fork", "fork/whole-1%", "page", "fork, a child that writes every hundredth page, exit, wait"),
    count("shell", "shell/true", "program", "busybox sh runs /bin/true 200 times"),
    RowSpec {
        name: "threads",
        group: "threads",
        machine: Machine::Wall,
        metric: Metric::Time,
        per: "page",
        what: "four threads map 1 MiB, touch and unmap it, 300 times each",
    },
    RowSpec {
        name: "threads/ipis",
        group: "threads",
        machine: Machine::Wall,
        metric: Metric::Interrupts,
        per: "unmapping and other CPU",
        what: "their interrupts that flush",
    },
    RowSpec {
        name: "boot",
        group: "boot",
        machine: Machine::Boot,
        metric: Metric::Instructions,
        per: "machine",
        what: "from power-on to the first instruction of the first program, firmware and loader in it",
    },
    RowSpec {
        name: "boot/time",
        group: "boot",
        machine: Machine::BootWall,
        metric: Metric::Time,
        per: "machine",
        what: "from the start of QEMU to the first line of the first program",
    },
    RowSpec {
        name: "memory",
        group: "boot",
        machine: Machine::Boot,
        metric: Metric::KiB,
        per: "machine of 1 GiB",
        what: "1 GiB less MemFree, as the first program reads it, a file of 2 KiB",
    },
    RowSpec {
        name: "memory/used",
        group: "boot",
        machine: Machine::Boot,
        metric: Metric::KiB,
        per: "machine of 1 GiB",
        what: "MemTotal less MemAvailable",
    },
    RowSpec {
        name: "memory/libc",
        group: "boot-libc",
        machine: Machine::BootLibc,
        metric: Metric::KiB,
        per: "machine of 1 GiB",
        what: "the same as `memory`, the first program being that of the other rows, a static file of 955 KiB",
    },
];

/// The groups of `machine`, in the program's order.
pub fn groups(machine: Machine) -> Vec<&'static str> {
    super::super::table::distinct(of(machine).map(|row| row.group))
}

/// The rows of `machine`.
pub fn of(machine: Machine) -> impl Iterator<Item = &'static RowSpec> {
    ROWS.iter().filter(move |row| row.machine == machine)
}
