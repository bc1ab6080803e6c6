//! Our own `munmap`, on a hosted machine.

use hosted::Hosted;

use super::Unmap;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::ours::{self, Counted};

/// `Mm::munmap` of an address space that one CPU runs.
#[derive(Default)]
pub(super) struct Quire {
    machine: Option<Hosted>,
}

impl Arm<Unmap> for Quire {
    fn name(&self) -> &'static str {
        "quire"
    }

    fn about(&self) -> &'static str {
        "Mm::munmap on a hosted machine: mappings, whole tables detached by one exchange, one flush of the modelled CPU \
         that runs the address space, map counts, frames back to the store. No system call, no LRU, no cgroup, no \
         reverse map for anonymous folios yet."
    }

    fn setup(&mut self, case: &Unmap) -> Result<Box<dyn Prepared + '_>, Skip> {
        // What is cleared is not measured here, so populating goes without.
        let machine = ours::kept(&mut self.machine, case.bytes as u64, false)?;
        Ok(Box::new(Ready { case: *case, machine }))
    }
}

struct Ready<'a> {
    case: Unmap,
    machine: &'a Hosted,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let Unmap { bytes, folio } = self.case;
        ours::with_manager(self.machine, folio, |manager| {
            let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
            mm.switch_in();
            ours::map(&mm, bytes)?;
            let (_, pages) = ours::populate(&mm, bytes, folio)?;
            let counted = Counted::start(manager);
            let time = ours::unmap(&mm, bytes)?;
            let sample = counted.events().fold(Sample::new(time, pages), |s, (name, n)| s.count(name, n));
            let left = mm.rss();
            mm.switch_out();
            if left.anon == 0 { Ok(sample) } else { Err(Skip(format!("{} pages stayed mapped", left.anon))) }
        })
    }
}
