//! Exact counts of the library's and the machine's events since one moment.

use std::time::Instant;

use hosted::Hosted;
use quire::manager::MemoryManager;
use quire::platform::Platform;
use quire::stats::Stat;

use super::counting::Counting;
use crate::bench::experiment::{Sample, Skip};

/// The library's counters that are shown.
const COUNTED: &[Stat] = &[
    Stat::ZapTable,
    Stat::ZapEntry,
    Stat::BlockLock,
    Stat::NrTlbLocalFlushAll,
    Stat::NrTlbLocalFlushOne,
    Stat::NrTlbRemoteFlush,
    Stat::NrTlbRemoteFlushReceived,
    Stat::CowCopy,
    Stat::CowReuse,
];

/// Counters at one moment, to subtract from later ones.
pub struct Counted<'a, 'p, P: Platform> {
    manager: &'a MemoryManager<'p, P>,
    machine: &'a Hosted,
    counting: Option<&'a Counting<'a>>,
    before: Vec<(&'static str, u64)>,
}

impl<'a, 'p, P: Platform> Counted<'a, 'p, P> {
    /// Starts counting; locks and instructions where the platform counts them.
    pub fn start(
        manager: &'a MemoryManager<'p, P>,
        machine: &'a Hosted,
        counting: Option<&'a Counting<'a>>,
    ) -> Self {
        let before = read(manager, machine, counting);
        Self { manager, machine, counting, before }
    }

    /// Calls the verb, or a part of it; returns its nanoseconds. Where instructions are watched, it watches
    /// these.
    ///
    /// # Errors
    /// [`Skip`] when instructions cannot be watched.
    pub fn timed<R>(&self, verb: impl FnOnce() -> R) -> Result<(R, f64), Skip> {
        let Some(instructions) = self.counting.and_then(Counting::instructions) else {
            let start = Instant::now();
            let result = verb();
            return Ok((result, start.elapsed().as_nanos() as f64));
        };
        let start = Instant::now();
        let result = instructions.follow(self.machine, self.manager.pages().memmap(), verb)?;
        Ok((result, start.elapsed().as_nanos() as f64))
    }

    /// A repetition that took `nanoseconds`, with the events since the start. Reads the counters.
    pub fn sample(&self, nanoseconds: f64, checksum: u64) -> Sample {
        self.add_to(Sample::new(nanoseconds, checksum))
    }

    /// The same for a repetition that has its times already.
    pub fn add_to(&self, sample: Sample) -> Sample {
        let now = read(self.manager, self.machine, self.counting);
        let gone = now.iter().zip(&self.before).map(|((name, now), (_, before))| (*name, now - before));
        gone.fold(sample, |sample, (name, count)| sample.count(name, count))
    }
}

fn read<P: Platform>(
    manager: &MemoryManager<'_, P>,
    machine: &Hosted,
    counting: Option<&Counting<'_>>,
) -> Vec<(&'static str, u64)> {
    let counters = machine.counters();
    let of_machine = [("ipis", counters.ipis), ("pages_flushed", counters.pages_flushed)];
    let locks = counting.map(|counting| ("locks", counting.locks()));
    COUNTED.iter().map(|&stat| (stat.name(), manager.stat(stat))).chain(of_machine).chain(locks).collect()
}
