//! The part of a fault that samples do not see.
//!
//! Interrupts are off on a fault's way back to the program, and that of a sampling clock comes as soon as they are on again: in
//! the program. What the processor does between the access and the kernel's first instruction is not seen either. Of a short
//! fault that is a tenth (177 of 1,970 ns on an Intel Xeon). So a process that does nothing but fault is sampled beside the others,
//! and what its faults take longer than its samples say is added to every fault of the others.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memmap2::{Advice, MmapMut};
use serde::{Deserialize, Serialize};

use super::fault_time::now;
use crate::calibrate::own_time;
use crate::output::Target;

/// The name of the subcommand below.
const SUBCOMMAND: &str = "verify-faults";

/// Pages of 4 KiB that it touches in a round, and rounds. Together they take an eighth of a second.
const PAGES: usize = 8192;
const ROUNDS: usize = 8;
const PAGE: usize = 4096;

/// What such a process did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Faulted {
    /// When each round of faults began and ended.
    pub(super) rounds: Vec<(Duration, Duration)>,
    /// How long the process ran in them, and in the same accesses afterwards, without faults.
    pub(super) took: Duration,
    again: Duration,
}

impl Faulted {
    /// The command of such a process, which writes what it did to `place`.
    ///
    /// # Errors
    /// Where this command's own file is not found.
    pub(super) fn command(place: &Path) -> Result<[OsString; 3]> {
        let itself = env::current_exe().context("cannot find this command's own file")?;
        Ok([itself.into(), SUBCOMMAND.into(), place.into()])
    }

    /// What it wrote.
    ///
    /// # Errors
    /// A process that has not done its work.
    pub(super) fn read(place: &Path) -> Result<Self> {
        let told = "the process that only faults did not tell what it did";
        let faulted: Self = serde_json::from_slice(&fs::read(place).context(told)?).context(told)?;
        ensure!(faulted.rounds.len() == ROUNDS, told);
        Ok(faulted)
    }

    /// Touches fresh memory, then the same once more.
    fn round(&mut self) -> Result<()> {
        let mut memory = MmapMut::map_anon(PAGES * PAGE)?;
        memory.advise(Advice::NoHugePage)?;
        let mut touch = || -> io::Result<Duration> {
            let since = own_time()?;
            memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
            std::hint::black_box(&mut memory);
            Ok(own_time()?.saturating_sub(since))
        };
        let begun = now();
        self.took += touch()?;
        self.rounds.push((begun, now()));
        self.again += touch()?;
        Ok(())
    }

    /// Nanoseconds of a fault that its samples, which have so many together, do not see.
    pub(super) fn unsampled_ns(&self, sampled_ns: u64) -> f64 {
        let in_faults = self.took.saturating_sub(self.again).as_nanos() as f64;
        (in_faults - sampled_ns as f64) / (ROUNDS * PAGES) as f64
    }
}

/// Faults and does nothing else, as `quire verify` starts it beside a program.
#[derive(Clone, Debug, clap::Args)]
#[command(name = SUBCOMMAND)]
pub struct FaultsArgs {
    #[arg(value_name = "FILE")]
    place: PathBuf,
}

/// Runs `quire verify-faults`.
///
/// # Errors
/// Too little memory, a file that cannot be written.
pub fn fault(args: &FaultsArgs) -> Result<()> {
    // The first round is not told: it may get memory that the host of a virtual machine has to find.
    Faulted::default().round().context("there is too little memory")?;
    let mut faulted = Faulted::default();
    for _ in 0..ROUNDS {
        faulted.round()?;
    }
    Target::named(&args.place)?.write(&serde_json::to_vec(&faulted)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_samples_lack_is_the_rest_of_the_time_in_faults() {
        let round = |at: u64| (Duration::from_millis(at), Duration::from_millis(at + 10));
        let rounds = (0..ROUNDS as u64).map(|at| round(20 * at)).collect();
        // Another program ran for 10 ms.
        let (took, again) = (Duration::from_millis(70), Duration::from_millis(8));
        let faulted = Faulted { rounds, took, again };
        let faults = (ROUNDS * PAGES) as f64;
        assert_eq!(faulted.unsampled_ns(55_000_000), 7e6 / faults);
        assert_eq!(faulted.unsampled_ns(62_000_000), 0.0);
    }

    #[test]
    fn the_process_faults_and_tells() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("faulted");
        let before = now();
        fault(&FaultsArgs { place: place.clone() }).unwrap();
        let faulted = Faulted::read(&place).unwrap();
        let ends: Vec<Duration> = faulted.rounds.iter().flat_map(|(begun, ended)| [*begun, *ended]).collect();
        assert!(before <= ends[0] && ends.is_sorted() && ends[ends.len() - 1] <= now());
        let each = faulted.unsampled_ns(0);
        assert!(each > 50.0, "a fault takes longer than an access: {each} ns");
        fs::write(&place, "{}").unwrap();
        assert!(Faulted::read(&place).is_err());
    }
}
