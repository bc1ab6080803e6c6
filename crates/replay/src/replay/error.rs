//! Errors of a replay; each is one line that names the cure.

use crate::trace::TraceError;

/// Why a replay stops.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace was recorded with pages of another size.
    #[error(
        "recorded with pages of {0} bytes, but Quire has pages of 4096; record the program on such a machine"
    )]
    PageSize(u32),
    /// The host refuses the machine.
    #[error("{0}; give a smaller --memory")]
    Host(#[from] hosted::HostedError),
    /// The machine is too small to hold its own tables.
    #[error("a machine of {bytes} bytes cannot start ({source}); give a larger --memory")]
    TooSmall {
        /// Its memory.
        bytes: u64,
        /// What the library said.
        source: quire::error::InitError,
    },
    /// The report cannot be written.
    #[error("cannot write the report: {0}; check where standard output goes")]
    Output(#[from] std::io::Error),
    /// Memory is out.
    #[error("out of memory at event {event} of the trace; give more than --memory {memory}")]
    OutOfMemory {
        /// Where.
        event: u64,
        /// The machine's memory.
        memory: String,
    },
    /// The trace needs more memory than it may have. It was not replayed.
    #[error(
        "event {event} brings the memory that the replay needs to {needed}, and {allowed} are allowed; \
         free memory, or allow more with --memory-limit"
    )]
    TooLarge {
        /// Where.
        event: u64,
        /// What it needs by then.
        needed: String,
        /// What this host has, or what was allowed.
        allowed: String,
    },
    /// This folio size needs more memory than it may have. It was not replayed.
    #[error(
        "folios of {folio} need a machine that takes {needed}, and {allowed} are allowed; \
         choose a smaller --folio or --memory, or allow more with --memory-limit"
    )]
    NoRoom {
        /// The folio size.
        folio: String,
        /// What the machine takes of the host.
        needed: String,
        /// What this host has, or what was allowed.
        allowed: String,
    },
    /// The trace asks for more work than its length explains. It was not replayed.
    #[error(
        "event {event} brings the work to {pages} pages, and {allowed} are allowed for a trace of that length; \
         allow more with --work-limit"
    )]
    TooLong {
        /// Where.
        event: u64,
        /// Pages that are brought in, copied or walked over by then.
        pages: u64,
        /// What is allowed.
        allowed: u64,
    },
    /// No recording has such an event.
    #[error("event {event} {what}, as no recorded program can; record the program again")]
    Impossible {
        /// Where.
        event: u64,
        /// What it does.
        what: &'static str,
    },
    /// Quire and the model, or the rules that the machine watches, disagree.
    #[error("first divergence at event {event}: {what}; please report it with the trace")]
    Divergence {
        /// Where; the number of events for what shows at the end.
        event: u64,
        /// What differs.
        what: String,
    },
    /// The kernel lost records while the trace was recorded: behind the gap the program's memory is not known.
    #[error(
        "no divergence up to event {event}, where {records} records were lost when it was recorded; what comes behind \
         cannot be checked; record again with a larger --ring"
    )]
    Gap {
        /// Where the first gap is.
        event: u64,
        /// How many records it has.
        records: u64,
    },
    /// The file is not the one that was looked through a moment ago.
    #[error("the trace changed while it was replayed; replay a file that no program writes to")]
    Changed,
}
