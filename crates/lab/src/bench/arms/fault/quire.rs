//! Quire's page faults, on a hosted machine.

use hosted::Hosted;

use super::{Fault, Populate};
use crate::bench::experiment::{Arm, CLEAR, Prepared, REST, Sample, Skip};
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
         LRU. A second run on a machine that does not clear gives `rest`; `clear` is the difference."
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
        let (time, pages) = self.once(self.clearing)?;
        let (rest, _) = self.once(self.bare)?;
        let folios = (self.case.bytes / self.case.folio.bytes()) as u64;
        Ok(Sample::new(time, pages)
            .metric(CLEAR, time - rest)
            .metric(REST, rest)
            .count("folios", folios)
            .count("faults", folios))
    }
}

impl Ready<'_> {
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
