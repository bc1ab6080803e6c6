//! Operations on address spaces as data: drawn from a seed first, executed later, so that a failing list can be
//! shortened and pasted back as a test.
//!
//! The `Debug` form of a list is Rust source under `use oracle::ops::prelude::*;`.

mod draw;

pub use draw::{Draw, Left, draw};

use crate::space::{Advice, Kind, PAGE, Placement, Prot};

/// Everything that the source form of an operation list needs in scope.
pub mod prelude {
    pub use super::At::{Absolute, Heap, Null, Returned, Window};
    pub use super::Op::{
        Access, Brk, ClearAhead, Collapse, Exit, Fork, Load, Madvise, Mlock, Mlockall, Mmap, Mprotect,
        Mremap, Munlock, Munlockall, Munmap, Store, Touch, Truncate,
    };
    pub use super::To::{DontUnmap, FixedDontUnmap, FixedTo, InPlace, MayMove};
    pub use super::What::{Anonymous, File, SharedAnonymous};
    pub use super::{MapOp, Step};
    pub use crate::space::Advice::{
        DontNeed, Free, HugePage, NoHugePage, PopulateRead, PopulateWrite, WillNeed,
    };
    pub use crate::space::Kind::{Exec, Read, Write};
    pub use crate::space::Placement::{Fixed, FixedNoReplace, Hint};
    pub use crate::space::Prot::{R, Rw, Rwx, Rx, W};
}

/// The middle of the window that drawn addresses fall into: a boundary between two top-level entries, so that small
/// windows cross tables of every level.
pub const WINDOW: u64 = 0x1000_0000_0000;
/// The start of the heap in every drawn run.
pub const HEAP: u64 = 0x0c00_0000_0000;

/// An address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Zero, which as a hint means no hint.
    Null,
    /// Pages from [`WINDOW`], and bytes.
    Window(i32, u16),
    /// Pages and bytes from the address of one of the last mappings without a fixed address; the number
    /// counts such mappings, from the first, modulo their number.
    Returned(u8, i32, u16),
    /// Pages and bytes from [`HEAP`].
    Heap(i32, u16),
    /// This address.
    Absolute(u64),
}

/// The contents of a new mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Private zeroes.
    Anonymous,
    /// Shared zeroes.
    SharedAnonymous,
    /// A file from a page on, shared or private.
    File {
        /// The file's number.
        file: u64,
        /// The first page.
        page: u64,
        /// Whether stores reach the file.
        shared: bool,
    },
}

/// The target of `mremap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// The same place.
    InPlace,
    /// Anywhere.
    MayMove,
    /// This address.
    FixedTo(At),
    /// This address if it is free, else any, leaving an empty mapping.
    DontUnmap(At),
    /// This address, leaving an empty mapping.
    FixedDontUnmap(At),
}

/// The arguments of `mmap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapOp {
    /// The address.
    pub at: At,
    /// Bytes.
    pub len: u64,
    /// The allowed accesses.
    pub prot: Prot,
    /// How `at` is used.
    pub placement: Placement,
    /// The contents.
    pub what: What,
    /// `MAP_GROWSDOWN`.
    pub grows_down: bool,
    /// `MAP_POPULATE`.
    pub populate: bool,
    /// `MAP_LOCKED`.
    pub locked: bool,
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `mmap`.
    Mmap(MapOp),
    /// `munmap` of so many bytes.
    Munmap(At, u64),
    /// `mprotect` of so many bytes.
    Mprotect(At, u64, Prot),
    /// `mremap` from one length to another.
    Mremap(At, u64, u64, To),
    /// `madvise` of so many bytes.
    Madvise(At, u64, Advice),
    /// `brk`.
    Brk(At),
    /// `mlock` of so many bytes; with `true`, as pages come in.
    Mlock(At, u64, bool),
    /// `munlock` of so many bytes.
    Munlock(At, u64),
    /// `mlockall`: current mappings, future ones, as pages come in.
    Mlockall(bool, bool, bool),
    /// `munlockall`.
    Munlockall,
    /// `fork`.
    Fork,
    /// `exit`, unless it is the last address space.
    Exit,
    /// Stores to one probe of a page.
    Store(At, usize),
    /// Loads from one probe of a page.
    Load(At, usize),
    /// Stores to the first probe of so many pages one after the other.
    Touch(At, u32),
    /// A fault of this kind, without an access.
    Access(At, Kind),
    /// Gives a file another size in bytes, a multiple of eight.
    Truncate(u64, u64),
    /// The CPU is idle, and clears so many pieces of memory that may be touched later.
    ClearAhead(u16),
    /// Collapses so many bytes where possible; with `true`, in the background.
    Collapse(At, u64, bool),
}

/// The names of operations, by [`Op::kind`].
pub const KIND_NAMES: [&str; 20] = [
    "mmap",
    "munmap",
    "mprotect",
    "mremap",
    "madvise",
    "brk",
    "mlock",
    "munlock",
    "mlockall",
    "munlockall",
    "fork",
    "exit",
    "store",
    "load",
    "touch",
    "access",
    "truncate",
    "clear-ahead",
    "collapse",
    "fetch",
];

impl Op {
    /// Its index in [`KIND_NAMES`].
    pub fn kind(&self) -> usize {
        match self {
            Self::Mmap(_) => 0,
            Self::Munmap(..) => 1,
            Self::Mprotect(..) => 2,
            Self::Mremap(..) => 3,
            Self::Madvise(..) => 4,
            Self::Brk(_) => 5,
            Self::Mlock(..) => 6,
            Self::Munlock(..) => 7,
            Self::Mlockall(..) => 8,
            Self::Munlockall => 9,
            Self::Fork => 10,
            Self::Exit => 11,
            Self::Store(..) => 12,
            Self::Load(..) => 13,
            Self::Touch(..) => 14,
            Self::Access(_, Kind::Read | Kind::Write) => 15,
            Self::Truncate(..) => 16,
            Self::ClearAhead(_) => 17,
            Self::Collapse(..) => 18,
            Self::Access(_, Kind::Exec) => 19,
        }
    }
}

/// An operation, its CPU, and its address space (modulo the number of live ones).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The CPU, modulo the machine's number.
    pub cpu: u8,
    /// The index among the live address spaces.
    pub space: u8,
    /// The operation.
    pub op: Op,
}

impl At {
    /// The address; `returned` are the addresses of earlier mappings.
    pub fn resolve(self, returned: &[u64]) -> u64 {
        let (base, page, byte) = match self {
            Self::Null => return 0,
            Self::Absolute(addr) => return addr,
            Self::Window(page, byte) => (WINDOW, page, byte),
            Self::Heap(page, byte) => (HEAP, page, byte),
            Self::Returned(which, page, byte) => {
                let base = match returned.len() {
                    0 => WINDOW,
                    count => returned[usize::from(which) % count],
                };
                (base, page, byte)
            }
        };
        base.wrapping_add_signed(i64::from(page) * PAGE as i64).wrapping_add(u64::from(byte))
    }
}

/// The list as Rust source.
pub fn source(steps: &[Step]) -> String {
    let mut out = String::from("let steps = [\n");
    for step in steps {
        out += &format!("    {step:?},\n");
    }
    out + "];\n"
}
