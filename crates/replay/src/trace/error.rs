//! Errors of a trace; each is one line that names the cure.

use std::io;

use crate::output::cure;

/// Why a trace can't be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file does not start with the magic bytes.
    #[error("not a Quire trace; give a file that `quire record` has written")]
    NotATrace,
    /// The file has another format version than this build reads.
    #[error(
        "trace format version {found}, but this build reads versions up to {supported}; \
         record the program again, or use the `quire` that wrote the file"
    )]
    WrongVersion {
        /// The version in the file.
        found: u16,
        /// The newest version that this build reads.
        supported: u16,
    },
    /// The file ends before its end marker.
    #[error("the trace is cut short; copy the file again, or record the program again")]
    Truncated,
    /// A checksum, a length or an encoding is wrong.
    #[error("the trace is corrupt after event {at}; copy the file again, or record the program again")]
    Corrupt {
        /// How many events could be read before the damage (0 for damage in the header).
        at: u64,
    },
    /// The events take so much more room than the file that no program was recorded into it.
    #[error(
        "the trace expands to hundreds of times its size behind event {at}, as no recording does; record the program again"
    )]
    Bloated {
        /// How many events were read before.
        at: u64,
    },
    /// An event was given to the writer out of time order.
    #[error("event at {time_ns} ns given after one at {last_ns} ns; give events in the order of their times")]
    OutOfOrder {
        /// The time of the event that came too late.
        time_ns: u64,
        /// The time of the event before it.
        last_ns: u64,
    },
    /// Header too large for the format.
    #[error("{what} is too large for a trace; {cure}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// What to do about it.
        cure: &'static str,
    },
    /// The operating system refused to read or write.
    #[error("{0}; {cure}", cure = cure(.0))]
    Io(#[from] io::Error),
}
