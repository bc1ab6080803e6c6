//! The verdicts of kept figures: goals reached, in how many launches, and cases in which another arm is
//! faster.

use super::results::{Results, Series};
use crate::bench::code;
use crate::bench::experiment::{Better, Experiment, TIME};
use crate::bench::experiments;
use crate::bench::goal::{Bound, Figure, Goal, Over};
use crate::bench::metric::is_worst;
use crate::bench::table::distinct;

/// Metrics that are no measure of an arm's speed: cycles beside times, the time of loops and empty processes, and that of
/// signals.
const NOT_COMPARED: [&str; 9] =
    ["cycles", "alloc-cycles", "free-cycles", "empty", "fill", "interrupted", "loop", "ring", "signal"];

/// The figures of one experiment on one machine. Each case is from the newest run that has it.
pub struct Measured<'a> {
    pub experiment: &'static Experiment,
    pub cases: Vec<Case<'a>>,
    /// All runs on that machine, the oldest first.
    pub runs: Vec<Run<'a>>,
}

/// A case, and its run.
pub struct Case<'a> {
    pub name: &'a str,
    pub run: Run<'a>,
}

/// The figures of an experiment on a machine at a commit, and their number on the page.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub number: usize,
    pub results: &'a Results,
}

/// The distance of one case from a goal, launch by launch.
pub struct Verdict<'a> {
    pub case: &'a str,
    pub run: Run<'a>,
    /// The launches that have the bounded value.
    pub launches: Vec<Judged>,
    /// The unit of the value; none for a ratio or a count.
    pub unit: Option<&'a str>,
    /// The largest value counts.
    worst: bool,
}

/// The bounded value of one launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The number of the launch in its run.
    pub launch: usize,
    pub value: f64,
    /// Whether it meets the bound.
    pub is_met: bool,
}

/// A figure in which another arm is faster.
pub struct Slower<'a> {
    pub case: &'a str,
    pub run: Run<'a>,
    pub own: &'a Series,
    pub fastest: &'a Series,
    /// The ratio to the other figure.
    pub ratio: f64,
    /// The launches in which it is slower, and all launches.
    pub launches: (usize, usize),
}

/// Orders `all` by experiment and machine, and takes each case from the newest run that has it: of the runs of one day from
/// that of today's code.
pub fn newest(all: &[Results]) -> Vec<Measured<'_>> {
    let mut measured = Vec::new();
    let mut number = 0;
    for experiment in experiments::ALL {
        let mut runs: Vec<&Results> =
            all.iter().filter(|results| results.header.experiment == experiment.name).collect();
        runs.sort_by_key(|results| (&results.header.taken, since(experiment, results) == SAME));
        let mut machines: Vec<String> = runs.iter().map(|results| processor(results)).collect();
        machines.sort_unstable();
        machines.dedup();
        for machine in machines {
            let of_machine = runs.iter().copied().filter(|results| processor(results) == machine);
            let runs: Vec<Run<'_>> =
                of_machine.zip(number + 1..).map(|(results, number)| Run { number, results }).collect();
            number += runs.len();
            let mut cases: Vec<Case<'_>> = Vec::new();
            for case in runs.iter().flat_map(|run| run.cases()) {
                match cases.iter_mut().find(|known| known.name == case.name) {
                    Some(known) => *known = case,
                    None => cases.push(case),
                }
            }
            measured.push(Measured { experiment, cases, runs });
        }
    }
    measured
}

impl<'a> Measured<'a> {
    /// The cases of the newest run.
    pub fn of_newest(&self) -> Self {
        self.of(self.runs.last().copied())
    }

    /// Each older run by itself, the newest of them first.
    pub fn of_older(&self) -> impl Iterator<Item = Self> {
        let older = self.runs.split_last().map_or(&[][..], |(_, older)| older);
        older.iter().rev().map(|run| self.of(Some(*run)))
    }

    fn of(&self, run: Option<Run<'a>>) -> Self {
        let cases = run.iter().flat_map(|run| run.cases()).collect();
        Self { experiment: self.experiment, cases, runs: run.into_iter().collect() }
    }
}

/// The name of the processor and its features: some processors have a name in common.
pub fn processor(results: &Results) -> String {
    let machine = &results.header.machine;
    let name = machine.get("cpu").and_then(serde_json::Value::as_str).unwrap_or("unknown");
    let features = machine.get("features").and_then(serde_json::Value::as_array);
    let features: Vec<&str> = features.into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
    if features.is_empty() { name.to_owned() } else { format!("{name} ({})", features.join(", ")) }
}

/// The version of the running kernel.
pub fn kernel(results: &Results) -> Option<&str> {
    results.header.machine.get("kernel").and_then(serde_json::Value::as_str)
}

/// What [`since`] says of code that is today's.
pub const SAME: &str = "same";

/// Whether the measured code is today's.
pub fn since(experiment: &Experiment, results: &Results) -> &'static str {
    match (code::hash(experiment.code), &results.header.code) {
        (now, then) if now.is_empty() || then.is_empty() => "unknown",
        (now, then) if now == *then => SAME,
        _ => "changed",
    }
}

impl<'a> Case<'a> {
    /// The figures of this case.
    pub fn series(&self) -> impl Iterator<Item = &'a Series> + use<'a, '_> {
        self.run.results.series.iter().filter(|series| series.case == self.name)
    }
}

impl<'a> Run<'a> {
    /// The cases that it has, in its order.
    fn cases(self) -> impl Iterator<Item = Case<'a>> {
        let names = distinct(self.results.series.iter().map(|series| series.case.as_str()));
        names.into_iter().map(move |name| Case { name, run: self })
    }

    fn series(self, case: &str, arm: &str, metric: &str) -> Option<&'a Series> {
        let wanted = |series: &&Series| {
            (series.case.as_str(), series.arm.as_str(), series.metric.as_str()) == (case, arm, metric)
        };
        self.results.series.iter().find(wanted)
    }

    fn figure(self, figure: Figure, case: &str, arm: &str, launch: usize) -> Option<f64> {
        match figure {
            Figure::Metric(name) => self.series(case, arm, name)?.median_of(launch),
            Figure::Counter(name) => {
                let series = self.series(case, arm, TIME.name)?;
                series.median_of(launch)?;
                series.counters.get(name).map(|count| *count as f64)
            }
        }
    }

    /// The value that `goal` bounds.
    fn value(self, goal: &Goal, case: &str, launch: usize) -> Option<f64> {
        let own = self.figure(goal.figure, case, goal.arm, launch)?;
        let other = match goal.over {
            Over::Nothing => return Some(own),
            Over::Case(other) => self.figure(goal.figure, other, goal.arm, launch)?,
            Over::ArmInCase(arm, other) => self.figure(goal.figure, other, arm, launch)?,
            Over::Metric(name) => self.figure(Figure::Metric(name), case, goal.arm, launch)?,
            Over::FirstOf(arms) => arms.iter().find_map(|arm| self.figure(goal.figure, case, arm, launch))?,
            Over::BestOf(arms) => {
                let all = arms.iter().filter_map(|arm| self.figure(goal.figure, case, arm, launch));
                if self.is_higher_better(goal, case) {
                    all.max_by(f64::total_cmp)?
                } else {
                    all.min_by(f64::total_cmp)?
                }
            }
        };
        let (value, of) = if matches!(goal.bound, Bound::Times(_)) { (other, own) } else { (own, other) };
        (of > 0.0).then(|| value / of)
    }

    fn is_higher_better(self, goal: &Goal, case: &str) -> bool {
        let Figure::Metric(name) = goal.figure else { return false };
        self.series(case, goal.arm, name).is_some_and(|series| series.better == Better::Higher)
    }
}

/// The verdict of each measured case that must reach `goal`.
pub fn verdicts<'a>(goal: &Goal, measured: &Measured<'a>) -> Vec<Verdict<'a>> {
    let mut verdicts = Vec::new();
    for case in measured.cases.iter().filter(|case| goal.is_for(case.name)) {
        let launches = 0..case.run.results.header.launches.len();
        let judged = |launch| {
            let value = case.run.value(goal, case.name, launch)?;
            Some(Judged { launch, value, is_met: goal.bound.is_met_by(value) })
        };
        let launches: Vec<Judged> = launches.filter_map(judged).collect();
        let unit = match (goal.over, goal.figure) {
            (Over::Nothing, Figure::Metric(name)) => {
                case.run.series(case.name, goal.arm, name).map(|series| series.unit.as_str())
            }
            _ => None,
        };
        if !launches.is_empty() {
            let worst =
                matches!((goal.figure, goal.over), (Figure::Metric(name), Over::Nothing) if is_worst(name));
            verdicts.push(Verdict { case: case.name, run: case.run, launches, unit, worst });
        }
    }
    verdicts
}

impl Verdict<'_> {
    /// The launches that reached the goal.
    pub fn reached(&self) -> usize {
        self.launches.iter().filter(|judged| judged.is_met).count()
    }

    /// The middle value of the launches, or the largest of a metric of which that counts.
    pub fn median(&self) -> f64 {
        let mut values: Vec<f64> = self.launches.iter().map(|judged| judged.value).collect();
        values.sort_by(f64::total_cmp);
        values[if self.worst { values.len() - 1 } else { values.len() / 2 }]
    }
}

/// The launches that have the values of all cases: how many reached the goal in each case, and how many there are.
pub fn reached_in_all(verdicts: &[Verdict<'_>]) -> (usize, usize) {
    let Some((first, others)) = verdicts.split_first() else { return (0, 0) };
    let in_all = first.launches.iter().filter_map(|judged| {
        let same = |verdict: &Verdict<'_>| {
            verdict.launches.iter().find(|other| other.launch == judged.launch).copied()
        };
        let others: Vec<Judged> = others.iter().map(same).collect::<Option<_>>()?;
        Some(judged.is_met && others.iter().all(|other| other.is_met))
    });
    in_all.fold((0, 0), |(reached, all), is_met| (reached + usize::from(is_met), all + 1))
}

/// Every figure of an experiment in which another library's arm is faster than Quire's: the fastest of them.
pub fn slower<'a>(measured: &Measured<'a>) -> Vec<Slower<'a>> {
    let mut found = Vec::new();
    for case in &measured.cases {
        let ours = |series: &&Series| measured.experiment.own.contains(&series.arm.as_str());
        for own in case.series().filter(ours).filter(|own| !NOT_COMPARED.contains(&own.metric.as_str())) {
            let rival = |series: &&'a Series| {
                series.metric == own.metric
                    && !measured.experiment.own.contains(&series.arm.as_str())
                    && !measured.experiment.apart.contains(&series.arm.as_str())
            };
            let ratios = case.series().filter(rival).filter_map(|other| Some((times(own, other)?, other)));
            let Some((ratio, fastest)) = ratios.max_by(|one, other| one.0.total_cmp(&other.0)) else {
                continue;
            };
            // Differences that the page does not show are left out.
            if ratio >= 1.005 {
                let launches = launches(own, fastest);
                found.push(Slower { case: case.name, run: case.run, own, fastest, ratio, launches });
            }
        }
    }
    found
}

/// The ratio of Quire's figure to `other`, or its inverse where more is better.
fn times(own: &Series, other: &Series) -> Option<f64> {
    let (own_value, other_value) = (own.figure()?, other.figure()?);
    let (value, of) = match own.better {
        Better::Lower => (own_value, other_value),
        Better::Higher => (other_value, own_value),
    };
    (of > 0.0).then(|| value / of)
}

/// The launches in which `own` is slower, and those that have both.
fn launches(own: &Series, other: &Series) -> (usize, usize) {
    let both = own.launches.iter();
    let both = both.filter_map(|(launch, _)| Some((own.median_of(*launch)?, other.median_of(*launch)?)));
    let slower: Vec<bool> = both
        .map(|(own_value, other_value)| match own.better {
            Better::Lower => own_value > other_value,
            Better::Higher => own_value < other_value,
        })
        .collect();
    (slower.iter().filter(|slower| **slower).count(), slower.len())
}
