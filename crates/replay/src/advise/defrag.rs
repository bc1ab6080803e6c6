//! What a fault does that finds no folio of its size (`defrag`): it takes smaller ones, or waits until compaction has made one.
//! Two replays are the bounds: nothing is compacted, or everything that is asked for.

use serde_json::{Value, json};

use super::case::Case;
use super::lines::labelled;
use super::objective::Score;
use super::prices::Prices;
use super::words::{count, time};
use crate::replay::{FolioSet, Trial};

/// Both bounds for some sets.
pub(super) struct Defrag {
    /// The mode of this machine; `None` without the setting.
    machine: Option<String>,
    /// Whether the program asks for folios, so that its memory waits under `madvise` too.
    asks: bool,
    sets: Vec<Bounds>,
}

/// One set.
struct Bounds {
    set: FolioSet,
    /// Nothing is compacted.
    falls_back: Score,
    /// Every folio is made, and its fault waits.
    waits: Score,
    /// Faults that wait, and the pages that are moved for them.
    waiting: u64,
    moved: u64,
}

impl Defrag {
    /// That of these replays; `None` without fragmented memory, or where no request fails.
    ///
    /// # Errors
    /// Of the replays.
    pub(super) fn of(
        trial: &Trial,
        cases: &[&Case],
        prices: &Prices,
        machine: Option<&str>,
    ) -> anyhow::Result<Option<Self>> {
        if trial.fragments().is_none() {
            return Ok(None);
        }
        let failing = || cases.iter().filter(|case| case.figures.fell_back > 0);
        let sets: Vec<FolioSet> = failing().map(|case| case.set()).collect();
        if sets.is_empty() {
            return Ok(None);
        }
        let (whole, _) = trial.replay_whole(&sets)?;
        let bounds = |case: &&Case| {
            let whole = whole.iter().find(|figures| figures.set == case.set())?;
            Some(Bounds::new(case, &Case::new(whole.clone(), prices, None), prices))
        };
        let sets = failing().filter_map(bounds).collect();
        Ok(Some(Self { machine: machine.map(str::to_owned), asks: trial.asks(), sets }))
    }

    /// Whether the program's memory waits under the machine's mode.
    fn waits_now(&self) -> Option<bool> {
        match self.machine.as_deref()? {
            "always" => Some(true),
            "madvise" | "defer+madvise" => Some(self.asks),
            _ => Some(false),
        }
    }
}

impl Bounds {
    fn new(pieces: &Case, whole: &Case, prices: &Prices) -> Self {
        let copy_ns = prices.of_a_copy();
        let (mut waits, mut waiting, mut moved) = (whole.score, 0, 0);
        for (order, made) in (0u32..).zip(whole.figures.folios).skip(1) {
            // As many as are free in this size need no compaction.
            let failed = made.saturating_sub(pieces.figures.folios[order as usize]);
            // Half of the folio's place is free.
            let each = 1u64 << (order - 1);
            waiting += failed;
            moved += failed * each;
            if failed > 0 {
                let ns = prices.folios[order as usize] + each as f64 * copy_ns;
                waits.longest_ns = waits.longest_ns.max(ns);
            }
        }
        waits.time_ns += moved as f64 * copy_ns;
        Self { set: whole.set(), falls_back: pieces.score, waits, waiting, moved }
    }
}

/// For readers.
pub(super) fn text(defrag: &Defrag) -> String {
    let mut text = String::new();
    let others = if defrag.asks { "`never`, `defer`" } else { "`never`, `defer`, `madvise`" };
    for bounds in &defrag.sets {
        let (falls_back, waits) = (&bounds.falls_back, &bounds.waits);
        let said = format!(
            "{}: a fault that finds no folio takes pages under {others}: {} faults, {} in all, the longest {}; under \
             `always` {} of {} faults wait until {} pages have moved: {}, the longest {}",
            bounds.set.name(),
            count(falls_back.faults),
            time(falls_back.time_ns),
            time(falls_back.longest_ns),
            count(bounds.waiting),
            count(waits.faults),
            count(bounds.moved),
            time(waits.time_ns),
            time(waits.longest_ns),
        );
        text += &labelled(if text.is_empty() { "defrag:" } else { "" }, &said);
    }
    if let (Some(mode), Some(waits)) = (&defrag.machine, defrag.waits_now()) {
        let does = if waits { "wait" } else { "do not wait" };
        text += &labelled("", &format!("this machine has `{mode}`: faults of this program {does}"));
    }
    text + &labelled(
        "assumed:",
        "half of a folio's place is in use, and all of that can move, a page in the time of a fault that copies one; under \
         `defer` kcompactd makes some of the folios beside the program",
    )
}

/// For programs.
pub(super) fn json(defrag: &Defrag) -> Value {
    let score = |score: &Score| json!({ "faults": score.faults, "time_ns": score.time_ns, "longest_ns": score.longest_ns });
    let set = |bounds: &Bounds| {
        json!({
            "folio": bounds.set.name(),
            "falls_back": score(&bounds.falls_back),
            "waits": score(&bounds.waits),
            "waiting_faults": bounds.waiting,
            "moved_pages": bounds.moved,
        })
    };
    json!({
        "machine": defrag.machine,
        "waits_now": defrag.waits_now(),
        "sets": defrag.sets.iter().map(set).collect::<Vec<_>>(),
    })
}
