//! What the TLBs miss under each set: the accesses of a second, instrumented run go through models of the processor's TLBs.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;

use crate::calibrate;
use crate::replay::{Figures, PartKind};
use crate::tlb::{self, Backing, Counts, Leaves, Processor, Run};

use super::prices::ORDERS;
use super::verdict::Verdict;

/// The translations of a program.
pub(super) struct Translations {
    pub(super) processor: Processor,
    /// Its counts are those of the verdict's sets, in their order.
    pub(super) run: Run,
    /// Under the set to change to, or else the baseline, with program text in huge pages.
    pub(super) code: Counts,
    /// Nanoseconds of a walk; `None` if they cannot be measured.
    pub(super) walk_ns: Option<f64>,
}

impl Translations {
    /// Runs the command once more, for `time` at most.
    ///
    /// # Errors
    /// As [`tlb::run`].
    pub(super) fn of(command: &[OsString], verdict: &Verdict, time: Duration) -> Result<Self> {
        let processor = Processor::of_this_machine();
        let backing = |figures: &Figures| Backing {
            heap: leaves(figures, &processor, |kind| kind == PartKind::Heap),
            anonymous: leaves(figures, &processor, |kind| {
                matches!(kind, PartKind::Anonymous(_) | PartKind::ThreadStacks)
            }),
            code: false,
        };
        let mut backings: Vec<Backing> = verdict.cases.iter().map(|case| backing(&case.figures)).collect();
        let chosen = verdict.chosen().unwrap_or_else(|| verdict.baseline());
        backings.push(Backing { code: true, ..backing(&chosen.figures) });
        let mut run = tlb::run(command, &processor, &backings, time)?;
        let code = run.counts.pop().unwrap_or_default();
        let walk_ns = verdict.prices.walk_ns.or_else(calibrate::walk_ns);
        Ok(Self { processor, run, code, walk_ns })
    }

    /// What data accesses and fetches of a set walk for, of a thousand of each.
    pub(super) fn walks_per_thousand(&self, counts: &Counts) -> (f64, f64) {
        let per_thousand = |walks: u64, of: u64| 1000.0 * walks as f64 / of.max(1) as f64;
        (per_thousand(counts.walks, self.run.accesses), per_thousand(counts.fetch_walks, self.run.fetches))
    }

    /// Nanoseconds of all walks of a set; unknown where the run was ended early.
    pub(super) fn time_ns(&self, counts: &Counts) -> Option<f64> {
        let walks = (counts.walks + counts.fetch_walks) as f64;
        self.walk_ns.filter(|_| !self.run.cut).map(|ns| walks * ns)
    }
}

/// The leaves of the parts of some kinds: those that the replay gave to at least half of the memory that it brought in.
fn leaves(figures: &Figures, processor: &Processor, is: impl Fn(PartKind) -> bool) -> Leaves {
    let parts = || figures.parts.iter().filter(|part| is(part.key.kind));
    let pages = |from: usize| -> u64 {
        let of = |folios: &[u64; ORDERS]| (from..ORDERS).map(|order| folios[order] << order).sum::<u64>();
        parts().map(|part| of(&part.folios)).sum()
    };
    let all = pages(0);
    let most = |from: usize| all > 0 && 2 * pages(from) >= all;
    Leaves { large: most(ORDERS - 1), grouped: most(processor.coalesces.ilog2() as usize) }
}
