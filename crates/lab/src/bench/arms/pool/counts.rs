//! Counters of Quire's pools.

use hosted::{Counters, Hosted};
use quire::hugetlb::HugePools;
use quire::stats::Stat;
use quire::vmemmap::Window;

use crate::bench::experiment::Sample;

const COUNTED: [(&str, Stat); 11] = [
    ("pages_moved", Stat::PgmigrateSuccess),
    ("blocks_emptied", Stat::ContigAllocSuccess),
    ("blocks_not_emptied", Stat::ContigAllocFail),
    ("blocks_looked_at", Stat::ContigScanned),
    ("grace_periods", Stat::VmemmapGrace),
    ("window_entries", Stat::VmemmapEntry),
    ("leaves_split", Stat::VmemmapSplit),
    ("frames_freed", Stat::VmemmapFree),
    ("frames_needed", Stat::VmemmapAlloc),
    ("descriptors_written", Stat::VmemmapWrite),
    ("pool_locks", Stat::HugetlbLock),
];

/// Counters at one moment, to subtract from later ones.
pub(super) struct Counts {
    library: [u64; COUNTED.len()],
    machine: Counters,
}

impl Counts {
    /// Reads the counters. `stat` reads one of the library's.
    pub(super) fn start(stat: impl Fn(Stat) -> u64, machine: &Hosted, pools: &HugePools) -> Self {
        pools.window().inspect(|window| window.reset_peak());
        Self { library: COUNTED.map(|(_, which)| stat(which)), machine: machine.counters() }
    }

    /// The difference since the start.
    pub(super) fn end(&self, stat: impl Fn(Stat) -> u64, machine: &Hosted, pools: &HugePools) -> Counted {
        let now = machine.counters();
        let library =
            COUNTED.iter().zip(&self.library).map(|((name, which), before)| (*name, stat(*which) - before));
        let of_machine = [
            ("frames_held_at_most", pools.window().map_or(0, Window::peak_held)),
            ("broadcasts", now.flushes_kernel - self.machine.flushes_kernel),
            // Emptying another CPU's lists interrupts it too.
            ("ipis", now.ipis + now.fences - self.machine.ipis - self.machine.fences),
        ];
        Counted(library.chain(of_machine).collect())
    }
}

/// Counts by their names.
pub(super) struct Counted(Vec<(&'static str, u64)>);

impl Counted {
    /// The same and one more.
    pub(super) fn and(mut self, name: &'static str, count: u64) -> Self {
        self.0.push((name, count));
        self
    }

    /// Adds them to a repetition.
    pub(super) fn add_to(&self, sample: Sample) -> Sample {
        self.0.iter().fold(sample, |sample, (name, count)| sample.count(name, *count))
    }
}
