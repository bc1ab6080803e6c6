//! Quire's start-up, on a hosted machine whose memory has never been touched.

use std::time::Instant;

use hosted::{Backing, Hosted, HostedConfig, MemoryRange};
use quire::cpu::CpuId;
use quire::manager::Config;

use super::Boot;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::ours;

#[derive(Default)]
pub(super) struct Quire;

impl Arm<Boot> for Quire {
    fn name(&self) -> &'static str {
        "quire"
    }

    fn about(&self) -> &'static str {
        "MemoryManager::new over memory that was never touched, with two CPUs; the host's page faults on the \
         tables are in the time. `metadata_ppm`: the tables' share of memory, in parts per million."
    }

    fn setup(&mut self, case: &Boot) -> Result<Box<dyn Prepared + '_>, Skip> {
        Ok(Box::new(Ready { bytes: case.bytes }))
    }
}

struct Ready {
    bytes: u64,
}

impl Ready {
    /// A machine whose memory the host has not brought in yet.
    fn fresh(&self) -> Result<Hosted, Skip> {
        let config = HostedConfig {
            prefault: false,
            huge_pages: false,
            backing: Backing::Memfd,
            real_ipis: false,
            ..HostedConfig::bench(self.bytes)
        };
        let ranges = vec![MemoryRange::new(0, self.bytes)];
        config.with_ranges(ranges).with_cpus(2).build().map_err(|error| Skip(error.to_string()))
    }
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let machine = self.fresh()?;
        let ranges = ours::ranges(&machine, true);
        machine.run_on(CpuId(0), || {
            let start = Instant::now();
            let manager = hosted::raw::memory_manager(&machine, &ranges, &Config::default());
            let time = start.elapsed().as_nanos() as f64;
            let info = manager.map_err(|error| Skip(error.to_string()))?.meminfo().frames;
            Ok(Sample::new(time, info.total)
                .count("metadata_frames", info.metadata)
                .count("metadata_ppm", info.metadata * 1_000_000 / info.total))
        })
    }
}
