//! The experiment `guest`: the same static program as the only program of a machine, on Debian's kernels and on Quire's.
//!
//! ```text
//! rows       what the program prints, on which machine
//! program.c  the program
//! first.c    the one of a machine that is only started
//! output     reads its lines
//! arm        the kernels, their command lines, and runs that go on after a machine died
//! debian     fetches and unpacks Debian's kernels
//! archive    packs the files of a machine
//! qemu       starts one machine
//! table      rows that miss their figure first
//! tools      programs of the system, and the packages that bring them
//! ```

pub mod arm;
pub mod output;
pub mod rows;
pub mod table;

pub mod archive;
pub mod debian;
pub mod qemu;
pub mod tools;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::code;
use super::experiment::{Better, Experiment, Measured};
use super::metric::Counters;
use super::progress::Progress;
use super::row::Row;
use super::runner::Runner;
use crate::host::machine;
use arm::{ARMS, Arm, Figures, GuestFiles};
use rows::{Machine, ROWS, RowSpec};

/// The groups of a smoke run.
const SMOKE: [&str; 3] = ["null", "touch", "boot"];

/// Measures every row that `runner` chooses on every kernel.
///
/// # Errors
/// A missing tool. A kernel that cannot be fetched or built has the reason in its rows.
pub fn measure(experiment: &Experiment, runner: &Runner) -> Result<Measured> {
    let chosen =
        |row: &&RowSpec| runner.cases.have(row.name) && (!runner.scale.smoke || SMOKE.contains(&row.group));
    let chosen: Vec<&RowSpec> = ROWS.iter().filter(chosen).collect();
    let about = ARMS.iter().map(|arm| (arm.name(), arm.about())).collect();
    let mut measured = Measured { rows: Vec::new(), about };
    if chosen.is_empty() {
        return Ok(measured);
    }
    let emulator = qemu::version()?;
    let workshop = GuestFiles::new()?;
    let groups: usize = Machine::ALL.into_iter().map(|machine| groups_of(machine, &chosen).len()).sum();
    let mut progress = Progress::new(experiment.name, ARMS.len() * groups);
    for arm in ARMS {
        progress.show(arm.name(), "kernel");
        let kernel = arm.kernel().map_err(|error| format!("{error:#}"));
        let mut params = Map::new();
        params.insert("emulator".into(), json!(emulator));
        params.insert("smoke".into(), json!(runner.scale.smoke));
        params.insert("kernel".into(), kernel.as_ref().map_or(Value::Null, |(_, version)| json!(version)));
        for machine in Machine::ALL.into_iter().filter(|machine| arm.runs_on(*machine)) {
            let groups = groups_of(machine, &chosen);
            let figures = match &kernel {
                Ok((image, _)) => {
                    let mut last = String::new();
                    workshop.measure(arm, image, machine, &groups, &mut |group| {
                        progress.show(arm.name(), group);
                        if last != group && !last.is_empty() {
                            progress.advance();
                        }
                        last = group.to_owned();
                    })?
                }
                Err(reason) => chosen.iter().map(|row| (row.name.to_owned(), Err(reason.clone()))).collect(),
            };
            let of_machine = chosen.iter().filter(|row| row.machine == machine);
            measured.rows.extend(of_machine.map(|spec| row(experiment, arm, spec, &figures, &params)));
        }
    }
    progress.finish();
    Ok(measured)
}

/// The groups of `machine` that have a chosen row.
fn groups_of(machine: Machine, chosen: &[&RowSpec]) -> Vec<&'static str> {
    let has = |group: &&str| chosen.iter().any(|row| row.machine == machine && row.group == *group);
    rows::groups(machine).into_iter().filter(has).collect()
}

fn row(
    experiment: &Experiment,
    arm: Arm,
    spec: &RowSpec,
    figures: &Figures,
    params: &Map<String, Value>,
) -> Row {
    let missing = || Err("the program did not print this row".to_owned());
    let figure = figures.get(spec.name).cloned().unwrap_or_else(missing);
    let (metric, unit) = spec.metric.names();
    let mut params = params.clone();
    params.insert("per".into(), json!(spec.per));
    Row {
        experiment: experiment.name.to_owned(),
        case: spec.name.to_owned(),
        arm: arm.name().to_owned(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        better: Better::Lower,
        median: figure.as_ref().ok().copied(),
        samples: figure.as_ref().ok().copied().into_iter().collect(),
        counters: Counters::new(),
        params,
        machine: machine::describe(),
        commit: machine::commit().to_owned(),
        code: code::hash(experiment.code),
        runner: code::hash(&[code::RUNNER, &[experiment.file]]),
        skipped: figure.err(),
    }
}

#[cfg(test)]
mod tests;
