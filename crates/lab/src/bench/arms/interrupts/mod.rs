//! Arms of the experiment `pcp-interrupt`.

mod inside;
mod quire;

use crate::bench::experiment::Arm;
use crate::bench::ours::guards::Guarded;

pub use inside::{Arrival, Inside, all as all_inside};

/// Pairs of one round: the task's since the last interrupt, and those of the next interrupt. Three quarters
/// of them are at most the 64 packets that a network driver serves in one poll.
pub const ROUND: usize = 80;

/// Pairs of page calls, some of them made by interrupts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupts {
    /// Which calls come from where.
    pub pattern: Pattern,
    /// Pairs of each [`ROUND`] that interrupts serve.
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
    /// The interrupt allocates its share, the task the rest, and the task frees everything, as for received
    /// packets.
    Receive,
    /// Each context frees a frame right after it allocated it.
    Pairs,
}

/// Every arm. The checksum of a repetition is the number of frames that were allocated and freed.
pub fn all() -> Vec<Box<dyn Arm<Interrupts>>> {
    Guarded::all().map(|arm| Box::new(quire::Quire(arm)) as Box<dyn Arm<Interrupts>>).into()
}
