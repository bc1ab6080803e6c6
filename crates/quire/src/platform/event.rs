//! Rare events that an operator may want to know.

use core::fmt;

use crate::addr::{Frame, Order};

/// A rare event, for [`FramePlatform::event`](super::FramePlatform::event).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An allocation failed: no zone that the request allows has a folio of this order. Callers fall back to
    /// smaller folios where they can, so a failure of order 0 is more serious than one of order 9.
    OutOfMemory {
        /// The requested order.
        order: Order,
    },
    /// Memory was short, and a CPU drained the per-CPU lists of other CPUs, which interrupts them.
    ListsDrained,
    /// Memory was short, and a task reclaimed page cache and the like.
    Reclaimed {
        /// How many frames became free. Zero: nothing is left to reclaim.
        frames: u64,
    },
    /// A frame went bad and is out of use for good.
    BadMemory {
        /// The frame.
        frame: Frame,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { order } => {
                write!(f, "out of memory: no folio of {} KiB", order.bytes() / 1024)
            }
            Self::ListsDrained => f.write_str("memory is short: drained the lists of other CPUs"),
            Self::Reclaimed { frames } => write!(f, "memory is short: reclaimed {frames} frames"),
            Self::BadMemory { frame } => {
                write!(f, "memory at {:#x} went bad: its frame is out of use", frame.addr().0)
            }
        }
    }
}
