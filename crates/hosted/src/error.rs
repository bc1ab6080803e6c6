//! Why a machine could not be built.

/// Why a machine could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostedError {
    /// No memory range was given.
    #[error("the machine has no memory: give at least one range")]
    NoRanges,
    /// A range is empty, does not start and end on a multiple of 4096, or ends above 2^52.
    #[error(
        "memory range {index} is empty, not made of whole 4 KiB frames, or ends above 2^52: round its start and size"
    )]
    BadRange {
        /// Which of the ranges.
        index: usize,
    },
    /// A range starts below the end of the one before it.
    #[error(
        "memory range {index} starts below the end of the one before it: sort the ranges and keep them apart"
    )]
    Overlapping {
        /// Which of the ranges.
        index: usize,
    },
    /// The number of CPUs is zero or above [`quire::limits::MAX_CPUS`].
    #[error("{asked} CPUs asked for: a machine has 1 to {}", quire::limits::MAX_CPUS)]
    BadCpuCount {
        /// The number that was asked for.
        asked: usize,
    },
    /// The host gave no address space or no file for the arena.
    #[error(
        "the host refuses {bytes} bytes of address space ({step}: {errno}): ask for a smaller span or raise `ulimit -v`"
    )]
    Arena {
        /// The extent of the arena in bytes, holes included.
        bytes: u64,
        /// The step that failed.
        step: &'static str,
        /// What the host said.
        errno: rustix::io::Errno,
    },
    /// Prefaulting ran out of host memory, or the host kernel is older than 5.14.
    #[error("the host cannot populate {bytes} bytes ({errno}): ask for less memory or turn prefaulting off")]
    Prefault {
        /// The extent that was to be populated.
        bytes: u64,
        /// What the host said.
        errno: rustix::io::Errno,
    },
    /// The host kernel has no `membarrier` with expedited private barriers.
    #[error(
        "the host has no expedited membarrier ({errno}): a machine needs it to empty the lists of other CPUs"
    )]
    NoMembarrier {
        /// What the host said.
        errno: rustix::io::Errno,
    },
    /// The host refuses a signal handler or a timer, or other code in the process uses the signal.
    #[error(
        "the host refuses interrupts by signals at {step} ({errno}): no other code in the process may use {step}"
    )]
    NoSignals {
        /// What was asked for: a signal's name, or the timer.
        step: &'static str,
        /// What the host said.
        errno: rustix::io::Errno,
    },
    /// Work that was to be looked at has an instruction that the decoder does not know.
    #[error(
        "an instruction of this work cannot be decoded: the processor has some that are newer than the crate `iced-x86`"
    )]
    Unreadable,
}
