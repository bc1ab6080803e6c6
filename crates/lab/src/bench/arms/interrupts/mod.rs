//! Arms of the experiment `pcp-interrupt`.

mod quire;

use crate::bench::experiment::Arm;
use crate::bench::ours::guards::Guarded;

/// Pairs that are taken and given back between two interrupts and in the second of them, together. Three quarters of
/// them are no more than the 64 that a network driver serves in one poll.
pub const ROUND: usize = 80;

/// Pairs of page calls of which a share comes from interrupts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupts {
    /// Which calls come from where.
    pub pattern: Pattern,
    /// How many of the [`ROUND`] pairs interrupts serve.
    pub by_interrupt: usize,
    /// Rounds; each has one interrupt, which may have nothing to do.
    pub rounds: usize,
    /// Threads, each a CPU with interrupts of its own.
    pub threads: usize,
    /// The CPUs to pin them to.
    pub cpus: Vec<usize>,
}

/// Which calls come from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// The interrupt takes its share, the task the rest, and the task gives everything back: the way of a received
    /// packet.
    Receive,
    /// Each context frees a frame right after it allocated it.
    Pairs,
}

/// Every arm. The checksum of a repetition is the number of frames that were taken and given back.
pub fn all() -> Vec<Box<dyn Arm<Interrupts>>> {
    Guarded::all().map(|arm| Box::new(quire::Quire(arm)) as Box<dyn Arm<Interrupts>>).into()
}
