//! Runs the arms of an experiment in turn: every round does each arm once, in an order that changes with the round.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::code;
use super::experiment::{Arm, Case, Counters, Experiment, Measured, Metric, Prepared, Sample, Skip, TIME};
use super::link_args::LinkArgs;
use super::price_args::PriceArgs;
use super::progress::Progress;
use super::row::Row;
use super::stats::Summary;
use crate::host::machine;
use crate::host::threads::{self, Pinned};

/// The amount of measuring: a smoke run shows that everything works, a full run gives figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Small parameters, for tests.
    pub smoke: bool,
    /// Rounds thrown away before the measured ones.
    pub warmups: usize,
    /// Measured rounds.
    pub rounds: usize,
}

impl Scale {
    /// Small parameters and one round: it shows that everything works.
    pub const SMOKE: Self = Self { smoke: true, warmups: 0, rounds: 1 };
    /// The parameters of the published figures. Two warm-ups, since the kernel may hand out other frames in the
    /// second round, and a virtual machine pays for a frame when it is first touched.
    pub const FULL: Self = Self { smoke: false, warmups: 2, rounds: 11 };

    /// `smoke` in a smoke run, `full` otherwise.
    pub fn pick<T>(self, smoke: T, full: T) -> T {
        if self.smoke { smoke } else { full }
    }
}

/// Which cases of an experiment are run.
#[derive(Clone, Debug)]
pub enum Cases {
    /// Those whose names contain this.
    Containing(String),
    /// Those with these names.
    Named(Vec<&'static str>),
}

impl Cases {
    /// Whether the case called `name` is run.
    pub fn have(&self, name: &str) -> bool {
        match self {
            Self::Containing(text) => name.contains(text),
            Self::Named(names) => names.contains(&name),
        }
    }
}

/// The counter of measured repetitions that gave up once; it is there if there was one.
pub const REPEATED: &str = "repeated";

/// What all experiments of one run share.
pub struct Runner {
    /// Smoke or full.
    pub scale: Scale,
    /// Seed of the order of the arms.
    pub seed: u64,
    /// The CPUs that threads are pinned to, in this order.
    pub cpus: Vec<usize>,
    /// The cases that are run.
    pub cases: Cases,
    /// The link of the experiments that have one.
    pub link: LinkArgs,
    /// The prices of the experiment that has them.
    pub price: PriceArgs,
    machine: Value,
}

/// The results of one arm for one case so far.
struct Track<'a> {
    arm: &'static str,
    state: Result<Box<dyn Prepared + 'a>, Skip>,
    samples: Vec<Sample>,
    /// Repetitions that gave up and had a second try.
    repeated: u64,
}

impl Runner {
    /// A run on this machine.
    pub fn new(scale: Scale, seed: u64) -> Self {
        let cases = Cases::Containing(String::new());
        let (cpus, link, price) = (threads::allowed_cpus(), LinkArgs::default(), PriceArgs::default());
        Self { scale, seed, cpus, cases, link, price, machine: machine::describe() }
    }

    /// The same for no cases but those whose names contain `text`.
    #[must_use]
    pub fn only(self, text: &str) -> Self {
        Self { cases: Cases::Containing(text.to_owned()), ..self }
    }

    /// The same for the cases with these names.
    #[must_use]
    pub fn cases(self, names: Vec<&'static str>) -> Self {
        Self { cases: Cases::Named(names), ..self }
    }

    /// The same with this link.
    #[must_use]
    pub fn over(self, link: LinkArgs) -> Self {
        Self { link, ..self }
    }

    /// The same with these prices.
    #[must_use]
    pub fn priced(self, price: PriceArgs) -> Self {
        Self { price, ..self }
    }

    /// Measures every case with every arm; returns a row for each metric, case by case, and each arm's text.
    ///
    /// # Errors
    /// When two arms, or two rounds of one arm, did different work: the figures would not be comparable.
    pub fn measure<S>(
        &self,
        experiment: &Experiment,
        cases: &[Case<S>],
        arms: &mut [Box<dyn Arm<S>>],
    ) -> Result<Measured> {
        let about = arms.iter().map(|arm| (arm.name(), arm.about())).collect();
        let _pinned = Pinned::to(self.cpus[0]);
        let rounds = self.scale.warmups + self.scale.rounds;
        let cases: Vec<&Case<S>> = cases.iter().filter(|case| self.cases.have(&case.name)).collect();
        let mut progress = Progress::new(experiment.name, cases.len() * rounds * arms.len());
        let mut rows = Vec::new();
        for case in cases {
            // A setup borrows its arm until the end of the case.
            let mut tracks: Vec<Track<'_>> = Vec::new();
            for arm in arms.iter_mut() {
                progress.show(&case.name, arm.name());
                tracks.push(Track {
                    arm: arm.name(),
                    state: arm.setup(&case.spec),
                    samples: Vec::new(),
                    repeated: 0,
                });
            }
            let mut checksum = None;
            for round in 0..rounds {
                for index in order(tracks.len(), round, self.seed) {
                    let track = &mut tracks[index];
                    progress.show(&case.name, track.arm);
                    step(experiment, &case.name, track, round < self.scale.warmups, &mut checksum)?;
                    progress.advance();
                }
            }
            for track in tracks {
                self.rows_of(experiment, case, track, &mut rows);
            }
        }
        progress.finish();
        Ok(Measured { rows, about })
    }

    fn rows_of<S>(&self, experiment: &Experiment, case: &Case<S>, track: Track<'_>, rows: &mut Vec<Row>) {
        let mut params = case.params.clone();
        params.insert("per".into(), json!(experiment.per));
        params.insert("smoke".into(), json!(self.scale.smoke));
        params.insert("warmups".into(), json!(self.scale.warmups));
        params.insert("seed".into(), json!(self.seed));
        let row = |metric: Metric, samples: Vec<f64>, counters: Counters, skipped| Row {
            experiment: experiment.name.to_owned(),
            case: case.name.clone(),
            arm: track.arm.to_owned(),
            metric: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            better: metric.better,
            median: Summary::of(&samples).map(|summary| summary.figure(metric.name)),
            samples,
            counters,
            params: params.clone(),
            machine: self.machine.clone(),
            commit: machine::commit().to_owned(),
            code: code::hash(experiment.code),
            runner: code::hash(&[code::RUNNER, &[experiment.file]]),
            skipped,
        };
        match &track.state {
            Err(Skip(reason)) => rows.push(row(TIME, Vec::new(), Counters::new(), Some(reason.clone()))),
            Ok(_) => {
                let counters = track.counters();
                let last = track.samples.last();
                for (at, (metric, _)) in last.iter().flat_map(|sample| sample.metrics.iter().enumerate()) {
                    let samples = track.samples.iter().map(|sample| sample.metrics[at].1).collect();
                    rows.push(row(*metric, samples, counters.clone(), None));
                }
            }
        }
    }
}

impl Track<'_> {
    /// The largest count of a repetition, for each counter: no repetition hides behind another one.
    fn counters(&self) -> Counters {
        let mut largest = Counters::new();
        for (name, count) in self.samples.iter().flat_map(|sample| &sample.counters) {
            largest.entry(name.clone()).and_modify(|known| *known = (*known).max(*count)).or_insert(*count);
        }
        if self.repeated > 0 {
            largest.insert(REPEATED.to_owned(), self.repeated);
        }
        largest
    }
}

/// Runs one arm once and keeps the sample, unless it is a warm-up. An arm that gives up has a second try: memory may have
/// been too scattered for its folios, and is not any more.
fn step(
    experiment: &Experiment,
    case: &str,
    track: &mut Track<'_>,
    warmup: bool,
    checksum: &mut Option<(&'static str, u64)>,
) -> Result<()> {
    let Ok(prepared) = &mut track.state else { return Ok(()) };
    let mut again = false;
    let tried = prepared.run().or_else(|_| {
        again = true;
        prepared.run()
    });
    track.repeated += u64::from(again && !warmup);
    let sample = match tried {
        Ok(sample) => sample,
        Err(skip) => {
            track.samples.clear();
            track.state = Err(skip);
            return Ok(());
        }
    };
    let (first, expected) = *checksum.get_or_insert((track.arm, sample.checksum));
    if expected != sample.checksum {
        bail!(
            "{} {case}: arm {} did work with checksum {}, where {first} had {expected}: not comparable",
            experiment.name,
            track.arm,
            sample.checksum
        );
    }
    if !warmup {
        track.samples.push(sample);
    }
    Ok(())
}

/// The order of `arms` arms in `round`, by the seed. Over as many rounds as arms (twice as many if their
/// number is odd), each arm is in each place equally often and follows each other arm equally often. So what
/// an arm leaves in the caches affects all others alike. (Williams: "Experimental designs balanced for the
/// estimation of residual effects of treatments", 1949.)
fn order(arms: usize, round: usize, seed: u64) -> Vec<usize> {
    let mut names: Vec<usize> = (0..arms).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut names);
    // 0, 1, n - 1, 2, n - 2 and so on: the differences between neighbours are all different.
    let zigzag =
        (0..arms).map(|place| if place % 2 == 1 { place.div_ceil(2) } else { (arms - place / 2) % arms });
    let mut order: Vec<usize> = zigzag.map(|step| names[(step + round) % arms]).collect();
    if arms % 2 == 1 && round / arms % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests;
