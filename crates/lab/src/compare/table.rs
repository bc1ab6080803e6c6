//! One line for each work, and every case in which another arm is faster.

use std::fmt::Write;

use anyhow::{Result, bail};

use super::machine;
use super::works::{Group, Work};
use crate::bench::experiment::{Experiment, TIME};
use crate::bench::row::Row;
use crate::bench::table::{distinct, quantity, skipped};
use crate::output::Sheet;

/// A difference that two digits do not show is none.
const SHOWN: f64 = 1.005;

/// The table, the cases that Quire loses, and what a reader must know.
///
/// # Errors
/// A work whose case no arm measured.
pub(super) fn render(groups: &[Group], smoke: bool, rows: &[Row]) -> Result<String> {
    let header =
        ["work", "Quire", &machine::kernel(), "times", "best other", "times", "published", "best other is"];
    let mut sheet = Sheet::new(&header.map(str::to_owned), 1);
    let mut text = String::new();
    let (mut system, mut notes, mut sources) = ("", Vec::new(), Vec::new());
    for work in groups.iter().flat_map(|group| group.works.iter().copied()) {
        let case = work.case_at(smoke);
        let figures = Figures::of(work, case, rows)?;
        if std::mem::replace(&mut system, work.system) != work.system {
            sheet.add_row(
                std::iter::once(work.system.to_owned()).chain(vec![String::new(); header.len() - 1]),
            );
        }
        let (published, source) = published(work)?;
        sheet.add_row([
            format!("  {}", work.what),
            figures.own.map(shown).unwrap_or_default(),
            figures.kernel.map(shown).unwrap_or_default(),
            times(figures.kernel, figures.own),
            figures.other.map(shown).unwrap_or_default(),
            times(figures.other, figures.own),
            published,
            figures.other.map(|row| row.arm.clone()).unwrap_or_default(),
        ]);
        if !work.more.is_empty() && figures.kernel.is_some() {
            notes.push((work.more, work.system));
        }
        sources.extend(source);
    }
    let _ = writeln!(text, "{sheet}");
    let _ = writeln!(
        text,
        "times: how many times as fast Quire is; below 1 it is slower. best other: the fastest published design or \
         crate. published: how many times as fast its change made the kernel of its time, on its machine."
    );
    for more in distinct(notes.iter().map(|(more, _)| *more)) {
        let systems = distinct(notes.iter().filter(|note| note.0 == more).map(|note| note.1)).join("; ");
        let _ = writeln!(text, "note: the kernel's figures contain {more} as well: {systems}");
    }
    sources.dedup();
    let _ = writeln!(text, "published by: {}", sources.join(", "));
    for (arm, reason, cases) in skipped(rows) {
        let _ = writeln!(text, "skipped: {arm} at {}: {reason}", cases.join(", "));
    }
    text.push_str(&lost(groups, rows));
    Ok(text)
}

/// The figures of a line.
struct Figures<'a> {
    own: Option<&'a Row>,
    kernel: Option<&'a Row>,
    other: Option<&'a Row>,
}

impl<'a> Figures<'a> {
    fn of(work: &Work, case: &str, rows: &'a [Row]) -> Result<Self> {
        let all: Vec<&Row> = times_of(work.experiment, case, rows);
        if all.is_empty() {
            bail!("{} has no case `{case}`", work.experiment.name);
        }
        let arm = |name: &str| all.iter().copied().find(|row| row.arm == name && row.median.is_some());
        let rivals = all.iter().copied().filter(|row| is_rival(work.experiment, row) && !is_kernel(row));
        Ok(Self {
            own: work.experiment.own.iter().find_map(|name| arm(name)),
            kernel: work.kernel.and_then(arm),
            other: fastest(rivals),
        })
    }
}

fn times_of<'a>(experiment: &Experiment, case: &str, rows: &'a [Row]) -> Vec<&'a Row> {
    let wanted =
        |row: &&Row| row.experiment == experiment.name && row.case == case && row.metric == TIME.name;
    rows.iter().filter(wanted).collect()
}

fn is_rival(experiment: &Experiment, row: &Row) -> bool {
    let is_in = |names: &[&str]| names.contains(&row.arm.as_str());
    !is_in(experiment.own) && !is_in(experiment.apart)
}

fn is_kernel(row: &Row) -> bool {
    row.arm.starts_with("linux")
}

fn fastest<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    rows.filter(|row| row.median.is_some())
        .min_by(|one, other| one.median.unwrap_or(f64::MAX).total_cmp(&other.median.unwrap_or(f64::MAX)))
}

fn shown(row: &Row) -> String {
    row.median.map(|median| quantity(median, &row.unit)).unwrap_or_default()
}

/// How many times as fast `own` is.
fn ratio(other: Option<&Row>, own: Option<&Row>) -> Option<f64> {
    let (other, own) = (other?.median?, own?.median?);
    (own > 0.0).then(|| other / own)
}

fn times(other: Option<&Row>, own: Option<&Row>) -> String {
    ratio(other, own).map(factor).unwrap_or_default()
}

fn factor(ratio: f64) -> String {
    let digits = if ratio < 10.0 { 2 } else { 0 };
    format!("{ratio:.digits$}")
}

fn published(work: &Work) -> Result<(String, Option<String>)> {
    let Some(published) = &work.published else { return Ok((String::new(), None)) };
    Ok(published.times()?.map_or_else(Default::default, |(times, source)| (factor(times), Some(source))))
}

/// Every measured case in which any other arm is faster, the worst first.
fn lost(groups: &[Group], rows: &[Row]) -> String {
    let mut lost: Vec<(f64, String)> = Vec::new();
    for experiment in groups.iter().map(|group| group.experiment) {
        let of = rows.iter().filter(|row| row.experiment == experiment.name);
        for case in distinct(of.map(|row| row.case.as_str())) {
            let all = times_of(experiment, case, rows);
            let own = |name: &&str| all.iter().copied().find(|row| row.arm == *name && row.median.is_some());
            let own = experiment.own.iter().find_map(own);
            let best = fastest(all.iter().copied().filter(|row| is_rival(experiment, row)));
            let slower = ratio(own, best).filter(|slower| *slower >= SHOWN);
            if let (Some(slower), Some(own), Some(best)) = (slower, own, best) {
                let line = format!(
                    "  {} {case}: {}, {} takes {} ({} times as long)\n",
                    experiment.name,
                    shown(own),
                    best.arm,
                    shown(best),
                    factor(slower)
                );
                lost.push((slower, line));
            }
        }
    }
    lost.sort_by(|one, other| other.0.total_cmp(&one.0));
    if lost.is_empty() {
        return "no measured case in which another arm is faster\n".to_owned();
    }
    lost.iter().fold("cases that Quire loses, the worst first:\n".to_owned(), |text, (_, line)| text + line)
}
