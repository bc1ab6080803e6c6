//! A trace under one set of folio sizes, with its prices; and which sets are tried.

use crate::replay::{Figures, FolioSet, Part};

use super::objective::Score;
use super::prices::Prices;

/// One replay and what Linux would pay for it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) figures: Figures,
    pub(super) score: Score,
    prices: Prices,
}

impl Case {
    /// `high` is the limit of the program's control group, if it has one.
    pub(super) fn new(figures: Figures, prices: &Prices, high: Option<u64>) -> Self {
        let prices = prices.under(&figures);
        let score = Score {
            sizes: figures.set.orders().count(),
            faults: figures.faults(),
            time_ns: prices.sum(&figures.kinds, &figures.folios),
            longest_ns: prices.longest(&figures),
            // What each page is, and so the waste, is known of the last moment at which memory had grown by a sixty-fourth.
            memory: figures.timeline.iter().map(|step| step.resident).max().unwrap_or(0),
            wasted: figures.peak.wasted,
            high,
        };
        Self { figures, score, prices }
    }

    /// Nanoseconds of the faults of a part of it.
    pub(super) fn ns(&self, part: &Part) -> f64 {
        self.prices.sum(&part.kinds, &part.folios)
    }

    pub(super) fn set(&self) -> FolioSet {
        self.figures.set
    }

    pub(super) fn name(&self) -> String {
        self.set().name()
    }

    /// The same part as in another case.
    pub(super) fn part(&self, part: &Part) -> Option<&Part> {
        self.figures.parts.iter().find(|own| own.key == part.key)
    }
}

/// The sets that are tried, of the sizes in `known`: each alone, and a few together. What `baseline` gives to memory that
/// asks, all of them give too.
pub(crate) fn tried(baseline: FolioSet, known: FolioSet) -> Vec<FolioSet> {
    let of = |orders: &[u8]| orders.iter().fold(FolioSet::FRAMES, |set, order| set.and(*order));
    let several = [of(&[2, 4]), of(&[4, 9]), of(&[2, 4, 9]), known];
    let mut sets = vec![baseline];
    for set in FolioSet::each().chain(several).filter(|set| set.is_within(known)) {
        let set = set.on_request(baseline.requested());
        if !sets.contains(&set) {
            sets.push(set);
        }
    }
    sets
}

/// Further sets for a program that asks for folios: some sizes for all memory, and a larger one for memory
/// that asks alone.
pub(crate) fn asking(known: FolioSet) -> Vec<FolioSet> {
    let of = |order: u8| FolioSet::FRAMES.and(order);
    let pairs = [(0, 4), (0, 9), (2, 4), (2, 9), (4, 9)].map(|(always, asking)| (of(always), of(asking)));
    let there = pairs.into_iter().filter(|(always, asking)| always.with(*asking).is_within(known));
    there.map(|(always, asking)| always.on_request(asking)).collect()
}
