//! The trace format: `quire record` writes it and `quire replay` reads it.
//!
//! A trace is the memory life of a program and all its children in one total order: a reader applies the
//! events one by one. A call whose place the recorder could not prove is marked ([`Syscall::unordered`]), and
//! [`Settled`] finds a place. `docs/trace-format.md` describes the bytes.

mod call;
mod decode;
mod encode;
mod error;
mod event;
#[cfg(any(fuzzing, test))]
pub mod forge;
mod header;
mod layout;
mod reader;
mod settle;
mod wire;
mod writer;

pub use call::Call;
pub use error::TraceError;
pub use event::{
    Access, Accesses, Event, EventKind, FileId, ForkKind, MapCause, PathId, PopulateCause, Region, Syscall,
    clone_flags,
};
pub use header::{Clock, FaultKinds, Header, Limits, Overcommit, Program, Tier, Totals};
pub use layout::{FutureLock, Layouts, Mapping, huge_bits, mmap_length, protects_downwards};
pub use reader::TraceReader;
pub use settle::{Placed, Settled};
pub use writer::{TraceWriter, Written};

/// The format version that this build writes.
pub const VERSION: u16 = 5;

/// The oldest format version that this build reads: its header ends without limits. Version 2 has nothing
/// of processes that ran before their recording.
pub const OLDEST_VERSION: u16 = 1;

/// The first eight bytes of every trace.
pub const MAGIC: [u8; 8] = *b"QTRACE\r\n";

/// The largest payload of one chunk of the event stream, in bytes.
pub(crate) const CHUNK_MAX: usize = 256 * 1024;

/// The most arguments that a recorded command may have.
pub(crate) const ARGUMENTS_MAX: u64 = 1 << 20;

/// The largest header payload, in bytes.
pub(crate) const HEADER_MAX: usize = 4 * 1024 * 1024;

/// The most bytes that all paths of one trace may have together.
pub(crate) const PATH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The longest path, in bytes.
pub(crate) const PATH_MAX: usize = 8 * 1024;

/// The most threads that one trace may have.
pub(crate) const THREADS_MAX: usize = 1 << 22;

/// The most regions of one event.
pub const REGIONS_MAX: usize = 4096;

/// Windows of at most this many bits are used for compression, so that a reader's memory is bounded.
pub(crate) const WINDOW_LOG: u32 = 20;
