//! Exact counts of what the library and the machine below it did, from one moment on.

use hosted::{Bare, Hosted};
use quire::manager::MemoryManager;
use quire::stats::Stat;

use crate::bench::experiment::Sample;

/// What the library counts of taking address spaces apart.
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

/// Remembers counters, to say later how far they went.
pub struct Counted<'a, 'p> {
    manager: &'a MemoryManager<'p, Bare>,
    machine: &'a Hosted,
    before: Vec<(&'static str, u64)>,
}

impl<'a, 'p> Counted<'a, 'p> {
    /// From now on.
    pub fn start(manager: &'a MemoryManager<'p, Bare>, machine: &'a Hosted) -> Self {
        let before = read(manager, machine);
        Self { manager, machine, before }
    }

    /// A repetition that took `nanoseconds`, with how often each event happened since the start. Read once, here.
    pub fn sample(&self, nanoseconds: f64, checksum: u64) -> Sample {
        self.add_to(Sample::new(nanoseconds, checksum))
    }

    /// The same for a repetition that has its times already.
    pub fn add_to(&self, sample: Sample) -> Sample {
        let now = read(self.manager, self.machine);
        let gone = now.iter().zip(&self.before).map(|((name, now), (_, before))| (*name, now - before));
        gone.fold(sample, |sample, (name, count)| sample.count(name, count))
    }
}

fn read(manager: &MemoryManager<'_, Bare>, machine: &Hosted) -> Vec<(&'static str, u64)> {
    let counters = machine.counters();
    let of_machine = [("ipis", counters.ipis), ("pages_flushed", counters.pages_flushed)];
    COUNTED.iter().map(|&stat| (stat.name(), manager.stat(stat))).chain(of_machine).collect()
}
