//! The events of a trace.

use super::Call;

/// One event. Times never decrease from one event to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When to apply it: nanoseconds of the header's clock.
    pub time_ns: u64,
    /// The process (thread group) it happened in.
    pub pid: u32,
    /// The thread it happened in.
    pub tid: u32,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The process starts another program. Its address space is empty from here on; a memory that it shared
    /// with its parent ([`ForkKind::SharedMemory`]) belongs to the parent alone again; its other threads have
    /// ended. The initial mappings follow as [`EventKind::Map`].
    Exec {
        /// The program's name as the kernel keeps it (at most 15 bytes).
        name: PathId,
    },
    /// This thread made a process.
    Fork {
        /// The new process.
        child_pid: u32,
        /// Its first thread.
        child_tid: u32,
        /// The `CLONE_*` flags; 0 when the tier can't tell.
        flags: u64,
        /// Whether it gets a copy of the memory, or shares it.
        kind: ForkKind,
    },
    /// The event's thread starts, in a process that exists already.
    ThreadStart {
        /// The thread that made it.
        creator_tid: u32,
        /// The `CLONE_*` flags; 0 when the tier can't tell.
        flags: u64,
    },
    /// The event's thread ends; the process goes on.
    ThreadExit,
    /// The last thread of the process ends, and with it its address space.
    ProcessExit {
        /// Minor faults that the kernel counted for the process since it started; `None` when it could not be read.
        minor_faults: Option<u64>,
        /// Major faults that the kernel counted.
        major_faults: Option<u64>,
        /// Resolved fault events of this process in the trace. The counts above minus this are the faults
        /// that the kernel took on the program's behalf without an event.
        recorded_faults: u64,
    },
    /// A mapping that no recorded call made: the image of a program, its stack, the vdso. It replaces older
    /// mappings.
    Map {
        /// Its origin.
        cause: MapCause,
        /// First address, a multiple of the page size.
        start: u64,
        /// Length in bytes, a multiple of the page size.
        len: u64,
        /// `PROT_*` bits.
        prot: u32,
        /// `MAP_*` bits.
        flags: u32,
        /// The mapped file; `None` for anonymous memory.
        file: Option<FileId>,
        /// Offset into the file, in bytes; 0 for anonymous memory.
        file_offset: u64,
    },
    /// A memory system call, successful or not.
    Syscall(Syscall),
    /// A page fault, at the time of its resolution, or of its entry if it was not resolved.
    Fault {
        /// The address that faulted.
        addr: u64,
        /// The access that faulted.
        access: Access,
        /// Whether a present entry forbade it (mostly copy-on-write), as opposed to a missing one.
        protection: bool,
        /// Whether kernel code made the access for the program (a `read` into its memory).
        kernel_mode: bool,
        /// Whether it waited for a device.
        major: bool,
        /// From entry to resolution in nanoseconds; `None` where the tier can't tell, or where
        /// the fault was not resolved (the program got a signal).
        duration_ns: Option<u64>,
    },
    /// While it resolved the fault before this event in the same thread, the kernel mapped this range of page-cache
    /// pages around it: an upper bound, since pages that were not in the cache or mapped already are left out.
    FaultAround {
        /// First address.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The kernel made this range present without fault events: on behalf of the call before this event in the same
    /// thread, or before the recording attached to the process.
    Populate {
        /// First address.
        start: u64,
        /// Length in bytes.
        len: u64,
        /// The rule that populates it.
        cause: PopulateCause,
    },
    /// What DAMON saw the process access since the last such event of it.
    Accesses(Accesses),
    /// Here the recorder lost this many records of the kernel.
    Lost {
        /// How many.
        records: u64,
    },
}

impl EventKind {
    /// Whether it is a fault that was not resolved: the program got a signal, or the kernel tried again
    /// later. A recording that knows no access has resolved faults only.
    pub const fn is_unresolved(&self) -> bool {
        match self {
            EventKind::Fault { duration_ns: None, access, .. } => !matches!(access, Access::Unknown),
            _ => false,
        }
    }
}

/// A memory system call. Its event's time is that of its effect: between entry and exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syscall {
    /// The call.
    pub call: Call,
    /// Its arguments as registers hold them; those beyond the call's own are 0.
    pub args: [u64; 6],
    /// Its result; -errno for a failure.
    pub result: i64,
    /// When it was entered.
    pub enter_ns: u64,
    /// From entry to exit. Contains recording costs that come inside the call; in the user tier two stops.
    pub duration_ns: u64,
    /// The file of a successful `mmap` of one. Shared anonymous memory has its own file too.
    pub file: Option<FileId>,
    /// Whether its place among the events of other threads is unknown. It took effect between its entry and
    /// its exit; the event is placed at its entry, and [`super::Settled`] finds a place that explains all
    /// others.
    pub unordered: bool,
}

impl Syscall {
    /// Whether it succeeded.
    pub const fn ok(&self) -> bool {
        !(self.result < 0 && self.result >= -4095)
    }
}

/// An aggregation of DAMON: it cuts the address space of a process into regions, and looks again and again at the
/// accessed bit of one page of each, chosen at random each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accesses {
    /// From one look to the next, as it was asked for.
    pub sample_ns: u64,
    /// Looks of the aggregation, at most.
    pub samples: u32,
    /// Time of the kernel's thread on a CPU since the event before of any process; `None` if the kernel does not tell.
    pub cost_ns: Option<u64>,
    /// By address; they do not overlap.
    pub regions: Vec<Region>,
}

/// A range of addresses that DAMON takes for equally often accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Looks that found the page accessed since the look before.
    pub accessed: u32,
}

impl Region {
    /// The address behind the last.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// Identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device: major number in the upper 32 bits, minor in the lower.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Its path at that time, see [`super::TraceReader::path`].
    pub path: PathId,
}

/// Number of a string in the trace's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

/// The memory of a new process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForkKind {
    /// A copy (copy-on-write).
    Copy,
    /// The memory itself, until it execs or exits (`CLONE_VM`, as `vfork` does).
    SharedMemory,
}

/// The access of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// To read.
    Read,
    /// To write.
    Write,
    /// To fetch an instruction.
    Execute,
    /// The tier can't tell.
    Unknown,
}

/// The origin of a [`EventKind::Map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapCause {
    /// A segment of the program or of its interpreter, mapped by `execve`.
    ExecImage,
    /// Anonymous memory of `execve`: bss, or the first page of the heap.
    ExecAnonymous,
    /// The stack of the first thread.
    Stack,
    /// The stack has grown to this range, for the following fault. Memory that was there stays.
    StackGrowth,
    /// The vdso and its data pages.
    Vdso,
    /// A call that the trace does not contain.
    Other,
    /// It was there before the recording attached to the process.
    Before,
}

/// Why the kernel made a range present without fault events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PopulateCause {
    /// `mmap` with `MAP_POPULATE`.
    MapPopulate,
    /// `mmap` with `MAP_LOCKED`, or any growth after `mlockall(MCL_FUTURE)`.
    MapLocked,
    /// `mlock`, `mlock2`, `mlockall`.
    Mlock,
    /// `madvise(MADV_POPULATE_READ)`: as if each page were read.
    PopulateRead,
    /// `madvise(MADV_POPULATE_WRITE)`: as if each page were written.
    PopulateWrite,
    /// The recording attached to the process and found these pages present: shared ones, of a file, or of zeroes.
    BeforeRead,
    /// The same of private pages, which the process had written.
    BeforeWritten,
}

impl PopulateCause {
    /// Whether the pages are as if the program had written them.
    pub const fn stores(self) -> bool {
        !matches!(self, PopulateCause::PopulateRead | PopulateCause::BeforeRead)
    }

    /// Whether a recording that attached to the process found them present.
    pub const fn is_before(self) -> bool {
        matches!(self, PopulateCause::BeforeRead | PopulateCause::BeforeWritten)
    }
}

/// The `CLONE_*` flags that matter to memory.
pub mod clone_flags {
    /// Parent and child share the memory.
    pub const VM: u64 = 0x100;
    /// The parent waits until the child execs or exits.
    pub const VFORK: u64 = 0x4000;
    /// The child is a thread of the same process.
    pub const THREAD: u64 = 0x1_0000;
}
