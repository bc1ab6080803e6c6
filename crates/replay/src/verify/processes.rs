//! The peak memory of each process, predicted beside measured.
//!
//! Numbers of processes differ from run to run. A process is found again by the name of its program and by its place among
//! those of the same name, in the order in which they were started.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::compare::{Figure, RSS_PERCENT, Spread, rss_grain};
use crate::record::ProcessPeak;
use crate::replay::Process;
use crate::trace::PathId;

/// The kernel keeps so many bytes of a program's name.
const NAME_BYTES: usize = 15;

/// The peak of one process of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessMemory {
    key: Key,
    peak: u64,
}

/// The program's name, and how many processes of this name were started before.
type Key = (String, usize);

/// All processes under one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Processes {
    /// Those that a replay and at least one run have, in the order in which they were started.
    pub(super) matched: Vec<ProcessFigure>,
    /// How many processes only the replay has.
    pub(super) only_predicted: usize,
    /// How many only the runs have, all runs together.
    pub(super) only_measured: usize,
}

/// One process under one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ProcessFigure {
    pub(super) program: String,
    /// 1 for the first process with this name.
    pub(super) number: usize,
    /// The runs that had it.
    pub(super) runs: usize,
    pub(super) peak_rss_bytes: Figure,
}

/// Those of a replay, whose programs have these names.
pub(super) fn predicted(names: &[String], processes: &[Process]) -> Vec<ProcessMemory> {
    let named = processes.iter().filter_map(|process| {
        let PathId(program) = process.program?;
        Some((kernel_name(names.get(program as usize)?), process.last_peak))
    });
    numbered(named)
}

/// The name of a program's file as the kernel keeps it.
fn kernel_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default().as_encoded_bytes();
    String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES)]).into_owned()
}

fn numbered(named: impl Iterator<Item = (String, u64)>) -> Vec<ProcessMemory> {
    let mut seen = BTreeMap::<String, usize>::new();
    let one = |(name, peak): (String, u64)| {
        let number = seen.entry(name.clone()).or_default();
        *number += 1;
        ProcessMemory { key: (name, *number), peak }
    };
    named.map(one).collect()
}

/// The processes of several replays: of each the median of those that have it, in the order of the first.
pub(super) fn usual<'a>(replays: impl Iterator<Item = &'a [ProcessMemory]>) -> Vec<ProcessMemory> {
    let (order, peaks) = gathered(replays);
    let median = |key: Key| ProcessMemory { peak: Spread::of(peaks[&key].clone()).median, key };
    order.into_iter().map(median).collect()
}

/// The peaks of each process, and the order in which the processes were first seen.
fn gathered<'a>(all: impl Iterator<Item = &'a [ProcessMemory]>) -> (Vec<Key>, BTreeMap<Key, Vec<u64>>) {
    let (mut order, mut peaks) = (Vec::new(), BTreeMap::<Key, Vec<u64>>::new());
    for process in all.flatten() {
        let peaks = peaks.entry(process.key.clone()).or_default();
        if peaks.is_empty() {
            order.push(process.key.clone());
        }
        peaks.push(process.peak);
    }
    (order, peaks)
}

impl Processes {
    /// `runs` are the processes of each run.
    pub(super) fn of(predicted: &[ProcessMemory], runs: &[Vec<ProcessPeak>]) -> Self {
        // A prediction without processes is one of which they are not known, and not one that lacks them.
        if runs.is_empty() || predicted.is_empty() {
            return Self::default();
        }
        let named = |run: &Vec<ProcessPeak>| {
            numbered(run.iter().map(|process| (process.program.clone(), process.peak_rss_bytes)))
        };
        let runs: Vec<Vec<ProcessMemory>> = runs.iter().map(named).collect();
        let (_, mut measured) = gathered(runs.iter().map(Vec::as_slice));
        let matched: Vec<ProcessFigure> = predicted
            .iter()
            .filter_map(|ProcessMemory { key, peak }| {
                let peaks = measured.remove(key)?;
                let (program, number) = key.clone();
                let runs = peaks.len();
                let peak_rss_bytes = Figure::new(*peak, Spread::of(peaks), RSS_PERCENT, rss_grain());
                Some(ProcessFigure { program, number, runs, peak_rss_bytes })
            })
            .collect();
        Self { only_predicted: predicted.len() - matched.len(), only_measured: measured.len(), matched }
    }
}

#[cfg(test)]
mod tests;
