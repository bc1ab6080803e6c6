//! What a comparison says: one line for each work, and every case in which another arm is faster.

use anyhow::{Result, bail};

use super::works::{Group, Work};
use crate::bench::experiment::{Experiment, TIME};
use crate::bench::row::Row;
use crate::bench::table::distinct;

/// A difference that two digits do not show is none.
const SHOWN: f64 = 1.005;

/// A work, measured.
pub(crate) struct Line<'a> {
    pub work: &'static Work,
    /// This library's arm.
    pub own: Option<&'a Row>,
    /// That of the running kernel.
    pub kernel: Option<&'a Row>,
    /// The fastest published design or crate.
    pub other: Option<&'a Row>,
    /// How many times as fast the published change made the kernel of its time, and whose figure that is.
    pub published: Option<(f64, String)>,
}

/// A case in which another arm is faster.
pub(crate) struct Lost<'a> {
    pub experiment: &'static str,
    pub case: &'a str,
    pub own: &'a Row,
    pub best: &'a Row,
    /// How many times as long this library takes.
    pub slower: f64,
}

/// A line for each work of `groups`.
///
/// # Errors
/// A work whose case no arm measured.
pub(crate) fn lines<'a>(groups: &[Group], smoke: bool, rows: &'a [Row]) -> Result<Vec<Line<'a>>> {
    groups
        .iter()
        .flat_map(|group| &group.works)
        .map(|work| Line::of(work, work.case_at(smoke), rows))
        .collect()
}

impl<'a> Line<'a> {
    /// How many times as long the kernel takes, where it does the same work.
    pub(crate) fn over_kernel(&self) -> Option<f64> {
        times(self.kernel.filter(|_| self.work.is_comparable())?, self.own?)
    }

    /// How many times as long the fastest other takes.
    pub(crate) fn over_other(&self) -> Option<f64> {
        times(self.other?, self.own?)
    }

    fn of(work: &'static Work, case: &str, rows: &'a [Row]) -> Result<Self> {
        let all: Vec<&Row> = times_of(work.experiment, case, rows).collect();
        if all.is_empty() {
            bail!("{} has no case `{case}`", work.experiment.name);
        }
        let arm = |name: &str| all.iter().copied().find(|row| row.arm == name);
        let others = all.iter().copied().filter(|row| is_rival(work.experiment, row) && !is_kernel(row));
        Ok(Self {
            work,
            own: own(work.experiment, &all),
            kernel: work.kernel.and_then(arm).filter(|row| row.median.is_some()),
            other: fastest(others),
            published: work.published.as_ref().map(|published| published.times()).transpose()?.flatten(),
        })
    }
}

/// Every measured case in which any other arm is faster, the worst first.
pub(crate) fn lost<'a>(groups: &[Group], rows: &'a [Row]) -> Vec<Lost<'a>> {
    let mut lost: Vec<Lost<'a>> = groups.iter().flat_map(|group| lost_of(group.experiment, rows)).collect();
    lost.sort_by(|one, other| other.slower.total_cmp(&one.slower));
    lost
}

fn lost_of<'a>(experiment: &'static Experiment, rows: &'a [Row]) -> Vec<Lost<'a>> {
    let of = rows.iter().filter(|row| row.experiment == experiment.name);
    let of_case = |case: &'a str| {
        let all: Vec<&Row> = times_of(experiment, case, rows).collect();
        let own = own(experiment, &all)?;
        let best = fastest(all.into_iter().filter(|row| is_rival(experiment, row)))?;
        let slower = times(own, best).filter(|slower| *slower >= SHOWN)?;
        Some(Lost { experiment: experiment.name, case, own, best, slower })
    };
    distinct(of.map(|row| row.case.as_str())).into_iter().filter_map(of_case).collect()
}

fn times_of<'a>(experiment: &Experiment, case: &str, rows: &'a [Row]) -> impl Iterator<Item = &'a Row> {
    rows.iter()
        .filter(move |row| row.experiment == experiment.name && row.case == case && row.metric == TIME.name)
}

/// The first arm of this library that has a figure.
fn own<'a>(experiment: &Experiment, all: &[&'a Row]) -> Option<&'a Row> {
    let arm = |name: &&str| all.iter().copied().find(|row| row.arm == *name && row.median.is_some());
    experiment.own.iter().find_map(arm)
}

fn is_rival(experiment: &Experiment, row: &Row) -> bool {
    let is_in = |names: &[&str]| names.contains(&row.arm.as_str());
    !is_in(experiment.own) && !is_in(experiment.apart)
}

fn is_kernel(row: &Row) -> bool {
    row.arm.starts_with("linux")
}

fn fastest<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    let timed = rows.filter_map(|row| Some((row.median?, row)));
    timed.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, row)| row)
}

/// How many times as long as `under` a row takes.
fn times(row: &Row, under: &Row) -> Option<f64> {
    let (long, short) = (row.median?, under.median?);
    (short > 0.0).then(|| long / short)
}
