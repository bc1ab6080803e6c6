//! Campaigns: run after run, each on a machine and with operations drawn from its seed alone.
//!
//! A run compares the pages that each operation touched, and everything now and then ([`Depth::Touched`]). A
//! run that fails is repeated with everything compared after each operation, cut off after the first failing
//! operation, and shortened.

mod decode;

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use hosted::FailurePlan;

use crate::lockstep::{Depth, Tally, check_steps, shrink};
use crate::machine::{MachineShape, check_machine, run_machine};
use crate::ops::{Draw, Step, draw, source};

/// Operations of a run.
pub const STEPS: usize = 3000;

/// The most operations of a run where memory is short: a verb's partial progress is found by trying, which
/// takes time for each mapping.
const SCARCE_STEPS: usize = 300;

/// The most operations of a run of long ranges: most of its time goes to pages, so such runs are more and
/// shorter.
const LONG_STEPS: usize = 1000;

/// Everything is compared after this many operations.
const ALL_EVERY: usize = 64;

/// Time for shortening a run that fails.
const SHRINK_BUDGET: Duration = Duration::from_secs(60);

/// Pages of an operation from which on six address spaces may hold more than 256 MiB.
const LONG: u32 = 300;

/// A run: all of it follows from its seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// The machine, with its failures.
    pub machine: MachineShape,
    /// Files, with their sizes in bytes.
    pub files: Vec<(u64, u64)>,
    /// The operations.
    pub steps: Vec<Step>,
}

impl Run {
    /// Draws a run of `steps` operations. Most are drawn as in `tests/address_space.rs` and
    /// `tests/failures.rs`: on one machine in eight memory is short or allocations fail, and one family of
    /// address spaces in eight forks over and over.
    pub fn draw(seed: u64, steps: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let steps = if seed % 8 == 3 { steps.min(SCARCE_STEPS) } else { steps };
        let machine = MachineShape::new(&mut rng);
        let mut shape = Draw::new(&mut rng, steps, 4);
        let machine = match seed % 16 {
            3 => machine.small(rng.u64(8..64) << 20),
            11 => machine.failing(FailurePlan::Seeded {
                seed,
                one_in: *rng.choice(&[10, 100, 1000]).expect("not empty"),
            }),
            // One in sixteen starts with memory known to be zero.
            of_sixteen => {
                let bytes = if shape.longest >= LONG { 1 << 30 } else { machine.bytes };
                MachineShape { bytes, dirty: of_sixteen != 0, ..machine }
            }
        };
        if shape.longest >= LONG {
            shape.steps = shape.steps.min(LONG_STEPS);
        }
        if machine.tight {
            shape.one_sharing(&mut rng);
        }
        if seed % 8 == 6 {
            shape.families();
        }
        let steps = draw(&mut rng, &shape);
        Self { seed, machine, files: shape.files, steps }
    }

    /// The same run on another machine.
    #[must_use]
    pub fn on(self, machine: MachineShape) -> Self {
        Self { machine, ..self }
    }

    /// Does the run; returns the counts of operations and answers.
    ///
    /// # Errors
    /// The difference.
    pub fn once(&self) -> Result<Tally, String> {
        run_machine(&self.fast(), &self.files, self.seed, &self.steps).map(|(_, tally)| tally)
    }

    /// The same; a run that fails, or panics, is shortened.
    ///
    /// # Errors
    /// The [`Failure`].
    pub fn check(&self) -> Result<Tally, Box<Failure>> {
        let tally = Cell::new(Tally::default());
        let checked = check_steps(&self.steps, &|_| self.once().map(|done| tally.set(done)));
        checked.map(|()| tally.take()).map_err(|what| Box::new(self.explain(what)))
    }

    fn fast(&self) -> MachineShape {
        self.machine.clone().comparing(Depth::Touched { all_every: ALL_EVERY })
    }

    /// Finds the first operation that fails, comparing everything after each operation if that fails too, and
    /// shortens the operations before it.
    fn explain(&self, what: String) -> Failure {
        let slow = self.machine.clone().comparing(Depth::All);
        let fails = |machine: &MachineShape, steps: &[Step]| self.failure_on(machine, steps);
        let machine = if fails(&slow, &self.steps).is_some() { slow } else { self.fast() };
        // Everything is compared at the end of a list too, so each list of this length or more fails.
        let lengths: Vec<usize> = (1..=self.steps.len()).collect();
        let first = lengths.partition_point(|&length| fails(&machine, &self.steps[..length]).is_none());
        let upto = &self.steps[..(first + 1).min(self.steps.len())];
        let steps = shrink(upto, SHRINK_BUDGET, |attempt| fails(&machine, attempt).is_some());
        let shortened_what = fails(&machine, &steps).unwrap_or_else(|| "nothing, this time".into());
        Failure { run: Self { machine, steps, ..self.clone() }, first, what, shortened_what }
    }

    /// The failure of a machine that does these steps, if any.
    fn failure_on(&self, machine: &MachineShape, steps: &[Step]) -> Option<String> {
        check_steps(steps, &|steps| check_machine(machine, &self.files, self.seed, steps).map(drop)).err()
    }
}

/// A run that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run, with the machine on which it fails and the shortened list.
    pub run: Run,
    /// The number of the operation that fails first.
    pub first: usize,
    /// The failure of the whole run.
    pub what: String,
    /// The failure of the shortened run.
    pub shortened_what: String,
}

impl Failure {
    /// Repeats the shortened run as it was when it failed; returns its failure.
    pub fn again(&self) -> Option<String> {
        self.run.failure_on(&self.run.machine, &self.run.steps)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, first, what, shortened_what } = self;
        writeln!(f, "seed {} fails: {what}", run.seed)?;
        writeln!(f, "on {:?} with files {:?}", run.machine, run.files)?;
        writeln!(
            f,
            "operation {first} fails first; shortened to {} operations, which fail with: {shortened_what}",
            run.steps.len()
        )?;
        f.write_str(&source(&run.steps))
    }
}
