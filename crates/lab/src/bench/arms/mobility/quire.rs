//! Quire's page allocator, with and without mobility groups.

use hosted::{Hosted, HostedConfig};
use quire::addr::Order;
use quire::cpu::CpuId;
use quire::page_alloc::AllocatorConfig;

use super::{Load, Mobilities, UNTAINTED, WHOLE, load};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::ours::guards;

pub(super) struct Quire {
    grouping: bool,
    machine: Option<Hosted>,
}

impl Quire {
    pub(super) fn grouping() -> Self {
        Self { grouping: true, machine: None }
    }

    pub(super) fn mixing() -> Self {
        Self { grouping: false, machine: None }
    }
}

impl Arm<Mobilities> for Quire {
    fn name(&self) -> &'static str {
        if self.grouping { "quire" } else { "no-grouping" }
    }

    fn about(&self) -> &'static str {
        if self.grouping {
            "PageAllocator on one CPU of a bare hosted machine (see page-alloc): a block holds frames of one \
             mobility group."
        } else {
            "as `quire` without groups: every request takes frames of the nearest block."
        }
    }

    fn setup(&mut self, case: &Mobilities) -> Result<Box<dyn Prepared + '_>, Skip> {
        // The allocator writes a few bytes of each block. On 2 MiB host pages that would bring in all 64 GiB.
        let huge_pages = case.load != Load::Storm;
        let config =
            HostedConfig { prefault: false, real_ipis: false, huge_pages, ..HostedConfig::bench(case.bytes) };
        let machine = config.build().map_err(|error| Skip(error.to_string()))?;
        let config = AllocatorConfig { group_by_mobility: self.grouping, ..AllocatorConfig::default() };
        Ok(Box::new(Ready { case: *case, config, machine: self.machine.insert(machine) }))
    }
}

struct Ready<'a> {
    case: Mobilities,
    config: AllocatorConfig,
    machine: &'a Hosted,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.machine.run_on(CpuId(0), || {
            // SAFETY: H3: the allocator is made, used and dropped inside `run_on` of this machine.
            let pages = unsafe { guards::allocator::<hosted::Bare>(self.machine, self.config, false) }?;
            let whole = || pages.zone_info().map(|zone| zone.whole_blocks).sum::<u64>();
            let before = whole();
            let (done, pinned, span) = load::run(&pages, &self.case);
            pages.lists().drain_local();
            let after = whole();
            let spread: std::collections::BTreeSet<_> =
                pinned.iter().map(|(frame, _)| frame.block()).collect();
            let sample = Sample::of(span, done.requests as f64, done.requests)
                .metric(WHOLE, after as f64)
                .count("whole_at_first", before)
                .count("pinned_frames", done.pinned)
                .count("pinned_blocks", spread.len() as u64)
                .count("refused", done.refused);
            if self.case.load != Load::Storm {
                return Ok(sample);
            }
            let areas: std::collections::BTreeSet<_> =
                pinned.iter().map(|(frame, _)| frame.0 / Order::GIGANTIC.frames()).collect();
            let all = self.case.bytes as f64 / Order::GIGANTIC.bytes() as f64;
            Ok(sample
                .metric(UNTAINTED, 100.0 * (1.0 - areas.len() as f64 / all))
                .count("tainted_areas", areas.len() as u64)
                .count("whole_before_storm", done.whole_before_storm))
        })
    }
}
