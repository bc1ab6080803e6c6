//! The part of a fault that samples do not see, and how much longer faults take while samples are taken.
//!
//! Interrupts are off on a fault's way back to the program, and that of a sampling clock comes as soon as they are on again: in
//! the program. What the processor does between the access and the kernel's first instruction is not seen either. Of a short
//! fault that is a tenth (177 of 1,970 ns on an Intel Xeon). So a process that does nothing but fault is sampled beside the others,
//! and what its faults take longer than its samples say is added to every fault of the others.
//!
//! A sample takes some 13 us, which are in the time that it samples: each stands for half a millisecond with its own 13 us in it.
//! So the process leaves the control group for every second round, where no samples are taken, and tells how much shorter its
//! faults are there. The processor's clock, which may change by half between two processes, is the same for both.

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

/// Pages of 4 KiB that it touches in a round, and sampled rounds. Together these take an eighth of a second.
const PAGES: usize = 8192;
const ROUNDS: usize = 8;
const PAGE: usize = 4096;

/// What such a process did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Faulted {
    /// When each sampled round of faults began and ended.
    pub(super) rounds: Vec<(Duration, Duration)>,
    /// How long the process ran in them, and in the same accesses afterwards, without faults.
    pub(super) took: Duration,
    again: Duration,
    /// How long it was in the faults of as many rounds outside the control group; `None` where it cannot leave the group.
    pub(super) apart: Option<Duration>,
}

/// The files by which a process joins the control group, and by which it leaves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups<'a> {
    pub(super) inside: &'a Path,
    pub(super) outside: &'a Path,
}

impl Faulted {
    /// The command of such a process, which writes what it did to `place`. Without groups all of its rounds are sampled.
    ///
    /// # Errors
    /// Where this command's own file is not found.
    pub(super) fn command(place: &Path, groups: Option<Groups<'_>>) -> Result<Vec<OsString>> {
        let itself = env::current_exe().context("cannot find this command's own file")?;
        let mut command = vec![itself.into(), SUBCOMMAND.into(), place.into()];
        if let Some(Groups { inside, outside }) = groups {
            command.extend(["--inside".into(), inside.into(), "--outside".into(), outside.into()]);
        }
        Ok(command)
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

    /// A round of which samples are taken.
    fn sampled_round(&mut self) -> Result<()> {
        let round = Round::take().context(LITTLE)?;
        self.took += round.took;
        self.again += round.again;
        self.rounds.push(round.lasted);
        Ok(())
    }

    /// Nanoseconds of a fault that its samples, which have so many together, do not see.
    pub(super) fn unsampled_ns(&self, sampled_ns: u64) -> f64 {
        let in_faults = self.took.saturating_sub(self.again).as_nanos() as f64;
        (in_faults - sampled_ns as f64) / (ROUNDS * PAGES) as f64
    }

    /// How many times as long its faults took while samples were taken.
    pub(super) fn longer(&self) -> Option<f64> {
        let apart = self.apart.filter(|apart| !apart.is_zero())?;
        Some(self.took.saturating_sub(self.again).as_secs_f64() / apart.as_secs_f64())
    }
}

/// A round of faults.
struct Round {
    lasted: (Duration, Duration),
    took: Duration,
    again: Duration,
}

impl Round {
    /// Touches fresh memory, then the same once more.
    fn take() -> io::Result<Self> {
        let mut memory = MmapMut::map_anon(PAGES * PAGE)?;
        memory.advise(Advice::NoHugePage)?;
        let mut touch = || -> io::Result<Duration> {
            let since = own_time()?;
            memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
            std::hint::black_box(&mut memory);
            Ok(own_time()?.saturating_sub(since))
        };
        let begun = now();
        let took = touch()?;
        Ok(Self { lasted: (begun, now()), took, again: touch()? })
    }
}

const LITTLE: &str = "there is too little memory";

/// Faults and does nothing else, as `quire verify` starts it beside a program.
#[derive(Clone, Debug, clap::Args)]
#[command(name = SUBCOMMAND)]
pub struct FaultsArgs {
    #[arg(value_name = "FILE")]
    place: PathBuf,
    /// The file by which a process joins the control group of which samples are taken.
    #[arg(long, value_name = "FILE", requires = "outside")]
    inside: Option<PathBuf>,
    /// The one by which it leaves that group.
    #[arg(long, value_name = "FILE", requires = "inside")]
    outside: Option<PathBuf>,
}

/// Runs `quire verify-faults`.
///
/// # Errors
/// Too little memory, a file that cannot be written.
pub fn fault(args: &FaultsArgs) -> Result<()> {
    // The first round is not told: it may get memory that the host of a virtual machine has to find.
    Round::take().context(LITTLE)?;
    let mut faulted = Faulted::default();
    let groups = args.inside.as_deref().zip(args.outside.as_deref());
    let mut apart = groups.map(|_| Duration::ZERO);
    for round in 0..ROUNDS {
        // Each of the two comes first in half of the rounds.
        if round % 2 == 0 {
            faulted.sampled_round()?;
        }
        if let Some((so_far, groups)) = apart.zip(groups) {
            apart = in_faults_apart(groups)?.map(|round| so_far + round);
        }
        if round % 2 == 1 {
            faulted.sampled_round()?;
        }
    }
    faulted.apart = apart;
    Target::named(&args.place)?.write(&serde_json::to_vec(&faulted)?)
}

/// How long a round was in faults that this process took outside the group, in which it is again afterwards; `None` where it may
/// not leave the group.
///
/// # Errors
/// A group that it cannot join again: of further rounds no samples would be taken. Too little memory.
fn in_faults_apart((inside, outside): (&Path, &Path)) -> Result<Option<Duration>> {
    // The kernel takes 0 for the process that writes it.
    const ITSELF: &str = "0";
    if fs::write(outside, ITSELF).is_err() {
        return Ok(None);
    }
    let round = Round::take();
    fs::write(inside, ITSELF).context("cannot join the control group again")?;
    let round = round.context(LITTLE)?;
    Ok(Some(round.took.saturating_sub(round.again)))
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
        let faulted = Faulted { rounds, took, again, apart: None };
        let faults = (ROUNDS * PAGES) as f64;
        assert_eq!(faulted.unsampled_ns(55_000_000), 7e6 / faults);
        assert_eq!(faulted.unsampled_ns(62_000_000), 0.0);
    }

    #[test]
    fn faults_outside_the_group_tell_what_samples_lengthen() {
        let ms = Duration::from_millis;
        let of = |apart| Faulted { took: ms(70), again: ms(8), apart, ..Faulted::default() }.longer();
        assert_eq!(of(Some(ms(60))), Some(62.0 / 60.0));
        assert_eq!([of(None), of(Some(Duration::ZERO))], [None, None], "it has not left it");
    }

    #[test]
    fn the_process_faults_and_tells() {
        let directory = tempfile::tempdir().unwrap();
        let [place, inside, outside] =
            ["faulted", "inside", "outside"].map(|name| directory.path().join(name));
        let tell = |groups: bool| {
            let [inside, outside] = [&inside, &outside].map(|file| groups.then(|| file.clone()));
            fault(&FaultsArgs { place: place.clone(), inside, outside }).unwrap();
            Faulted::read(&place).unwrap()
        };
        let before = now();
        let faulted = tell(false);
        let ends: Vec<Duration> = faulted.rounds.iter().flat_map(|(begun, ended)| [*begun, *ended]).collect();
        assert!(before <= ends[0] && ends.is_sorted() && ends[ends.len() - 1] <= now());
        let each = faulted.unsampled_ns(0);
        assert!(each > 50.0, "a fault takes longer than an access: {each} ns");
        assert_eq!(faulted.longer(), None);
        // Files of no control group: what is written there moves no process, so both kinds of rounds are alike.
        let both = tell(true);
        assert_eq!(both.rounds.len(), ROUNDS);
        assert!(both.longer().is_some_and(|longer| (0.1..10.0).contains(&longer)), "{both:?}");
        assert_eq!([&inside, &outside].map(|file| fs::read_to_string(file).unwrap()), ["0", "0"]);
        fs::write(&place, "{}").unwrap();
        assert!(Faulted::read(&place).is_err());
    }
}
