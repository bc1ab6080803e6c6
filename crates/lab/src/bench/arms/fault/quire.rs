//! Quire's page faults, on a hosted machine.

use std::time::Instant;

use hosted::Hosted;
use hosted::raw::RawClearer;
use quire::addr::{Frame, FrameRange, Order};
use quire::clear::{Clearer, Extent};
use quire::cpu::CpuId;
use quire::platform::TouchHint;

use super::{Fault, Populate, UNCLEARED};
use crate::bench::experiment::{Arm, CLEAR, Prepared, REST, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::ours;

#[derive(Default)]
pub(super) struct Quire {
    machines: Option<(Hosted, Hosted)>,
}

impl Arm<Fault> for Quire {
    fn name(&self) -> &'static str {
        "quire"
    }

    fn about(&self) -> &'static str {
        "one Mm::fault for each folio (or one madvise call) on a hosted machine, without trap, cgroup or \
         LRU. `clear` is an estimate: the machine's memory is cleared folio by folio as a fault does. `without-clearing` \
         is the same work on a machine that does not clear, so that the caches keep all else."
    }

    fn setup(&mut self, case: &Fault) -> Result<Box<dyn Prepared + '_>, Skip> {
        if self.machines.is_none() {
            let bytes = case.bytes as u64;
            self.machines = Some((ours::machine(bytes, 1, true)?, ours::machine(bytes, 1, false)?));
        }
        let Some((clearing, bare)) = &self.machines else { return Err(Skip("no machine".to_owned())) };
        Ok(Box::new(Ready { case: *case, clearing, bare }))
    }
}

struct Ready<'a> {
    case: Fault,
    clearing: &'a Hosted,
    bare: &'a Hosted,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let clear = self.clear()?;
        let (time, pages) = self.once(self.clearing)?;
        let (uncleared, _) = self.once(self.bare)?;
        let folios = (self.case.bytes / self.case.folio.bytes()) as u64;
        Ok(Sample::new(time, pages)
            .metric(CLEAR, clear)
            .metric(REST, time - clear)
            .metric(UNCLEARED, uncleared)
            .count("folios", folios)
            .count("faults", folios))
    }
}

impl Ready<'_> {
    /// Nanoseconds to clear the bytes of the case as faults do, on the machine before it has a manager.
    fn clear(&self) -> Result<f64, Skip> {
        let Fault { bytes, folio, populate } = self.case;
        let refused = |error: &dyn std::fmt::Display| Skip(error.to_string());
        let clearer = Clearer::new(self.clearing, None).map_err(|error| refused(&error))?;
        let first = Frame(self.clearing.ranges()[0].start.frame().0.next_multiple_of(Order::BLOCK.frames()));
        let order = Order::new(folio.order).ok_or_else(|| refused(&"no such order"))?;
        self.clearing.run_on(CpuId(0), || {
            let start = Instant::now();
            for at in (0..bytes).step_by(folio.bytes()) {
                let frames = FrameRange::folio(first.add((at / PAGE) as u64), order);
                if order == Order::FRAME {
                    clearer.clear_raw(self.clearing, frames, TouchHint::Soon);
                    continue;
                }
                let extent = match populate {
                    Populate::Touch => Extent::new(frames, TouchHint::Soon).near(frames.start),
                    Populate::Call => Extent::new(frames, TouchHint::Unknown).part_of(bytes as u64),
                };
                clearer
                    .clear_extent_raw(self.clearing, &extent, || false)
                    .map_err(|error| refused(&error))?;
            }
            Ok(start.elapsed().as_nanos() as f64)
        })
    }

    /// Populates a fresh address space; returns nanoseconds and pages.
    fn once(&self, machine: &Hosted) -> Result<(f64, u64), Skip> {
        let Fault { bytes, folio, populate } = self.case;
        ours::with_manager(machine, folio, |manager| {
            let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
            mm.switch_in();
            ours::map(&mm, bytes)?;
            let populated = match populate {
                Populate::Touch => ours::populate(&mm, bytes, folio)?,
                Populate::Call => ours::populate_by_call(&mm, bytes)?,
            };
            ours::unmap(&mm, bytes)?;
            mm.switch_out();
            Ok(populated)
        })
    }
}
