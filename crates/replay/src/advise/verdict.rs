//! The verdict on one trace: everything that the text and the JSON line say.

use std::path::Path;

use anyhow::{Result, anyhow};

use crate::replay::{Figures, FolioSet, Trial};

use super::baseline::Settings;
use super::case::{self, Case};
use super::code::Code;
use super::defrag::Defrag;
use super::hugetlb::Pools;
use super::khugepaged::{Beside, Khugepaged};
use super::mappings::{self, Gain, Plan};
use super::objective::{Goal, MAX_WASTE, Rule};
use super::prices::Prices;
use super::reach::Reach;
use super::shmem::{Shmem, Wanted};
use super::translations::Translations;

/// What the user wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdviseRequest<'a> {
    pub(super) goal: Goal,
    /// The share of peak memory that may be untouched.
    pub(super) most_waste: f64,
    /// The baseline; `None` for the settings of this machine.
    pub(super) baseline: Option<FolioSet>,
    /// Measured prices; `None` for the kept ones.
    pub(super) prices: Option<&'a Path>,
    /// What collapses and splits folios in the background.
    pub(super) khugepaged: Option<Khugepaged>,
    /// The limit of the program's control group (`memory.high`), if it has one.
    pub(super) high: Option<u64>,
    /// The directory of this machine's pools of huge pages.
    pub(super) pools: &'a Path,
    /// This machine's folio sizes of shared memory.
    pub(super) shmem: &'a Settings,
    /// This machine's mode of compaction, if it has the setting.
    pub(super) defrag: Option<&'a str>,
}

/// What is advised where a program has single pages so far, no goal is given, and a twentieth may be wasted.
///
/// `replayed` are the replays under [`case::tried`], that of single pages first. Returns the set and the share of the peak
/// that was never touched.
pub(crate) fn advised(replayed: &[Figures], prices: &Prices, trial: &Trial) -> (FolioSet, f64) {
    let cases: Vec<Case> = replayed.iter().map(|figures| Case::new(figures.clone(), prices, None)).collect();
    let scores: Vec<_> = cases.iter().map(|case| case.score).collect();
    let rule = Rule { goal: Goal::default(), most_waste: MAX_WASTE / 100.0, wall_ns: trial.wall_ns() };
    let worth = |at: &usize| rule.is_worth(&scores[0], &scores[*at]);
    let chosen = rule.choose(&scores[0], &scores).filter(worth).unwrap_or(0);
    (cases[chosen].set(), scores[chosen].waste())
}

/// The verdict.
pub(super) struct Verdict {
    /// Every set that was tried, the baseline first.
    pub(super) cases: Vec<Case>,
    pub(super) prices: Prices,
    /// The set that is best for all memory, if one is within the waste.
    pub(super) best: Option<usize>,
    /// Whether that is worth a change.
    pub(super) changes: bool,
    /// Whether faults were recorded that may have brought in large folios: nothing is advised then, since the figures of
    /// smaller sizes lack the faults on the other pages.
    pub(super) recorded_large: bool,
    /// Folios for some mappings alone, where that is much better.
    pub(super) plan: Option<Plan>,
    /// Why sets were not tried.
    pub(super) left_out: Vec<String>,
    /// What the TLBs miss, if the program was run for that.
    pub(super) translations: Option<Translations>,
    /// The TLB entries that the memory needs which the program references, if that was sampled.
    pub(super) reach: Option<Reach>,
    /// What khugepaged changes under the baseline, and under the set to change to.
    pub(super) khugepaged: Option<Beside>,
    /// Huge pages of pools that the program uses, or that would carry its mappings.
    pub(super) pools: Option<Pools>,
    /// The code that the program uses, if the recording shows it.
    pub(super) code: Option<Code>,
    /// Shared memory, if the program touches some.
    pub(super) shmem: Option<Shmem>,
    /// What faults do that find no folio, if some do.
    pub(super) defrag: Option<Defrag>,
}

impl Verdict {
    /// Replays the trace under every set, and judges.
    ///
    /// # Errors
    /// Of the replays, and of the file with prices.
    pub(super) fn of(trial: &Trial, settings: &Settings, request: AdviseRequest<'_>) -> Result<Self> {
        let found = request.baseline.unwrap_or_else(|| settings.set());
        // Sizes that nothing asks for are no part of what the program got.
        let baseline = if trial.asks() { found } else { found.unrequested() };
        // A baseline that the user gives may be that of another machine.
        let known = if request.baseline.is_some() { FolioSet::all() } else { settings.known() };
        let mut sets = case::tried(baseline, known);
        if trial.asks() {
            let new: Vec<FolioSet> =
                case::asking(known).into_iter().filter(|set| !sets.contains(set)).collect();
            sets.extend(new);
        }
        let (figures, left_out) = trial.replay(&sets)?;
        let frames = figures.iter().find(|figures| figures.set.orders().next().is_none());
        let (Some(frames), true) = (frames, figures.iter().any(|figures| figures.set == baseline)) else {
            let why = left_out.into_iter().next();
            return Err(why.map_or_else(|| anyhow!("the trace cannot be replayed"), anyhow::Error::new));
        };
        let prices = Prices::of(frames, trial.header(), request.prices)?;
        let left_out = left_out.iter().map(ToString::to_string).collect();
        let rule = Rule { goal: request.goal, most_waste: request.most_waste, wall_ns: trial.wall_ns() };
        let mut verdict = Self::judged(figures, prices, left_out, rule, request.high);
        let of_machine = settings.set();
        let given = if trial.asks() { of_machine } else { of_machine.unrequested() };
        if !trial.header().thp_disabled && given != FolioSet::FRAMES {
            (verdict.recorded_large, verdict.changes, verdict.plan) = (true, false, None);
        }
        if let Some(settings) = request.khugepaged {
            let sets: Vec<FolioSet> =
                [Some(verdict.baseline()), verdict.chosen()].into_iter().flatten().map(Case::set).collect();
            match Beside::of(trial, settings, &sets) {
                Ok(beside) => verdict.khugepaged = Some(beside),
                Err(error) => verdict.left_out.push(format!("khugepaged: {error}")),
            }
        }
        verdict.pools = Pools::of(trial, &verdict, request);
        verdict.code = Code::of(trial)?;
        verdict.defrag = Defrag::of(trial, &verdict.telling(), &verdict.prices, request.defrag)?;
        let wanted = Wanted { baseline: request.baseline, rule };
        verdict.shmem = Shmem::of(trial, request.shmem, &verdict.prices, wanted)?;
        Ok(verdict)
    }

    fn judged(
        figures: Vec<Figures>,
        prices: Prices,
        left_out: Vec<String>,
        rule: Rule,
        high: Option<u64>,
    ) -> Self {
        let cases: Vec<Case> = figures.into_iter().map(|figures| Case::new(figures, &prices, high)).collect();
        let scores: Vec<_> = cases.iter().map(|case| case.score).collect();
        let baseline = scores[0];
        let best = rule.choose(&baseline, &scores);
        let worth = |at: &usize| rule.is_worth(&baseline, &scores[*at]);
        let changes = best.as_ref().is_some_and(worth);
        let plan = (rule.goal == Goal::Throughput)
            .then(|| {
                let chosen = best.filter(|_| changes).map_or(baseline, |at| scores[at]);
                mappings::plan(&cases[0], &cases, &chosen, rule)
            })
            .flatten()
            .filter(|plan| rule.is_worth(&baseline, &plan.score));
        Self {
            cases,
            prices,
            best,
            changes,
            recorded_large: false,
            plan,
            left_out,
            translations: None,
            reach: None,
            khugepaged: None,
            pools: None,
            code: None,
            shmem: None,
            defrag: None,
        }
    }

    pub(super) fn baseline(&self) -> &Case {
        &self.cases[0]
    }

    /// The set to change to.
    pub(super) fn chosen(&self) -> Option<&Case> {
        self.best.filter(|_| self.changes).map(|at| &self.cases[at])
    }

    /// The set to change to and that of 2 MiB, or else the baseline: they tell what becomes of large folios.
    pub(super) fn telling(&self) -> Vec<&Case> {
        let block = |case: &&Case| case.set().orders().eq([9]);
        let mut telling: Vec<&Case> =
            self.chosen().into_iter().chain(self.cases.iter().find(block)).collect();
        if telling.is_empty() {
            telling.push(self.baseline());
        }
        telling.dedup_by_key(|case| case.set());
        telling
    }

    /// The gains of all mappings under a set.
    pub(super) fn gains(&self, case: &Case) -> Vec<Gain> {
        mappings::gains(self.baseline(), case)
    }
}
