//! Why the manager could not start.

use core::fmt;

use super::{KernelError, ProcessorError};

/// Why the manager could not take over a machine's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitError {
    /// No range was given, or all were empty.
    NoMemory,
    /// More ranges than [`crate::limits::MAX_RANGES`].
    TooManyRanges,
    /// A range is not a multiple of 4 KiB, or starts off one.
    Unaligned,
    /// Two ranges share a frame, or they are not in ascending order.
    Overlapping,
    /// A range ends beyond [`crate::limits::MAX_PHYS_BYTES`].
    BeyondPhysical,
    /// A node number is not below [`crate::limits::MAX_NODES`].
    BadNode,
    /// The platform names no CPU, or more than [`crate::limits::MAX_CPUS`].
    BadCpuCount,
    /// The clear policy names a kernel that the processor cannot run: which, and what is missing.
    BadKernel(KernelError),
    /// The processor is not set up to run address spaces: which bits are missing.
    BadProcessor(ProcessorError),
    /// Too little stack is left for start-up.
    SmallStack {
        /// Bytes that are left, as [`FramePlatform::stack_left`](crate::platform::FramePlatform::stack_left) says.
        left: usize,
        /// Bytes that must be left: [`crate::limits::START_STACK_BYTES`].
        needed: usize,
    },
    /// The metadata do not fit into the memory that was given.
    TooSmall,
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMemory => "no physical memory was given",
            Self::TooManyRanges => "too many physical ranges",
            Self::Unaligned => "a physical range is not a multiple of 4 KiB",
            Self::Overlapping => "physical ranges overlap or are out of order",
            Self::BeyondPhysical => "a physical range ends beyond 64 TiB",
            Self::BadNode => "a node number is too large",
            Self::BadCpuCount => "the platform's number of CPUs is zero or too large",
            Self::BadKernel(error) => {
                return write!(f, "the clear policy cannot be used: {error}, or calibrate anew");
            }
            Self::BadProcessor(error) => return error.fmt(f),
            Self::SmallStack { left, needed } => {
                return write!(f, "start-up needs {needed} bytes of stack, and {left} are left");
            }
            Self::TooSmall => "the metadata do not fit into the physical memory",
        })
    }
}

impl core::error::Error for InitError {}

impl From<ProcessorError> for InitError {
    fn from(error: ProcessorError) -> Self {
        Self::BadProcessor(error)
    }
}
