//! Folio sizes of shared memory (`shmem_enabled`): what each size would change, by a model of Linux's faults on it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::replay::{FolioSet, ShmemFigures, Trial, order_name};

use super::baseline::{Change, Settings};
use super::lines::{labelled, listed};
use super::objective::{Rule, Score};
use super::prices::Prices;
use super::words::{change, count, percent, size, time};
use crate::output::quoted;

/// What the user wants.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// A baseline that was asked for: shared memory has single pages under it.
    pub(super) baseline: Option<FolioSet>,
    pub(super) rule: Rule,
}

/// Shared memory under every size.
pub(super) struct Shmem {
    names: Vec<String>,
    /// The baseline first.
    sets: Vec<(ShmemFigures, Score)>,
    /// The set that is best within the waste, and whether it is worth a change.
    best: Option<usize>,
    changes: bool,
    commands: Vec<Change>,
}

impl Shmem {
    /// `None` if the program touches no shared memory, or if this kernel has no settings for it.
    ///
    /// # Errors
    /// A trace that has changed meanwhile.
    pub(super) fn of(
        trial: &Trial,
        settings: &Settings,
        prices: &Prices,
        wanted: Wanted,
    ) -> anyhow::Result<Option<Self>> {
        let (baseline, known) = match wanted.baseline {
            Some(_) => (FolioSet::FRAMES, FolioSet::all()),
            None => (settings.set().unrequested(), settings.known()),
        };
        let mut tried = vec![baseline];
        tried.extend(FolioSet::each().filter(|set| set.is_within(known) && *set != baseline));
        let Some(shmem) = trial.shmem(&tried)? else { return Ok(None) };
        let first_ns = match shmem.recorded_ns {
            0 => prices.of_a_page(),
            recorded => prices.without_recorder(recorded),
        };
        let scored = |figures: ShmemFigures| {
            let score = score(&figures, prices, first_ns);
            (figures, score)
        };
        let sets: Vec<_> = shmem.sets.into_iter().map(scored).collect();
        let scores: Vec<Score> = sets.iter().map(|(_, score)| *score).collect();
        let best = wanted.rule.choose(&scores[0], &scores);
        let worth = |at: &usize| wanted.rule.is_worth(&scores[0], &scores[*at]);
        let changes = best.as_ref().is_some_and(worth);
        let wanted = best.filter(|_| changes).map(|at| sets[at].0.set);
        let commands = wanted.and_then(|set| settings.changes(set).ok()).unwrap_or_default();
        Ok(Some(Self { names: shmem.names, sets, best, changes, commands }))
    }

    /// The set to change to.
    fn chosen(&self) -> Option<&(ShmemFigures, Score)> {
        self.best.filter(|_| self.changes).map(|at| &self.sets[at])
    }
}

/// What a set for shared memory changes against single pages.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ShmemChange {
    pub(crate) faults: i64,
    pub(crate) time_ns: f64,
    /// Bytes that each process maps at the most, by its number.
    pub(crate) mapped: BTreeMap<u32, i64>,
}

/// What the set changes; `None` if the program touches no shared memory.
///
/// # Errors
/// A trace that has changed meanwhile.
pub(crate) fn predicted(
    trial: &Trial,
    prices: &Prices,
    set: FolioSet,
) -> anyhow::Result<Option<ShmemChange>> {
    let Some(shmem) = trial.shmem(&[FolioSet::FRAMES, set])? else { return Ok(None) };
    let first_ns = match shmem.recorded_ns {
        0 => prices.of_a_page(),
        recorded => prices.without_recorder(recorded),
    };
    let scores = [0, 1].map(|at: usize| score(&shmem.sets[at], prices, first_ns));
    let mapped = |at: usize, pid: u32| shmem.sets[at].mapped.get(&pid).map_or(0, |bytes| *bytes as i64);
    let pids = shmem.sets[1].mapped.keys();
    Ok(Some(ShmemChange {
        faults: scores[1].faults as i64 - scores[0].faults as i64,
        time_ns: scores[1].time_ns - scores[0].time_ns,
        mapped: pids.map(|&pid| (pid, mapped(1, pid) - mapped(0, pid))).collect(),
    }))
}

/// A fault that allocates a folio takes what a recorded one took, and what clearing the rest of the folio takes.
fn score(figures: &ShmemFigures, prices: &Prices, first_ns: f64) -> Score {
    let of_folio = |order: usize| first_ns + prices.folios[order] - prices.folios[0];
    let allocated = || (0..).zip(figures.folios).filter(|(_, count)| *count > 0);
    let further: f64 = allocated().map(|(order, count)| count as f64 * (of_folio(order) - first_ns)).sum();
    Score {
        sizes: figures.set.orders().count(),
        faults: figures.faults,
        time_ns: figures.faults as f64 * first_ns + further,
        longest_ns: allocated().map(|(order, _)| of_folio(order)).fold(0.0, f64::max),
        memory: figures.memory,
        wasted: figures.wasted,
        high: None,
    }
}

/// For readers.
pub(super) fn text(shmem: &Shmem) -> String {
    let (figures, before) = &shmem.sets[0];
    let more = shmem.names.len().saturating_sub(2);
    let mut names: Vec<String> = shmem.names.iter().take(2).map(|name| quoted(name).to_string()).collect();
    names.extend((more > 0).then(|| format!("{more} more")));
    let said = format!(
        "{}: {} faults and {} at the peak with folios of {}",
        names.join(", "),
        count(before.faults),
        size(before.memory),
        figures.set.name()
    );
    let mut text = labelled("shmem:", &said);
    let Some((figures, after)) = shmem.chosen() else {
        return text + &labelled("", "no other size of its folios is worth a change within the waste");
    };
    let said = format!(
        "{}: faults {} → {} ({}), time in them {} → {}, memory {} → {}, {} of it never touched",
        figures.set.name(),
        count(before.faults),
        count(after.faults),
        change(before.faults as f64, after.faults as f64),
        time(before.time_ns),
        time(after.time_ns),
        size(before.memory),
        size(after.memory),
        percent(after.waste()),
    );
    text += &labelled("", &said);
    text += &listed("do:", shmem.commands.iter().map(|change| change.run.as_str()));
    text += &listed("undo:", shmem.commands.iter().map(|change| change.undo.as_str()));
    text + &labelled("assumed:", "faults of shared memory are those of Linux 6.18, by a model of its own")
}

/// For programs.
pub(super) fn json(shmem: &Shmem, most_waste: f64) -> Value {
    let set = |(figures, score): &(ShmemFigures, Score)| {
        let folios = (0..).zip(figures.folios).filter(|(_, count)| *count > 0);
        let folios: Map<String, Value> =
            folios.map(|(order, count)| (order_name(order), count.into())).collect();
        json!({
            "folio": figures.set.name(),
            "within_waste": score.is_within(most_waste),
            "faults": score.faults,
            "folios": folios,
            "time_ns": score.time_ns,
            "memory_bytes": score.memory,
            "wasted_bytes": score.wasted,
        })
    };
    json!({
        "names": shmem.names,
        "chosen": shmem.chosen().map(|(figures, _)| figures.set.name()),
        "best": shmem.best.map(|at| shmem.sets[at].0.set.name()),
        "sets": shmem.sets.iter().map(set).collect::<Vec<_>>(),
        "do": shmem.commands.iter().map(|change| &change.run).collect::<Vec<_>>(),
        "undo": shmem.commands.iter().map(|change| &change.undo).collect::<Vec<_>>(),
    })
}
